"""A tiny talker with random weights on vLLM's Llama backbone, and its checkpoint: what the AR engine's tests run.

Its frame has four codes: the sampled token and three that a predictor adds. Input rows come whole with the request
(`TinyTalker`), or one by one while it runs (`TinyGatedTalker`); `TinySamplingTalker` samples its codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omni_core.capabilities import ModelCapabilities, MtpCapability, MtpSampling, SampleUniforms
from omni_core.engine.vllm_bridge import LlamaForCausalLM
from omni_core.errors import RequestError
from omni_core.payload import Payload
from omni_core.runner import EngineInput, Handoff, StageOutput
from omni_core.stage import ResolvedStage

HIDDEN = 64
VOCAB = 64
CODES = 4
MAX_MODEL_LEN = 128

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "float32",
}


class _Predictor(nn.Module):
    """A recurrent predictor of the codes behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.code_embed = nn.Parameter(torch.empty(CODES * VOCAB, HIDDEN))
        self.mix = nn.Parameter(torch.empty(CODES, HIDDEN, HIDDEN))
        self.head = nn.Parameter(torch.empty(HIDDEN, VOCAB))

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(CODES, device=codes.device) * VOCAB
        return self.code_embed[codes.long() + offsets].sum(-2)

    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor, uniforms: torch.Tensor | None = None) -> torch.Tensor:
        codes = [token_ids]
        state = hidden
        for step in range(1, CODES):
            state = torch.tanh(state @ self.mix[step] + self.code_embed[codes[-1] + (step - 1) * VOCAB])
            logits = state @ self.head
            if uniforms is not None:
                logits = logits - torch.log(-torch.log(uniforms[:, step - 1].clamp(1e-9, 1 - 1e-7)))
            codes.append(logits.argmax(-1))
        return torch.stack(codes, dim=1)


class TinyTalker(LlamaForCausalLM):
    """All input rows come with the request, as `rows` [n, H]."""

    capabilities = ModelCapabilities(computes_inputs=True, mtp=MtpCapability(output_key="codes", num_codes=CODES))

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        slots = vllm_config.scheduler_config.max_num_seqs
        length = vllm_config.model_config.max_model_len + 1  # the last frame has a place, too
        self.predictor = _Predictor()
        self.register_buffer("rows", torch.zeros(slots, length, HIDDEN), persistent=False)
        self.register_buffer("codes", torch.zeros(slots, length, CODES, dtype=torch.long), persistent=False)
        self.register_buffer("begins", torch.zeros(slots, dtype=torch.long), persistent=False)

    def omni_begin(self, slot: int, inputs: Payload, prompt_len: int) -> None:
        """Take a request's rows."""
        self.rows[slot] = 0
        self.begins[slot] = prompt_len
        given = inputs.get("rows")
        if given is not None:
            self.rows[slot, : len(given)] = torch.as_tensor(given)

    def omni_end(self, slot: int) -> None:
        """Forget a request."""
        self.rows[slot] = torch.nan

    def omni_condition(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the rows of these positions, zeros behind the last."""
        return self.rows.view(-1, HIDDEN).index_select(0, torch.add(positions, slots, alpha=self.rows.shape[1]))

    def omni_embed(self, slots: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Return a row, and behind the prompt the embedding of the position's frame added to it."""
        frames = self.predictor.embed(self.codes[slots, positions])
        has_frame = (positions >= self.begins[slots])[:, None]
        return torch.where(has_frame, frames, 0.0) + self.omni_condition(slots, positions)

    def omni_record(self, slots: torch.Tensor, positions: torch.Tensor, codes: torch.Tensor) -> None:
        """Keep frames."""
        places = torch.add(positions, slots, alpha=self.codes.shape[1])
        self.codes.view(-1, CODES).index_copy_(0, places, codes)

    def mtp(
        self,
        token_ids: torch.Tensor,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        conditioning: torch.Tensor,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next inputs and the frames."""
        codes = self.predictor(token_ids, hidden, self._noise(**extra))
        return self.predictor.embed(codes) + conditioning, codes

    def _noise(self, **extra: Any) -> torch.Tensor | None:
        return None


class TinyGatedTalker(TinyTalker):
    """Rows come while the request runs; behind the last one they are zero."""

    capabilities = ModelCapabilities(
        computes_inputs=True, gated_inputs=True, mtp=MtpCapability(output_key="codes", num_codes=CODES)
    )

    def omni_ingest(self, slot: int, start: int, rows: torch.Tensor) -> None:
        """Take rows."""
        self.rows[slot, start : start + len(rows)] = rows


class TinyConstrainedTalker(TinyTalker):
    """A request may sample a third of the tokens only: those after its last one, by the third that it belonged to."""

    capabilities = ModelCapabilities(
        computes_inputs=True,
        constrains_sampling=True,
        mtp=MtpCapability(output_key="codes", num_codes=CODES, accepts_slots=True, accepts_positions=True),
    )

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.register_buffer("last", torch.zeros(self.codes.shape[:2], dtype=torch.long), persistent=False)

    def omni_constrain(self, slots: torch.Tensor, positions: torch.Tensor, logits: torch.Tensor, sampling: Any) -> None:
        """Leave the tokens of one third."""
        thirds = torch.arange(VOCAB, device=logits.device) % 3
        wanted = (self.last[slots, positions - 1] + 1) % 3
        logits.masked_fill_(thirds != wanted[:, None], -torch.inf)

    def mtp(
        self,
        token_ids: torch.Tensor,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        conditioning: torch.Tensor,
        *,
        slots: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next inputs and the frames, and remember the tokens."""
        assert slots is not None
        assert positions is not None
        self.last[slots, positions] = token_ids
        return super().mtp(token_ids, embeds, hidden, conditioning, **extra)


class TinyBareTalker(TinyTalker):
    """The mechanism alone: its frame repeats the token and its predictor computes nothing."""

    def mtp(
        self,
        token_ids: torch.Tensor,
        embeds: torch.Tensor,
        hidden: torch.Tensor,
        conditioning: torch.Tensor,
        **extra: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token's embedding and the token."""
        return embeds + conditioning, token_ids[:, None].expand(-1, CODES)


class TinySamplingTalker(TinyTalker):
    """Codes are sampled from uniform numbers that the runner draws."""

    capabilities = ModelCapabilities(
        computes_inputs=True,
        mtp=MtpCapability(
            output_key=("codes", "audio"),
            num_codes=CODES,
            accepts_req_infos=True,
            sample_uniforms=SampleUniforms(CODES - 1, VOCAB),
            sampling=MtpSampling(temperature=0.9),
        ),
    )

    def _noise(self, **extra: Any) -> torch.Tensor | None:
        uniforms: torch.Tensor = extra["uniforms"].clone()
        for row, info in enumerate(extra["req_infos"]):
            if info.greedy:
                uniforms[row] = 0.5
        return uniforms


def build_tiny_ar(folder: Path, architecture: str = "TinyTalker", seed: int = 0, layers: int = 2) -> Path:
    """Write a checkpoint with random weights and return its folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "num_hidden_layers": layers, "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in _shapes(layers, with_predictor=architecture != "LlamaForCausalLM"):
        is_norm = name.endswith("norm.weight")
        weights[name] = torch.randn(shape, generator=generator) * (0.1 if is_norm else 0.3) + (1.0 if is_norm else 0.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _shapes(layers: int, *, with_predictor: bool) -> Iterable[tuple[str, tuple[int, ...]]]:
    wide = CONFIG["intermediate_size"]
    query, key = CONFIG["num_attention_heads"] * CONFIG["head_dim"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield f"{at}self_attn.q_proj.weight", (query, HIDDEN)
        yield f"{at}self_attn.k_proj.weight", (key, HIDDEN)
        yield f"{at}self_attn.v_proj.weight", (key, HIDDEN)
        yield f"{at}self_attn.o_proj.weight", (HIDDEN, query)
        yield f"{at}mlp.gate_proj.weight", (wide, HIDDEN)
        yield f"{at}mlp.up_proj.weight", (wide, HIDDEN)
        yield f"{at}mlp.down_proj.weight", (HIDDEN, wide)
        yield f"{at}input_layernorm.weight", (HIDDEN,)
        yield f"{at}post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)
    if with_predictor:
        yield "predictor.code_embed", (CODES * VOCAB, HIDDEN)
        yield "predictor.mix", (CODES, HIDDEN, HIDDEN)
        yield "predictor.head", (HIDDEN, VOCAB)


def write_tokenizer(folder: Path) -> None:
    """Add a tokenizer to a checkpoint: `t0` to `t63`, separated by spaces."""
    vocabulary: Mapping[str, int] = {f"t{number}": number for number in range(VOCAB)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t1"}), encoding="utf-8"
    )


def tiny_chunk(handoff: Handoff, output: StageOutput) -> Payload | None:
    """Hand each frame on by itself, as codes."""
    if "codes" not in output.tensors and not output.finished:
        return None
    return {"codes": output.tensors["codes"]} if "codes" in output.tensors else {}


class TinyInput:
    """The InputProcessor of the tiny talkers: `rows` and `prompt_len` of a payload, refused if the first row is negative."""

    def __init__(self, stage: ResolvedStage) -> None:
        self.stage = stage

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input; `tag` goes to the hand-over."""
        rows = payload.get("rows")
        if payload.get("refuse"):
            raise RequestError("refused", where="TinyInput", hint="leave out refuse")
        return EngineInput(
            prompt_token_ids=[0] * int(payload.get("prompt_len", 6)),
            model_inputs={} if payload.get("gated") else {"rows": rows},
            rows=rows if payload.get("gated") else None,
            sampling=payload.get("sampling", {}),
            handoff={"tag": payload.get("tag", "")},
        )
