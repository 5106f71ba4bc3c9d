"""Requests through ArRunner: a real engine core in its own process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError, StageDeadError, StageStartError
from omni_core.runner import StageInput, StageOutput

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # vLLM's client leaves contexts of zmq to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function Context.__del__"),
]

INPUT = {"custom_process_input_func": "omni_core.testing.tiny_ar:TinyInput", "engine_output_type": "latent"}
Rows = Callable[[int], np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()  # what a stopped engine leaves is collected under this module's filters, not in some later test


@pytest.fixture
async def make_runner(make_stage: Any) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a runner; all are stopped at the end."""
    from omni_core.engine.ar.runner import ArRunner

    started: list[ArRunner] = []

    async def runner(*args: Any, **kwargs: Any) -> ArRunner:
        kwargs.setdefault("topology", INPUT)
        one = ArRunner(make_stage(*args, **kwargs))
        started.append(one)
        one.facts = await one.start()  # type: ignore[attr-defined]
        return one

    yield runner
    await asyncio.gather(*(one.stop() for one in started))


def request(runner: Any, name: str, inputs: dict[str, Any], *, streaming: bool = False, **sampling: Any) -> StageInput:
    return StageInput(name, inputs, {**runner.stage.sampling, **sampling}, streaming=streaming)


async def collect(runner: Any, what: StageInput) -> list[StageOutput]:
    return [output async for output in runner.run(what)]


def codes(outputs: list[StageOutput], key: str = "codes") -> list[list[int]]:
    return [frame for output in outputs for frame in output.tensors.get(key, np.empty((0, 4))).tolist()]


def tokens_of(outputs: list[StageOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def test_a_request_gives_its_frames_and_its_end(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()
    what = request(runner, "a", {"rows": rows_of(1), "tag": "x"}, max_tokens=10)

    outputs = await collect(runner, what)
    many = await asyncio.gather(*(collect(runner, replace(what, request_id=f"a{i}")) for i in range(8)))

    assert np.shape(codes(outputs)) == (10, 4)
    assert all(output.tensors["codes"].dtype == np.int32 for output in outputs if output.tensors)
    assert tokens_of(outputs) == [frame[0] for frame in codes(outputs)]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].finish_reason == "length"
    assert outputs[-1].metrics == {"prompt_tokens": 6, "generated_tokens": 10}
    assert outputs[0].handoff == {"tag": "x"}
    assert not any(output.handoff for output in outputs[1:])
    assert [codes(one) for one in many] == [codes(outputs)] * 8
    assert not runner._launched.rows


async def test_outputs_say_how_full_the_stage_was(make_runner: Any, rows_of: Rows) -> None:
    """TT-15: active / max_num_seqs decides how large a first payload is."""
    runner = await make_runner()
    most = runner._launched.llm.vllm_config.scheduler_config.max_num_seqs
    # More than the engine makes ahead of its reader, so that none of them ends before the last has begun.
    what = request(runner, "a", {"rows": rows_of(1)}, max_tokens=100)

    alone = await collect(runner, what)
    many = await asyncio.gather(*(collect(runner, replace(what, request_id=f"a{i}")) for i in range(3)))

    assert {output.load for output in alone} == {1 / most}
    assert {outputs[0].load for outputs in many} == {3 / most}


async def test_a_bad_request_costs_only_itself(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner("TinySamplingTalker")
    good = asyncio.create_task(collect(runner, request(runner, "good", {"rows": rows_of(1)}, max_tokens=60)))
    bad: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "refused": ({"refuse": True}, {}),
        "temprature": ({"rows": rows_of(1)}, {"temprature": 1.0}),
        "max_tokens 123": ({"rows": rows_of(1), "prompt_len": 6}, {"max_tokens": 123}),
        "takes 128": ({"rows": rows_of(1), "prompt_len": 128}, {}),
        "is empty": ({"rows": rows_of(1), "prompt_len": 0}, {}),
        "reserved": ({"rows": rows_of(1)}, {"extra_args": {"omni": {"push": True}}}),
        "extra_args.mtp.top_k": ({"rows": rows_of(1)}, {"extra_args": {"mtp": {"top_k": "many"}}}),
        "n must be 1": ({"rows": rows_of(1)}, {"n": 2}),
    }

    for text, (inputs, sampling) in bad.items():
        with pytest.raises(RequestError, match=text):
            await collect(runner, request(runner, text, inputs, **sampling))

    assert np.shape(codes(await good, "codes.audio")) == (60, 4)
    await runner.check()


async def test_max_tokens_of_the_deploy_file_is_cut_to_what_fits(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner(sampling={"temperature": 0.0, "max_tokens": 4096, "ignore_eos": True})

    outputs = await collect(runner, request(runner, "a", {"rows": rows_of(1), "prompt_len": 100}))

    assert outputs[-1].metrics["generated_tokens"] == 28
    assert outputs[-1].finish_reason == "length"


async def test_sampling_that_follows_from_the_input_goes_below_the_requests_own(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()
    inputs = {"rows": rows_of(1), "sampling": {"max_tokens": 7}}

    derived = await collect(runner, request(runner, "derived", inputs))
    own = await collect(runner, request(runner, "own", inputs, max_tokens=9))

    assert derived[-1].metrics["generated_tokens"] == 7
    assert own[-1].metrics["generated_tokens"] == 9


async def test_pushed_rows_give_the_codes_of_rows_that_were_there(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner("TinyGatedTalker")
    rows = rows_of(3)
    whole = await collect(runner, request(runner, "whole", {"rows": rows, "gated": True}))

    running = asyncio.create_task(collect(runner, request(runner, "pieces", {}, streaming=True)))
    await asyncio.sleep(0)
    await runner.push("pieces", {"rows": rows[:4], "gated": True}, False)
    for start in range(4, len(rows), 2):
        await runner.push("pieces", {"rows": rows[start : start + 2]}, False)
    await runner.push("pieces", {}, True)
    await runner.push("unknown", {"rows": rows}, True)

    assert codes(await running) == codes(whole)
    assert len(codes(whole)) == 16


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 63), np.float32), np.zeros(64, np.float32), np.zeros((2, 64), np.int64), "text"],
    ids=["too narrow", "one dimension", "integers", "no array"],
)
async def test_bad_rows_end_their_request_before_they_reach_the_engine(make_runner: Any, rows_of: Rows, rows: Any) -> None:
    runner = await make_runner("TinyGatedTalker")
    first = {"rows": rows_of(1)[:4], "gated": True}
    bad = asyncio.create_task(collect(runner, request(runner, "bad", {}, streaming=True)))
    await asyncio.sleep(0)
    await runner.push("bad", first, False)

    await runner.push("bad", {"rows": rows}, False)

    with pytest.raises(RequestError, match="rows"):
        await bad
    good = await collect(runner, request(runner, "good", {"rows": rows_of(1), "gated": True}))
    assert len(codes(good)) == 16


async def test_closing_the_iterator_frees_slots_and_blocks(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner()
    iterator = runner.run(request(runner, "a", {"rows": rows_of(1)}, max_tokens=120))
    await anext(iterator)

    await iterator.aclose()
    await collect(runner, request(runner, "b", {"rows": rows_of(1)}, max_tokens=2))

    live = await runner._launched.llm.collective_rpc("omni_live_slots")
    assert live[0] <= 1
    assert not runner._launched.rows
    assert not runner._live


async def test_abort_ends_the_iterator(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner("TinyGatedTalker")
    waiting = asyncio.create_task(collect(runner, request(runner, "never fed", {}, streaming=True)))
    gated = asyncio.create_task(collect(runner, request(runner, "half fed", {}, streaming=True)))
    await asyncio.sleep(0)
    await runner.push("half fed", {"rows": rows_of(1)[:8], "gated": True}, False)

    await runner.abort("never fed")
    await runner.abort("half fed")
    await runner.abort("unknown")

    async with asyncio.timeout(20):
        assert not any(output.finished for output in await waiting + await gated)
    assert not runner._live


async def test_a_killed_engine_is_noticed_by_running_and_new_requests(make_runner: Any, rows_of: Rows) -> None:
    runner = await make_runner("TinyGatedTalker")
    running = asyncio.create_task(collect(runner, request(runner, "a", {}, streaming=True)))
    await asyncio.sleep(0)
    await runner.push("a", {"rows": rows_of(1)[:8], "gated": True}, False)

    os.kill(runner.facts["core_pids"][0], signal.SIGKILL)

    with pytest.raises(StageDeadError):
        async with asyncio.timeout(20):
            await running
    with pytest.raises(StageDeadError):
        await runner.check()
    with pytest.raises(StageDeadError):
        await collect(runner, request(runner, "b", {"rows": rows_of(1), "gated": True}))


async def test_a_plain_text_model_answers_in_text(make_runner: Any, checkpoints: Any) -> None:
    from omni_core.testing.tiny_ar import write_tokenizer

    write_tokenizer(checkpoints("LlamaForCausalLM"))
    runner = await make_runner("LlamaForCausalLM", topology={"engine_output_type": "text"})

    by_text = await collect(runner, request(runner, "text", {"prompt": "t5 t6 t7"}, max_tokens=6))
    by_ids = await collect(runner, request(runner, "ids", {"prompt_token_ids": [5, 6, 7]}, max_tokens=6))

    tokens = tokens_of(by_text)
    assert len(tokens) == 6
    assert "".join(output.text for output in by_text).split() == [f"t{token}" for token in tokens]
    assert tokens_of(by_ids) == tokens
    assert by_text[-1].metrics["prompt_tokens"] == 3
    with pytest.raises(RequestError, match="prompt_token_ids"):
        await collect(runner, request(runner, "neither", {}))


async def test_a_cut_weight_file_is_named(make_stage: Any, checkpoints: Any, tmp_path: Path) -> None:
    from omni_core.engine.ar.runner import ArRunner

    source = checkpoints("TinyTalker")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-100])

    with pytest.raises(StageStartError, match=r"model\.safetensors has \d+ bytes"):
        await ArRunner(make_stage(model=str(tmp_path))).start()


async def test_a_core_that_fails_to_start_says_why(make_stage: Any, tmp_path: Path) -> None:
    import safetensors.torch

    from omni_core.engine.ar.runner import ArRunner
    from omni_core.testing.tiny_ar import build_tiny_ar

    weights = safetensors.torch.load_file(build_tiny_ar(tmp_path) / "model.safetensors")
    safetensors.torch.save_file(
        {**weights, "predictor.unheard_of": weights["lm_head.weight"].clone()}, tmp_path / "model.safetensors"
    )

    with pytest.raises(StageStartError, match=r"unheard_of"):
        await ArRunner(make_stage(model=str(tmp_path))).start()


async def test_an_engine_that_is_not_ready_in_time_is_killed(make_stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_core.engine.ar.runner import ArRunner

    monkeypatch.setenv("OMNI_STAGE_INIT_TIMEOUT", "0.01")

    with pytest.raises(StageStartError, match=r"not ready after 0\.01 s"):
        await ArRunner(make_stage()).start()


async def test_an_argument_that_vllm_does_not_know_is_a_configuration_error(make_stage: Any) -> None:
    from omni_core.engine.ar.runner import ArRunner

    with pytest.raises(ConfigError, match="max_model_length"):
        await ArRunner(make_stage(engine_args={"max_model_length": 4})).start()
