"""What runs inside a stage's process: the interface of runners, and the records they take and give.

Two runners come with core: `engine.ar_runner` (vLLM, token by token) and `engine.light_runner` (models that turn chunks into
chunks). A plugin chooses another one through the hook `omni_stage_runner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from omni_core.errors import UnsupportedError
from omni_core.observe.stage import stage_registry

if TYPE_CHECKING:
    from omni_core.payload import Payload
    from omni_core.request import LoraAdapter
    from omni_core.stage import ResolvedStage


@dataclass(frozen=True)
class StageInput:
    """What begins a request in a stage."""

    request_id: str
    inputs: Payload
    """The request's own inputs for an entry stage; empty for a stage that is fed by others."""
    sampling: Mapping[str, Any]
    """Effective sampling parameters of this stage, constraints applied."""
    streaming: bool = False
    """Whether payloads follow by `push`. If not, `inputs` is all there is."""
    lora: LoraAdapter | None = None
    """The adapter to apply; only stage 0 gets one (LR-04)."""
    trace: str = ""
    """W3C `traceparent` for spans of the stage's own; empty where nothing is traced."""
    captures: bool = False
    """Whether a next stage works on this request, so that hidden states have to be captured for it."""


@dataclass
class StageOutput:
    """What a stage made since its last output for a request."""

    tensors: dict[str, Any] = field(default_factory=dict)
    """New rows by name, dimension 0 first: `codes` [n, Q], `audio` [n, channels] float32."""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finished: bool = False
    finish_reason: str | None = None
    """`stop`, `length` or None."""
    metrics: dict[str, float] = field(default_factory=dict)
    load: float = 0.0
    """How full the stage was: requests in it over the most that it runs at once. 1 is full, more means that some wait."""
    handoff: Payload = field(default_factory=dict)
    """`EngineInput.handoff`, on a request's first output; passed to the hand-over functions as `Handoff.inputs`."""
    reply: dict[str, Any] = field(default_factory=dict)
    """What an answer has beside its text: `reasoning` str, `tool_calls` and `logprobs`, lists in OpenAI's form."""
    internal: frozenset[str] = frozenset()
    """Names in `tensors` that are for next stages only; the request's caller does not get them."""


class StageRunner(ABC):
    """Run one stage in its own process, for many requests at once. All methods are called on one asyncio loop."""

    def __init__(self, stage: ResolvedStage, replica: int = 0) -> None:
        self.stage = stage
        self.replica = replica
        self.metrics = stage_registry(stage, replica)
        """What this stage measures. The host sends it to the server with heartbeats; runners may add series of their own."""

    @abstractmethod
    async def start(self) -> Mapping[str, Any]:
        """Load the model and return facts for the log, such as `parameters`."""

    @abstractmethod
    def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield a request's outputs; the last one has `finished`. Closing the iterator aborts the request.

        From the iterator's first step on, before it first waits, `push` knows the request.

        Raises:
            RequestError: The request cannot work; others go on.
            StageDeadError: The engine is gone; the process ends.
        """

    @abstractmethod
    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Give a running request its next payload; return when the stage has taken it. Unknown ids are ignored."""

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds. Unknown ids are ignored."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the engine and release what it holds."""

    def load(self) -> Mapping[str, int]:
        """Return sizes for health and metrics, such as requests that it holds; called with each heartbeat."""
        return {}

    async def check(self) -> None:
        """Raise StageDeadError if the engine cannot work any more."""
        return

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Do something for an operator and return what msgpack can carry.

        Called for one call after the other, beside running requests; cancelled when a call's time is over. The methods and
        their arguments are those of `omni_core.operations`; a runner answers those that it knows.

        Raises:
            UnsupportedError: It cannot do that.
            RequestError: The arguments cannot be used, or not now.
        """
        raise UnsupportedError(f"this stage cannot {method}", where=f"stage {self.stage.name}")


@dataclass(frozen=True)
class RunnerEntry:
    """What runs a stage (hook `omni_stage_runner`)."""

    name: str
    target: str
    """Target of the `StageRunner` subclass. Empty for a stage that resolves, so that its configuration can be read, but that
    nothing here can run: starting it is refused before any process starts."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once, so that stage processes of this kind start fast."""
    requires: tuple[str, ...] = ()
    """Modules that must be installed, such as `vllm`; checked before any process starts."""


UNAVAILABLE = RunnerEntry("unavailable", "")
"""For a stage of a known pipeline whose architecture nobody implements yet."""


@dataclass(frozen=True)
class EngineInput:
    """What an `InputProcessor` makes of a payload for an AR engine."""

    prompt_token_ids: Sequence[int]
    """Real ids, or placeholders for models that compute their inputs: their number is the prompt's length."""
    model_inputs: Payload = field(default_factory=dict)
    """Handed to the model's `omni_begin` in the engine's process."""
    cache_key: str | None = None
    """Whatever in the inputs the prompt ids do not tell, for models with `cacheable_prompts`; None shares with nobody."""
    rows: Any = None
    """First rows for models with gated inputs: array [n, H]."""
    final: bool = True
    """Whether all rows are there."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that follow from the input; they go below the request's own."""
    handoff: Payload = field(default_factory=dict)
    """What the next hand-over function needs to know of this input, such as reference codes."""


class InputProcessor(Protocol):
    """Turn incoming payloads into engine inputs. Made once for each stage process and called in a worker thread."""

    def __init__(self, stage: ResolvedStage) -> None: ...

    def __call__(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        """Return the engine's input.

        Raises:
            RequestError: The payload cannot be used.
        """
        ...


@dataclass
class Handoff:
    """One request's hand-over along one edge, in the producer's process; passed to the pipeline's hand-over functions."""

    request_id: str
    inputs: Payload
    """`EngineInput.handoff` of this request."""
    options: Mapping[str, Any]
    """The edge's stream policy: the keys of the connector's `extra` that the transport does not own (CN-04)."""
    state: dict[str, Any] = field(default_factory=dict)
    """The function's own memory for this request."""


@dataclass
class LightChunk:
    """One request's next payload, as a `LightModel` sees it."""

    request_id: str
    state: Any
    payload: Payload
    final: bool


class LightModel(ABC):
    """A model that turns chunks into chunks, with a state for each request. Called from one thread, under inference mode."""

    sample_rate: int | None = None
    """Hz, for models whose output is audio."""
    channels: int = 1
    max_batch: int = 0
    """Most chunks in one step; 0 leaves it to the stage's `max_num_seqs`."""
    firsts_first: bool = False
    """Whether the first chunks of new requests are computed before the later ones of others."""
    dispatch_max_rows: int = 0
    """Chunks of so many requests start a step at once; fewer wait for others. 0 leaves it to the stage's options."""
    dispatch_max_wait_ms: float = 0.0
    """How long the first of too few chunks waits for others; 0 leaves it to the stage's options, and those to 0."""

    @classmethod
    @abstractmethod
    def load(cls, stage: ResolvedStage) -> LightModel:
        """Load the weights.

        Raises:
            ConfigError: The checkpoint lacks what the model needs; the message names the file.
        """

    @abstractmethod
    def begin(self, request_id: str, sampling: Mapping[str, Any]) -> Any:
        """Return a fresh state."""

    def group(self, chunk: LightChunk) -> Hashable:
        """Return a key; chunks with equal keys may share one `step`."""
        return None

    def ready(self, payload: Payload) -> Mapping[str, Any] | None:
        """Return what a request's first payload brings as a finished output, None for nothing.

        It is delivered at once, before the payload is computed; `step` then returns what is not in it, or nothing at all.
        Called on the runner's loop, so it must not compute.
        """
        return None

    @abstractmethod
    def step(self, chunks: Sequence[LightChunk]) -> Sequence[Mapping[str, Any]]:
        """Return each chunk's output tensors, in order; `text` is what users read. States are changed in place, and only if
        the whole step succeeds.

        The payload of a final chunk may be empty: then the end of the request is all it says. An empty result is no output,
        except for a final chunk.
        """

    def end(self, state: Any) -> None:
        """Free what a state holds; called once, also after an abort."""
        return

    def sleep(self) -> None:
        """Move the weights to the host's memory; no step comes until `wake`. Not called on a CPU.

        Raises:
            UnsupportedError: This model cannot, which is the default.
        """
        raise UnsupportedError("this model cannot give up its device's memory")

    def wake(self) -> None:
        """Move the weights back to the device."""
        return

    def reload(self, stage: ResolvedStage) -> None:
        """Read the weights again, between two steps; requests go on with their states. If it fails, the old weights stay.

        Raises:
            UnsupportedError: This model cannot, which is the default.
            ConfigError: The checkpoint lacks what the model needs.
        """
        raise UnsupportedError("this model cannot read its weights again")
