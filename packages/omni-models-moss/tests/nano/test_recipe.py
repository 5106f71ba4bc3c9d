"""The talker of MOSS-TTS Nano against a straight-line implementation in plain torch, from the text to the frames."""

from __future__ import annotations

import asyncio
import json
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

BOOKS, PAD = 16, 1024
NOTHING = "".join(
    f"\n- {name}:\nNone" for name in ("Instruction", "Tokens", "Quality", "Sound Event", "Ambient Sound", "Language")
)


@dataclass
class Straight:
    """One request, step by step, over the whole sequence of rows each time."""

    folder: Path
    weights: dict[str, Any]
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.config = json.loads((self.folder / "config.json").read_text())

    def prompt(self, text: str, reference: Any = None, continued: Any = None) -> Any:
        from sentencepiece import SentencePieceProcessor

        encode = SentencePieceProcessor(model_file=str(self.folder / "tokenizer.model")).encode
        start, end, turn, done, user, own = 6, 7, 4, 5, 8, 9
        rows = [[turn], encode("user\n"), encode("<user_inst>\n- Reference(s):\n")]
        rows.append(encode("None") if reference is None else [start, *[user] * len(reference), end])
        rows += [encode(NOTHING + "\n- Text:\n"), encode(text), encode("\n</user_inst>"), [done], encode("\n"), [turn]]
        rows += [encode("assistant\n"), [start], [own] * (0 if continued is None else len(continued))]
        ids = np.concatenate([np.array(part, int) for part in rows if len(part)])
        table = np.full((len(ids), 1 + BOOKS), PAD)
        table[:, 0] = ids
        for slot, frames in ((user, reference), (own, continued)):
            if frames is not None:
                table[ids == slot, 1:] = frames
        return table

    def stack(self, x: Any, name: str, layers: int) -> Any:
        sizes, count = self.config["gpt2_config"], len(x)
        heads, eps = sizes["n_head"], sizes["layer_norm_epsilon"]
        get = lambda part: (self.weights[f"{name}.{part}.weight"], self.weights[f"{name}.{part}.bias"])  # noqa: E731

        def norm(x: Any, part: str) -> Any:
            weight, bias = get(part)
            x = x - x.mean(-1, keepdim=True)
            return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias

        def product(x: Any, part: str) -> Any:
            weight, bias = get(part)
            return x @ weight.T + bias

        for index in range(layers):
            qkv = product(norm(x, f"h.{index}.ln_1"), f"h.{index}.attn.c_attn").view(count, 3, heads, -1)
            q, k, v = qkv.permute(1, 2, 0, 3)
            head = q.shape[-1]
            angles = torch.arange(count)[:, None] * sizes["rope_base"] ** (-torch.arange(0, head, 2) / head)
            turn = torch.polar(torch.ones_like(angles), angles)
            q, k = (
                torch.view_as_real(torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2)) * turn).flatten(-2) for y in (q, k)
            )
            scores = (q @ k.transpose(1, 2) / head**0.5).masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
            x = x + product((scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1), f"h.{index}.attn.c_proj")
            y = product(norm(x, f"h.{index}.ln_2"), f"h.{index}.mlp.fc_in")
            y = 0.5 * y * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
            x = x + product(y, f"h.{index}.mlp.fc_out")
        return norm(x, "ln_f")

    def generate(self, rows: Any, penalty: float, most: int) -> tuple[list[list[int]], bool]:
        """Return the frames, and whether the speech ended; every choice is the likeliest."""
        words, frames = self.weights["transformer.wte.weight"], []
        tables = [self.weights[f"audio_embeddings.{book}.weight"] for book in range(BOOKS)]
        own, end = self.config["audio_assistant_slot_token_id"], self.config["audio_end_token_id"]
        for _ in range(most):
            x = words[torch.from_numpy(rows[:, 0])].clone()
            for number, book in np.ndindex(len(rows), BOOKS):
                if rows[number, 1 + book] != PAD:
                    x[number] += tables[book][rows[number, 1 + book]]
            read = [self.stack(x, "transformer", self.config["gpt2_config"]["n_layer"])[-1]]
            decision = words @ self.stack(torch.stack(read), "local_transformer", 1)[-1]
            if decision[end] > decision[own]:
                return frames, True
            read.append(words[own])
            frame: list[int] = []
            for book in range(BOOKS):
                logits = tables[book] @ self.stack(torch.stack(read), "local_transformer", 1)[-1]
                for code in {earlier[book] for earlier in frames}:
                    logits[code] = logits[code] / penalty if logits[code] > 0 else logits[code] * penalty
                frame.append(int(logits.argmax()))
                read.append(tables[book][frame[-1]])
            frames.append(frame)
            rows = np.concatenate([rows, [[own, *frame]]])
        return frames, False


def test_frames_equal_a_straight_line_implementation(
    tiny: Callable[..., Path], talker: Any, weights_of: Callable[[Path], Any], recording: Callable[..., Any]
) -> None:
    from omni_models_moss.reference import ReferenceEncoder

    folder, most = tiny("moss_tts_nano"), 14
    model, voice = Straight(folder, weights_of(folder)), recording(1, rate=48000)
    frames = ReferenceEncoder.load(folder / "audio_tokenizer", BOOKS).encode(voice.samples, voice.sample_rate)
    cases = [
        (SpeechPrompt("Hello there 世界"), model.prompt("Hello there 世界"), 1.0),
        (SpeechPrompt("Hello", ref_audio=voice), model.prompt("Hello", frames), 1.2),
        (SpeechPrompt("world", ref_audio=voice, ref_text="Hello"), model.prompt("Hello world", None, frames), 1.0),
    ]

    async def run() -> tuple[list[Any], list[Any]]:
        async with talker(folder) as running:

            async def speak(name: str, prompt: SpeechPrompt, penalty: float) -> Any:
                return await running.speak(name, prompt, max_tokens=most, repetition_penalty=penalty)

            alone = [await speak(f"alone{i}", prompt, penalty) for i, (prompt, _, penalty) in enumerate(cases)]
            both = await asyncio.gather(*(speak(f"both{i}", prompt, penalty) for i, (prompt, _, penalty) in enumerate(cases)))
            return alone, both

    alone, both = asyncio.run(run())

    for (_, rows, penalty), found, again in zip(cases, alone, both, strict=True):
        made, ended = model.generate(rows, penalty, most)
        assert found == again == (made, "stop" if ended else "length")
    assert sum(len(frames) for frames, _ in alone) > 14
