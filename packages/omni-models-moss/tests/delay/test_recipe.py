"""The talker of the delay pattern against a straight-line implementation in plain torch, from the text to the frames."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.runner import Handoff, StageOutput
from omni_core.speech import SpeechPrompt

torch = pytest.importorskip("torch")
# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FORM = (
    "\n- Instruction:\n{instructions}\n- Tokens:\n{tokens}\n- Quality:\nNone\n- Sound Event:\nNone"
    "\n- Ambient Sound:\nNone\n- Language:\n{language}\n- Text:\n"
)


@dataclass
class Straight:
    """One request, step by step, over the whole sequence of rows each time."""

    folder: Path
    backbone: Any
    weights: dict[str, Any]
    penalty: float = 1.0
    lead: float = torch.inf
    """The least by which a choice was likelier than the next one."""
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.config = json.loads((self.folder / "config.json").read_text())
        self.books = self.config["n_vq"]

    def id(self, name: str) -> int:
        return int(self.config[f"{name}_token_id"])

    def prompt(self, text: str, form: str, references: list[Any], continued: Any = None) -> Any:
        """Return rows [n, 1 + books]: a whole text with special tokens for slots, tokenized at once."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        start, end, user = (tokenizer.id_to_token(self.id(name)) for name in ("audio_start", "audio_end", "audio_user_slot"))
        blocks = [f"[S{n + 1}]:\n{start}{user * (len(r) + self.books - 1)}{end}" for n, r in enumerate(references)]
        whole = "<|im_start|>user\n<user_inst>\n- Reference(s):\n" + ("\n".join(blocks) or "None")
        whole += form + text + "\n</user_inst><|im_end|>\n<|im_start|>assistant\n"
        if continued is not None:
            whole += start + tokenizer.id_to_token(self.id("audio_assistant_gen_slot")) * len(continued)
        ids = np.array(tokenizer.encode(whole, add_special_tokens=False).ids)
        rows = np.full((len(ids), 1 + self.books), self.config["audio_pad_code"])
        rows[:, 0] = ids
        starts = np.flatnonzero(ids == self.id("audio_start"))
        for begin, frames in zip(starts, [*references, *([] if continued is None else [continued])], strict=True):
            for book in range(self.books):
                for number, frame in enumerate(frames):
                    place = begin + 1 + number + book
                    if place < len(ids):
                        rows[place, 1 + book] = frame[book]
        return rows

    def logits(self, rows: Any) -> list[Any]:
        ids = torch.from_numpy(rows)
        x = self.weights["language_model.embed_tokens.weight"][ids[:, 0]]
        for book in range(self.books):
            x = x + self.weights[f"emb_ext.{book}.weight"][ids[:, 1 + book]]
        last = self.backbone(x)[-1]
        return [self.weights[f"lm_heads.{head}.weight"] @ last for head in range(1 + self.books)]

    def likeliest(self, logits: Any) -> int:
        (best, second), (chosen, _) = (found.tolist() for found in logits.topk(2))
        self.lead = min(self.lead, best - second)
        return int(chosen)

    def generate(self, rows: Any, most: int) -> tuple[list[list[int]], bool]:
        """Return the new rows' codes, and whether the answer ended; every choice is the likeliest."""
        slot, delay, pad = self.id("audio_assistant_gen_slot"), self.id("audio_assistant_delay_slot"), self.id("pad")
        start, end, stop = self.id("audio_start"), self.id("audio_end"), self.id("im_end")
        begun = rows[-1, 0] in (start, slot)
        length = len(rows) - int(np.flatnonzero(rows[:, 0] == start)[-1]) if begun else 0
        inside, behind, made, seen = begun, None, [], [set() for _ in range(self.books)]
        for step in range(most):
            text, *audio = self.logits(rows)
            if behind is not None and behind < self.books:
                chosen = delay
            elif behind == self.books:
                chosen, inside = end, False
            else:
                allowed = torch.ones(len(text), dtype=torch.bool)
                if inside:
                    allowed[:] = False
                    allowed[[slot, delay]] = True
                else:
                    allowed[[pad, slot, delay, end]] = False
                if step == 0:
                    allowed[delay] = False
                if step <= self.books:
                    allowed[stop] = False
                chosen = self.likeliest(text.masked_fill(~allowed, -torch.inf))
            if chosen == stop:
                return made, True
            inside = inside or chosen == start
            codes = []
            for book, scores in enumerate(audio):
                if length > book and (behind is None or book >= behind):
                    scores = scores[:-1].clone()
                    for code in seen[book]:
                        scores[code] = scores[code] / self.penalty if scores[code] > 0 else scores[code] * self.penalty
                    codes.append(self.likeliest(scores))
                    seen[book].add(codes[-1])
                else:
                    codes.append(self.config["audio_pad_code"])
            if chosen in (start, slot, delay):
                length += 1
            if chosen == end:
                length = 0
            if behind is None and chosen == delay:
                behind = 0
            behind = None if behind is None or behind + 1 > self.books else behind + 1
            rows = np.concatenate([rows, [[chosen, *codes]]])
            made.append(codes)
        return made, False

    def frames(self, made: list[list[int]], continued: Any = None) -> list[list[int]]:
        """Return the frames, which lie across the rows; those of a recording at the beginning are left out."""
        pad = self.config["audio_pad_code"]
        rows, begun = np.array(made), 0 if continued is None else len(continued)
        if begun:
            before = np.full((begun, self.books), pad)
            for number, book in np.ndindex(before.shape):
                if number >= book:
                    before[number, book] = continued[number - book][book]
            rows = np.concatenate([before, rows])
        found = [[rows[t + book, book] for book in range(self.books)] for t in range(len(rows) - self.books + 1)]
        return [[int(code) for code in frame] for frame in found[begun:] if any(code != pad for code in frame)]


@pytest.fixture
def straight(straight_qwen3: Any, weights_of: Callable[[Path], Any]) -> Callable[..., Straight]:
    def make(folder: Path, **values: Any) -> Straight:
        weights = weights_of(folder)
        config = json.loads((folder / "config.json").read_text())["language_config"]
        return Straight(folder, straight_qwen3(weights, "language_model", config), weights, **values)

    return make


def _encoded(folder: Path, audio: Any, books: int) -> Any:
    from omni_models_moss.reference import ReferenceEncoder

    return ReferenceEncoder.load(folder / "audio_tokenizer", books).encode(audio.samples, audio.sample_rate)


def _handed_on(made: list[list[int]], books: int, continued: Any) -> list[list[int]]:
    from omni_models_moss.delay.pattern import delayed
    from omni_models_moss.handoff import CODES, delayed_talker2codec_async_chunk

    begun = None if continued is None else delayed(continued, 1024)[: len(continued)]
    handoff = Handoff("r", {"begun_rows": begun}, {"codec_chunk_frames": 5})
    frames: list[list[int]] = []
    for number, row in enumerate(made):
        output = StageOutput({CODES: np.array([row])}, finished=number + 1 == len(made))
        payload = delayed_talker2codec_async_chunk(handoff, output) or {}
        if "ref_codes" in payload:
            assert len(payload["ref_codes"]) == len(continued)
            assert np.array_equal(payload["ref_codes"][: 1 - books], continued[: 1 - books])
        frames += payload.get("codes", np.zeros((0, 1), int)).tolist()
    return frames


# Of thousands of choices among random weights' codes some are near ties, which rounding decides: another CPU, another way.
@pytest.mark.parametrize(("variant", "seed"), [("ttsd", 5), ("tts", 3)], ids=["ttsd", "tts"])
def test_rows_and_frames_equal_a_straight_line_implementation(
    variant: str,
    seed: int,
    tiny: Callable[..., Path],
    talker: Any,
    straight: Callable[..., Straight],
    recording: Callable[..., Any],
) -> None:
    folder, most = tiny("moss_tts_delay", variant, seed), 90
    model = straight(folder)
    plain = FORM.format(instructions="None", tokens="None", language="None")
    first, second = recording(1), recording(2, seconds=1.3)
    frames = [_encoded(folder, audio, model.books) for audio in (first, second)]
    full = FORM.format(instructions="Slowly, please", tokens="30", language="Thai")
    cases = [
        (SpeechPrompt("Hello there <world>.", ref_audio=first), plain, [frames[0]], None, 1.0),
        (
            SpeechPrompt("Hello", ref_audio=first, instructions="Slowly, please", duration_seconds=2.4, language="thai"),
            full,
            [frames[0]],
            None,
            1.0,
        ),
        (SpeechPrompt("said", ref_audio=second, ref_text="Hello world"), plain, [], frames[1], 1.0),
        (SpeechPrompt("Hello", ref_audio=second), plain, [frames[1]], None, 1.5),
    ]
    if variant == "ttsd":
        cases.append((SpeechPrompt("[S1] Hello [S2] there", ref_audio=first, ref_audio_2=second), plain, frames, None, 1.0))
    else:
        cases.append((SpeechPrompt("Hello"), plain, [], None, 1.0))

    async def run() -> tuple[list[Any], list[Any]]:
        async with talker(folder) as running:
            asked = [(prompt, penalty) for prompt, _, _, _, penalty in cases]
            alone = [
                await running.speak(f"alone{i}", prompt, max_tokens=most, repetition_penalty=penalty)
                for i, (prompt, penalty) in enumerate(asked)
            ]
            together = await asyncio.gather(
                *(
                    running.speak(f"together{i}", prompt, max_tokens=most, repetition_penalty=penalty)
                    for i, (prompt, penalty) in enumerate(asked)
                )
            )
            return alone, together

    alone, together = asyncio.run(run())

    ends = []
    for (prompt, form, references, continued, penalty), found, again in zip(cases, alone, together, strict=True):
        text = prompt.text if continued is None else f"{prompt.ref_text} {prompt.text}"
        model.penalty = penalty
        made, ended = model.generate(model.prompt(text, form, references, continued), most)
        assert found == again == (made, "stop" if ended else "length")
        assert _handed_on(found[0], model.books, continued) == model.frames(made, continued)
        assert model.frames(made, continued)
        ends.append(ended)
    assert True in ends
    assert model.lead > 1e-4, "another seed has no near ties"
