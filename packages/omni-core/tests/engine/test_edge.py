from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.engine.edge import HandOver, Inlet, Outlet, Place, Window, join_outputs, plain_payload
from omni_core.errors import DeadlineError, ServiceError
from omni_core.runner import Handoff, StageOutput
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def output(code: int, *, finished: bool = False) -> StageOutput:
    return StageOutput(
        {"codes": np.array([[code]])}, finished=finished, finish_reason="stop" if finished else None, handoff={"seed": 5}
    )


def ends(tmp_path: Path, **options: Any) -> tuple[Outlet, Inlet]:
    pipeline = fake_pipeline(**options)
    place = Place(0, str(tmp_path), "run")
    return Outlet(pipeline.stages[0], pipeline.stages[0].outputs[0], place), Inlet(pipeline.stages[1].inputs[0], place)


async def test_window_lets_so_many_in_and_waits_for_an_acknowledgement() -> None:
    window = Window(2)
    assert [await window.enter(soon(), "a chunk") for _ in range(2)] == [0, 1]
    third = asyncio.create_task(window.enter(soon(), "a chunk"))
    await asyncio.sleep(0)
    assert not third.done()

    window.acknowledge()

    assert await third == 2


async def test_window_without_room_ends_at_the_deadline() -> None:
    window = Window(1)
    await window.enter(soon(), "a chunk")

    with pytest.raises(DeadlineError, match="a chunk was not taken"):
        await window.enter(soon(0.01), "a chunk")


async def test_acknowledging_more_than_was_sent_makes_no_room() -> None:
    window = Window(1)
    window.acknowledge()

    await window.enter(soon(), "a chunk")
    with pytest.raises(DeadlineError):
        await window.enter(soon(0.01), "a chunk")


async def test_chunks_go_out_while_the_producer_works_and_the_last_one_is_final(tmp_path: Path) -> None:
    outlet, inlet = ends(tmp_path, stream={"chunk_frames": 2})
    hand_over = HandOver.begin(outlet, "r", soon())

    chunks = [await hand_over.give(output(code, finished=code == 2)) for code in range(3)]

    assert chunks[0] is None
    assert [(c.sequence, c.final, c.finish_reason) for c in chunks[1:] if c] == [(0, False, None), (1, True, "stop")]
    first, last = [await inlet.fetch(chunk.handle, soon()) for chunk in chunks[1:] if chunk]
    assert (first["codes"].reshape(-1).tolist(), first["seed"]) == ([0, 1], 5)
    assert last["codes"].reshape(-1).tolist() == [2]
    await outlet.close()
    await inlet.close()


async def test_whole_payload_goes_out_once_at_the_end(tmp_path: Path) -> None:
    outlet, inlet = ends(tmp_path, async_chunk=False)
    hand_over = HandOver.begin(outlet, "r", soon())

    chunks = [await hand_over.give(output(code, finished=code == 2)) for code in range(3)]

    assert chunks[:2] == [None, None]
    assert chunks[2] is not None
    payload = await inlet.fetch(chunks[2].handle, soon())
    assert (payload["codes"].reshape(-1).tolist(), payload["seed"]) == ([0, 1, 2], 5)
    await outlet.close()
    await inlet.close()


async def test_final_flag_goes_out_even_without_a_payload(tmp_path: Path) -> None:
    outlet, inlet = ends(tmp_path, hand_over="omni_core.engine.edge:plain_payload")
    outlet.function = lambda handoff, made: None
    hand_over = HandOver.begin(outlet, "r", soon())

    assert await hand_over.give(output(1)) is None
    chunk = await hand_over.give(output(2, finished=True))

    assert chunk is not None
    assert chunk.final
    assert await inlet.fetch(chunk.handle, soon()) == {}
    await outlet.close()
    await inlet.close()


@pytest.mark.parametrize("async_chunk", [True, False])
async def test_mistake_in_a_hand_over_function_names_stage_and_edge(async_chunk: bool, tmp_path: Path) -> None:
    outlet, _ = ends(tmp_path, async_chunk=async_chunk, hand_over="omni_core.testing.fakes:broken_hand_over")

    with pytest.raises(ServiceError, match=r"stage 0 \(talker\), hand-over to stage 1: IndexError: frame 3"):
        await HandOver.begin(outlet, "r", soon()).give(output(1, finished=True))
    await outlet.close()


async def test_forgetting_a_request_frees_what_was_not_fetched(tmp_path: Path) -> None:
    outlet, _ = ends(tmp_path)
    hand_over = HandOver.begin(outlet, "r", soon())
    await hand_over.give(output(1, finished=True))
    assert list(tmp_path.glob("*.payload"))

    outlet.forget("r")

    await async_wait_until(lambda: not list(tmp_path.glob("*.payload")), "the payload to be gone")
    await outlet.close()


async def test_nobody_waits_for_a_connector_that_takes_its_time_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has other requests, and heartbeats without which its stage is taken for dead."""
    outlet, _ = ends(tmp_path)
    await outlet.connect()
    begun, done = threading.Event(), threading.Event()

    def cleanup(_: str) -> None:
        begun.set()
        assert done.wait(5), "the loop stood still"

    monkeypatch.setattr(outlet._connector, "cleanup", cleanup)

    outlet.forget("r")
    await async_wait_until(begun.is_set, "the call")

    done.set()
    await outlet.close()


@pytest.mark.parametrize(("stream", "size"), [({}, 8), ({"max_inflight": 2}, 2)], ids=["default", "max_inflight"])
async def test_window_size_comes_from_the_edge(stream: dict[str, Any], size: int, tmp_path: Path) -> None:
    outlet, _ = ends(tmp_path, stream=stream)

    assert outlet.window == size
    await outlet.close()


def test_joined_outputs_are_concatenated_along_dimension_0() -> None:
    """EO-12."""
    parts = [
        StageOutput({"codes": np.ones((2, 4)), "ref": np.zeros((1, 4))}, [1, 2], "a", handoff={"x": 1}),
        StageOutput({"codes": np.ones((1, 4))}, [3], "b", True, "length", {"frames": 3.0}),
    ]

    whole = join_outputs(parts)

    assert {name: value.shape for name, value in whole.tensors.items()} == {"codes": (3, 4), "ref": (1, 4)}
    assert (whole.token_ids, whole.text, whole.finished, whole.finish_reason) == ([1, 2, 3], "ab", True, "length")
    assert (whole.metrics, whole.handoff) == ({"frames": 3.0}, {"x": 1})


def test_plain_payload_keeps_the_names_of_the_producer() -> None:
    payload = plain_payload(Handoff("r", {}, {}), StageOutput({"hidden": np.ones((1, 2))}, [4], "hi"))

    assert sorted(payload) == ["hidden", "text", "token_ids"]
