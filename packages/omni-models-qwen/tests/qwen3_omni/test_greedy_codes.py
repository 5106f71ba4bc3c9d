"""The talker on a real engine makes the reference's codes of the reference's rows, whichever way the rows come."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import RequestError
from omni_core.runner import StageInput
from omni_core.stage import ResolvedStage
from omni_core.testing.ar_stage import running_stage
from omni_models_qwen.talking.thinker_states import EMBEDS

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,  # so that long prompts come in parts
    "max_model_len": 512,
    "kv_cache_memory_bytes": 64 << 20,
}

CHANGED = (
    "talker.model.layers.0.mlp.experts.1.up_proj.weight",
    "talker.model.layers.1.mlp.shared_expert.down_proj.weight",
    "talker.model.layers.1.mlp.gate.weight",
    "talker.hidden_projection.linear_fc2.weight",
    "talker.code_predictor.lm_head.3.weight",
    "thinker.model.embed_tokens.weight",
)
"""An expert, the shared one, the gate, a projection, the code predictor and the rows of the marks."""

Spoken = tuple[list[list[int]], str | None]
Listen = Callable[..., Coroutine[Any, Any, Spoken]]


def _sampling(case: Any) -> dict[str, Any]:
    return {
        "temperature": 0.0,
        "min_tokens": case.record["min_talker_tokens"],
        "max_tokens": case.record["max_frames"],
        "repetition_penalty": case.record["repetition_penalty"],
        "stop_token_ids": [2150],
        "detokenize": False,
    }


async def _streamed(listen: Listen, runner: Any, case: Any, payload_of: Callable[..., Any], name: str) -> Spoken:
    """Push the first payload, and each further row when the talker has had time to wait for it."""
    request = StageInput(f"{name}-{case.id}", {}, _sampling(case), streaming=True)
    listening = asyncio.create_task(listen(runner, request))
    await asyncio.sleep(0)
    await runner.push(request.request_id, payload_of(case, 1), False)
    for row in case.array("thinker_embeds")[len(case.record["prompt_token_ids"]) + 1 :]:
        await runner.push(request.request_id, {"rows": row[None]}, False)
    await runner.push(request.request_id, {}, True)
    return await listening


async def _whole(listen: Listen, runner: Any, case: Any, payload_of: Callable[..., Any], name: str) -> Spoken:
    return await listen(runner, StageInput(f"{name}-{case.id}", payload_of(case), _sampling(case)))


def test_codes_equal_the_reference_alone_and_in_company_whole_and_row_by_row(
    golden_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    payload_of: Callable[..., Any],
    omni_stage: Callable[..., ResolvedStage],
    listen: Listen,
) -> None:
    """Text, audio and images of very different lengths share the steps."""
    cases = cases_of(golden_folder)

    async def run() -> list[list[Spoken]]:
        async with running_stage(omni_stage(golden_folder, 1, engine_args=ENGINE), timeout_s=240) as runner:
            return [
                [await _whole(listen, runner, case, payload_of, "alone") for case in cases],
                [await _streamed(listen, runner, case, payload_of, "streamed") for case in cases],
                await asyncio.gather(*(_whole(listen, runner, case, payload_of, "together") for case in cases)),
                await asyncio.gather(*(_streamed(listen, runner, case, payload_of, "flowing") for case in cases)),
            ]

    found = asyncio.run(run())

    expected = [(case.record["codes"], "stop" if case.record["stop_reason"] == "eos" else "length") for case in cases]
    assert found == [expected] * 4


def test_what_a_talker_cannot_speak_costs_that_request_alone(
    omni_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    payload_of: Callable[..., Any],
    omni_stage: Callable[..., ResolvedStage],
    listen: Listen,
) -> None:
    case = cases_of(omni_folder)[0]

    async def run() -> tuple[Spoken, list[RequestError], Spoken]:
        async with running_stage(omni_stage(omni_folder, 1, engine_args=ENGINE)) as runner:
            # A reply of one token: the reference raises, and users get a text without sound.
            silent = await listen(runner, StageInput("silent", payload_of(case, 0), _sampling(case)))
            refused = []
            for name, change in (("voice", {"voice": "nobody"}), ("width", {EMBEDS: case.array("thinker_embeds")[:, :32]})):
                broken = {**payload_of(case), **change}
                if name == "width":
                    broken["thinker_hidden"] = broken["thinker_hidden"][:, :32]
                with pytest.raises(RequestError) as caught:
                    await listen(runner, StageInput(name, broken, _sampling(case)))
                refused.append(caught.value)
            return silent, refused, await _whole(listen, runner, case, payload_of, "after")

    silent, (voice, width), after = asyncio.run(run())

    assert silent == ([], "stop")
    assert voice.param == "voice"
    assert "rows of width 64" in str(width)
    assert after[0] == case.record["codes"]


def test_a_seed_decides_sampled_speech(
    omni_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    payload_of: Callable[..., Any],
    omni_stage: Callable[..., ResolvedStage],
    listen: Listen,
) -> None:
    case = cases_of(omni_folder)[0]
    sampling = {"temperature": 0.9, "top_k": 50, "min_tokens": 6, "max_tokens": 6, "stop_token_ids": [2150]}

    async def run() -> list[Spoken]:
        async with running_stage(omni_stage(omni_folder, 1, engine_args=ENGINE)) as runner:
            requests = [
                StageInput(f"r{i}", payload_of(case), {**sampling, "seed": seed, "detokenize": False})
                for i, seed in enumerate((1, 1, 2))
            ]
            return list(await asyncio.gather(*(listen(runner, request) for request in requests)))

    (first, _), (again, _), (other, _) = asyncio.run(run())

    assert len(first) == 6
    assert first == again
    assert first != other


def test_weights_are_read_again_from_what_the_checkpoint_holds_then(
    omni_folder: Path,
    cases_of: Callable[[Path], list[Any]],
    payload_of: Callable[..., Any],
    omni_stage: Callable[..., ResolvedStage],
    listen: Listen,
    flip_weights: Callable[..., None],
    tmp_path: Path,
) -> None:
    case, folder = cases_of(omni_folder)[0], shutil.copytree(omni_folder, tmp_path / "model")
    stage = omni_stage(folder, 1, engine_args=ENGINE)

    async def run() -> list[Spoken]:
        async with running_stage(stage) as runner:
            found = [await _whole(listen, runner, case, payload_of, "before")]
            await runner.call("reload_weights", {})
            found.append(await _whole(listen, runner, case, payload_of, "same"))
            flip_weights(folder, CHANGED)
            await runner.call("reload_weights", {})
            found.append(await _whole(listen, runner, case, payload_of, "changed"))
        async with running_stage(stage) as fresh:
            return [*found, await _whole(listen, fresh, case, payload_of, "fresh")]

    before, same, changed, fresh = asyncio.run(run())

    assert before[0] == case.record["codes"]
    assert same == before
    assert changed == fresh != before
