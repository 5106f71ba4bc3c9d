"""Nothing that a user writes makes resolving raise anything but ConfigError, or take long."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omni_core.deploy.engine_names import ENGINE_ARG_NAMES
from omni_core.deploy.keys import PIPELINE_WIDE
from omni_core.deploy.reader import MAX_BYTES, read_deploy_file
from omni_core.deploy.schema import ConnectorSpec, DeployConfig, DuplexSession, StageDeployConfig
from omni_core.deploy.tree import MAX_DEPTH
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

ARGUMENTS = sorted(ENGINE_ARG_NAMES - {"model", "revision"})
"""Without those that would look for a checkpoint."""
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0", "0,1", "v1", "v2", "duplex", "turn", "shm", "uni", "ray", "-", "${HOME}", "${}", "yes"])
)
NAMES = st.text(max_size=6) | st.integers(-1, 3)
VALUES = st.recursive(
    SCALARS, lambda inside: st.lists(inside, max_size=3) | st.dictionaries(NAMES, inside, max_size=3), max_leaves=6
)


def mapping(fields: Any, values: Any = VALUES) -> Any:
    names = st.sampled_from(sorted(fields)) | st.text(max_size=4) | st.sampled_from(ARGUMENTS)
    return st.dictionaries(names, values, max_size=5)


STAGE = st.tuples(mapping(StageDeployConfig.model_fields), st.integers(0, 2) | VALUES).map(
    lambda pair: {**pair[0], "stage_id": pair[1]}
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "stages": st.lists(STAGE, max_size=3) | VALUES,
        "connectors": st.dictionaries(NAMES, mapping(ConnectorSpec.model_fields) | VALUES, max_size=2),
        "duplex_session": mapping(DuplexSession.model_fields) | VALUES,
        "platforms": st.dictionaries(st.sampled_from(["cpu", "x"]), mapping({*PIPELINE_WIDE, "stages"}) | VALUES, max_size=2),
        "edges": st.lists(st.dictionaries(st.sampled_from(["from", "to", "x"]), SCALARS, max_size=3), max_size=2) | VALUES,
    },
).flatmap(lambda known: mapping(set(DeployConfig.model_fields) - {"base_config"}).map(lambda more: {**more, **known}))


def resolves_or_refuses(deployments: Any, content: str | bytes, **given: Any) -> None:
    path = deployments.folder / "my.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with suppress(ConfigError):
        assert deployments.resolve("two", files=[str(path)], **given).config_hash


@FUZZ
@given(st.binary(max_size=200))
@example(b"\xff\xfe")
@example(b"a\x00: 1")
@example(b"\xef\xbb\xbfstages: []")
@example(b"a:\n\t- b")
@example(b"&a [*a]")
@example(b"stages: *x")
@example(b"%TAG ! tag:x,2000:\n--- !y {a: 1}")
@example(b"{}: 1")
@example(b"!!python/object:os.system {}")
@example(b"--- 1\n--- 2")
@example(b"dtype: !!binary x")
@example(b"a: !<tag:yaml.org,2002:int> x")
@example(b"0x: 1")
@example(b"max_num_seqs: 0x")
def test_bytes_are_read_or_refused(deployments: Any, content: bytes) -> None:
    resolves_or_refuses(deployments, content)


@FUZZ
@given(st.text(alphabet="{}[]:,-!&*#|>'\"%@`?<~ \n\tabs01.$", max_size=60))
def test_any_text_is_read_or_refused(deployments: Any, text: str) -> None:
    resolves_or_refuses(deployments, text)
    resolves_or_refuses(deployments, f"stages: [{{stage_id: 0, {text}}}]")


@FUZZ
@given(DOCUMENTS)
def test_any_document_resolves_or_is_refused(deployments: Any, document: dict[str, Any]) -> None:
    resolves_or_refuses(deployments, yaml.safe_dump(document, allow_unicode=True))


@FUZZ
@given(
    flags=st.dictionaries(
        st.sampled_from([*StageDeployConfig.model_fields, *DeployConfig.model_fields, *ARGUMENTS, "set", "x"])
        | st.integers(0, 2).map(lambda stage: f"stage_{stage}_max_num_seqs"),
        VALUES,
        max_size=3,
    ),
    overrides=VALUES
    | st.dictionaries(st.sampled_from(["0", "1", 1, "9"]), mapping(StageDeployConfig.model_fields), max_size=2),
)
def test_any_flags_and_overrides_resolve_or_are_refused(deployments: Any, flags: dict[str, Any], overrides: Any) -> None:
    flags.pop("revision", None)
    resolves_or_refuses(deployments, "{}", overrides=overrides, **flags)


@FUZZ
@given(st.lists(st.text(alphabet="stage.01=dtypconex_[]{}: !", max_size=30) | st.text(max_size=10), max_size=3))
def test_any_assignment_resolves_or_is_refused(deployments: Any, given_texts: list[str]) -> None:
    resolves_or_refuses(deployments, "{}", set=given_texts)


def test_large_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"# " + b"x" * (10 << 20))

    with pytest.raises(ConfigError, match=f"larger than {MAX_BYTES >> 20} MiB"):
        read_deploy_file(tmp_path / "big.yaml", "big.yaml")


def test_bomb_of_aliases_is_refused(deployments: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]

    with pytest.raises(ConfigError, match="more than 100000 values") as caught:
        deployments.resolve("two", "\n".join(lines))
    assert "aliases" in caught.value.hint


def test_bomb_of_merge_keys_is_refused(deployments: Any) -> None:
    lines = ["m0: &m0 {x: 1}"]
    lines += [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12)]

    with pytest.raises(ConfigError, match="more than 100000 values"):
        deployments.resolve("two", "\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 100_000,
        "\n".join(" " * i + "a:" for i in range(500)),
        "a: " + "[" * 60 + "]" * 60,
    ],
    ids=["lists", "mappings", "dashes", "blocks", "closed"],
)
def test_deep_nesting_is_refused(resolve: Resolve, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("two", text)
    assert "nest" in caught.value.message or "nesting" in caught.value.message


def test_data_that_contains_itself_is_refused(resolve: Resolve) -> None:
    circle: dict[str, Any] = {}
    circle["a"] = circle

    with pytest.raises(ConfigError, match=f"nested more than {MAX_DEPTH} deep"):
        resolve("two", overrides={"0": {"additional_config": circle}})
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve("two", overrides=json.dumps([]) and "[" * 200_000)


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "Yes", "ON"])
def test_boolean_of_yaml_1_1_is_refused_with_a_hint(resolve: Resolve, word: str) -> None:
    """DY-10."""
    with pytest.raises(ConfigError, match="valid boolean") as caught:
        resolve("two", f"async_chunk: {word}")
    assert (caught.value.where, caught.value.hint.partition(";")[0]) == ("my.yaml:1:14", "write true or false")


@pytest.mark.parametrize(
    ("content", "where", "message", "hint"),
    [
        (b"a\x00: 1", "my.yaml:1:2", r"character '\\x00' cannot be", "remove it"),
        (b"stages: []\nb: \x1b[0m", "my.yaml:2:4", r"character '\\x1b' cannot be", "remove it"),
        (b"stages:\n\t- stage_id: 0", "my.yaml:2:1", "not valid YAML", "indent with spaces"),
        (b"stages: []\nx: \xe9", "my.yaml:2", "not text in UTF-8", "save the file as UTF-8"),
        (b"stages: []\nstages: []", "my.yaml:2:1", "is here twice, first at my.yaml:1:1", "keep one"),
        (b"dtype: a: b", "my.yaml:1:9", "not valid YAML", "quote the text"),
    ],
    ids=["nul", "escape", "tab", "latin 1", "twice", "colon"],
)
def test_fault_of_the_text_is_reported_at_its_place(
    deployments: Any, content: bytes, where: str, message: str, hint: str
) -> None:
    (deployments.folder / "my.yaml").write_bytes(content)

    with pytest.raises(ConfigError, match=message) as caught:
        deployments.resolve("two", files=["my.yaml"])
    assert caught.value.where == where
    assert hint in caught.value.hint


def test_byte_order_mark_is_no_part_of_the_first_key(deployments: Any) -> None:
    (deployments.folder / "my.yaml").write_bytes(b"\xef\xbb\xbfdtype: float32")

    assert deployments.resolve("two", files=["my.yaml"]).stages[0].engine_args == {"dtype": "float32"}


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "1e999"])
def test_number_that_is_not_finite_is_refused(resolve: Resolve, number: str) -> None:
    with pytest.raises(ConfigError, match="finite number"):
        resolve("two", f"stages: [{{stage_id: 0, mm_processor_cache_gb: {number}}}]")


def test_number_of_thousands_of_digits_is_refused(resolve: Resolve) -> None:
    with pytest.raises(ConfigError, match="is no int"):
        resolve("two", f"active_stream_window: {'9' * 5000}")


def test_work_grows_with_the_number_of_stages_alone(deployments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in nodes that are made, which no machine changes."""
    from omni_core.deploy import tree

    made = 0
    create = tree.Node.__init__

    def count(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal made
        made += 1
        create(self, *args, **kwargs)

    monkeypatch.setattr(tree.Node, "__init__", count)
    counts = []
    for stages in (1, 10, 100):
        deployments.hooks["omni_pipelines"] = [chain(stages)]
        entries = [{"stage_id": i, "max_num_seqs": 4, "env": {"A": "1"}} for i in range(stages)]
        made = 0
        deployments.resolve("chain", yaml.safe_dump({"stages": entries}), overrides={"0": {"max_num_seqs": 2}}, dtype="float32")
        counts.append(made)

    slope = (counts[1] - counts[0]) / 9
    assert counts[2] <= counts[1] + slope * 90 * 1.05


def chain(length: int) -> Any:
    from omni_core.pipeline import PipelineConfig, StagePipelineConfig

    stages = tuple(
        StagePipelineConfig(stage_id=i, model_stage=f"s{i}", input_sources=(i - 1,) if i else (), final_output=i == length - 1)
        for i in range(length)
    )
    return PipelineConfig(model_type="chain", model_arch="FakeModel", stages=stages)
