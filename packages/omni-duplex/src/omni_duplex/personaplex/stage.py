"""The first stage: a frame of the user's audio becomes a frame of the agent's codes and a piece of its text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from omni_core.errors import RequestError
from omni_core.modelkit.codec_stage import stage_device, stage_dtype
from omni_core.modelkit.config_reader import read_json
from omni_core.runner import LightChunk, LightModel
from omni_core.stage import ResolvedStage
from omni_duplex.personaplex.codec import CodecEncoder, build_codec
from omni_duplex.personaplex.network import Network, Weights, as_array
from omni_duplex.personaplex.prompt import VoicePrompt, make_prompt
from omni_duplex.personaplex.shape import CODEC, FRAME_SAMPLES, WEIGHTS, Shape
from omni_duplex.personaplex.slots import Rows, SlotTable
from omni_duplex.personaplex.voices import read_voice
from omni_duplex.personaplex.words import TextTokens, Words


@dataclass(eq=False)
class Session:
    """One session in this stage."""

    slot: int
    words: Words
    is_open: bool = False
    """Whether the network has read its prompt."""


def slot_count(stage: ResolvedStage) -> int:
    """Return how many sessions a replica holds: what the deployment says, or else how many requests."""
    return stage.duplex_max_sessions or int(stage.engine_args.get("max_num_seqs") or 1)


def read_shape(stage: ResolvedStage) -> Shape:
    """Return the sizes of a stage's checkpoint."""
    path = Path(stage.model) / "config.json"
    return Shape.of_config(read_json(path), str(path))


class PersonaPlexStage(LightModel):
    """Hear and speak, a frame at a time, for every session that has one.

    A request's first payload may have `instructions` and `voice`, and gives the number of `prompt_frames` that they took. Each
    later one has `audio` float32 [1920], and gives `codes` int64 [1, 8], the `token` of the text stream and its `text`.

    Args:
        folder: The checkpoint.
        shape: Its sizes.
        network: The network.
        encoder: Makes codes of what the user says.
        slots: The sessions.
        device: Where both compute.
    """

    def __init__(
        self, folder: Path, shape: Shape, network: Network, encoder: CodecEncoder, slots: SlotTable, device: torch.device
    ) -> None:
        self._folder = folder
        self._shape = shape
        self._network = network
        self._encoder = encoder
        self._slots = slots
        self._device = device
        self._tokens = TextTokens(folder, shape)
        self._voices: dict[str, VoicePrompt] = {}

    @classmethod
    def load(cls, stage: ResolvedStage) -> PersonaPlexStage:
        """Load the network and the codec.

        Raises:
            ConfigError: A file is missing or damaged, or belongs to another model.
            DependencyError: sentencepiece is not installed.
        """
        folder, shape, slots = Path(stage.model), read_shape(stage), slot_count(stage)
        device = torch.device(stage_device(stage))
        dtype = stage_dtype(stage) or (torch.float32 if device.type == "cpu" else torch.bfloat16)
        network = Network(Weights(folder / WEIGHTS, shape, device, dtype), shape, slots, device, dtype)
        encoder = CodecEncoder(build_codec(folder / CODEC, shape, device), slots, device)
        return cls(folder, shape, network, encoder, SlotTable(slots), device)

    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Session:
        """Return a session in a slot of its own.

        Raises:
            OverloadedError: No slot is free.
            RequestError: It asks for chance, and this model takes the most likely tokens.
        """
        if sampling.get("temperature"):
            raise RequestError(
                "this model takes the most likely token of every step", param="temperature", hint="leave temperature out"
            )
        slot = self._slots.take()
        self._encoder.begin(slot)
        return Session(slot, Words(self._tokens))

    def group(self, chunk: LightChunk) -> Hashable:
        """Keep prompts, whose lengths differ, apart from frames."""
        return chunk.request_id if not chunk.state.is_open else bool(chunk.payload)

    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return what each payload gives; the end of a session gives nothing.

        Raises:
            RequestError: A payload is no frame of audio, or the voice or the instructions cannot be used.
        """
        if not chunks[0].state.is_open:
            return [self._open(chunk) for chunk in chunks]
        if not chunks[0].payload:
            return [{} for _ in chunks]
        frames = np.zeros((self._slots.count, FRAME_SAMPLES), np.float32)
        for chunk in chunks:
            frames[chunk.state.slot] = checked_frame(chunk)
        rows = Rows([chunk.state.slot for chunk in chunks], self._slots.count, self._device)
        heard = self._encoder.encode(torch.from_numpy(frames).to(self._device), rows)
        said = self._network.step(heard, rows)
        tokens, codes = as_array(said.text), as_array(said.codes)
        results = []
        for chunk in chunks:
            session: Session = chunk.state
            token = int(tokens[session.slot])
            codes_said = codes[session.slot][None].copy()
            results.append({"codes": codes_said, "token": np.array([token]), "text": session.words.add(token)})
        return results

    def end(self, state: Session) -> None:
        """Give a session's slot back."""
        self._slots.give_back(state.slot)

    def _open(self, chunk: LightChunk) -> dict[str, Any]:
        session: Session = chunk.state
        text, name = chunk.payload.get("instructions") or "", chunk.payload.get("voice")
        if not isinstance(text, str) or not isinstance(name, str | None):
            raise RequestError("instructions and voice must be text", where=f"request {chunk.request_id}")
        voice = None if name is None else self._voice(name)
        length = self._network.begin(session.slot, make_prompt(self._shape, self._tokens.prompt(text), voice), voice)
        session.is_open = True
        return {"prompt_frames": np.array([length])}

    def _voice(self, name: str) -> VoicePrompt:
        if name not in self._voices:
            self._voices[name] = read_voice(self._folder, name, self._shape)
        return self._voices[name]


def checked_frame(chunk: LightChunk) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a payload's audio float32 [1920].

    Raises:
        RequestError: It is none, or holds numbers that are no samples.
    """
    audio = chunk.payload.get("audio")
    if not isinstance(audio, np.ndarray) or audio.dtype != np.float32 or audio.shape != (FRAME_SAMPLES,):
        raise RequestError(f"audio must be {FRAME_SAMPLES} float32 samples", where=f"request {chunk.request_id}", param="audio")
    if not np.isfinite(audio).all():
        raise RequestError("audio has samples that are no numbers", where=f"request {chunk.request_id}", param="audio")
    return audio
