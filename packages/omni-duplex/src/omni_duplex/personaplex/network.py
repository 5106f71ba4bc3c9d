"""The network, Moshi, on transformers' modules: each frame reads the column before and says a text token and eight codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.moshi.configuration_moshi import MoshiConfig, MoshiDepthConfig
from transformers.models.moshi.modeling_moshi import MoshiDepthDecoder, MoshiModel, MoshiRotaryEmbedding

from omni_core.errors import RequestError
from omni_core.modelkit.weights import TensorReader
from omni_duplex.personaplex.network_weights import load_depth, load_temporal
from omni_duplex.personaplex.prompt import LATE, Prompt, VoicePrompt
from omni_duplex.personaplex.shape import CODES, STREAMS, Shape
from omni_duplex.personaplex.slots import KeyValues, Rows

_CPU = torch.device("cpu")
_AGENT, _USER = slice(1, 1 + CODES), slice(1 + CODES, STREAMS)


def moshi_config(shape: Shape) -> MoshiConfig:
    """Return transformers' configuration of the network."""
    depth = {
        "hidden_size": shape.depth_dim,
        "num_hidden_layers": shape.depth_layers,
        "num_attention_heads": shape.depth_heads,
        "ffn_dim": 2 * shape.depth_ffn,
    }
    return MoshiConfig(
        vocab_size=shape.text_vocab,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        ffn_dim=2 * shape.ffn,
        audio_vocab_size=shape.card,
        num_codebooks=CODES,
        sliding_window=shape.context,
        depth_decoder_config=depth,
    )


class Weights:
    """The network's modules with their weights, on a device.

    Args:
        path: The published file.
        shape: Its sizes.
        device: Where to.
        dtype: Type of the weights.

    Raises:
        ConfigError: The file is missing or damaged, or belongs to another model.
    """

    def __init__(self, path: Path, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        config = moshi_config(shape)
        assert isinstance(config.depth_decoder_config, MoshiDepthConfig), "it was given"
        reader = TensorReader((path,), "")
        with torch.device("meta"):  # seven thousand million numbers need not be drawn to be overwritten
            self.temporal = MoshiModel(config)
            self.codes = nn.ModuleList([nn.Embedding(shape.card + 1, shape.dim) for _ in range(2 * CODES)])
            self.head = nn.Linear(shape.dim, shape.text_vocab, bias=False)
            self.depth = MoshiDepthDecoder(config.depth_decoder_config)
        for module in (self.temporal, self.codes, self.head, self.depth):
            module.to(dtype).to_empty(device=device).eval()
        for layer in self.temporal.layers:
            layer.self_attn.rotary_emb = MoshiRotaryEmbedding(config).to(device)  # has buffers that no file holds
        load_temporal(self.temporal, self.codes, self.head, shape, reader)
        load_depth(self.depth, shape, reader)


@dataclass
class Said:
    """What a frame gives, for every slot."""

    text: Tensor
    """int64 [slots], the text token."""
    codes: Tensor
    """int64 [slots, 8], the agent's codes."""


class Network:
    """The network and what it remembers of each slot.

    Args:
        weights: Its modules.
        shape: Sizes.
        slots: How many sessions.
        device: Where it computes.
        dtype: Type of the weights.
    """

    def __init__(self, weights: Weights, shape: Shape, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self._weights = weights
        self._dtype = dtype
        self._device = device
        self._cache = KeyValues(
            layers=shape.layers,
            slots=slots,
            heads=shape.heads,
            head_dim=shape.dim // shape.heads,
            window=shape.context,
            count=1,
            device=device,
            dtype=dtype,
        )
        whole = (slots, STREAMS)
        self._last = torch.zeros(whole, dtype=torch.int64, device=device)
        """The column that the next frame reads."""
        self._late = torch.zeros(whole, dtype=torch.int64, device=device)
        """The frame before the next one, whose late streams belong to the column that the next frame says."""
        self._forced = torch.zeros(slots, dtype=torch.bool, device=device)
        """Whether the agent's part of that frame was given and not said, as behind a prompt."""
        self._is_late = torch.as_tensor(LATE, device=device)

    def begin(self, slot: int, prompt: Prompt, voice: VoicePrompt | None) -> int:
        """Read a prompt in one pass and return how many positions it took.

        Raises:
            RequestError: It is longer than what the network looks back.
        """
        inputs = self._embed(torch.as_tensor(prompt.columns, device=self._device))
        if voice is not None:
            spoken = torch.as_tensor(voice.embeddings, device=self._device).to(self._dtype)
            inputs = torch.cat([spoken, inputs])
        length = len(inputs)
        if length > self.shape.context:
            raise RequestError(
                f"the prompt takes {length} frames, and the model looks back {self.shape.context}",
                param="instructions",
                hint="shorten the instructions",
            )
        seen = torch.ones(length, length, dtype=torch.bool, device=self._device).tril()
        self._run(inputs[None], torch.arange(length, device=self._device)[None], seen[None, None], slot)
        self._last[slot] = torch.as_tensor(prompt.last, device=self._device)
        self._late[slot] = torch.as_tensor(prompt.late, device=self._device)
        self._forced[slot] = True
        return length

    def step(self, heard: Tensor, rows: Rows) -> Said:
        """Take the user's codes of a frame and return what the agent says.

        Args:
            heard: int64 [slots, 8].
            rows: The slots that the step is for.
        """
        positions, seen = self._cache.open(rows)
        hidden = self._run(self._embed(self._last)[:, None], positions, seen)
        self._cache.close()
        text = _likeliest(self._weights.head(hidden)[:, 0])
        codes = self._codes(text, hidden)
        column = torch.cat([text[:, None], codes, torch.where(self._is_late[_USER], self._late[:, _USER], heard)], dim=1)
        said = Said(self._last[:, 0], torch.cat([self._last[:, 1:2], codes[:, 1:]], dim=1))
        mine = rows.mask[:, None]
        frame = torch.cat([column[:, : 1 + CODES], heard], dim=1)
        self._last = torch.where(mine, column, self._last)
        self._late = torch.where(mine, frame, self._late)
        self._forced = self._forced & ~rows.mask
        return said

    def _embed(self, columns: Tensor) -> Tensor:
        """Return the inputs [n, dim] of columns int64 [n, 17]."""
        found: Tensor = self._weights.codes[0](columns[:, 1])
        for number, table in enumerate(self._weights.codes[1:], 2):
            found = found + table(columns[:, number])
        return found + self._weights.temporal.embed_tokens(columns[:, 0])  # type: ignore[no-any-return]

    def _run(self, inputs: Tensor, positions: Tensor, seen: Tensor, slot: int | None = None) -> Tensor:
        cache = self._cache if slot is None else self._cache.prefilled(slot, inputs.shape[1])
        found = self._weights.temporal(
            inputs_embeds=inputs, attention_mask=seen, position_ids=positions, past_key_values=cache, return_dict=True
        )
        return found.last_hidden_state  # type: ignore[no-any-return]

    def _codes(self, text: Tensor, hidden: Tensor) -> Tensor:
        """Return the agent's codes of the column int64 [slots, 8], one after the other."""
        past = DynamicCache()
        token, found = text, []
        for code in range(CODES):
            given = self._weights.depth(
                input_ids=token[:, None], last_hidden_state=hidden, past_key_values=past, use_cache=True, return_dict=True
            )
            token = _likeliest(given.logits[:, 0])
            if LATE[1 + code]:
                token = torch.where(self._forced, self._late[:, 1 + code], token)
            found.append(token)
        return torch.stack(found, dim=1)


def _likeliest(logits: Tensor) -> Tensor:
    """Return the first index of each row's largest value."""
    return logits.float().max(-1).indices


def as_array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return a tensor's numbers in the host's memory."""
    return tensor.to(_CPU).contiguous().numpy()  # type: ignore[no-any-return]
