from omni_core.suggest import did_you_mean, way_out


def test_close_name_is_suggested_in_its_own_spelling() -> None:
    assert did_you_mean("sharedmemoryconector", ["SharedMemoryConnector", "Other"]) == "did you mean 'SharedMemoryConnector'?"


def test_far_name_gets_the_list() -> None:
    assert way_out("zzz", ["b", "a"], "names") == "the names are a, b"
    assert way_out("zzz", [], "names") == "there are no names"
