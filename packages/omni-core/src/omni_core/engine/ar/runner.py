"""The runner of AR stages: one vLLM engine for a stage replica. Runs in the stage host; the engine core is its child.

What the next hand-over function needs of a request's input (`EngineInput.handoff`) leaves on the request's first output, as
`StageOutput.handoff`. A request that is aborted ends without a last output.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omni_core.capabilities import ModelCapabilities
from omni_core.chat import CHAT
from omni_core.engine.ar import client, requests
from omni_core.engine.ar.adapters import Adapters
from omni_core.engine.ar.engine_args import tokenizer_folder
from omni_core.engine.ar.launch import Launched, launch
from omni_core.engine.ar.operations import ArOperations
from omni_core.engine.ar.prompts import plain_input
from omni_core.engine.ar.reply import ChatInput
from omni_core.engine.ar.wire import Extra
from omni_core.engine.profiling import METHODS, StageProfiler, profile_folder
from omni_core.engine.vllm_bridge import EngineDeadError, VLLMClientError, tokens_input
from omni_core.errors import ConfigError, OmniError, RequestError, ServiceError, StageDeadError
from omni_core.observe.series import FRAMES
from omni_core.payload import Payload, encode_payload
from omni_core.pipeline import OutputType, parse_output_type
from omni_core.runner import EngineInput, InputProcessor, StageInput, StageOutput, StageRunner
from omni_core.stage import ResolvedStage
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.engine.ar.chat import ChatRenderer

logger = logging.getLogger(__name__)

CREDIT = 64
"""Tokens that a request's engine may be ahead of what was taken from `run`. Half of it is renewed at a time, by one message."""
_STOP_TIMEOUT_S = 10.0


@dataclass
class _Live:
    """One request in this stage."""

    request: StageInput
    opened: asyncio.Future[EngineInput]
    """The input that opens the engine's request; for streaming inputs it is set by the first push."""
    engine_id: str = ""
    """vLLM's own id, once the engine has the request."""
    collector: Any = None
    limit: int | None = None
    """Tokens that the engine may generate so far; None for requests that are shorter than CREDIT, or not limited."""
    rows: client.Rows = field(default_factory=list)
    captures: bool = False
    """Whether its hidden states are captured."""
    captured: int = 0
    """Positions whose hidden states came."""
    backlog: list[tuple[Any, bool]] = field(default_factory=list)
    """Pushed rows that wait for the engine's request to be open."""
    error: OmniError | None = None
    """A fault in a push, raised by `run`."""
    is_begun: bool = False
    is_final: bool = False
    is_aborted: bool = False


class ArRunner(StageRunner):
    """Run a stage on vLLM, token by token."""

    def __init__(self, stage: ResolvedStage, replica: int = 0) -> None:
        super().__init__(stage, replica)
        self._where = f"stage {stage.name}"
        self._launched: Launched | None = None
        self._processor: InputProcessor | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="omni-input")
        self._chat: ChatRenderer | None = None
        self._adapters: Adapters | None = None
        self._operations: ArOperations | None = None
        self._profiler = StageProfiler(
            stage,
            profile_folder(stage, replica),
            lambda: self._engine.start_profile(),
            lambda folder: self._engine.stop_profile(),
        )
        self._live: dict[str, _Live] = {}
        self._tokens = 0
        kinds = (*parse_output_type(stage.topology.engine_output_type), stage.topology.final_output_type)
        makes_text = OutputType.TEXT in kinds
        self._is_text = makes_text and tokenizer_folder(stage) is not None

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> Mapping[str, Any]:
        """Load the model and return facts for the log.

        Raises:
            StageStartError: The engine did not become ready, with its own reason where it gave one.
            ConfigError, DependencyError: The configuration or the model class cannot be used.
        """
        began = time.monotonic()
        # Not before: a runner that joins several gives them its own numbers (`metrics`) when it has made them.
        self._frames = self.metrics.cell(FRAMES)
        self._launched = await launch(self.stage, self.replica, self.metrics)
        self._adapters = Adapters(self.stage, self._launched.llm)
        self._operations = ArOperations(self.stage, self._launched.llm)
        if self._launched.capabilities.computes_inputs:
            self._is_text = False
        elif self._is_text and not self.stage.topology.input_sources:
            from omni_core.engine.ar.chat import ChatRenderer  # a second that stages without text need not take

            self._chat = await asyncio.get_running_loop().run_in_executor(
                self._worker, ChatRenderer, self.stage, self._launched.llm
            )
        self._processor = await asyncio.get_running_loop().run_in_executor(self._worker, self._load_processor)
        config = self._launched.llm.vllm_config
        return {
            "seconds": round(time.monotonic() - began, 2),
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "model_runner": self.stage.model_runner,
            "core_pids": [process.pid for process in self._launched.context.processes],
        }

    def _load_processor(self) -> InputProcessor | None:
        topology = self.stage.topology
        target = topology.custom_process_input_func
        if not self.stage.async_chunk and topology.sync_process_input_func:
            target = topology.sync_process_input_func
        if target is None:
            return None
        kind = load_target(target, where=self._where)
        if not callable(kind):
            raise ConfigError(f"{target!r} is no InputProcessor", where=self._where, hint="name a class")
        processor: InputProcessor = kind(self.stage)
        return processor

    def load(self) -> Mapping[str, int]:
        """Return the number of requests, of frames that nobody has taken yet, and of tokens that were taken since the start."""
        rows = self._launched.rows if self._launched is not None else {}
        return {"held": max(len(self._live), len(rows)), "frames": sum(map(len, rows.values())), "tokens": self._tokens}

    async def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Answer an operator's call, see `ar.operations`."""
        if self._operations is None:
            raise self._dead()
        return await (self._profiler.call(method) if method in METHODS else self._operations.call(method, arguments))

    async def check(self) -> None:
        """Raise StageDeadError if the engine is dead."""
        if self._launched is None:
            return
        if self._launched.llm.errored:
            raise self._dead()
        self._launched.check()

    async def stop(self) -> None:
        """Stop the engine; after ten seconds its process is killed."""
        launched, self._launched = self._launched, None
        self._worker.shutdown(wait=False, cancel_futures=True)
        if launched is not None:
            await launched.stop(_STOP_TIMEOUT_S)

    def _dead(self) -> StageDeadError:
        return StageDeadError("the engine is dead", where=self._where, hint="see the stage's log; restart the server")

    # -- requests --------------------------------------------------------------------------------------------------

    async def run(self, request: StageInput) -> AsyncIterator[StageOutput]:
        """Yield a request's outputs. Closing the iterator aborts the request.

        Raises:
            RequestError: The input cannot be used or does not fit.
            StageDeadError: The engine is dead.
        """
        live = _Live(request, asyncio.get_running_loop().create_future())
        if request.request_id in self._live:
            raise RequestError(f"request {request.request_id!r} is running already", where=self._where, hint="use a new id")
        self._live[request.request_id] = live
        try:
            made = await (live.opened if request.streaming else self._make_input(request.inputs, request.sampling))
            if not live.is_aborted:
                await self._open(live, made)
            if not live.is_aborted:
                async for output in self._outputs(live, made):
                    yield output
        except EngineDeadError as error:
            raise self._dead() from error
        except asyncio.CancelledError:
            if not live.is_aborted:
                raise
        finally:
            await self._close(live)

    async def _make_input(self, payload: Payload, sampling: Mapping[str, Any]) -> EngineInput:
        if CHAT in payload and self._chat is not None:
            return await self._chat.render(payload, sampling)
        if self._processor is None:
            tokenizer = self._engine.renderer.tokenizer
            return await asyncio.get_running_loop().run_in_executor(self._worker, plain_input, payload, tokenizer, self._where)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self._processor, payload, sampling)
        except OmniError:
            raise
        except Exception as error:  # a plugin's code may raise anything; it costs this request alone
            logger.exception("the input processor of %s failed", self._where)
            raise ServiceError(f"the input processor failed: {error!r}", where=self._where) from error

    async def _open(self, live: _Live, made: EngineInput) -> None:
        request = live.request
        own = request.sampling
        ids = list(made.prompt_token_ids)
        sampling = requests.effective_sampling(self.stage, own, made.sampling)
        config = self._engine.model_config
        chat = made if isinstance(made, ChatInput) else None
        field_name = "messages" if chat is not None else None
        requests.limit_tokens(self.stage, sampling, own, len(ids), config.max_model_len, field_name)
        requests.drop_unreachable_stops(sampling, config.get_vocab_size())
        sampling = requests.steer(self.stage, sampling, self._capabilities.mtp)
        extra: Extra | None = None
        if self._capabilities.computes_inputs:
            extra = {"inputs": encode_payload(made.model_inputs), "gated": self._capabilities.gated_inputs}
        elif request.captures and self._capabilities.capture is not None:
            extra, live.captures = {"capture": True}, True
        if extra is not None and sampling["max_tokens"] > CREDIT:
            live.limit = extra["limit"] = CREDIT
        structured = chat.structured_outputs if chat is not None else None
        params = requests.sampling_params(self.stage, sampling, extra, text=self._is_text, structured=structured)
        if live.captures:
            params.skip_reading_prefix_cache = True  # what is read from there is not computed, and not captured
        first = self._rows(made.rows) if made.rows is not None else None
        first_is_all = live.is_final and not live.backlog
        llm = self._engine
        try:
            lora = await self._adapters.request(request.lora) if request.lora and self._adapters else None
            trace = {"traceparent": request.trace} if request.trace else None
            prompt = chat.prompt if chat is not None else tokens_input(ids, cache_salt=self._salt(live, made))
            further = chat.reply.engine if chat is not None and chat.reply is not None else {}
            live.collector = await llm.add_request(
                request.request_id, prompt, params, lora_request=lora, trace_headers=trace, **further
            )
        except (VLLMClientError, ValueError) as error:
            param = getattr(error, "parameter", None) or ("response_format" if structured is not None else None)
            raise RequestError(str(error), where=self._where, param=param, hint="correct the request") from error
        live.engine_id = live.collector.request_id
        live.rows = self._require().rows.setdefault(live.engine_id, [])
        if self._capabilities.gated_inputs:
            live.backlog.insert(0, (first, not request.streaming or first_is_all))
            while live.backlog:
                await self._send(live, *live.backlog[0])
                del live.backlog[0]
        if live.error is not None:
            raise live.error

    def _salt(self, live: _Live, made: EngineInput) -> str | None:
        """Return what keeps a prompt apart from others with the same ids in the prefix cache."""
        if not self._capabilities.cacheable_prompts:
            return None
        return live.request.request_id if made.cache_key is None else f"key:{made.cache_key}"

    async def _outputs(self, live: _Live, made: EngineInput) -> AsyncIterator[StageOutput]:
        mtp = self._capabilities.mtp
        most = self._engine.vllm_config.scheduler_config.max_num_seqs
        generated = 0
        handoff = dict(made.handoff)
        finished = False
        while not finished:
            found = live.collector.get_nowait() or await live.collector.get()
            answer = found.outputs[0]
            finished = bool(found.finished)
            if finished and answer.finish_reason not in ("stop", "length"):
                if live.is_aborted:
                    return
                paused = " when it was paused" if answer.finish_reason == "abort" else ""
                raise ServiceError(f"the engine ended the request{paused}: {answer.finish_reason}", where=self._where)
            tokens = list(answer.token_ids)
            generated += len(tokens)
            self._tokens += len(tokens)
            output = StageOutput(token_ids=tokens, text=answer.text, finished=finished, handoff=handoff)
            output.load = len(self._live) / most
            if live.captures:
                live.captured += client.add_states(output, live.rows, self._require().captured)
                if finished and live.captured != len(found.prompt_token_ids) + generated - 1:
                    raise ServiceError(f"{live.captured} positions were captured", where=self._where)
            elif mtp is not None and (codes := client.take_rows(live.rows)) is not None:
                output.tensors[mtp.payload_key] = codes
                self._frames.inc(len(codes))
            if finished:
                output.finish_reason = answer.finish_reason
                output.metrics = {"prompt_tokens": len(made.prompt_token_ids), "generated_tokens": generated}
            if isinstance(made, ChatInput) and made.reply is not None:
                made.reply.read(output, found)
            handoff = {}
            yield output
            if live.limit is not None and not finished and live.limit - generated <= CREDIT // 2:
                live.limit = generated + CREDIT
                await self._push(client.push_request(live.engine_id, None, False, live.limit))

    async def push(self, request_id: str, payload: Payload, final: bool) -> None:
        """Give a running request its next payload. A fault in it ends that request; unknown ids are ignored.

        The first payload goes through the stage's InputProcessor and opens the engine's request. Later ones are for models
        with gated inputs and hold `rows`, [n, W], for the positions behind the ones that are there.
        """
        live = self._live.get(request_id)
        if live is None or live.is_final:
            return
        try:
            if not live.is_begun:
                live.is_begun = True
                live.is_final = final
                made = await self._make_input(payload, live.request.sampling)
                if not live.opened.done():
                    live.opened.set_result(made)
            elif rows := self._later_rows(payload, final):
                live.is_final = final
                await self._send_or_keep(live, *rows)
        except OmniError as error:
            self._fail(live, error)
        except EngineDeadError as error:
            raise self._dead() from error

    def _later_rows(self, payload: Payload, final: bool) -> tuple[Any, bool] | None:
        if self._capabilities.gated_inputs:
            rows = payload.get("rows")
            return (None if rows is None else self._rows(rows)), final
        if payload:
            raise RequestError("this model takes one payload for each request", where=self._where, hint="send it whole")
        return None

    async def _send_or_keep(self, live: _Live, rows: Any, final: bool) -> None:
        if live.engine_id and not live.backlog:
            await self._send(live, rows, final)
        else:
            live.backlog.append((rows, final))

    def _rows(self, rows: Any) -> Any:
        config = self._engine.model_config
        return requests.checked_rows(self.stage, rows, requests.row_width(self._capabilities, config), config.dtype)

    async def _send(self, live: _Live, rows: Any, final: bool) -> None:
        if rows is None and not final:
            return
        await self._push(client.push_request(live.engine_id, rows, final))

    async def _push(self, message: Any) -> None:
        await self._engine.engine_core.add_request_async(message)

    def _fail(self, live: _Live, error: OmniError) -> None:
        live.is_final = True
        live.error = error
        if live.collector is not None:
            live.collector.put(error)
        elif not live.opened.done():
            live.opened.set_exception(error)

    async def abort(self, request_id: str) -> None:
        """Stop a request and free what it holds, in the engine too. Unknown ids are ignored."""
        live = self._live.get(request_id)
        if live is None or live.is_aborted:
            return
        live.is_aborted = True
        if not live.opened.done():
            live.opened.cancel()
        await self._close(live)

    async def _close(self, live: _Live) -> None:
        if self._live.get(live.request.request_id) is live:
            del self._live[live.request.request_id]
        launched = self._launched
        if not live.engine_id or launched is None:
            return
        launched.rows.pop(live.engine_id, None)
        if not launched.llm.errored:
            # A request that has ended is no longer known there, and nothing happens.
            await launched.llm.abort(live.engine_id, internal=True)

    # -- shorthands ------------------------------------------------------------------------------------------------

    def _require(self) -> Launched:
        if self._launched is None:
            raise self._dead()
        return self._launched

    @property
    def _engine(self) -> Any:
        return self._require().llm

    @property
    def _capabilities(self) -> ModelCapabilities:
        return self._require().capabilities
