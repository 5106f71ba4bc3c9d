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
    with pytest.raises(ConfigError, match="cannot read it") as caught:
        ConfigReader.of_folder(tmp_path, "tiny")

    assert caught.value.where == str(tmp_path / "config.json")
