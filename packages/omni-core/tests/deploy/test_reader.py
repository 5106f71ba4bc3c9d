from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.reader import parse_deploy_text, read_deploy_file
from omni_core.errors import ConfigError


def read(text: str) -> Any:
    return parse_deploy_text(text, "my.yaml").plain()


def test_every_value_knows_its_line_and_column() -> None:
    tree = parse_deploy_text("stages:\n  - stage_id: 0\n    gpu_memory_utilization: 0.5\n", "my.yaml")

    assert tree.find(["stages", 0, "gpu_memory_utilization"]).place == "my.yaml:3:29"
    assert tree.find(["stages", 0, "gpu_memory_utilization"]).key_place == "my.yaml:3:5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.5E+2", 150.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("-7", -7),
        ("true", True),
        ("yes", "yes"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("~", None),
        ("", None),
        ('"5"', "5"),
        ("'null'", "null"),
        ("!!str 5", "5"),
        ("0,1", "0,1"),
        ("v1", "v1"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = read(f"key: {text}")["key"]

    assert found == value
    assert type(found) is type(value)


def test_key_named_on_stays_a_name() -> None:
    assert read("on: 1\n0: 2") == {"on": 1, 0: 2}


def test_anchors_and_merge_keys_work_and_own_keys_win() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n"

    assert read(text)["c"] == {"x": 3, "y": 1}


def test_empty_file_is_an_empty_mapping() -> None:
    assert read("") == {}
    assert read("# nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "my.yaml:3:1", "'a' is here twice, first at my.yaml:1:1"),
        ("a: [1\n", "my.yaml:2:1", "not valid YAML"),
        ("a: 1\n b: 2\n", "my.yaml:2:3", "not valid YAML"),
        ("- 1\n", "my.yaml:1:1", "is a mapping"),
        ("a: !!python/object:os.system x\n", "my.yaml:1:4", "tag"),
        ("a: !!set {x}\n", "my.yaml:1:4", "tag"),
        ("a: !!int x\n", "my.yaml:1:4", "is no int"),
        ("a: !!bool x\n", "my.yaml:1:4", "is no bool"),
        ("a: &a [*a]\n", "my.yaml:1:4", "contains itself"),
        ("? [1]\n: 2\n", "my.yaml:1:3", "a key must be"),
        ("true: 1\n", "my.yaml:1:1", "a key must be"),
        ("a: {<<: 1}\n", "my.yaml:1:9", "takes a mapping"),
        ("a: 1\n---\nb: 2\n", "my.yaml:2:1", "not valid YAML"),
        ("a: \x07\n", "my.yaml:1:4", "the character .* cannot be"),
    ],
)
def test_fault_is_reported_at_its_place(text: str, place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert caught.value.where == place


def test_aliases_that_grow_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    with pytest.raises(ConfigError, match="more than"):
        read("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${OMNI_X}", 8),
        ("${oc.env:OMNI_X}", 8),
        ('"${OMNI_X}"', "8"),
        ("a/${OMNI_X}/b", "a/8/b"),
        ('"${oc.env:OMNI_UNSET,7}"', "7"),
        ("$${OMNI_X}", "${OMNI_X}"),
    ],
)
def test_environment_is_interpolated(monkeypatch: pytest.MonkeyPatch, text: str, value: Any) -> None:
    """DY-09: an unquoted value is read like any other scalar afterwards."""
    monkeypatch.setenv("OMNI_X", "8")
    monkeypatch.delenv("OMNI_UNSET", raising=False)

    assert read(f"key: {text}")["key"] == value


def test_unset_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-09."""
    monkeypatch.delenv("OMNI_UNSET", raising=False)

    with pytest.raises(ConfigError, match="OMNI_UNSET is not set") as caught:
        read("a:\n  key: ${OMNI_UNSET}")
    assert caught.value.where == "my.yaml:2:8"


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match=r"there is no deploy file no\.yaml"):
        read_deploy_file(tmp_path / "no.yaml", "no.yaml")
    with pytest.raises(ConfigError, match=r"bad\.yaml:1: this is not text in UTF-8"):
        read_deploy_file(tmp_path / "bad.yaml", "bad.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_deploy_file(tmp_path, "folder")


def test_long_texts_are_cut_in_messages() -> None:
    with pytest.raises(ConfigError, match=r"is no int") as number:
        parse_deploy_text(f"a: {'9' * 5000}", "my.yaml")
    with pytest.raises(ConfigError, match=r"a key of 300 characters") as key:
        parse_deploy_text(f"{'k' * 300}: 1", "my.yaml")
    assert max(len(str(caught.value)) for caught in (number, key)) < 200
