import pytest

from omni_core import envs


def test_unset_variable_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNI_LOG_LEVEL", raising=False)

    assert envs.read("OMNI_LOG_LEVEL") == "INFO"


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_switch_is_on_for_one_true_and_yes(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("OMNI_TRACE_HOOKS", value)

    assert envs.is_on("OMNI_TRACE_HOOKS") is expected


def test_misspelt_variable_gets_a_suggestion() -> None:
    found = envs.unknown_variables({"OMNI_PLATFROM": "cpu", "OMNI_PLATFORM": "cpu", "HOME": "/"})

    assert found == [("OMNI_PLATFROM", "did you mean 'OMNI_PLATFORM'?")]


def test_secret_is_not_shown() -> None:
    assert envs.shown("HF_TOKEN", {"HF_TOKEN": "hf_123"}) == "(set, hidden)"
    assert envs.shown("HF_HOME", {"HF_HOME": "/cache"}) == "/cache"
    assert envs.shown("HF_HOME", {}) is None
