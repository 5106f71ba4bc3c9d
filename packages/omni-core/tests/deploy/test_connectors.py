from collections.abc import Callable
from typing import Any

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]

SHM = "connectors: {shm: {name: SharedMemoryConnector}, other: {name: SharedMemoryConnector}, store: {name: StoreConnector}}\n"


def stages(first: str = "", second: str = "") -> str:
    return f"stages: [{{stage_id: 0, {first}}}, {{stage_id: 1, {second}}}]"


def test_edge_without_a_reference_gets_shared_memory(resolve: Resolve) -> None:
    """CN-08."""
    resolved = resolve("three")

    assert [(edge.from_stage, edge.to_stage, edge.connector) for stage in resolved.stages for edge in stage.outputs] == [
        (0, 1, "SharedMemoryConnector"),
        (1, 2, "SharedMemoryConnector"),
    ]
    assert resolved.stages[1].inputs == resolved.stages[0].outputs


@pytest.mark.parametrize(
    "text",
    [
        SHM + stages("output_connectors: {to_stage_1: store}"),
        SHM + stages("", "input_connectors: {from_stage_0: store}"),
        SHM + stages("output_connectors: {to_stage_1: store}", "input_connectors: {from_stage_0: store}"),
        stages("output_connectors: {to_stage_1: {name: StoreConnector}}"),
    ],
    ids=["sender", "receiver", "both", "inline"],
)
def test_either_end_names_the_connector(resolve: Resolve, text: str) -> None:
    """CN-05."""
    (edge,) = resolve("two", text).stages[0].outputs

    assert edge.connector in {"store", "StoreConnector"}
    assert edge.target == "omni_core.testing.fakes:FolderConnector"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (stages(), None),
        (stages("dtype: float16", "dtype: bfloat16"), "bfloat16"),
        ("dtype: float32\n" + stages("dtype: float16"), "float32"),
        ("dtype: float32\n" + stages("", "dtype: null"), None),
    ],
    ids=["unset", "of the stage", "pipeline-wide", "erased"],
)
def test_both_ends_of_an_edge_know_the_dtype_of_the_stage_that_takes(resolve: Resolve, text: str, expected: str | None) -> None:
    first, second = resolve("two", text).stages

    assert first.outputs == second.inputs
    assert first.outputs[0].dtype == expected


def test_extra_is_split_between_transport_and_stream(resolve: Resolve) -> None:
    """CN-04: the connector's options model says what is the transport's."""
    text = (
        "connectors: {store: {name: StoreConnector, extra: {max_sessions: 3, codec_chunk_frames: 25, idle_ttl_s: null}}}\n"
        + stages("output_connectors: {to_stage_1: store}")
    )

    (edge,) = resolve("two", text).stages[1].inputs

    assert edge.options == {"max_sessions": 3}
    assert edge.stream == {"codec_chunk_frames": 25}


def test_option_of_the_transport_is_checked_at_its_place(resolve: Resolve) -> None:
    text = "connectors: {store: {name: StoreConnector, extra: {max_sessions: many}}}\n"

    with pytest.raises(ConfigError, match=r"StoreConnector\.extra\.max_sessions") as caught:
        resolve("two", text + stages("output_connectors: {to_stage_1: store}"))
    assert caught.value.where == "my.yaml:1:66"


def test_connector_without_an_options_model_leaves_all_to_the_stream(resolve: Resolve) -> None:
    text = "connectors: {shm: {name: SharedMemoryConnector, extra: {codec_chunk_frames: 25}}}\n"

    (edge,) = resolve("two", text + stages("output_connectors: {to_stage_1: shm}")).stages[0].outputs

    assert (edge.options, edge.stream) == ({}, {"codec_chunk_frames": 25})


FAULTS: list[tuple[str, str, str]] = [
    ("connectors: {shm: {extra: {}}}", "connector 'shm' has no `name`", "SharedMemoryConnector"),
    ("connectors: {shm: {name: SharedMemoryConector}}", "no connector class", "did you mean 'SharedMemoryConnector'?"),
    (
        SHM + stages("output_connectors: {to_stage_1: shn}"),
        "names 'shn', and there is no connector of that name",
        "did you mean 'shm'?",
    ),
    (
        SHM + stages("output_connectors: {to_stage_1: 5}"),
        "names 5, and there is no connector of that name",
        "entries of `connectors:`",
    ),
    (SHM + stages("output_connectors: {to_stage_7: shm}"), "no edge from stage 0 to stage 7", "0 to 1"),
    (SHM + stages("", "output_connectors: {to_stage_0: shm}"), "no edge from stage 1 to stage 0", "0 to 1"),
    (SHM + stages("output_connectors: {stage_1: shm}"), "'stage_1' is no key of output_connectors", "to_stage_1"),
    (SHM + stages("", "input_connectors: {to_stage_0: shm}"), "is no key of input_connectors", "from_stage_0"),
    (
        SHM + stages("output_connectors: {to_stage_1: shm}", "input_connectors: {from_stage_0: store}"),
        "from stage 0 to stage 1 has two connectors, 'shm'",
        "the same one",
    ),
    (
        SHM + stages("output_connectors: {to_stage_1: shm}", "input_connectors: {from_stage_0: other}"),
        "has two connectors",
        "the same one",
    ),
    (stages("output_connectors: {to_stage_1: {extra: {}}}"), "from stage 0 to stage 1 has no `name`", ""),
    ("edges: [{from: 0, to: 0}]", "the edge from 0 to 0 is not an edge", "{from: 0, to: 1}"),
    ("edges: [{from: 0, to: 1}, {from: 0, to: 1}]", "is there twice", ""),
    ("edges: [{to: 1}]", "the edge from None to 1", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), FAULTS)
def test_wrong_reference_is_refused_at_its_place(resolve: Resolve, text: str, message: str, hint: str) -> None:
    """CN-01, CN-05, CN-06, CN-08, E22: no silent fall-back."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("two", text)
    assert hint in caught.value.hint
    assert caught.value.where.startswith("my.yaml:")


def test_missing_default_connector_says_what_to_install(deployments: Any) -> None:
    deployments.hooks["omni_connectors"] = []

    with pytest.raises(DependencyError) as caught:
        deployments.resolve("two")
    assert caught.value.hint == "pip install omni-connectors"
    assert deployments.resolve("one").stages[0].outputs == ()


def test_null_reference_means_the_default(resolve: Resolve) -> None:
    (edge,) = resolve("two", stages("output_connectors: {to_stage_1: null}")).stages[0].outputs

    assert edge.connector == "SharedMemoryConnector"
