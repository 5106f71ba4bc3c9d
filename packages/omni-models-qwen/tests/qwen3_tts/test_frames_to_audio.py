"""The reference's frames, handed over as the talker makes them, become the reference's audio."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.payload import Payload, decode_payload, encode_payload
from omni_core.runner import Handoff, LightChunk, StageOutput
from omni_core.stage import ResolvedStage
from omni_models_qwen.qwen3_tts.handoff import CODES, talker2code2wav, talker2code2wav_async_chunk

pytestmark = pytest.mark.engine

OPTIONS = {"codec_chunk_frames": 7, "initial_codec_chunk_frames": 1, "ref_code_context_frames": 72}


def _payloads(case: Any, chunked: bool) -> list[Payload]:
    codes = case.array("codes")
    handoff = Handoff("r", {"num_codes": 16, "ref_codes": case.array("ref_codes")}, OPTIONS)
    if not chunked:
        return [talker2code2wav(handoff, StageOutput(tensors={CODES: codes}, finished=True))]
    outputs = [StageOutput(tensors={CODES: codes[i : i + 1]}) for i in range(len(codes))]
    made = [talker2code2wav_async_chunk(handoff, output) for output in [*outputs, StageOutput(finished=True)]]
    return [payload for payload in made if payload is not None]


@pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "whole"])
def test_audio_equals_the_reference(
    golden_folder: Path, cases_of: Callable[[Path], list[Any]], stage_of: Callable[..., ResolvedStage], chunked: bool
) -> None:
    torch = pytest.importorskip("torch")
    from omni_models_qwen.qwen3_tts.code2wav import Qwen3TTSCode2Wav

    torch.set_num_threads(1)
    model = Qwen3TTSCode2Wav.load(stage_of(golden_folder, 1, engine_args={"dtype": "float32"}))
    for case in cases_of(golden_folder):
        state, pieces = model.begin(case.id, {}), []
        payloads = _payloads(case, chunked)
        for number, payload in enumerate(payloads):
            arrived = decode_payload(encode_payload(payload))
            (made,) = model.step([LightChunk(case.id, state, arrived, number == len(payloads) - 1)])
            pieces.append(np.asarray(made["audio"])[:, 0])
        model.end(state)

        audio, expected = np.concatenate(pieces), case.array("wav")
        assert audio.shape == expected.shape, case.id
        assert np.abs(audio - expected).max() < 1e-3, case.id
