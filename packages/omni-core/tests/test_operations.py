"""The operations of AsyncOmni: order and failure against a fake, and once through real stage processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_core.client import AsyncOmni
from omni_core.errors import DeadlineError, RequestError, StageDeadError, UnsupportedError
from omni_core.operations import Operations
from omni_core.testing.fakes import make_audio
from omni_core.testing.pipelines import fake_pipeline

pytestmark = pytest.mark.anyio

TRAINED = {"weight_transfer_config": {"backend": "folder"}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Fake(Operations):
    """Note calls; a stage's answers are `answers[stage_id, method]`, raised where they are errors."""

    def __init__(self, **options: Any) -> None:
        self.pipeline = fake_pipeline(**options)
        self.calls: list[tuple[int, str]] = []
        self.answers: dict[tuple[int, str], Any] = {}

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> list[Any]:
        self.calls.append((stage_id, method))
        answer = self.answers.get((stage_id, method), [True])
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


async def test_acks_tell_each_replica_of_each_stage() -> None:
    fake = Fake(replicas={0: 2})
    fake.answers[0, "reload_weights"] = [True, False]

    acks = await fake.reload_weights()

    assert [(ack["stage_id"], ack["replica"], ack["status"]) for ack in acks] == [
        (0, 0, "OK"),
        (0, 1, "SKIPPED"),
        (1, 0, "OK"),
    ]


async def test_stages_go_to_sleep_from_the_first_and_wake_from_the_last() -> None:
    fake = Fake()

    await fake.sleep()
    await fake.wake_up()
    await fake.sleep([1])

    assert fake.calls == [(0, "sleep"), (1, "sleep"), (1, "wake_up"), (0, "wake_up"), (1, "sleep")]


async def test_what_fails_half_way_is_taken_back_and_what_was_so_before_stays() -> None:
    fake = Fake()
    fake.answers |= {(0, "sleep"): [False], (1, "sleep"): UnsupportedError("no")}
    with pytest.raises(UnsupportedError):
        await fake.sleep()
    assert fake.calls == [(0, "sleep"), (1, "sleep")]

    several = Fake(replicas={1: 2})
    several.answers |= {(1, "pause"): DeadlineError("late"), (1, "resume"): StageDeadError("gone")}
    with pytest.raises(DeadlineError, match="late") as caught:
        await several.pause(mode="wait")
    # One of the replicas may have been paused in time.
    assert several.calls == [(0, "pause"), (1, "pause"), (1, "resume"), (0, "resume")]
    assert caught.value.__notes__ == ["resume of stage 1 failed, too: gone"]


@pytest.mark.parametrize(
    ("method", "arguments", "param"),
    [("pause", {"mode": "later"}, "mode"), ("sleep", {"level": 0}, "level"), ("resume", {"stage_ids": [2]}, "stage_ids")],
)
async def test_wrong_arguments_reach_no_stage(method: str, arguments: dict[str, Any], param: str) -> None:
    fake = Fake()

    with pytest.raises(RequestError) as caught:
        await getattr(fake, method)(**arguments)

    assert caught.value.param == param
    assert fake.calls == []


async def test_prefix_caches_of_llms_alone_are_reset_and_one_that_is_not_tells() -> None:
    """TT-07."""
    fake = Fake(replicas={0: 2})
    assert await fake.reset_prefix_cache() is True

    fake.answers[0, "reset_prefix_cache"] = [True, False]

    assert await fake.reset_prefix_cache(reset_running_requests=True) is False
    assert fake.calls == [(0, "reset_prefix_cache")] * 2
    with pytest.raises(UnsupportedError, match="no stage keeps"):
        await fake.reset_prefix_cache([1])


async def test_weight_updates_go_to_the_llms_that_have_a_backend() -> None:
    """WT-01: the configuration is pipeline-wide, and a stage that is no LLM has no use for it."""
    fake = Fake(engine_args={0: TRAINED, 1: TRAINED})
    fake.answers[0, "weight_version"] = ["step-1"]

    await fake.start_weight_update()
    assert await fake.weight_versions() == {0: ["step-1"]}
    await fake.start_weight_update([1])
    assert fake.calls == [(0, "start_weight_update"), (0, "weight_version"), (1, "start_weight_update")]

    with pytest.raises(UnsupportedError, match="no stage takes weight updates") as caught:
        await Fake().start_weight_update()
    assert "weight_transfer_config" in caught.value.hint


async def test_a_running_pipeline_is_paused_gets_new_weights_and_goes_on(tmp_path: Path) -> None:
    gain = tmp_path / "gain"
    gain.write_text("1")
    async with AsyncOmni.from_resolved(fake_pipeline(engine_args={1: {"gain": str(gain)}})) as omni:

        async def samples() -> list[float]:
            outputs = [output async for output in omni.generate({"seed": 3, "count": 5})]
            return [value for output in outputs for value in output.data[:, 0].tolist()]

        assert await samples() == make_audio(3, 5)[:, 0].tolist()
        assert await omni.pause([1]) == [{"stage_id": 1, "replica": 0, "status": "OK"}]
        assert await omni.is_paused([1])
        waiting = asyncio.create_task(samples())
        gain.write_text("3")
        await omni.reload_weights([1])
        with pytest.raises(UnsupportedError, match="in the host's memory already"):
            await omni.sleep([1])
        with pytest.raises(UnsupportedError, match="this stage cannot pause"):
            await omni.pause()
        assert not waiting.done()
        assert [ack["status"] for ack in await omni.wake_up([1])] == ["SKIPPED"]
        await omni.resume([1])

        assert await waiting == (3 * make_audio(3, 5))[:, 0].tolist()
        with pytest.raises(RequestError, match="takes no LoRA adapters"):
            await anext(omni.generate({"seed": 3, "count": 5}, lora_request=object()))
