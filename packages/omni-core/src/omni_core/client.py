"""The Python API: `AsyncOmni` for asyncio programs and the server, `Omni` for scripts."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from omni_core.chat import CHAT, chat_payload, served_chat, wanted_stages
from omni_core.deploy.explain import describe_pipeline, describe_stage
from omni_core.deploy.lora import adapter_of
from omni_core.deploy.resolve import resolve_deployment
from omni_core.engine.options import EngineOptions, with_timeouts
from omni_core.engine.orchestrator import DRAIN_TIMEOUT_S, Orchestrator
from omni_core.engine.requirements import check_requirements
from omni_core.errors import OmniError, RequestError, ServiceError
from omni_core.observe.telemetry import Telemetry
from omni_core.operations import CALL_TIMEOUT_S, Operations
from omni_core.payload import Payload
from omni_core.platforms import Platform, current_platform
from omni_core.plugins import plugin_manager
from omni_core.request import OmniOutput, OmniRequest, OmniResult
from omni_core.results import join_results
from omni_core.speech import SpeechAdapter, SpeechPrompt, as_speech_prompt
from omni_core.stage import ResolvedPipeline
from omni_core.stage_sampling import SamplingParams, effective_sampling
from omni_core.streaming import StreamingRequest
from omni_core.target import load_target

if TYPE_CHECKING:
    from omni_core.engine.remote.head import Head
    from omni_core.plugins import PluginManager

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 600.0
MAX_PROMPTS_UNDER_WAY = 64
"""`Omni.generate` begins a further prompt when one of so many has ended, so that deadlines count from a prompt's own begin."""

Prompt = SpeechPrompt | Mapping[str, Any] | str
"""A speech prompt, its fields by name, or its text alone; `{"chat": ...}`, a conversation (`omni_core.chat.chat_payload`); for
other pipelines, the raw inputs."""
T = TypeVar("T")


class AsyncOmni(Operations):
    """A pipeline with its stage processes. Use it as `async with AsyncOmni(model) as omni:`, or call `start` and `close`.

    Args:
        model: A checkpoint's folder, or its name on the Hugging Face Hub.
        deploy_config: Deploy files, later ones on top; by default the one that belongs to the pipeline.
        stage_overrides: Settings by stage id, such as `{1: {"max_num_seqs": 4}}`.
        stage_init_timeout: Seconds that one stage may take to start.
        init_timeout: Seconds that the whole start may take.
        options: Further deadlines and limits: the choice of replicas, queued requests, stalls.
        manager: Plugins; by default those that are installed.
        platform: Device platform or its name; by default the one that is detected.
        **flags: Settings for all stages, named as the flags of `omni serve`.

    Raises:
        ConfigError: A setting cannot be used. Nothing has been started.
        DependencyError: Nobody offers the architecture of a stage, or a package is not installed. Nothing has been started.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        deploy_config: str | Path | Sequence[str | Path] | None = None,
        stage_overrides: Mapping[Any, Any] | str | None = None,
        stage_init_timeout: float | None = None,
        init_timeout: float | None = None,
        options: EngineOptions | None = None,
        manager: PluginManager | None = None,
        platform: Platform | str | None = None,
        **flags: Any,
    ) -> None:
        resolved = resolve_deployment(
            model,
            deploy_config=deploy_config,
            flags=flags,
            stage_overrides=stage_overrides,
            manager=manager,
            platform=platform,
        )
        limits = with_timeouts(options, stage_init_timeout, init_timeout)
        self._use(resolved, limits, platform if isinstance(platform, Platform) else None)

    @classmethod
    def from_resolved(
        cls,
        resolved: ResolvedPipeline,
        *,
        stage_init_timeout: float | None = None,
        init_timeout: float | None = None,
        options: EngineOptions | None = None,
        platform: Platform | None = None,
        head: Head | None = None,
    ) -> Self:
        """Return the pipeline of a deployment that is resolved already; workers register with `head` if there is one."""
        omni = cls.__new__(cls)
        omni._use(resolved, with_timeouts(options, stage_init_timeout, init_timeout), platform, head)
        return omni

    def _use(
        self, resolved: ResolvedPipeline, options: EngineOptions, platform: Platform | None, head: Head | None = None
    ) -> None:
        check_requirements(resolved, None if head is None else head.own_stages)
        self.pipeline: ResolvedPipeline = resolved
        self.speech = _speech_adapter(resolved)
        """The pipeline's adapter; None for pipelines that do not speak."""
        self.chat = served_chat(resolved)
        """What conversations the pipeline answers; None for pipelines that answer none."""
        platform = platform or current_platform(plugin_manager(), resolved.platform)
        self.telemetry = Telemetry(self.health)
        """The numbers and traces of this pipeline."""
        self._orchestrator = Orchestrator(resolved, options, platform=platform, observer=self.telemetry.observer, head=head)
        self._orchestrator.prepare()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close(0 if any(exc) else DRAIN_TIMEOUT_S)

    async def start(self) -> None:
        """Start every stage.

        Raises:
            StageStartError: A stage did not become ready; nothing is left of the others.
        """
        _log_configuration(self.pipeline)
        await self._orchestrator.start()

    async def close(self, drain_timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Let running requests finish for a while, then stop every stage. May be called twice."""
        await self._orchestrator.stop(drain_timeout_s)
        await asyncio.to_thread(self.telemetry.close)

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling_params_list: SamplingParams = None,
        request_id: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        lora_request: Any = None,
        outputs: Collection[int | str] | None = None,
        replicas: Mapping[int, int] | None = None,
    ) -> AsyncIterator[OmniOutput]:
        """Yield a prompt's outputs as they are made; the last one has `finished`. Closing the iterator aborts the request.

        Args:
            prompt: What to make.
            sampling_params_list: Sampling parameters for this request, over those of the deploy file.
            request_id: Name of the request, for `abort` and in the outputs; need not be unique.
            timeout_s: Seconds until the request fails.
            lora_request: A `LoraAdapter` (or vLLM's LoRARequest) that stage 0 applies to this request (LR-04).
            outputs: What of the answer is wanted, as types (`text`, `audio`) or as ids of final stages; None is everything.
                Stages that are not needed for it never see the request.
            replicas: Replicas that it must run on, by stage id; others are chosen.

        Raises:
            RequestError: The prompt or a parameter cannot be used; `param` names it.
            ServiceError: The pipeline failed (StageDeadError, DeadlineError and OverloadedError are such).
        """
        with self.telemetry.refusals():
            request = self._request(prompt, sampling_params_list, request_id, timeout_s)
            wanted = wanted_stages(self.pipeline.config, outputs)
            lora = adapter_of(lora_request, self.pipeline)
            request = replace(request, lora=lora, outputs=wanted, replicas=dict(replicas or {}))
        answer = self._orchestrator.submit(request)
        try:
            async for output in answer:
                yield output
        finally:
            await cast("Any", answer).aclose()

    def open(
        self,
        inputs: Payload,
        *,
        sampling_params_list: SamplingParams = None,
        request_id: str | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        replicas: Mapping[int, int] | None = None,
    ) -> StreamingRequest:
        """Return a request whose entry stage gets further input while it runs; it begins when its outputs are asked for.

        The arguments are those of `generate`; `inputs` is what the entry stage begins with.

        Raises:
            RequestError: A parameter cannot be used.
        """
        with self.telemetry.refusals():
            request = self._request(inputs, sampling_params_list, request_id, timeout_s)
        return StreamingRequest(self._orchestrator, replace(request, replicas=dict(replicas or {})))

    def watch_deaths(self, told: Callable[[int, int, str], None]) -> None:
        """Call a function with the stage id, the replica and the reason whenever a replica's process is gone."""
        self._orchestrator.witnesses.deaths.append(told)

    def watch_returns(self, told: Callable[[], None]) -> None:
        """Call a function whenever a replica that was gone is ready again; `health` has the states of all."""
        self._orchestrator.witnesses.returns.append(told)

    def abort(self, request_id: str) -> bool:
        """End every running request with this id; return whether there was one."""
        return self._orchestrator.abort(request_id)

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[Any]:
        """Call `StageRunner.call` in every replica of a stage and return their answers; the named operations use it."""
        return await self._orchestrator.control.call(stage_id, method, arguments or {}, timeout_s)

    def health(self) -> Mapping[str, Any]:
        """Return `healthy`, the number of running `requests`, and the state of each of the `stages`."""
        return self._orchestrator.health()

    def _request(self, prompt: Prompt, sampling: SamplingParams, name: str | None, timeout_s: float) -> OmniRequest:
        inputs: Payload
        prepared: Mapping[int, Mapping[str, Any]] = {}
        if isinstance(prompt, Mapping) and CHAT in prompt:
            inputs = chat_payload(prompt, self.chat)
        elif self.speech is not None:
            speech = self.speech.prepare(as_speech_prompt(prompt))
            inputs, prepared = speech.inputs, speech.sampling
        elif isinstance(prompt, Mapping):
            inputs = prompt
        else:
            name = self.pipeline.config.model_type
            raise RequestError(f"pipeline {name!r} takes its inputs as a mapping", hint="pass a dict", param="prompt")
        request_id = name or f"omni-{uuid.uuid4().hex[:16]}"
        return OmniRequest(request_id, inputs, effective_sampling(self.pipeline, prepared, sampling), timeout_s=timeout_s)


def _log_configuration(resolved: ResolvedPipeline) -> None:
    """Say once what is about to start, in one line for the pipeline and one for each stage, and what there is to warn of."""
    logger.info("%s", describe_pipeline(resolved))
    for stage in resolved.stages:
        logger.info("%s", describe_stage(stage))
    for text in resolved.warnings:
        logger.warning("%s", text)


def _speech_adapter(resolved: ResolvedPipeline) -> SpeechAdapter | None:
    if resolved.config.speech is None:
        return None
    from omni_core.model_info import read_model_info

    adapter = cast("type[SpeechAdapter]", load_target(resolved.config.speech, where=f"pipeline {resolved.config.model_type!r}"))
    return adapter(read_model_info(resolved.model), {**resolved.values, "stages": resolved.stages})


class Omni:
    """A pipeline for scripts: the same as AsyncOmni, on a thread of its own. Takes the same arguments and starts at once.

    Use it as `with Omni(model) as omni:`, or call `close` at the end.
    """

    def __init__(self, model: str | Path, **options: Any) -> None:
        self._begin(AsyncOmni(model, **options))

    @classmethod
    def from_resolved(cls, resolved: ResolvedPipeline, **options: Any) -> Self:
        """Return the pipeline of a deployment that is resolved already."""
        omni = cls.__new__(cls)
        omni._begin(AsyncOmni.from_resolved(resolved, **options))
        return omni

    def _begin(self, omni: AsyncOmni) -> None:
        self._omni = omni
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omni", daemon=True)
        self._thread.start()
        try:
            self._run(omni.start())
        except BaseException:  # a start that failed in any way leaves nothing; raised again
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params_list: SamplingParams = None,
        *,
        use_tqdm: bool = True,
        return_errors: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
        outputs: Collection[int | str] | None = None,
    ) -> list[OmniResult]:
        """Return the results of prompts, in their order.

        Args:
            prompts: One prompt or several.
            sampling_params_list: As for AsyncOmni.generate; holds for every prompt.
            use_tqdm: Whether to show a bar for more than one prompt; it is drawn on a terminal only.
            return_errors: Give a failed prompt's error in its result. Otherwise the first one is raised when all have ended.
            timeout_s: Seconds for each prompt, from its begin.
            outputs: What of the answers is wanted; as for AsyncOmni.generate.

        Raises:
            OmniError: A prompt failed, and `return_errors` is false.
        """
        if isinstance(prompts, (str, Mapping, SpeechPrompt)):
            prompts = [prompts]
        results = self._run(self._generate(prompts, sampling_params_list, use_tqdm, timeout_s, outputs))
        failed = next((result.error for result in results if result.error is not None), None)
        if failed is not None and not return_errors:
            raise failed
        return results

    async def _generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        use_tqdm: bool,
        timeout_s: float,
        wanted: Collection[int | str] | None,
    ) -> list[OmniResult]:
        from tqdm import tqdm

        room = asyncio.Semaphore(MAX_PROMPTS_UNDER_WAY)
        hidden = not use_tqdm or len(prompts) < 2 or not sys.stderr.isatty()
        with tqdm(total=len(prompts), unit="prompt", disable=hidden) as bar:

            async def one(index: int, prompt: Prompt) -> OmniResult:
                outputs: list[OmniOutput] = []
                request_id = str(index)
                async with room:
                    try:
                        async for output in self._omni.generate(
                            prompt,
                            sampling_params_list=sampling,
                            request_id=request_id,
                            timeout_s=timeout_s,
                            outputs=wanted,
                        ):
                            outputs.append(output)  # noqa: PERF401 - what came before an error is thrown away with it
                    except OmniError as error:
                        return OmniResult(request_id, error=error)
                    finally:
                        bar.update()
                return join_results(request_id, outputs)

            return list(await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(prompts))))

    def health(self) -> Mapping[str, Any]:
        """Return the state of the pipeline and its stages."""

        async def ask() -> Mapping[str, Any]:
            return self._omni.health()

        return self._run(ask())

    def close(self, drain_timeout_s: float = 0.0) -> None:
        """Stop every stage. May be called twice."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._omni.close(drain_timeout_s))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise ServiceError("this Omni is closed", hint="make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too; raised again
            # Ctrl-C while waiting: what was asked for is not wanted any more.
            future.cancel()
            raise
