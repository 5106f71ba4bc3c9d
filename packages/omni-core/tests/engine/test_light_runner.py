from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from omni_core.engine import light_runner
from omni_core.engine.light_runner import LightRunner
from omni_core.errors import ConfigError, RequestError, ServiceError, StageDeadError
from omni_core.runner import LightChunk, StageInput, StageOutput
from omni_core.testing.fakes import SAMPLE_RATE, SAMPLES_PER_CODE, SumVocoder
from omni_core.testing.pipelines import fake_pipeline

pytestmark = pytest.mark.anyio


async def start(**engine_args: Any) -> tuple[LightRunner, SumVocoder]:
    runner = LightRunner(fake_pipeline(engine_args={1: engine_args}).stages[1])
    await runner.start()
    model = runner._model
    assert isinstance(model, SumVocoder)
    return runner, model


def opened(runner: LightRunner, request_id: str) -> asyncio.Task[list[StageOutput]]:
    """Collect a fed request's outputs in a task; it is known to the runner when the task has begun."""

    async def collect() -> list[StageOutput]:
        return [output async for output in runner.run(StageInput(request_id, {}, {}, streaming=True))]

    return asyncio.create_task(collect())


def codes(*values: int) -> dict[str, Any]:
    return {"codes": np.array(values), "seed": 0}


def steps(model: SumVocoder) -> list[list[str]]:
    return [ids for what, ids in model.log if what == "step"]


async def test_chunks_of_a_request_are_computed_in_order_and_push_returns_when_they_are() -> None:
    runner, model = await start()
    outputs = opened(runner, "a")
    await asyncio.sleep(0)

    await runner.push("a", codes(1), False)
    assert steps(model) == [["a"]]
    await runner.push("a", codes(2), False)
    await runner.push("a", codes(3), True)

    audio = [output.tensors["audio"][0, 0] for output in await outputs]
    assert audio == [1, 3, 6]
    await runner.stop()
    assert model.log[-1] == ("end", "a")


async def test_facts_name_the_sample_rate() -> None:
    runner = LightRunner(fake_pipeline().stages[1])

    assert await runner.start() == {"sample_rate": SAMPLE_RATE, "channels": 1}
    await runner.stop()


async def test_waiting_chunks_of_many_requests_share_a_step() -> None:
    runner, model = await start()
    tasks = [opened(runner, name) for name in "abcd"]
    await asyncio.sleep(0)

    await asyncio.gather(*(runner.push(name, codes(1), True) for name in "abcd"))
    await asyncio.gather(*tasks)

    assert steps(model) == [["a", "b", "c", "d"]]
    await runner.stop()


async def test_batch_is_bounded_and_takes_one_chunk_of_a_request_at_a_time() -> None:
    runner, model = await start(max_num_seqs=2)
    tasks = [opened(runner, name) for name in "abc"]
    await asyncio.sleep(0)

    pushes = [runner.push(name, codes(number), number == 2) for number in (1, 2) for name in "abc"]
    await asyncio.gather(*pushes)
    await asyncio.gather(*tasks)

    assert steps(model) == [["a", "b"], ["c"], ["a", "b"], ["c"]]
    await runner.stop()


async def test_decode_batch_max_size_beats_max_num_seqs() -> None:
    runner, model = await start(max_num_seqs=8, decode_batch_max_size=1)
    tasks = [opened(runner, name) for name in "ab"]
    await asyncio.sleep(0)

    await asyncio.gather(*(runner.push(name, codes(1), True) for name in "ab"))
    await asyncio.gather(*tasks)

    assert steps(model) == [["a"], ["b"]]
    await runner.stop()


async def test_groups_do_not_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, model = await start()

    def by_length(chunk: LightChunk) -> int:
        return len(chunk.payload["codes"])

    monkeypatch.setattr(model, "group", by_length, raising=False)
    tasks = [opened(runner, name) for name in "abc"]
    await asyncio.sleep(0)

    payloads = {"a": codes(1), "b": codes(1, 2), "c": codes(3)}
    await asyncio.gather(*(runner.push(name, payload, True) for name, payload in payloads.items()))
    await asyncio.gather(*tasks)

    assert steps(model) == [["a", "c"], ["b"]]
    await runner.stop()


async def test_only_the_culprit_of_a_failed_batch_fails() -> None:
    runner, model = await start(poison=13)
    tasks = {name: opened(runner, name) for name in "abc"}
    await asyncio.sleep(0)

    payloads = {"a": codes(1), "b": codes(13), "c": codes(2)}
    await asyncio.gather(*(runner.push(name, payload, True) for name, payload in payloads.items()))

    assert (await tasks["a"])[0].tensors["audio"][0, 0] == 1
    assert (await tasks["c"])[0].tensors["audio"][0, 0] == 2
    with pytest.raises(ServiceError, match=r"stage 1 \(vocoder\): ArithmeticError: a poisoned code"):
        await tasks["b"]
    await runner.stop()
    assert sorted(name for what, name in model.log if what == "end") == ["a", "b", "c"]


@pytest.mark.parametrize("raised", [RequestError("too long", param="codes"), ConfigError("bad")], ids=["request", "other"])
async def test_request_error_keeps_its_class_and_others_become_service_errors(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, model = await start()

    def refuse(chunks: object) -> object:
        raise raised

    monkeypatch.setattr(model, "step", refuse)
    task = opened(runner, "a")
    await asyncio.sleep(0)

    await runner.push("a", codes(1), True)

    expected = RequestError if isinstance(raised, RequestError) else ServiceError
    with pytest.raises(expected) as caught:
        await task
    assert type(caught.value) is expected
    await runner.stop()


async def test_model_that_answers_too_few_chunks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, model = await start()
    monkeypatch.setattr(model, "step", lambda chunks: [])
    task = opened(runner, "a")
    await asyncio.sleep(0)

    await runner.push("a", codes(1), True)

    with pytest.raises(ServiceError, match="answered 1 chunks with 0"):
        await task
    await runner.stop()


async def test_final_chunk_may_be_empty() -> None:
    runner, _ = await start()
    task = opened(runner, "a")
    await asyncio.sleep(0)

    await runner.push("a", codes(1), False)
    await runner.push("a", {}, True)

    assert [(output.tensors["audio"].shape, output.finished) for output in await task] == [
        ((SAMPLES_PER_CODE, 1), False),
        ((0, 1), True),
    ]
    await runner.stop()


async def test_entry_stage_computes_its_inputs_at_once() -> None:
    runner, _ = await start()

    outputs = [output async for output in runner.run(StageInput("a", codes(4, 5), {}))]

    assert [output.finished for output in outputs] == [True]
    assert outputs[0].tensors["audio"][:, 0].tolist() == [4.0] * SAMPLES_PER_CODE + [9.0] * SAMPLES_PER_CODE
    await runner.stop()


async def test_abort_ends_the_iterator_and_the_state_once_and_drops_waiting_chunks() -> None:
    runner, model = await start()
    task = opened(runner, "a")
    await asyncio.sleep(0)
    await runner.push("a", codes(1), False)
    waiting = [asyncio.create_task(runner.push("a", codes(2), False)) for _ in range(3)]
    await asyncio.sleep(0)

    await runner.abort("a")
    await runner.abort("a")
    await asyncio.gather(*waiting)
    await task
    await runner.push("a", codes(3), True)

    await runner.stop()
    assert [name for what, name in model.log if what == "end"] == ["a"]
    assert not runner._requests


async def test_closing_the_iterator_ends_the_state() -> None:
    runner, model = await start()
    outputs = runner.run(StageInput("a", codes(1), {}, streaming=True))
    await anext(outputs)

    await outputs.aclose()  # type: ignore[attr-defined]

    await runner.stop()
    assert model.log[-1] == ("end", "a")


async def test_request_whose_outputs_nobody_takes_is_not_computed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_runner, "MAX_UNREAD_OUTPUTS", 2)
    runner, model = await start()
    outputs = runner.run(StageInput("a", codes(1), {}, streaming=True))
    await anext(outputs)

    pushes = [asyncio.create_task(runner.push("a", codes(1), number == 4)) for number in range(5)]
    await pushes[1]
    other = [output async for output in runner.run(StageInput("b", codes(7), {}))]

    assert len(other) == 1
    assert sum("a" in ids for ids in steps(model)) == 3
    assert not pushes[2].done()
    rest = [output async for output in outputs]
    assert len(rest) == 5
    await asyncio.gather(*pushes)
    await runner.stop()


async def test_model_without_a_class_is_reported() -> None:
    import dataclasses

    stage = dataclasses.replace(fake_pipeline().stages[1], architecture_target=None)

    with pytest.raises(ServiceError, match="no plugin offers the architecture 'FakeModel'"):
        await LightRunner(stage).start()


async def test_runner_whose_loop_has_ended_is_dead() -> None:
    runner, _ = await start()
    await runner.check()
    assert runner._driver is not None

    runner._driver.cancel()
    await asyncio.wait({runner._driver})

    with pytest.raises(StageDeadError, match="batch loop ended"):
        await runner.check()
    await runner.stop()


async def test_batch_bound_of_the_model_beats_that_of_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SumVocoder, "max_batch", 2)
    runner, model = await start(max_num_seqs=8)
    tasks = [opened(runner, name) for name in "abc"]
    await asyncio.sleep(0)

    await asyncio.gather(*(runner.push(name, codes(1), True) for name in "abc"))
    await asyncio.gather(*tasks)

    assert steps(model) == [["a", "b"], ["c"]]
    await runner.stop()


async def test_what_a_first_payload_brings_ready_is_delivered_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, model = await start()
    begun, go_on = threading.Event(), threading.Event()
    step = model.step

    def slow(chunks: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return [{} if "ready" in chunk.payload else result for chunk, result in zip(chunks, step(chunks), strict=True)]

    def ready(payload: Any) -> Any:
        return {"audio": payload["ready"]} if "ready" in payload else None

    monkeypatch.setattr(model, "step", slow)
    monkeypatch.setattr(model, "ready", ready, raising=False)
    outputs = runner.run(StageInput("a", {}, {}, streaming=True))
    first = asyncio.ensure_future(anext(outputs))
    await asyncio.sleep(0)

    push = asyncio.create_task(runner.push("a", {**codes(7), "ready": np.ones((2, 1))}, False))
    assert (await first).tensors["audio"].tolist() == [[1.0], [1.0]]
    assert not push.done()
    go_on.set()
    await push
    await runner.push("a", {**codes(1), "later": True}, True)
    rest = [output async for output in outputs]

    assert begun.is_set()
    assert [(len(output.tensors["audio"]), output.finished) for output in rest] == [(SAMPLES_PER_CODE, True)]
    await runner.stop()


@pytest.mark.parametrize(("firsts_first", "order"), [(True, ["a", "c", "b"]), (False, ["a", "b", "c"])])
async def test_first_chunk_of_a_newcomer_overtakes_later_chunks_that_wait(
    firsts_first: bool, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, model = await start(max_num_seqs=1)
    monkeypatch.setattr(model, "firsts_first", firsts_first, raising=False)
    tasks = [opened(runner, name) for name in "ab"]
    await asyncio.sleep(0)
    await asyncio.gather(*(runner.push(name, codes(1), False) for name in "ab"))
    model.log.clear()
    begun, go_on = threading.Event(), threading.Event()
    step = model.step

    def slow(chunks: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return step(chunks)

    monkeypatch.setattr(model, "step", slow)

    pushes = [asyncio.create_task(runner.push(name, codes(1), True)) for name in "ab"]
    await asyncio.to_thread(begun.wait, 10)
    tasks.append(opened(runner, "c"))
    pushes.append(asyncio.create_task(runner.push("c", codes(1), True)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*pushes, *tasks)

    assert steps(model) == [[name] for name in order]
    await runner.stop()
