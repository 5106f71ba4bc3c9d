"""Whatever a deploy file or a checkpoint holds, resolving returns or raises ConfigError, soon and without much memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_core.deploy.resolve import resolve_deployment
from omni_core.deploy.schema import DeployConfig, StageDeployConfig
from omni_core.errors import ConfigError
from omni_core.testing.plugins import make_manager, make_plugin

WITH_DESK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
MIB = 1 << 20
GOOD = b"""# a deploy file with everything that files can have
async_chunk: true
session_mode: turn
connectors: {shm: &shm {name: SharedMemoryConnector, extra: {chunk_frames: 25}}, more: {<<: *shm}}
edges: [{from: 0, to: 1}]
duplex_session: {max_sessions: 2, replica_groups: [{0: 0, 1: 0}]}
stages:
  - stage_id: 0
    devices: "0,1"
    tensor_parallel_size: 2
    env: {A: "${oc.env:HOME,none}", B: !unset }
    output_connectors: {to_stage_1: shm}
    default_sampling_params: {temperature: 0.9, stop_token_ids: !append [1, 2]}
    compilation_config: !replace {cudagraph_capture_sizes: [1, 2]}
  - {stage_id: 1, gpu_memory_utilization: 1e-1, max_num_seqs: 0x10, enforce_eager: False}
platforms:
  cuda: {model_runner: v2, cuda_mps: true, stages: [{stage_id: 1, devices: "0", numa_bind: true}]}
  npu: {dtype: float16}
"""
PIECES = [
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\t",
    b"\n",
    b"\r",
    b" ",
    b"&a ",
    b"*a",
    b"<<: *shm",
    b"!x ",
    b"? ",
    b"- ",
    b": ",
    b"[",
    b"}",
]
PIECES += [
    b"|",
    b">",
    b"%YAML 1.1\n---\n",
    b"...\n",
    b"yes",
    b"off",
    b"~",
    b".nan",
    b"0o9",
    b"${",
    b"}",
    b"'",
    b'"',
    b"\xe2\x80\xa8",
    b"\x1b",
]


def refusal(desk: Any, content: bytes, model_type: str = "two", **given: Any) -> ConfigError | None:
    """Return how a deploy file was refused; any other exception goes through."""
    (desk.folder / "odd.yaml").write_bytes(content)
    try:
        desk.resolve(model_type, files=["odd.yaml"], **given)
    except ConfigError as error:
        return error
    return None


def is_complete(error: ConfigError | None) -> bool:
    """Return whether an error, where there is one, ends the program with 2, says something and has a way out."""
    return error is None or bool(error.exit_code == 2 and error.message and error.hint)


def test_file_that_is_mutated_below_is_good(desk: Any) -> None:
    stage = desk.resolve("two", GOOD.decode()).stages[0]

    assert stage.engine_args["compilation_config"] == {"cudagraph_capture_sizes": [1, 2]}


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return the good file with pieces put in, cut out and doubled."""
    content = GOOD
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 30)))
        kind = draw(st.sampled_from(["insert", "cut", "double", "replace"]))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
        middle = {"insert": piece + content[start:end], "cut": b"", "double": content[start:end] * 2, "replace": piece}[kind]
        content = content[:start] + middle + content[end:]
    return content


@WITH_DESK
@given(mutated())
def test_good_file_with_mistakes_is_read_or_refused(desk: Any, content: bytes) -> None:
    assert is_complete(refusal(desk, content))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["0,1", "v2", "duplex", "${HOME}"])
)
DATA = st.recursive(
    SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(-1, 3), inside, max_size=3),
    max_leaves=8,
)
STAGE = st.dictionaries(st.sampled_from(sorted(StageDeployConfig.model_fields)), DATA, max_size=4)


@WITH_DESK
@given(
    document=st.dictionaries(st.sampled_from(sorted(set(DeployConfig.model_fields) - {"base_config"})), DATA, max_size=4),
    stage=STAGE,
    number=st.integers(0, 2),
    model_type=st.sampled_from(["two", "three", "picture", "fused", "whole"]),
    platform=st.sampled_from(["cpu", "cuda", "npu"]),
    overrides=st.dictionaries(st.sampled_from(["0", "1"]), STAGE, max_size=1),
)
def test_fields_with_any_values_resolve_or_are_refused(
    desk: Any, document: dict[str, Any], stage: dict[str, Any], number: int, model_type: str, platform: str, overrides: Any
) -> None:
    content = {**document, "stages": [{**stage, "stage_id": number}]}

    text = yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "surrogatepass")

    assert is_complete(refusal(desk, text, model_type, platform=platform, overrides=overrides))


@WITH_DESK
@given(st.dictionaries(st.sampled_from(["model_type", "architectures", "architecture", "x"]), DATA, max_size=4))
def test_checkpoint_with_any_configuration_resolves_or_is_refused(desk: Any, config: dict[str, Any]) -> None:
    folder = desk.model("two")
    (folder / "config.json").write_text(json.dumps(config))
    manager = make_manager({"acme": make_plugin(**desk.hooks)})

    try:
        resolve_deployment(folder, manager=manager, platform="cpu")
    except ConfigError as error:
        found: ConfigError | None = error
    else:
        found = None

    assert is_complete(found)


def bomb(levels: int, width: int) -> bytes:
    lines = ["a0: &a0 [x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels))]
    return "\n".join(lines).encode()


HOSTILE: dict[str, bytes] = {
    "10 MB of keys": b"".join(b"key%d: {a: [1, 2]}\n" % number for number in range(10 * MIB // 20)),
    "10 MB in one line": b"stages: [" + b"1," * (5 * MIB) + b"]",
    "10 MB of blanks": b" " * (10 * MIB),
    "just below the limit": b"x: [" + b"1," * (MIB // 2 - 8) + b"1]",
    "deep lists": b"[" * 200_000,
    "deep mappings": b"{a: " * 100_000,
    "deep blocks": b"\n".join(b" " * depth + b"a:" for depth in range(900)),
    "aliases to the power of nine": bomb(12, 9),
    "aliases to the power of two": bomb(40, 2),
    "alias of itself": b"&a [*a]",
    "alias of itself in a mapping": b"stages: &a [{stage_id: 0, env: *a}]",
    "merge key of itself": b"&a {<<: *a}",
    "anchor that is not there": b"stages: *nothing",
    "NUL": b"stages: []\nx: a\x00b",
    "UTF-16": "stages: []".encode("utf-16"),
    "BOM in the middle": b"stages: []\n\xef\xbb\xbfx: 1",
    "half a character": b"x: \xe2\x82",
    "tabs": b"stages:\n\t- stage_id: 0",
    "YAML 1.1 booleans": b"async_chunk: yes\ncuda_mps: off\ntrust_remote_code: n",
    "YAML 1.1 boolean as a key": b"on: 1",
    "sexagesimal": b"active_stream_window: 1:30",
    "a date": b"active_stream_window: 2020-01-01",
    "binary": b"dtype: !!binary aGVsbG8=",
    "an object": b"!!python/object/apply:os.system ['true']",
    "a set": b"stages: !!set {a, b}",
    "two documents": b"--- {}\n--- {}",
    "a list": b"- stages",
    "a number": b"42",
    "a null key": b"~: 1",
    "a list as a key": b"? [a]\n: 1",
    "a number of 5000 digits": b"active_stream_window: " + b"9" * 5000,
    "not a number": b"stages: [{stage_id: 0, gpu_memory_utilization: .nan}]",
    "half of a surrogate pair": b'dtype: "\\ud800"',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_refused_with_a_way_out(desk: Any, content: bytes) -> None:
    (desk.folder / "odd.yaml").write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        desk.resolve("two", files=["odd.yaml"])
    assert caught.value.where.startswith("odd.yaml")
    assert caught.value.hint
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["10 MB of keys", "10 MB in one line", "aliases to the power of nine", "deep mappings"])
def test_hostile_file_takes_little_memory(desk: Any, name: str) -> None:
    (desk.folder / "odd.yaml").write_bytes(HOSTILE[name])

    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            desk.resolve("two", files=["odd.yaml"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 200 * MIB


@pytest.mark.parametrize("kind", ["folder", "pipe", "missing", "link to itself", "name with NUL"])
def test_what_is_no_file_is_refused_without_waiting(desk: Any, kind: str) -> None:
    """A pipe would block its reader for ever."""
    path = desk.folder / "odd.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to itself":
        path.symlink_to(path)

    with pytest.raises(ConfigError, match="odd"):
        desk.resolve("two", files=["odd\0.yaml" if kind == "name with NUL" else "odd.yaml"])
    with pytest.raises(ConfigError, match="odd"):
        desk.resolve("two", f"base_config: {json.dumps('odd' + chr(0) + '.yaml' if kind == 'name with NUL' else 'odd.yaml')}")
