from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from omni_core.client import AsyncOmni, Omni, as_speech_prompt
from omni_core.errors import DependencyError, NotFoundError, RequestError, ServiceError, StageStartError
from omni_core.request import OmniOutput
from omni_core.results import join_results
from omni_core.speech import SpeechPrompt
from omni_core.stage import ResolvedPipeline
from omni_core.stage_sampling import effective_sampling
from omni_core.testing.fakes import SAMPLE_RATE, make_audio
from omni_core.testing.pipelines import fake_pipeline
from omni_core.testing.waiting import async_wait_until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def omni() -> AsyncIterator[AsyncOmni]:
    async with AsyncOmni.from_resolved(fake_pipeline()) as started:
        yield started


@pytest.fixture(scope="module")
def script() -> Iterator[Omni]:
    with Omni.from_resolved(fake_pipeline()) as started:
        yield started


async def collect(outputs: AsyncIterator[OmniOutput]) -> list[OmniOutput]:
    return [output async for output in outputs]


@pytest.mark.anyio
async def test_generate_yields_typed_outputs_under_the_given_id(omni: AsyncOmni) -> None:
    outputs = await collect(omni.generate({"seed": 1, "count": 5}, request_id="mine"))

    assert {(o.type, o.request_id, o.sample_rate) for o in outputs} == {("audio", "mine", SAMPLE_RATE)}
    assert np.array_equal(np.concatenate([o.data for o in outputs]), make_audio(1, 5))
    assert outputs[-1].finished


@pytest.mark.anyio
async def test_eight_prompts_without_ids_each_get_their_own_audio(omni: AsyncOmni) -> None:
    """B19."""
    results = await asyncio.gather(*(collect(omni.generate({"seed": n, "count": 9})) for n in range(8)))

    for seed, outputs in enumerate(results):
        assert np.array_equal(np.concatenate([o.data for o in outputs]), make_audio(seed, 9))
    assert len({outputs[0].request_id for outputs in results}) == 8


@pytest.mark.anyio
async def test_sampling_parameters_of_the_request_reach_their_stage(omni: AsyncOmni) -> None:
    outputs = await collect(omni.generate({"seed": 1, "count": 9}, sampling_params_list=[{"max_tokens": 2}, {}]))

    assert np.array_equal(np.concatenate([o.data for o in outputs]), make_audio(1, 2))
    assert outputs[-1].finish_reason == "length"


@pytest.mark.anyio
async def test_abort_ends_the_request(omni: AsyncOmni) -> None:
    task = asyncio.create_task(collect(omni.generate({"seed": 1, "count": 10**6, "step_s": 0.01}, request_id="x")))
    await async_wait_until(lambda: omni.health()["requests"] == 1, "the request")

    assert omni.abort("x")

    with pytest.raises(NotFoundError):
        await task
    assert omni.health()["requests"] == 0


@pytest.mark.anyio
async def test_closing_the_iterator_ends_the_request_at_once(omni: AsyncOmni) -> None:
    outputs = omni.generate({"seed": 1, "count": 10**6, "step_s": 0.001})
    await anext(outputs)

    await outputs.aclose()  # type: ignore[attr-defined]

    assert omni.health()["requests"] == 0


@pytest.mark.anyio
async def test_raw_text_is_refused_by_a_pipeline_that_does_not_speak(omni: AsyncOmni) -> None:
    with pytest.raises(RequestError, match="takes its inputs as a mapping"):
        await collect(omni.generate("hello"))


def test_missing_package_is_named_before_any_process_starts() -> None:
    pipeline = fake_pipeline()
    needing = dataclasses.replace(pipeline.stages[0], requires=("numpy", "no_such_engine"))
    changed = dataclasses.replace(pipeline, stages=(needing, pipeline.stages[1]))

    with pytest.raises(DependencyError, match=r"stage 0 \(talker\) needs no_such_engine.*pip install 'omni-core\[cpu\]'"):
        AsyncOmni.from_resolved(changed)


# Sampling and prompts


def with_sampling(**constraints: Any) -> ResolvedPipeline:
    pipeline = fake_pipeline()
    first = pipeline.stages[0]
    topology = dataclasses.replace(first.topology, sampling_constraints=constraints)
    stage = dataclasses.replace(first, topology=topology, sampling={"temperature": 0.9, "top_k": 50, "seed": 1})
    return dataclasses.replace(pipeline, stages=(stage, pipeline.stages[1]))


def test_request_beats_prompt_beats_deployment() -> None:
    found = effective_sampling(with_sampling(), {0: {"seed": 2, "top_k": 40}}, [{"seed": 3}, None])

    assert found == {0: {"temperature": 0.9, "top_k": 40, "seed": 3}, 1: {}}


def test_constraints_beat_the_request() -> None:
    """SM-02."""
    pipeline = with_sampling(detokenize=False, stop_token_ids=[2150])

    found = effective_sampling(pipeline, {}, [{"detokenize": True, "stop_token_ids": [5]}, {}])

    assert found[0]["detokenize"] is False
    assert found[0]["stop_token_ids"] == [5, 2150]


@pytest.mark.parametrize(
    "given", [{"seed": 1}, [], [{}], [{}, {}, {}], "ab", [{}, 3]], ids=["mapping", "empty", "few", "many", "text", "number"]
)
def test_anything_but_one_mapping_for_each_stage_is_refused(given: Any) -> None:
    """SM-05."""
    with pytest.raises(RequestError) as caught:
        effective_sampling(fake_pipeline(), {}, given)
    assert caught.value.param == "sampling_params_list"


def test_unknown_parameter_is_refused_with_its_place() -> None:
    with pytest.raises(RequestError, match=r"sampling_params_list\[0\].*temprature.*temperature"):
        effective_sampling(fake_pipeline(), {}, [{"temprature": 1}, {}])


def test_speech_prompt_can_be_text_or_a_mapping_of_its_fields() -> None:
    assert as_speech_prompt("Hello") == SpeechPrompt("Hello")
    assert as_speech_prompt({"text": "Hi", "seed": 3, "speaker_embedding": [1.0]}) == SpeechPrompt(
        "Hi", seed=3, speaker_embedding=(1.0,)
    )


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ({"text": "Hi", "vioce": "x"}, "no field 'vioce'.*voice"),
        ({"voice": "x"}, "needs `text`"),
        ({"text": 3}, "needs `text`"),
    ],
    ids=["unknown", "no text", "number"],
)
def test_bad_speech_prompt_is_refused(prompt: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        as_speech_prompt(prompt)


# Omni


def test_results_come_in_the_order_of_the_prompts(script: Omni) -> None:
    counts = [30, 1, 12, 5]

    results = script.generate([{"seed": n, "count": count} for n, count in enumerate(counts)])

    assert [result.request_id for result in results] == ["0", "1", "2", "3"]
    for seed, (count, result) in enumerate(zip(counts, results, strict=True)):
        assert result.audio is not None
        assert np.array_equal(result.audio, make_audio(seed, count))
        assert (result.sample_rate, result.finish_reason, result.metrics["frames"]) == (SAMPLE_RATE, "stop", count)


def test_first_error_is_raised_after_the_others_finished(script: Omni) -> None:
    prompts = [{"seed": 1, "count": 5}, {"seed": 2, "count": 5, "fail_at": 3}, {"seed": 3, "count": 5}]

    with pytest.raises(RequestError, match="unlucky"):
        script.generate(prompts)

    results = script.generate(prompts, return_errors=True)
    assert [type(result.error) for result in results] == [type(None), RequestError, type(None)]
    assert results[2].audio is not None
    assert script.health()["requests"] == 0


def test_more_prompts_than_may_be_under_way_all_finish(script: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.client.MAX_PROMPTS_UNDER_WAY", 3)

    results = script.generate([{"seed": n, "count": 2} for n in range(20)], use_tqdm=False)

    assert len(results) == 20


def test_bar_is_drawn_on_a_terminal_only(script: Omni, capfd: pytest.CaptureFixture[str]) -> None:
    script.generate([{"seed": 1, "count": 1}] * 2)

    assert "prompt" not in capfd.readouterr().err


def test_closed_omni_says_so_and_failed_start_leaves_no_thread() -> None:
    closed = Omni.from_resolved(fake_pipeline())
    closed.close()
    closed.close()

    with pytest.raises(ServiceError, match="this Omni is closed"):
        closed.generate({"seed": 1, "count": 1})
    with pytest.raises(StageStartError, match="no memory"):
        Omni.from_resolved(fake_pipeline(engine_args={0: {"fail": "no memory"}}))


def test_result_joins_text_token_ids_and_tensors() -> None:
    outputs = [
        OmniOutput("r", 0, "text", "Hel", {"token_ids": np.array([1, 2]), "hidden": np.ones((2, 3))}),
        OmniOutput("r", 0, "text", "lo", {"token_ids": np.array([3]), "hidden": np.ones((1, 3))}, finished=True),
    ]

    result = join_results("r", outputs)

    assert (result.text, result.token_ids, result.audio) == ("Hello", (1, 2, 3), None)
    assert result.tensors["hidden"].shape == (3, 3)


def test_server_side_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, omni_core.client as c, omni_core.testing.pipelines as p\n"
        "with c.Omni.from_resolved(p.fake_pipeline()) as omni: omni.generate({'seed': 1, 'count': 2})\n"
        "print(sorted({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.anyio
async def test_prompt_that_its_caller_changes_while_it_waits_is_answered_as_it_was_sent() -> None:
    """TT-18: inputs become bytes when a request is accepted, so nothing of them is shared, aliases included."""
    seed = np.array(3)
    prompt: dict[str, Any] = {"seed": seed, "count": 5, "same": [seed, seed], "nested": {"list": [1, 2]}}
    async with AsyncOmni.from_resolved(fake_pipeline(engine_args={0: {"max_num_seqs": 1}})) as omni:
        first = asyncio.create_task(collect(omni.generate({"seed": 1, "count": 10**6, "step_s": 0.01}, request_id="first")))
        await async_wait_until(lambda: omni.health()["requests"] == 1, "the first request")
        second = asyncio.create_task(collect(omni.generate(prompt)))
        await async_wait_until(lambda: omni.health()["queued"] == 1, "the second request")

        seed[()] = 4
        prompt |= {"count": 9, "seed": 7}
        prompt["nested"]["list"].append(prompt)
        omni.abort("first")
        outputs = await second

        assert np.array_equal(np.concatenate([o.data for o in outputs]), make_audio(3, 5))
        with pytest.raises(NotFoundError):
            await first


@pytest.mark.anyio
async def test_prompt_that_contains_itself_is_refused(omni: AsyncOmni) -> None:
    """TT-18: what cannot be copied as a tree is the caller's error, and others go on."""
    prompt: dict[str, Any] = {"seed": 1, "count": 5}
    prompt["again"] = [prompt]

    with pytest.raises(RequestError, match="nested too deeply"):
        await collect(omni.generate(prompt))

    assert len(await collect(omni.generate({"seed": 1, "count": 2}))) > 0
