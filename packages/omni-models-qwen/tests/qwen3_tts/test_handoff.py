from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.payload import Payload
from omni_core.runner import Handoff, StageOutput
from omni_models_qwen.qwen3_tts.handoff import CODES, FIRST_AUDIO, talker2code2wav, talker2code2wav_async_chunk


def _handoff(options: dict[str, Any] | None = None, **inputs: Any) -> Handoff:
    return Handoff("r", {"num_codes": 16, "ref_codes": None, "initial_codec_chunk_frames": None, **inputs}, options or {})


def _frames(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)[:, None].repeat(16, axis=1)


def _run(handoff: Handoff, total: int) -> list[Payload]:
    """Give frames one by one, as the talker makes them, and then the end."""
    made = [talker2code2wav_async_chunk(handoff, StageOutput(tensors={CODES: _frames(i, 1)})) for i in range(total)]
    made.append(talker2code2wav_async_chunk(handoff, StageOutput(finished=True)))
    return [payload for payload in made if payload is not None]


@pytest.mark.parametrize(("total", "sizes"), [(0, [0]), (1, [1, 0]), (26, [1, 25, 0]), (30, [1, 25, 4]), (60, [1, 25, 25, 9])])
def test_frames_leave_in_chunks_and_what_is_left_at_the_end(total: int, sizes: list[int]) -> None:
    payloads = _run(_handoff({"codec_chunk_frames": 25, "initial_codec_chunk_frames": 1}), total)

    assert [len(payload["codes"]) for payload in payloads] == sizes
    assert (np.concatenate([payload["codes"] for payload in payloads]) == _frames(0, total)).all()


def test_a_backlog_leaves_as_one_chunk() -> None:
    handoff = _handoff({"codec_chunk_frames": 4})

    payload = talker2code2wav_async_chunk(handoff, StageOutput(tensors={CODES: _frames(0, 11)}))

    assert payload is not None
    assert len(payload["codes"]) == 11


def test_a_request_may_choose_its_first_chunk() -> None:
    payloads = _run(_handoff({"codec_chunk_frames": 10, "initial_codec_chunk_frames": 1}, initial_codec_chunk_frames=3), 14)

    assert [len(payload["codes"]) for payload in payloads] == [3, 10, 1]


def test_the_reference_goes_with_the_first_payload_only_and_keeps_its_end() -> None:
    """TT-08."""
    reference = _frames(100, 30).astype(np.int64)

    payloads = _run(_handoff({"codec_chunk_frames": 2, "ref_code_context_frames": 8}, ref_codes=reference), 4)

    assert (payloads[0]["ref_codes"] == reference[-8:]).all()
    assert payloads[0]["ref_codes"].dtype == np.int32
    assert payloads[0]["ref_total"] == 30
    assert all("ref_codes" not in payload for payload in payloads[1:])


def test_no_context_means_no_reference_frames() -> None:
    (payload,) = _run(_handoff({"ref_code_context_frames": 0, "initial_codec_chunk_frames": 25}, ref_codes=_frames(0, 5)), 3)

    assert payload["ref_codes"].shape == (0, 16)


def test_without_chunks_everything_leaves_as_one_payload() -> None:
    reference = _frames(100, 3)

    payload = talker2code2wav(_handoff(ref_codes=reference), StageOutput(tensors={CODES: _frames(0, 40)}, finished=True))

    assert len(payload["codes"]) == 40
    assert (payload["ref_codes"] == reference).all()


def test_a_request_without_frames_hands_on_an_empty_payload() -> None:
    payload = talker2code2wav(_handoff(), StageOutput(finished=True))

    assert payload["codes"].shape == (0, 16)


def test_audio_of_the_first_frame_leaves_at_once_and_marks_its_payload_alone() -> None:
    """TT-10."""
    handoff = _handoff({"codec_chunk_frames": 4, "initial_codec_chunk_frames": 4})
    sound = np.zeros((1920, 1), np.float32)

    first = talker2code2wav_async_chunk(handoff, StageOutput(tensors={CODES: _frames(0, 1), FIRST_AUDIO: sound}))
    rest = [talker2code2wav_async_chunk(handoff, StageOutput(tensors={CODES: _frames(i, 1)})) for i in range(1, 5)]

    assert first is not None
    assert (first["codes"].shape, first["audio"] is sound) == ((1, 16), True)
    assert rest[:3] == [None, None, None]
    assert rest[3] is not None
    assert (rest[3]["codes"].shape, "audio" in rest[3]) == ((4, 16), False)


def test_a_full_stage_makes_the_first_payload_larger() -> None:
    """TT-15."""
    sizes = []
    for load in (0.0, 0.5, 1.0):
        handoff, count = _handoff(), 0
        made = None
        while made is None:
            made = talker2code2wav_async_chunk(handoff, StageOutput(tensors={CODES: _frames(count, 1)}, load=load))
            count += 1
        sizes.append(len(made["codes"]))

    assert sizes == [1, 4, 16]
