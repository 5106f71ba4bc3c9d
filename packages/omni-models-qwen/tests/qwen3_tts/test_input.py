from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.payload import decode_payload, encode_payload
from omni_core.stage import ResolvedEdge, ResolvedStage
from omni_models_qwen.qwen3_tts.input import Qwen3TTSInput

PAYLOAD: dict[str, Any] = {
    "text": "Hello world",
    "language": "english",
    "voice": "ryan",
    "instructions": None,
    "non_streaming_mode": True,
    "initial_codec_chunk_frames": 3,
}


class Voice:
    def __init__(self, codes: np.ndarray | None) -> None:
        self.codes = codes
        self.embedding = np.ones(48, dtype=np.float32)


class FakeEncoder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bool]] = []

    def encode(self, samples: np.ndarray, sample_rate: int, *, with_codes: bool) -> Voice:
        self.calls.append((len(samples), sample_rate, with_codes))
        return Voice(np.full((4, 16), 7, dtype=np.int64) if with_codes else None)


@pytest.fixture
def base(
    data_folder: Path, tmp_path: Path, stage_of: Callable[..., ResolvedStage], monkeypatch: pytest.MonkeyPatch
) -> tuple[Qwen3TTSInput, FakeEncoder]:
    """The processor of a Base checkpoint with a fake encoder and room for two voices."""
    for path in data_folder.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        if path.name == "config.json":
            text = text.replace('"custom_voice"', '"base", "speaker_encoder_config": {"enc_dim": 48}')
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    encoder = FakeEncoder()
    monkeypatch.setattr("omni_models_qwen.qwen3_tts.input._load_encoder", lambda folder: encoder)
    edge = ResolvedEdge(0, 1, "shm", "m:C", stream={"ref_audio_artifact_cache_max_entries": 2})
    return Qwen3TTSInput(stage_of(tmp_path, outputs=(edge,))), encoder


def _clone(fill: float, x_vector_only: bool = False) -> dict[str, Any]:
    return {
        **PAYLOAD,
        "voice": None,
        "non_streaming_mode": False,
        "ref_audio": np.full(24_000, fill, dtype=np.float32),
        "ref_sample_rate": 24_000,
        "ref_text": None if x_vector_only else "Words",
        "x_vector_only": x_vector_only,
    }


def test_ids_are_placeholders_that_no_penalty_can_hurt(data_folder: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    made = Qwen3TTSInput(stage_of(data_folder))(PAYLOAD, {})

    assert set(made.prompt_token_ids) == {2148}
    assert len(made.prompt_token_ids) == len(made.model_inputs["codes"])
    assert made.handoff == {"num_codes": 16, "ref_codes": None, "initial_codec_chunk_frames": 3, "frame_s": 0.08}


def test_model_inputs_can_cross_a_process(data_folder: Path, stage_of: Callable[..., ResolvedStage]) -> None:
    made = Qwen3TTSInput(stage_of(data_folder))(PAYLOAD, {})

    arrived = decode_payload(encode_payload(made.model_inputs))

    assert (arrived["codes"] == made.model_inputs["codes"]).all()


def test_an_in_context_clone_hands_on_its_reference(base: tuple[Qwen3TTSInput, FakeEncoder]) -> None:
    process, encoder = base

    made = process(_clone(0.5), {})

    assert encoder.calls == [(24_000, 24_000, True)]
    assert made.handoff["ref_codes"].shape == (4, 16)
    assert (made.model_inputs["codes"][-4:] == 7).all()
    assert made.model_inputs["speaker"].tolist() == [1.0] * 48


def test_a_clone_by_embedding_has_no_reference_frames(base: tuple[Qwen3TTSInput, FakeEncoder]) -> None:
    process, _ = base

    made = process(_clone(0.5, x_vector_only=True), {})

    assert made.handoff["ref_codes"] is None
    assert made.model_inputs["speaker_row"] == 7


def test_a_given_embedding_is_not_encoded(base: tuple[Qwen3TTSInput, FakeEncoder]) -> None:
    process, encoder = base

    made = process({**PAYLOAD, "voice": None, "speaker_embedding": np.full(48, 2.0, dtype=np.float32)}, {})

    assert encoder.calls == []
    assert made.model_inputs["speaker"].tolist() == [2.0] * 48


def test_a_voice_is_encoded_once_for_each_mode(base: tuple[Qwen3TTSInput, FakeEncoder]) -> None:
    """TT-20: an entry made for the embedding alone never serves an in-context clone."""
    process, encoder = base

    for clone in (_clone(0.5), _clone(0.5), _clone(0.5, x_vector_only=True), _clone(0.5, x_vector_only=True)):
        process(clone, {})

    assert [call[2] for call in encoder.calls] == [True, False]


def test_the_voice_used_longest_ago_is_forgotten_first(base: tuple[Qwen3TTSInput, FakeEncoder]) -> None:
    process, encoder = base

    for fill in (0.1, 0.2, 0.1, 0.3, 0.1, 0.2):
        process(_clone(fill), {})

    assert len(encoder.calls) == 4  # 0.1, 0.2, 0.3, and 0.2 again


@pytest.mark.parametrize(("entries", "calls"), [(0, 3), (1, 1)])
def test_the_single_stage_has_the_option_among_its_own(
    base: tuple[Qwen3TTSInput, FakeEncoder],
    entries: int,
    calls: int,
    tmp_path: Path,
    stage_of: Callable[..., ResolvedStage],
) -> None:
    """TT-20: 0 keeps no voice."""
    _, encoder = base
    own = {"ref_audio_artifact_cache_max_entries": entries}
    process = Qwen3TTSInput(stage_of(tmp_path, engine_args={"additional_config": own}))

    for _ in range(3):
        process(_clone(0.5), {})

    assert len(encoder.calls) == calls
