"""Speech whose codes cross a real Mooncake store: the same sound as over shared memory, and no start without a store."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni_connectors.testing import MooncakeMaster, mooncake_master, why_no_mooncake
from omni_server.testing import RunningServer, assert_same_sound, serve

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

FOLDER = Path(__file__).resolve().parents[1] / "packages" / "omni-models-qwen" / "tests" / "data" / "qwen3-tts-custom_voice"
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if reason := why_no_mooncake():
        pytest.skip(reason)
    with mooncake_master(tmp_path_factory.mktemp("mooncake")) as running:
        yield running


def _deploy_file(folder: Path, options: dict[str, Any]) -> Path:
    """Write an overlay of the bundled file: the same stream policy, another transport."""
    path = folder / "store.yaml"
    stages = [
        {"stage_id": 0, "output_connectors": {"to_stage_1": "store"}},
        {"stage_id": 1, "input_connectors": {"from_stage_0": "store"}},
    ]
    extra = {**options, "codec_streaming": True, "codec_chunk_frames": 4, "initial_codec_chunk_frames": 1}
    document = {
        "base_config": "qwen3_tts.yaml",
        "connectors": {"store": {"name": "MooncakeStoreConnector", "extra": extra}},
        "stages": stages,
    }
    path.write_text(json.dumps(document))
    return path


def _bodies() -> list[dict[str, Any]]:
    cases = json.loads((FOLDER / "golden.json").read_text())["cases"]
    bodies = []
    for case in cases:
        request = {name: value for name, value in case["request"].items() if value is not None}
        names = {"text": "input", "speaker": "voice", "instruct": "instructions"}
        greedy = {"temperature": 0.0, "repetition_penalty": case["repetition_penalty"]}
        body = {names.get(name, name): value for name, value in request.items()}
        bodies.append(
            {**body, "max_new_tokens": case["max_frames"], "sampling_params_list": [greedy, {}], "response_format": "pcm"}
        )
    return bodies


def _speak(server: RunningServer, body: dict[str, Any]) -> bytes:
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=ANSWER_S)
    assert answer.status_code == 200, answer.text
    return answer.content


def _all(server: RunningServer) -> list[bytes]:
    return [_speak(server, body) for body in _bodies()]


@pytest.fixture(scope="module")
def over_shared_memory(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("shm")
    path = folder / "shm.yaml"
    extra = {"codec_streaming": True, "codec_chunk_frames": 4, "initial_codec_chunk_frames": 1}
    connectors = {"connector_of_shared_memory": {"name": "SharedMemoryConnector", "extra": extra}}
    path.write_text(json.dumps({"base_config": "qwen3_tts.yaml", "connectors": connectors}))
    with serve(FOLDER, "--deploy-config", str(path), log=folder / "stderr.log", timeout_s=300) as server:
        return _all(server)


def _keys(master: MooncakeMaster) -> int:
    """Return how many keys the store has, as its master's metrics say."""
    text = httpx.get(f"http://{master.host}:{master.metrics_port}/metrics", timeout=ANSWER_S).text
    return int(sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("master_key_count")))


def test_golden_audio_over_mooncake_is_that_over_shared_memory(
    master: MooncakeMaster, over_shared_memory: list[bytes], tmp_path: Path
) -> None:
    deploy = _deploy_file(tmp_path, master.options())
    with serve(FOLDER, "--deploy-config", str(deploy), log=tmp_path / "stderr.log", timeout_s=300) as server:
        for found, expected in zip(_all(server), over_shared_memory, strict=True):
            assert_same_sound(found, expected)

        # Many at once, and some whose client goes away: nothing of them stays in the store.
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda body: _speak(server, body), _bodies() * 2))
        for body in _bodies()[:2]:
            with httpx.stream(
                "POST",
                f"{server.url}/v1/audio/speech",
                json={**body, "max_new_tokens": 400, "stream_format": "audio"},
                timeout=ANSWER_S,
            ) as answer:
                next(answer.iter_bytes())
        ready = threading.Event()
        for _ in range(100):
            if _keys(master) == 0:
                break
            ready.wait(0.1)
        assert _keys(master) == 0
        assert_same_sound(_speak(server, _bodies()[0]), over_shared_memory[0])
    assert server.process.returncode == 0


def test_a_server_does_not_start_without_its_store(master: MooncakeMaster, tmp_path: Path) -> None:
    """B16: the start ends by a stated deadline and says which connector, edge and address."""
    deploy = _deploy_file(tmp_path, master.options(master="127.0.0.1:1", setup_timeout_s=1.0))

    with (
        pytest.raises(RuntimeError, match=r"connectors\.store.*edge 0 to 1.*127\.0\.0\.1:1"),
        serve(FOLDER, "--deploy-config", str(deploy), log=tmp_path / "stderr.log"),
    ):
        pass


@pytest.mark.parametrize("wrong", [{"segment": "abc"}, {"localbuf": -1}, {"proto": "tpc"}], ids=str)
def test_wrong_options_are_refused_before_anything_starts(
    master: MooncakeMaster, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    """B16."""
    deploy = _deploy_file(tmp_path, master.options(**wrong))

    with (
        pytest.raises(RuntimeError, match=rf"store\.yaml:1:.*MooncakeStoreConnector\.extra\.{next(iter(wrong))}"),
        serve(FOLDER, "--deploy-config", str(deploy), log=tmp_path / "stderr.log", timeout_s=ANSWER_S),
    ):
        pass
