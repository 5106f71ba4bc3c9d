"""Takes hidden states of vLLM's own models out of a step, for requests that a next stage works on. Runs in the engine core.

The model's class is not changed. Input embeddings are those that the runner made; the last hidden states are what the forward
pass returned; those between come from vLLM's own interface for auxiliary hidden states. A step in which no request is captured
runs as it would without this module; only compiled models, whose graph is fixed, add up the auxiliary states in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from omni_core.capabilities import HiddenCapture
from omni_core.engine.ar.wire import SHORT_BYTES, STATES, CapturedRows, extra_of
from omni_core.engine.vllm_bridge import supports_eagle3
from omni_core.errors import ConfigError
from omni_core.target import load_target

LAST = "last"
Layers = dict[str, int | str]


def captured_layers(capture: HiddenCapture, hf_config: Any) -> Layers:
    """Return what is captured of a model, by the name of the output.

    Raises:
        ConfigError: The target gives something else than numbers of layers.
    """
    function = cast("Callable[[Any], Mapping[str, int | str]]", load_target(capture.target, where="hidden states"))
    found = dict(function(hf_config))
    if not found or any(layer != LAST and not (isinstance(layer, int) and layer >= 0) for layer in found.values()):
        raise ConfigError(f"{capture.target!r} gives {found}", hint=f"map names to numbers of layers or to {LAST!r}")
    return found


@dataclass(slots=True)
class StepStates:
    """The hidden states of one step on their way to the host."""

    rows: Mapping[str, CapturedRows]
    """By request id."""
    ready: Any = None
    """Event on the device, None where there is nothing to wait for."""

    def attach(self, output: Any) -> None:
        """Put the states on a model runner's output."""
        if self.ready is not None:
            self.ready.synchronize()
        output.pooler_output = [self.rows.get(request_id) for request_id in output.req_ids]
        setattr(output, STATES, True)


class Capture:
    """What is captured of the requests of one model runner.

    Args:
        runner: vLLM's model runner, first or second, with its model loaded.
        layers: What is captured, by name.
        switches: Whether auxiliary states can be asked for step by step; not so for compiled models.
        device: Of the model.

    Raises:
        ConfigError: The model cannot give what is wanted.
    """

    def __init__(self, runner: Any, layers: Layers, *, switches: bool, device: torch.device) -> None:
        self._runner = runner
        self._layers = layers
        self._device = device
        self._switches = switches
        self._auxiliary = tuple(sorted({layer for layer in layers.values() if isinstance(layer, int) and layer > 0}))
        if self._auxiliary and not supports_eagle3(runner.get_model()):
            raise ConfigError(
                f"{type(runner.get_model()).__name__} gives no hidden states of layers {list(self._auxiliary)}",
                hint=f"capture 0 or {LAST!r}, or a class with SupportsEagle3",
            )
        config = runner.model_config
        if 0 in layers.values() and config.get_inputs_embeds_size() != config.get_hidden_size():
            raise ConfigError("the input embeddings are not as wide as the hidden states", hint="capture other layers")
        self._live: set[str] = set()
        self._counts: Mapping[str, int] = {}
        self._starts: dict[str, int] = {}
        self._embeds: torch.Tensor | None = None
        self._added: dict[int, torch.Tensor] = {}
        self._is_on = False
        self._switch(on=not switches)

    @property
    def live(self) -> int:
        """The number of requests that are captured."""
        return len(self._live)

    def begin(self, scheduler_output: Any) -> None:
        """Note whose states the coming step has to give."""
        self._live.difference_update(scheduler_output.finished_req_ids)
        for request in scheduler_output.scheduled_new_reqs:
            if extra_of(request.sampling_params).get("capture"):
                self._live.add(request.req_id)
        self._starts, self._embeds, self._added = {}, None, {}
        if self._live:
            self._counts = scheduler_output.num_scheduled_tokens
            cached = scheduler_output.scheduled_cached_reqs
            starts = {request.req_id: request.num_computed_tokens for request in scheduler_output.scheduled_new_reqs}
            starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            self._starts = {request_id: starts[request_id] for request_id in self._counts if request_id in self._live}
        if self._switches:
            self._switch(on=bool(self._starts))

    def _switch(self, *, on: bool) -> None:
        if not self._auxiliary or on == self._is_on:
            return
        self._is_on = on
        self._runner.use_aux_hidden_state_outputs = on
        self._runner.get_model().set_aux_hidden_state_layers(self._auxiliary if on else ())

    def note_embeds(self, embeds: torch.Tensor | None) -> None:
        """Keep the input embeddings [T, H] of a step, whose memory the forward pass may write."""
        if not self._starts or embeds is None:
            return
        if 0 in self._layers.values():
            self._embeds = embeds.clone()
        self._added = self._visual(len(embeds))

    def _visual(self, count: int) -> dict[int, torch.Tensor]:
        """Return what the model will add for images behind its first layers: it is no part of these layers' outputs."""
        model = self._runner.get_model()
        if not getattr(model, "deepstack_input_embeds_num_tokens", 0):
            return {}
        levels = model.deepstack_input_embeds
        return {layer: levels[layer - 1][:count].clone() for layer in self._auxiliary if layer <= len(levels)}

    def take(self, *, keep: bool) -> StepStates | None:
        """Return the states of the step that ran, None if it has none.

        Args:
            keep: Whether this rank's output is the one that counts. The others compute along and return None.
        """
        state = self._runner.execute_model_state
        starts, self._starts = self._starts, {}
        if not starts or state is None:
            return None
        batch = getattr(state, "input_batch", None) or self._runner.input_batch
        with torch.inference_mode():
            sources = self._sources(state, batch)
            return self._to_host(batch.req_ids, starts, sources) if keep else None

    def _sources(self, state: Any, batch: Any) -> list[torch.Tensor]:
        embeds, self._embeds = self._embeds, None
        if embeds is None and 0 in self._layers.values():
            # A model of text alone is given ids.
            total = sum(self._counts.values())
            ids = batch.input_ids if hasattr(batch, "input_ids") else self._runner.input_ids.gpu
            embeds = self._runner.get_model().embed_input_ids(ids[:total])
        found: dict[int | str, Any] = {0: embeds, LAST: state.hidden_states}
        if self._auxiliary:
            found.update(zip(self._auxiliary, state.aux_hidden_states, strict=True))
            for layer, added in self._added.items():
                found[layer] = found[layer][: len(added)] - added[: len(found[layer])]
        return [cast("torch.Tensor", found[layer]) for layer in self._layers.values()]

    def _to_host(self, req_ids: list[str], starts: Mapping[str, int], sources: list[torch.Tensor]) -> StepStates:
        width = sources[0].shape[-1]
        row_bytes = len(sources) * width * sources[0].element_size()
        rows: dict[str, CapturedRows] = {}
        short: list[tuple[str, int, int]] = []
        at = 0
        for request_id in req_ids:
            count = self._counts[request_id]
            if request_id in starts and count * row_bytes > SHORT_BYTES:
                host = self._room(len(sources), count, width, sources[0].dtype)
                for number, source in enumerate(sources):
                    host[number].copy_(source[at : at + count], non_blocking=True)
                rows[request_id] = CapturedRows(starts[request_id], host)
            elif request_id in starts:
                short.append((request_id, at, count))
            at += count
        if short:
            index = torch.cat([torch.arange(first, first + count) for _, first, count in short]).to(self._device)
            block = torch.stack([source.index_select(0, index) for source in sources])
            host = block
            if self._device.type != "cpu":
                host = self._room(len(sources), len(index), width, block.dtype)
                host.copy_(block, non_blocking=True)
            at = 0
            for request_id, _, count in short:
                rows[request_id] = CapturedRows(starts[request_id], host[:, at : at + count])
                at += count
        return StepStates(rows, self._event())

    def _room(self, names: int, count: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(names, count, width, dtype=dtype, pin_memory=self._device.type == "cuda")

    def _event(self) -> Any:
        if self._device.type == "cpu":
            return None
        ready = torch.Event(device=self._device)
        ready.record()
        return ready
