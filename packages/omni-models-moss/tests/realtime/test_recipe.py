"""The talker of MOSS-TTS Realtime against a straight-line implementation in plain torch, from the text to the frames."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.speech import SpeechPrompt

torch = pytest.importorskip("torch")
# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SYSTEM = (
    "<|im_start|>system\nYou are a highly expressive text-to-speech (TTS) engine developed by Mosi Intelligence. \nYou possess "
    "natural language understanding, emotional modeling, and multi-style speech generation capabilities, allowing you to "
    "generate the corresponding speech based on the text given in the assistant.<|im_end|>\n"
)
VOICE = "<|im_start|>context\nThe assistant section should be synthesized using the following voice timbre:"
BOOKS, PAD, BEGIN, END = 16, 1024, 1025, 1026


@dataclass
class Straight:
    """One request, step by step, over the whole sequence of rows each time."""

    folder: Path
    backbone: Any
    depth: Any
    weights: dict[str, Any]
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.config = json.loads((self.folder / "config.json").read_text())

    def encode(self, text: str) -> list[int]:
        from tokenizers import Tokenizer

        return list(Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids)

    def generate(self, text: str, reference: Any, penalty: float, most: int) -> tuple[list[list[int]], bool]:
        """Return the frames, and whether the speech ended; every choice is the likeliest."""
        window = self.config.get("repetition_window", 50)
        pad = "<|audio_pad|>" * (0 if reference is None else len(reference))
        head = self.encode(SYSTEM + (VOICE + pad + "<|im_end|>\n" if pad else "") + "<|im_start|>assistant\n")
        spoken = self.encode(text)
        ids = head + spoken[:12]
        rows = np.full((len(ids), 1 + BOOKS), PAD)
        rows[:, 0] = ids
        if reference is not None:
            rows[np.array(ids) == self.config["reference_audio_pad"], 1:] = reference
        rows[-1, 1] = BEGIN
        frames: list[list[int]] = []
        for step in range(most):
            found = torch.from_numpy(rows)
            x = sum(self.weights[f"embed_tokens.{column}.weight"][found[:, column]] for column in range(1 + BOOKS))
            frame = self.frame(self.backbone(x)[-1], frames[-window:], penalty)
            if frame[0] == END:
                return frames, True
            frames.append(frame)
            following = spoken[12 + step] if 12 + step < len(spoken) else self.config["text_pad"]
            rows = np.concatenate([rows, [[following, *frame]]])
        return frames, False

    def frame(self, hidden: Any, before: list[list[int]], penalty: float) -> list[int]:
        read, frame = [hidden], []
        for book in range(BOOKS):
            logits = self.weights[f"local_transformer.local_lm_heads.{book}.weight"] @ self.depth(torch.stack(read))[-1]
            for code in {earlier[book] for earlier in before}:
                logits[code] = logits[code] / penalty if logits[code] > 0 else logits[code] * penalty
            logits[[PAD, BEGIN] if book == 0 else [PAD, BEGIN, END]] = -torch.inf
            frame.append(int(logits.argmax()))
            if book + 1 < BOOKS:
                read.append(self.weights[f"local_transformer.model.embed_tokens.{book}.weight"][frame[-1]])
        return frame


@pytest.fixture
def straight(straight_qwen3: Any, weights_of: Callable[[Path], Any]) -> Callable[[Path], Straight]:
    def make(folder: Path) -> Straight:
        weights, config = weights_of(folder), json.loads((folder / "config.json").read_text())
        backbone = straight_qwen3(weights, "language_model", config["language_config"])
        return Straight(folder, backbone, straight_qwen3(weights, "local_transformer.model", config["local_config"]), weights)

    return make


def test_frames_equal_a_straight_line_implementation(
    tiny: Callable[..., Path],
    tmp_path: Path,
    talker: Any,
    straight: Callable[[Path], Straight],
    recording: Callable[..., Any],
) -> None:
    from omni_models_moss.reference import ReferenceEncoder

    # A short window of the penalty, so that it ends within the test.
    folder, window = shutil.copytree(tiny("moss_tts_realtime"), tmp_path / "model"), 4
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "repetition_window": window}))
    model, voice = straight(folder), recording(1)
    encoded = ReferenceEncoder.load(folder / "audio_tokenizer", BOOKS).encode(voice.samples, voice.sample_rate)
    cases = [
        ("Hello there world, this is a longer text to be spoken.", None, 1.0, 16),
        ("Hello", None, 1.1, 10),  # the whole text before the first frame
        ("Hello there world, this is a longer text to be spoken.", voice, 1.1, 16),
        ("Hello there", voice, 3.0, 14),
    ]

    async def run() -> tuple[list[Any], list[Any]]:
        async with talker(folder) as running:

            async def speak(name: str, text: str, audio: Any, penalty: float, most: int) -> Any:
                prompt = SpeechPrompt(text, ref_audio=audio)
                return await running.speak(name, prompt, max_tokens=most, repetition_penalty=penalty)

            alone = [await speak(f"alone{i}", *case) for i, case in enumerate(cases)]
            together = await asyncio.gather(*(speak(f"together{i}", *case) for i, case in enumerate(cases)))
            return alone, together

    alone, together = asyncio.run(run())

    for (text, audio, penalty, most), found, again in zip(cases, alone, together, strict=True):
        frames, ended = model.generate(text, None if audio is None else encoded, penalty, most)
        assert found == again == (frames, "stop" if ended else "length")
    last, _ = alone[3]
    assert len(last) > window
    assert any(last[-1][book] in {frame[book] for frame in last[: -1 - window]} for book in range(BOOKS))
    assert alone[0] != alone[2]


def test_the_first_code_that_ends_the_speech_ends_the_request(tiny: Callable[..., Path], tmp_path: Path, talker: Any) -> None:
    folder = shutil.copytree(tiny("moss_tts_realtime"), tmp_path / "model")

    async def run() -> Any:
        async with talker(folder) as running:
            return await running.speak("r", SpeechPrompt("Hello there"), max_tokens=20)

    whole, reason = asyncio.run(run())
    assert (len(whole), reason) == (20, "length")
    # Another code than the published one: it is the checkpoint that says what ends the speech.
    end = next(frame[0] for index, frame in enumerate(whole) if index > 3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "audio_eos_token": end}))

    assert asyncio.run(run()) == (whole[: [frame[0] for frame in whole].index(end)], "stop")
