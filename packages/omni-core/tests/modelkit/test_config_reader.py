from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_core.modelkit.config_reader import ConfigReader


def test_fields_of_nested_objects_are_read() -> None:
    read = ConfigReader({"a": {"b": {"c": 5}}}, "config.json", "tiny")

    assert read.section("a").section("b").take("c", int) == 5
    assert read.optional("x", int, 7) == 7


@pytest.mark.parametrize(
    ("value", "message"),
    [({}, r"a\.c is missing"), ({"c": "5"}, r"a\.c must be of type int, not '5'"), ({"c": True}, r"a\.c must be of type int")],
    ids=["missing", "text", "boolean"],
)
def test_a_wrong_field_is_named_with_its_place(value: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ConfigReader({"a": value}, "folder/config.json", "tiny").section("a").take("c", int)

    assert caught.value.where == "folder/config.json"


def test_names_with_ids_are_read_and_what_has_none_is_named() -> None:
    read = ConfigReader({"voices": {"ada": 1}, "broken": {"ada": 1, "bob": "2"}}, "config.json", "tiny", "talker.")

    assert read.ids("voices") == {"ada": 1}
    assert read.ids("others", {}) == {}
    with pytest.raises(ConfigError, match=r"talker\.others is missing"):
        read.ids("others")
    with pytest.raises(ConfigError, match=r"talker\.broken\.bob must be of type int, not '2'"):
        read.ids("broken")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config\.json") as caught:
        ConfigReader.of_folder(tmp_path, "tiny")

    assert caught.value.where == str(tmp_path / "config.json")
    assert caught.value.hint == "give a tiny checkpoint"


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")

    with pytest.raises(ConfigError, match=r"config\.json is not a JSON object"):
        ConfigReader.of_folder(tmp_path, "tiny")


def test_sizes_are_positive_and_numbers_may_be_whole() -> None:
    read = ConfigReader({"heads": 4, "theta": 500, "eps": 1e-6, "null": None}, "config.json", "tiny")

    assert (read.count("heads"), read.count("null", 7), read.count("none", 8)) == (4, 7, 8)
    assert (read.positive("theta"), read.positive("eps"), read.positive("null", 2)) == (500.0, 1e-6, 2.0)


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, [4]])
def test_what_is_no_size_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match=r"a\.heads must be a positive whole number, not ") as caught:
        ConfigReader({"heads": value}, "config.json", "tiny", "a.").count("heads")

    assert (caught.value.where, caught.value.hint) == ("config.json", "give an unchanged tiny checkpoint")


@pytest.mark.parametrize("value", [0, -0.5, float("nan"), float("inf"), "4", True])
def test_what_is_no_positive_number_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match=r"a\.eps must be a positive number, not "):
        ConfigReader({"eps": value}, "config.json", "tiny", "a.").positive("eps")


def test_a_number_without_a_default_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"a\.eps is missing"):
        ConfigReader({"eps": None}, "config.json", "tiny", "a.").positive("eps")
