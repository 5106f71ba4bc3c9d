"""What users put in and get out: requests and outputs of the Python API and of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from omni_core.errors import OmniError
    from omni_core.payload import Payload


@dataclass(frozen=True)
class LoraAdapter:
    """A LoRA adapter, as PEFT writes them."""

    name: str
    """Stands for this adapter as long as the server runs."""
    path: str
    """Its folder, with `adapter_config.json`; every stage process reads it."""


@dataclass(frozen=True)
class OmniRequest:
    """One request on its way through a pipeline."""

    request_id: str
    """Unique in this server, whatever the client calls it."""
    inputs: Payload
    """Inputs of the entry stage."""
    sampling: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Effective sampling parameters by stage id."""
    outputs: frozenset[int] = frozenset()
    """Final stages whose output is wanted; empty means all. Stages that none of them needs do not see the request."""
    timeout_s: float = 600.0
    """Seconds until the request fails with DeadlineError, from its start."""
    lora: LoraAdapter | None = None
    """What stage 0 applies (LR-04)."""
    replicas: Mapping[int, int] = field(default_factory=dict)
    """Replicas that it must run on, by stage id; a stage that is not named chooses."""


@dataclass(frozen=True)
class OmniOutput:
    """One piece of a request's answer."""

    request_id: str
    stage_id: int
    type: str
    """`audio`, `text`, `image`, `latent`, `token_ids`."""
    data: Any
    """audio: float32 array [samples, channels]; text: str; token_ids: list of int; otherwise an array."""
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """Everything the stage sent with it, by name."""
    sample_rate: int | None = None
    """Hz, for audio."""
    finished: bool = False
    """Whether this is the last piece of the whole request."""
    finish_reason: str | None = None
    """`stop` (the model ended) or `length` (the limit was reached), on the last piece."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """On the last piece: `frames`, `prompt_tokens`, `ttfa_s`, `duration_s` where they are known."""
    reply: Mapping[str, Any] = field(default_factory=dict)
    """What an answer has beside its text: `reasoning` str, `tool_calls` and `logprobs`, lists in OpenAI's form, all of them
    only what is new since the piece before (`omni_core.chat.join_replies`)."""
    stage_finish_reason: str | None = None
    """Why this stage ended, on its last piece: `stop`, `length`, or `tool_calls`."""
    stage_metrics: Mapping[str, float] = field(default_factory=dict)
    """On this stage's last piece, its own numbers, such as `prompt_tokens` and `generated_tokens`."""


@dataclass(frozen=True)
class OmniResult:
    """A request's whole answer: its outputs joined."""

    request_id: str
    audio: np.ndarray[Any, Any] | None = None
    """float32 [samples, channels], where the pipeline makes audio."""
    sample_rate: int | None = None
    """Hz, for audio."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tensors: Mapping[str, Any] = field(default_factory=dict)
    """Everything else the final stages sent, joined along dimension 0."""
    finish_reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    reply: Mapping[str, Any] = field(default_factory=dict)
    """`reasoning`, `tool_calls` and `logprobs` of a conversation's answer, whole."""
    error: OmniError | None = None
    """Why there is no answer; only where the caller asked for errors in place."""
