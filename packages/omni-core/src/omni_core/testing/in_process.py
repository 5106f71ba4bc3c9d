"""A vLLM engine inside the process, fed as the scheduler and the worker of an AR stage are: for what happens within a step."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from omni_core.engine.ar import client
from omni_core.engine.ar.engine_args import build_engine_args, engine_environment
from omni_core.engine.ar.model_class import stage_capabilities
from omni_core.engine.ar.wire import KEY
from omni_core.engine.vllm_bridge import LLMEngine, RequestOutputKind, SamplingParams, tokens_input
from omni_core.payload import Payload, encode_payload
from omni_core.stage import ResolvedStage


@contextlib.contextmanager
def _rendezvous_folder() -> Iterator[None]:
    """Let vLLM write the file in which its one worker meets itself to a folder that goes away."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="oip-") as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


class InProcessEngine:
    """One engine and its requests, which the caller drives step by step."""

    def __init__(self, stage: ResolvedStage) -> None:
        os.environ.update({**engine_environment(stage), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        capabilities = stage_capabilities(stage)
        self.gated = capabilities.gated_inputs
        with warnings.catch_warnings(), _rendezvous_folder():
            warnings.simplefilter("ignore")  # vLLM's start walks over every loaded module, deprecated names included
            self.engine = LLMEngine.from_engine_args(build_engine_args(stage, capabilities))
        self.rows = client.install(self.engine)
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.worker = self.core.model_executor.driver_worker.worker
        self.ids: dict[str, str] = {}
        self.frames: dict[str, list[Any]] = {}
        self.tokens: dict[str, list[int]] = {}
        """What requests of `capture` and `plain` generated."""
        self.reasons: dict[str, str] = {}

    def add(
        self, name: str, inputs: Payload, prompt_len: int = 6, mtp: Any = None, limit: int | None = None, **sampling: Any
    ) -> None:
        """Add a request under a name."""
        extra: dict[str, Any] = {KEY: {"inputs": encode_payload(inputs), "gated": self.gated}}
        if limit is not None:
            extra[KEY]["limit"] = limit
        if mtp is not None:
            extra["mtp"] = mtp
        values = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, "detokenize": False, **sampling}
        self.ids[name] = self.engine.add_request(
            name, tokens_input([0] * prompt_len), SamplingParams(extra_args=extra, **values)
        )
        self.frames[name] = []

    def capture(self, name: str, prompt: Any, **sampling: Any) -> None:
        """Add a request of a model of vLLM's own, by prompt ids or vLLM's prompt, whose hidden states are captured."""
        self.plain(name, prompt, extra_args={KEY: {"capture": True}}, skip_reading_prefix_cache=True, **sampling)

    def plain(self, name: str, prompt: Any, **sampling: Any) -> None:
        """Add a request of a model of vLLM's own that nothing is captured of."""
        values = {"temperature": 0.0, "max_tokens": 16, "detokenize": False, **sampling}
        params = SamplingParams(**values, output_kind=RequestOutputKind.DELTA)
        self.ids[name] = self.engine.add_request(name, tokens_input(prompt) if isinstance(prompt, list) else prompt, params)
        self.frames[name], self.tokens[name] = [], []

    def push(self, name: str, rows: Any, final: bool = False, limit: int | None = None) -> None:
        """Push rows or a limit to a request."""
        self.engine.engine_core.add_request(client.push_request(self.ids[name], rows, final, limit))

    def abort(self, name: str) -> None:
        """Abort a request."""
        self.engine.abort_request([self.ids[name]], internal=True)

    def step(self) -> None:
        """Run one step and collect frames."""
        for output in self.engine.step():
            name = output.request_id
            self.frames[name] += self.rows[self.ids[name]]
            self.rows[self.ids[name]].clear()
            if name in self.tokens:
                self.tokens[name] += output.outputs[0].token_ids
            if output.finished:
                self.reasons[name] = output.outputs[0].finish_reason

    def drain(self, limit: int = 2000) -> None:
        """Run until nothing is left."""
        for _ in range(limit):
            if not self.engine.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"the engine did not finish in {limit} steps")

    def codes(self, name: str) -> list[list[int]]:
        """Return a request's frames."""
        return [frame.tolist() for frame in self.frames[name]]

    def states(self, name: str) -> torch.Tensor:
        """Return a request's hidden states, [K, n, H]."""
        return torch.cat(self.frames[name], dim=1)

    def close(self) -> None:
        """Release the engine."""
        self.engine.engine_core.shutdown()
