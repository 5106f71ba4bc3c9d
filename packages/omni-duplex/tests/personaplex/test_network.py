"""The network and the codec against transformers' modules driven in a straight line, one session, nothing kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from omni_core.errors import ConfigError, OverloadedError, RequestError
from omni_core.modelkit.weights import TensorReader
from omni_duplex.personaplex.codec import build_codec
from omni_duplex.personaplex.network import Weights
from omni_duplex.personaplex.shape import CODEC, CODES, SILENT_FRAMES, STREAMS, WEIGHTS, Shape
from omni_duplex.personaplex.tiny import build_tiny
from omni_duplex.personaplex.voices import read_voice
from omni_duplex.personaplex.words import TextTokens

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
FRAMES = 30
"""More than the codec's window has: 20 positions, two in a frame."""


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def weights(folder: Path, shape: Shape) -> Weights:
    return Weights(folder / WEIGHTS, shape, CPU, torch.float32)


@pytest.fixture(scope="module")
def codec(folder: Path, shape: Shape) -> Any:
    return build_codec(folder / CODEC, shape, CPU)


class StraightLine:
    """Moshi's loop as its paper has it: a table of columns, and the whole sequence read anew for every frame."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        self.weights = weights
        self.shape = shape
        self.table: dict[tuple[int, int], int] = {}
        """Token of each (stream, column) that is known."""
        self.inputs: list[Tensor] = []
        self.column = 0

    def feed(self, frame: dict[int, int], embedding: Tensor | None = None) -> list[int] | None:
        """Take the known tokens of a frame by stream; return the newest whole frame of text and codes, when there is one."""
        delays = [0, 0, *[1] * 7, 0, *[1] * 7]
        for stream, token in frame.items():
            self.table[stream, self.column + delays[stream]] = token
        for stream, delay in enumerate(delays):
            if self.column <= delay:
                self.table[stream, self.column] = self.shape.text_vocab if stream == 0 else self.shape.card
        if self.column == 0:
            for stream in range(STREAMS):
                self.table[stream, 0] = self.shape.text_vocab if stream == 0 else self.shape.card
            self.column = 1
            return None
        self.inputs.append(self._embedded(self.column - 1) if embedding is None else embedding)
        hidden = self.weights.temporal(inputs_embeds=torch.stack(self.inputs)[None], use_cache=False).last_hidden_state[:, -1:]
        said = int(self.weights.head(hidden)[0, 0].argmax())
        tokens = [self.table.setdefault((0, self.column), said)]
        for code in range(CODES):
            states = hidden.expand(1, code + 1, -1)
            logits = self.weights.depth(input_ids=torch.tensor([tokens]), last_hidden_state=states, use_cache=False).logits
            tokens.append(self.table.setdefault((1 + code, self.column), int(logits[0, -1].argmax())))
        self.column += 1
        if self.column < 3:
            return None
        return [self.table[stream, self.column - 2 + delays[stream]] for stream in range(1 + CODES)]

    def _embedded(self, column: int) -> Tensor:
        tokens = [torch.tensor(self.table[stream, column]) for stream in range(STREAMS)]
        found = sum(table(token) for table, token in zip(self.weights.codes, tokens[1:], strict=True))
        return found + self.weights.temporal.embed_tokens(tokens[0])

    def prompt(self, text: list[int], voice: Any) -> None:
        """Read a voice, silence, a text, silence, as the published code does, one frame after the other."""
        if voice is not None:
            # The published code feeds dummies for the streams beside each embedding, then puts the saved columns back.
            for place, embedding in enumerate(torch.from_numpy(voice.embeddings)):
                dummies = {0: self.shape.text_pad, **dict.fromkeys(range(1, STREAMS), self.shape.card)}
                if place == 0:
                    self.feed(dummies)
                self.feed(dummies, embedding)
            for stream in range(STREAMS):
                for column in range(self.column - 1, self.column + 2):
                    if (stream, column) in self.table:
                        self.table[stream, column] = int(voice.columns[stream, column % 4])
        silent = [self.shape.text_pad] * SILENT_FRAMES
        for token in [*silent, *text, *silent]:
            codes = [*self.shape.silence, *self.shape.sine]
            self.feed({0: token, **{1 + stream: code for stream, code in enumerate(codes)}})


@pytest.mark.parametrize("name", ["NATF2", "NATM1", None])
def test_a_session_says_what_the_straight_line_says(
    pair: Any, noise: Callable[..., Any], folder: Path, shape: Shape, weights: Weights, codec: Any, name: str | None
) -> None:
    """17 streams, their delays, both prompts, the forced first frame: every token and every code, and the decoded audio."""
    audio = noise(FRAMES, seed=3)
    voice = None if name is None else read_voice(folder, name, shape)
    line = StraightLine(weights, shape)
    line.prompt(TextTokens(folder, shape).prompt("you are well"), voice)
    heard = codec.encode(torch.from_numpy(audio.reshape(1, 1, -1)), num_quantizers=CODES).audio_codes[0].T.tolist()
    expected = [line.feed({9 + book: code for book, code in enumerate(codes)}) for codes in heard]

    found = pair.alone(audio, voice=name)

    assert [[token, *codes.tolist()] for token, codes, _ in found] == expected
    wave = codec.decode(torch.tensor(expected)[:, 1:].T[None]).audio_values[0, 0].numpy()
    ours = np.concatenate([np.frombuffer(sound, np.float32) for _, _, sound in found])
    assert np.abs(wave).max() > 0.05
    np.testing.assert_allclose(ours, wave, atol=1e-5 * np.abs(wave).max())


def test_the_first_frame_is_the_silence_that_the_prompt_forced(pair: Any, noise: Callable[..., Any], shape: Shape) -> None:
    token, codes, _ = pair.alone(noise(1))[0]

    assert (token, tuple(codes)) == (shape.text_pad, shape.silence)


def test_what_is_heard_and_the_prompt_change_what_is_said(pair: Any, noise: Callable[..., Any]) -> None:
    same, other = noise(8, seed=1), noise(8, seed=2)
    first = pair.alone(same)

    again, differently = pair.alone(same), pair.alone(other)
    voice, text = pair.alone(same, voice="NATM1"), pair.alone(same, instructions="no")

    assert [sound for *_, sound in again] == [sound for *_, sound in first]
    for changed in (differently, voice, text):
        assert [sound for *_, sound in changed] != [sound for *_, sound in first]


def test_a_session_goes_on_past_its_windows(pair: Any, noise: Callable[..., Any], shape: Shape) -> None:
    """120 frames: more than the network looks back (96), and twelve times the codec's window."""
    found = pair.alone(noise(120, seed=5))

    assert len({tuple(codes) for _, codes, _ in found[shape.context :]}) > 10


def test_a_prompt_longer_than_the_network_looks_back_is_refused(pair: Any) -> None:
    with pytest.raises(RequestError, match="looks back 96"):
        pair.open("long", instructions="no " * 60)
    pair.close("long")


def test_a_replica_holds_so_many_sessions_and_no_more(pair: Any) -> None:
    """DP-01: sessions and what the model keeps for them."""
    for name in "abc":
        pair.open(name)
    with pytest.raises(OverloadedError, match="all 3 sessions"):
        pair.open("d")

    pair.close("b")
    pair.open("d")

    for name in "acd":
        pair.close(name)


def test_the_file_with_sixteen_steps_says_the_same(tmp_path: Path, shape: Shape) -> None:
    """The published file has depth weights for the user's codes, too."""
    build_tiny(tmp_path / "sixteen", "sixteen")
    reader = TensorReader((tmp_path / "sixteen" / WEIGHTS,), "")
    assert "linears.15.weight" in reader.names
    depth = Weights(tmp_path / "sixteen" / WEIGHTS, shape, CPU, torch.float32).depth

    size = shape.depth_dim
    joined = reader.take("depformer.layers.1.self_attn.in_proj_weight", 16 * 3 * size, size).view(16, 3, size, size)
    held = dict(depth.named_parameters())

    torch.testing.assert_close(held["layers.1.self_attn.v_proj.linear.weight"].data, joined[:CODES, 2], rtol=0, atol=0)
    torch.testing.assert_close(
        held["lm_heads.weight"].data[7], reader.take("linears.7.weight", shape.card, size), rtol=0, atol=0
    )


@pytest.mark.parametrize("damage", ["missing", "short", "other sizes"])
def test_a_file_that_cannot_be_the_networks_is_named(tmp_path: Path, folder: Path, shape: Shape, damage: str) -> None:
    path = tmp_path / WEIGHTS
    if damage != "missing":
        path.write_bytes((folder / WEIGHTS).read_bytes()[: 1000 if damage == "short" else None])
    wrong = shape if damage != "other sizes" else Shape.of_config({"sizes": {"text_vocab": 7}})

    with pytest.raises(ConfigError, match=WEIGHTS if damage != "other sizes" else "shape"):
        Weights(path, wrong, CPU, torch.float32)
