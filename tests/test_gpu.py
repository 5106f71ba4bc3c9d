"""What can be shown on a CUDA device only: `nox -s gpu` on a machine that has one, with the CUDA build of vLLM.

Everything else of the engine is tested on the CPU. Here are the paths that a CPU does not have: spawned stage processes,
asynchronous scheduling, graphs, the first-frame path, memory that is given back, replicas that share a device, MPS, and the
codecs' kernels. Checkpoints are the golden ones: float32 with TF32 off must give the reference's codes here too.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from omni_core import AsyncOmni, SpeechPrompt
from omni_server.testing import serve

pytestmark = [pytest.mark.gpu(4), pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
QWEN = PACKAGES / "omni-models-qwen" / "tests" / "data"
MOSS = PACKAGES / "omni-models-moss" / "tests" / "data"
GOLDEN = Path(os.environ.get("OMNI_GOLDEN", Path(__file__).resolve().parents[2] / "shared" / "golden"))
ONE_DEVICE: dict[int, dict[str, Any]] = {
    stage: {"devices": "0", "dtype": "float32", "gpu_memory_utilization": 0.2, "max_model_len": 1024} for stage in range(3)
}
"""Settings under which every stage of a tiny pipeline fits on the first device."""


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")


def checkpoint(name: str, small: Path) -> Path:
    """Return a golden checkpoint: the full set where it is there, else the small one of a package."""
    whole = GOLDEN / name
    return whole if whole.exists() else small / name


def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "golden.json").read_text())["cases"]
    return found


def overrides(count: int, **fields: Any) -> dict[int, dict[str, Any]]:
    """Return settings for each of `count` stages on the first device."""
    return {stage: {**ONE_DEVICE[stage], **fields} for stage in range(count)}


async def codes(omni: AsyncOmni, case: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the frames of a golden case without a recording."""
    request = case["request"]
    prompt = SpeechPrompt(
        text=request["text"],
        voice=request.get("speaker"),
        language=request.get("language"),
        instructions=request.get("instruct"),
        non_streaming_mode=request.get("non_streaming_mode"),
        max_new_tokens=case["max_frames"],
    )
    greedy = {"temperature": 0.0, "repetition_penalty": case["repetition_penalty"]}
    sampling = [greedy] + [{}] * (len(omni.pipeline.stages) - 1)
    outputs = [output async for output in omni.generate(prompt, sampling_params_list=sampling)]
    return np.concatenate([output.tensors["codes"] for output in outputs if "codes" in output.tensors])


@pytest.mark.parametrize("model_runner", ["v1", "v2"])
@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graphs"])
def test_codes_equal_the_reference_alone_and_at_once(eager: bool, model_runner: str) -> None:
    """Asynchronous scheduling is on by default here, and stages are spawned; graphs are captured where `eager` is off."""
    folder = checkpoint("qwen3-tts-custom_voice", QWEN)

    async def collect() -> tuple[list[Any], list[Any]]:
        settings = overrides(2, enforce_eager=eager)
        async with AsyncOmni(str(folder), stage_overrides=settings, model_runner=model_runner) as omni:
            alone = [await codes(omni, case) for case in cases(folder)]
            return alone, list(await asyncio.gather(*(codes(omni, case) for case in cases(folder))))

    alone, together = asyncio.run(collect())

    for case, one, other in zip(cases(folder), alone, together, strict=True):
        assert one.tolist() == case["codes"], case["id"]
        assert other.tolist() == case["codes"], case["id"]


@pytest.mark.parametrize("pipeline", ["two stages", "fused"])
def test_the_first_frame_leaves_early_and_is_not_heard_twice(pipeline: str, tmp_path: Path) -> None:
    """TT-09 to TT-12: the same samples with and without the first-frame path."""
    folder = checkpoint("qwen3-tts-custom_voice", QWEN)
    case = cases(folder)[0]

    async def speak(first: bool) -> np.ndarray[Any, Any]:
        file, count = "qwen3_tts_fused_single_gpu.yaml", 1
        settings = overrides(1, additional_config={"talker_stream_first_audio": first})
        if pipeline != "fused":
            deploy = tmp_path / "deploy.yaml"
            extra = f"connectors: {{connector_of_shared_memory: {{extra: {{talker_first_audio: {str(first).lower()}}}}}}}\n"
            deploy.write_text("base_config: qwen3_tts.yaml\n" + extra)
            file, count, settings = str(deploy), 2, overrides(2)
        async with AsyncOmni(str(folder), deploy_config=file, stage_overrides=settings) as omni:
            prompt = SpeechPrompt(text=case["request"]["text"], voice=case["request"]["speaker"], max_new_tokens=40)
            sampling = [{"temperature": 0.0}] + [{}] * (count - 1)
            outputs = [output async for output in omni.generate(prompt, sampling_params_list=sampling)]
            return np.concatenate([output.data for output in outputs if output.type == "audio"])

    plain, early = asyncio.run(speak(False)), asyncio.run(speak(True))

    assert len(plain) == len(early)
    assert np.abs(plain - early).max() < 1e-3


def test_sleeping_gives_memory_back_and_waking_takes_it_again() -> None:
    import torch

    folder = checkpoint("qwen3-tts-custom_voice", QWEN)

    async def run() -> tuple[int, int, int, Any, Any]:
        async with AsyncOmni(str(folder), stage_overrides=overrides(2, enable_sleep_mode=True)) as omni:
            before = await codes(omni, cases(folder)[0])
            awake = torch.cuda.mem_get_info()[0]
            await omni.sleep()
            asleep = torch.cuda.mem_get_info()[0]
            await omni.wake_up()
            return awake, asleep, torch.cuda.mem_get_info()[0], before, await codes(omni, cases(folder)[0])

    awake, asleep, again, before, after = asyncio.run(run())

    assert asleep > awake
    assert again < asleep
    assert before.tolist() == after.tolist()


def test_two_replicas_share_a_device_and_say_the_same() -> None:
    """DV-07: replicas on one device start one after the other."""
    folder = checkpoint("qwen3-tts-custom_voice", QWEN)
    settings = overrides(2, num_replicas=2, devices="0", gpu_memory_utilization=0.1)

    async def collect() -> list[Any]:
        async with AsyncOmni(str(folder), stage_overrides=settings) as omni:
            return list(await asyncio.gather(*(codes(omni, cases(folder)[0]) for _ in range(8))))

    found = asyncio.run(collect())

    assert all(one.tolist() == cases(folder)[0]["codes"] for one in found)


def test_stereo_speech_equals_the_reference() -> None:
    folder = checkpoint("moss-tts-local", MOSS)
    plain = [case for case in cases(folder) if "audio" not in case["request"] and case["request"].get("mode") is None]

    async def collect() -> list[Any]:
        async with AsyncOmni(str(folder), stage_overrides=overrides(2)) as omni:
            return list(await asyncio.gather(*(codes(omni, case) for case in plain)))

    for case, found in zip(plain, asyncio.run(collect()), strict=True):
        assert found.tolist() == case["codes"], case["id"]


def greedy(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sampling of a golden conversation: greedy, with the limits of the case."""
    talker = {"temperature": 0.0, "max_tokens": record["max_frames"], "repetition_penalty": record["repetition_penalty"]}
    if "min_talker_tokens" in record:
        talker["min_tokens"] = record["min_talker_tokens"]
    return [{"temperature": 0.0, "max_tokens": record["max_thinker_tokens"], "repetition_penalty": 1.0}, talker, {}]


@pytest.mark.parametrize("name", ["qwen3-omni-moe", "qwen2.5-omni"])
def test_conversations_equal_the_reference_in_text_and_speech(name: str) -> None:
    from omni_core.testing.conversations import ask, golden_conversation

    folder = checkpoint(name, QWEN)
    records = cases(folder)

    async def collect() -> list[Any]:
        async with AsyncOmni(str(folder), stage_overrides=overrides(3)) as omni:
            asked = (ask(omni, golden_conversation(folder, record), greedy(record)) for record in records)
            return list(await asyncio.gather(*asked))

    for record, answer in zip(records, asyncio.run(collect()), strict=True):
        assert answer.token_ids == record["thinker_tokens"], record["id"]
        assert answer.audio.shape[0] > 0, record["id"]


DECODERS = {
    "qwen3-tts-custom_voice": ("qwen3_tts", 1, 1e-3),
    "qwen3-omni-moe": ("qwen3_omni_moe", 2, 1e-3),
    "qwen2.5-omni": ("qwen2_5_omni", 2, 5e-3),
}
"""Pipelines of golden folders, which of their stages decodes, and how far its samples may be from the reference's."""


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_make_the_references_audio_before_and_after_sleep(name: str) -> None:
    """What is compared elsewhere are codes; here it is sound, also after the weights have been away."""
    import torch

    from omni_core.runner import LightChunk
    from omni_core.stage import ResolvedStage
    from omni_core.target import load_target
    from omni_models_qwen import plugin

    folder, (key, number, tolerance) = checkpoint(name, QWEN), DECODERS[name]
    pipeline = next(pipeline for pipeline in plugin.omni_pipelines() if pipeline.model_type == key)
    architecture = pipeline.architecture(number)
    target = plugin.omni_architectures()[architecture]
    topology = pipeline.stages[number]
    stage = ResolvedStage(key, topology, str(folder), architecture, architecture_target=target, runner="", platform="cuda")
    arrays = np.load(folder / "golden.npz")

    def payload(case: Mapping[str, Any]) -> dict[str, Any]:
        found = {part: arrays[f"{case['id']}__{part}"] for part in ("codes", "dit_noise") if f"{case['id']}__{part}" in arrays}
        codes = found["codes"]
        noise = {"noise": found["dit_noise"]} if "dit_noise" in found else {}
        voice = {"voice": case["request"]["speaker"]} if key == "qwen2_5_omni" else {}
        return {"codes": codes if codes.ndim == 2 else codes[:, None], **noise, **voice}

    with torch.inference_mode():
        decoder = cast("Any", load_target(target)).load(stage)
        for _ in range(2):
            for case in cases(folder):
                chunk = LightChunk("r", decoder.begin("r", {}), payload(case), True)
                wave = decoder.step([chunk])[0]["audio"][:, 0]
                wanted = arrays[f"{case['id']}__wav"]
                assert wave.shape == wanted.shape, case["id"]
                assert np.abs(wave - wanted).max() < tolerance, case["id"]
            decoder.sleep()
            decoder.wake()


def test_the_bundled_deploy_files_start_as_they_are(tmp_path: Path) -> None:
    """No override at all: what an operator with one device gets who names the file."""
    folder = checkpoint("qwen3-tts-custom_voice", QWEN)
    with serve(folder, "--deploy-config", "qwen3_tts.yaml", log=tmp_path / "log", timeout_s=600) as server:
        import httpx

        answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "hello", "voice": "vivian"}, timeout=120)
        assert answer.status_code == 200, answer.text
        assert server.stop() == 0


def test_live_sessions_with_the_same_input_give_the_same_bytes(tmp_path: Path) -> None:
    """Slots are batched on the device, and a session's bytes do not depend on its neighbours."""
    import base64

    from openai import OpenAI

    subprocess.run(["omni", "tiny", "personaplex", str(tmp_path / "model")], check=True, timeout=300)
    sound = base64.b64encode((np.sin(np.arange(24_000 * 2) / 9) * 9000).astype("<i2").tobytes()).decode()

    def talk(url: str) -> bytes:
        client = OpenAI(api_key="none", base_url=f"{url}/v1", websocket_base_url=f"{url.replace('http', 'ws')}/v1")
        heard = b""
        with client, client.realtime.connect(model=str(tmp_path / "model")) as session:
            session.input_audio_buffer.append(audio=sound)
            for event in session:
                if event.type == "response.output_audio.delta":
                    heard += base64.b64decode(event.delta)
                if len(heard) >= 2 * 1920 * 10:
                    return heard[: 2 * 1920 * 10]
        return heard

    with serve(tmp_path / "model", log=tmp_path / "log", timeout_s=600) as server:

        async def both() -> list[bytes]:
            return list(await asyncio.gather(*(asyncio.to_thread(talk, server.url) for _ in range(2))))

        alone = talk(server.url)
        one, other = asyncio.run(both())

    assert alone
    assert one == other == alone


@pytest.fixture
def mps() -> str:
    """The control program of the real MPS."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        pytest.skip("nvidia-cuda-mps-control is not installed")
    return program


def test_stages_share_a_device_through_a_daemon_that_ends_with_them(mps: str, tmp_path: Path) -> None:
    """MP-01 and on: the real daemon, started for the deployment and gone after it."""
    folder = checkpoint("qwen3-tts-custom_voice", QWEN)
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("base_config: qwen3_tts.yaml\ncuda_mps: true\n")
    before = subprocess.run(["pgrep", "-f", "nvidia-cuda-mps-control"], capture_output=True, text=True, check=False).stdout

    async def collect() -> Any:
        async with AsyncOmni(str(folder), deploy_config=str(deploy), stage_overrides=overrides(2)) as omni:
            return await codes(omni, cases(folder)[0])

    assert asyncio.run(collect()).tolist() == cases(folder)[0]["codes"]
    after = subprocess.run(["pgrep", "-f", "nvidia-cuda-mps-control"], capture_output=True, text=True, check=False).stdout
    assert after == before
