"""The one place where core touches vLLM: every symbol, where it lives, and why we depend on it.

`from omni_core.engine.vllm_bridge import AsyncLLM` imports that symbol's module and nothing else, so that a process pays only
for what it uses. Each entry of `TOUCHED` answers five questions: why we use it, why the work cannot be done elsewhere, how far
our use reaches, what change in vLLM would break it, and how the dependence can go away. tests/engine/test_vllm_bridge.py holds
a contract test for each entry; they run first when the vLLM version moves.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Touched:
    """One symbol of vLLM that core uses."""

    home: str
    """Module that defines it."""
    why: str
    why_not_elsewhere: str
    scope: str
    breaks: str
    goes_away: str


class Worker(Protocol):
    """What we use of a vLLM worker."""

    vllm_config: Any
    model_config: Any
    model_runner: Any
    use_v2_model_runner: bool
    device: Any


TOUCHED: dict[str, Touched] = {
    "AsyncEngineArgs": Touched(
        "vllm.engine.arg_utils",
        why="the engine's arguments, as deploy files name them",
        why_not_elsewhere="the names and their meaning are vLLM's",
        scope="constructed once for each stage; create_engine_config",
        breaks="a renamed argument; deploy's table of names is tested against it",
        goes_away="never; it is public",
    ),
    "AsyncLLM": Touched(
        "vllm.v1.engine.async_llm",
        why="runs one engine core and feeds it",
        why_not_elsewhere="scheduling, batching and the KV cache are what we use vLLM for",
        scope="from_vllm_config, add_request, abort, errored, shutdown, output_processor, output_handler, engine_core, "
        "get_supported_tasks, model_config; of renderer, its tokenizer and its multimodal processor's audio resampler",
        breaks="add_request no longer returning the request's output collector",
        goes_away="never; it is public, except output_processor (see OutputProcessor)",
    ),
    "LLMEngine": Touched(
        "vllm.v1.engine.llm_engine",
        why="runs an engine inside the process, for tests and the step benchmark",
        why_not_elsewhere="a step can only be timed and forced to preempt from inside",
        scope="tests and benchmarks only",
        breaks="the in-process client being removed",
        goes_away="when AsyncLLM can run in-process",
    ),
    "SamplingParams": Touched(
        "vllm.sampling_params",
        why="a request's parameters; extra_args carries our inputs",
        why_not_elsewhere="it is the only per-request channel that reaches the worker",
        scope="constructor, extra_args, eos_token_id, stop_token_ids, seed, temperature",
        breaks="extra_args not being sent to the engine core as it is",
        goes_away="when requests get an official field for model inputs",
    ),
    "RequestOutputKind": Touched(
        "vllm.sampling_params",
        why="asks for new tokens only",
        why_not_elsewhere="a field of SamplingParams",
        scope="DELTA",
        breaks="a renamed member",
        goes_away="never; it is public",
    ),
    "tokens_input": Touched(
        "vllm.inputs.engine",
        why="wraps prompt token ids as the engine takes them, without a renderer",
        why_not_elsewhere="raw prompts are deprecated and go through a thread pool",
        scope="one call for each request",
        breaks="a renamed function",
        goes_away="never; it is public",
    ),
    "OnlineRenderer": Touched(
        "vllm.renderers.online_renderer",
        why="turns a conversation into a prompt: chat template, multimodal processing, tools, parsers",
        why_not_elsewhere="each model's template and processor are wired up in it",
        scope="constructor, render_chat, parser, effective_chat_template_kwargs; keywords only",
        breaks="render_chat no longer returning the conversation and its engine inputs",
        goes_away="never; vLLM's own server is made of it",
    ),
    "ChatCompletionRequest": Touched(
        "vllm.entrypoints.openai.chat_completion.protocol",
        why="the form in which the renderer takes a conversation",
        why_not_elsewhere="tools and response formats are checked in it",
        scope="model_validate, model_extra, extract_structured_outputs, resolve_reasoning_ended, tools, tool_choice, "
        "include_reasoning, skip_special_tokens",
        breaks="a renamed field; the server's list of fields is tested against it",
        goes_away="with OnlineRenderer",
    ),
    "ErrorResponse": Touched(
        "vllm.entrypoints.serve.engine.protocol",
        why="the renderer returns some refusals instead of raising them",
        why_not_elsewhere="it is the renderer's result",
        scope="isinstance; error.message and error.param",
        breaks="refusals in another class",
        goes_away="when the renderer raises",
    ),
    "MediaConnector": Touched(
        "vllm.multimodal.media",
        why="loads a conversation's files; ours takes those that came with the request and names the one that is broken",
        why_not_elsewhere="the parser of messages asks it for each URL, and an error of its own names no message",
        scope="our subclass overrides load_from_url_async and fetch_audio_async",
        breaks="files loaded through other methods",
        goes_away="when prompts take decoded files by place",
    ),
    "MEDIA_CONNECTOR_REGISTRY": Touched(
        "vllm.multimodal.media",
        why="the official place to offer a media connector, chosen with VLLM_MEDIA_CONNECTOR",
        why_not_elsewhere="as MediaConnector",
        scope="register",
        breaks="the variable not being read for each request",
        goes_away="with MediaConnector",
    ),
    "EngineCoreRequest": Touched(
        "vllm.v1.engine",
        why="a second one with a live id brings input rows to the engine core",
        why_not_elsewhere="vLLM's streaming input ends a turn for each chunk and drops a token",
        scope="request_id, prompt_token_ids, prompt_embeds, sampling_params; keywords only",
        breaks="the client or the core refusing an id that is live",
        goes_away="when vLLM takes rows for a running request",
    ),
    "EngineDeadError": Touched(
        "vllm.v1.engine.exceptions",
        why="tells a dead engine from a bad request",
        why_not_elsewhere="raised by vLLM",
        scope="caught around every call of AsyncLLM",
        breaks="another class being raised",
        goes_away="never",
    ),
    "VLLMClientError": Touched(
        "vllm.exceptions",
        why="tells a bad request from a failure",
        why_not_elsewhere="raised by vLLM's checks",
        scope="caught where a request is added",
        breaks="another class being raised; the request then counts as the server's failure",
        goes_away="never",
    ),
    "LoRARequest": Touched(
        "vllm.lora.request",
        why="names the adapter of a request",
        why_not_elsewhere="add_request and add_lora take it",
        scope="constructor: lora_name, lora_int_id, lora_path",
        breaks="a renamed field",
        goes_away="never; it is public",
    ),
    "lora_ops": Touched(
        "vllm.lora.ops.torch_ops:lora_ops",
        why="on a CPU, rows without an adapter are answered with the one in the last slot",
        why_not_elsewhere="which row has which adapter is known in the kernels only",
        scope="bgmv_expand and bgmv_expand_slice are wrapped in the engine core, on CPUs",
        breaks="other parameters in front, or other kernels being called",
        goes_away="when vLLM's torch kernels skip the index -1",
    ),
    "punica_cpu": Touched(
        "vllm.lora.punica_wrapper:punica_cpu",
        why="as lora_ops, whose kernels it has imported by name",
        why_not_elsewhere="as lora_ops",
        scope="as lora_ops",
        breaks="the kernels being called through lora_ops",
        goes_away="with lora_ops",
    ),
    "WeightTransferInitRequest": Touched(
        "vllm.distributed.weight_transfer.base",
        why="carries what a weight transfer backend needs to begin",
        why_not_elsewhere="AsyncLLM.init_weight_transfer_engine takes it",
        scope="constructor: init_info",
        breaks="a renamed field",
        goes_away="never; it is public",
    ),
    "WeightTransferUpdateRequest": Touched(
        "vllm.distributed.weight_transfer.base",
        why="carries what a weight transfer backend needs for one update",
        why_not_elsewhere="AsyncLLM.update_weights takes it",
        scope="constructor: update_info",
        breaks="a renamed field",
        goes_away="never; it is public",
    ),
    "PrometheusStatLogger": Touched(
        "vllm.v1.metrics.loggers",
        why="vLLM's own series, for each stage",
        why_not_elsewhere="it knows which series there are and how each is counted",
        scope="our subclass sets _counter_cls, _gauge_cls and _histogram_cls, also on its four parts, and adds to record; "
        "reads inter_token_latencies_iter and time_to_first_tokens_iter; passed as AsyncLLM's stat_loggers",
        breaks="metrics made otherwise than through these classes",
        goes_away="when the registry of the series can be chosen",
    ),
    "supports_eagle3": Touched(
        "vllm.model_executor.models.interfaces",
        why="hidden states of layers between leave a model through its interface for auxiliary hidden states",
        why_not_elsewhere="the model's class is vLLM's own and stays as it is",
        scope="asked of the loaded model, whose set_aux_hidden_state_layers is then called; the runners' flag "
        "use_aux_hidden_state_outputs and execute_model_state.aux_hidden_states; a model's deepstack_input_embeds and "
        "deepstack_input_embeds_num_tokens, which are no part of a layer's output; not beside speculative decoding",
        breaks="layers counted otherwise, or states given in another order than that of the layers",
        goes_away="when vLLM gives hidden states of requests to the frontend",
    ),
    "OutputProcessor": Touched(
        "vllm.v1.engine.output_processor",
        why="a step's payload has to be taken off the outputs before vLLM reads them as pooling results",
        why_not_elsewhere="it is the only place between the engine core's socket and a request's queue",
        scope="our subclass overrides add_request and process_outputs; its class is set on AsyncLLM's own object; an output "
        "that only brings hidden states of a part of a prompt is withheld, its prefill_stats and events go to the next one",
        breaks="process_outputs called with something else than a list of outputs, or the object having slots",
        goes_away="when AsyncLLM takes an output processor class",
    ),
    "Scheduler": Touched(
        "vllm.v1.core.sched.scheduler",
        why="holds positions back until their rows are there or earlier ones were taken, and packs a step's payload; drops "
        "hidden states that a preempted request computes again",
        why_not_elsewhere="only the scheduler decides what runs in a step",
        scope="our subclass overrides add_request, schedule, update_from_output, has_requests, _reserve_prefill_lookahead, "
        "_handle_blocked_waiting_request, _preempt_request and _free_request",
        breaks="_reserve_prefill_lookahead not being asked for running and waiting requests",
        goes_away="when the scheduler has a hook that limits a request's tokens in a step",
    ),
    "AsyncScheduler": Touched(
        "vllm.v1.core.sched.async_scheduler",
        why="a scheduler that does not derive from it switches asynchronous scheduling off",
        why_not_elsewhere="as Scheduler",
        scope="second base of the scheduler on CUDA",
        breaks="as Scheduler",
        goes_away="as Scheduler",
    ),
    "PauseState": Touched(
        "vllm.v1.core.sched.interface",
        why="a paused engine must drain, gated requests or not",
        why_not_elsewhere="a property of the scheduler",
        scope="compared in has_requests",
        breaks="a renamed member",
        goes_away="with has_requests' override",
    ),
    "AsyncModelRunnerOutput": Touched(
        "vllm.v1.outputs",
        why="a step's payload joins the output when the device has finished it",
        why_not_elsewhere="waiting earlier would stop the overlap of two steps",
        scope="our wrapper implements get_output",
        breaks="get_output being renamed",
        goes_away="when model runner outputs carry named tensors",
    ),
    "UniProcExecutor": Touched(
        "vllm.v1.executor.uniproc_executor",
        why="the worker runs in the engine core's process, two processes for a stage instead of three",
        why_not_elsewhere="given as the string 'uni' it is turned into 'mp' on CPUs",
        scope="passed as a class",
        breaks="classes not being taken for distributed_executor_backend",
        goes_away="when 'uni' is honoured on CPUs",
    ),
    "ModelRegistry": Touched(
        "vllm.model_executor.models.registry",
        why="makes our model classes known by architecture",
        why_not_elsewhere="vLLM loads models through it",
        scope="register_model, models",
        breaks="register_model not taking a class or 'module:Class'",
        goes_away="never; it is public",
    ),
    "LlamaForCausalLM": Touched(
        "vllm.model_executor.models.llama",
        why="the backbone of the tests' tiny talker",
        why_not_elsewhere="the engine is tested on a model that vLLM itself runs",
        scope="omni_core.testing only",
        breaks="a renamed class, or embed_input_ids or compute_logits with another signature",
        goes_away="never; it is public",
    ),
    "DefaultModelState": Touched(
        "vllm.v1.worker.gpu.model_states.default",
        why="the second model runner's own hook for inputs and sampling",
        why_not_elsewhere="it is the official place",
        scope="our subclass overrides prepare_inputs_embeds, custom_sampler and add_request; calls "
        "rope_state.init_prefill_positions and prompt_embeds_state.add_request; any model state's "
        "prepare_inputs_embeds is wrapped where hidden states are captured",
        breaks="get_model_state_cls no longer being asked",
        goes_away="never; it is the official hook",
    ),
    "engine_utils": Touched(
        "vllm.v1.engine:utils",
        why="the engine core has to be forked from our fork server",
        why_not_elsewhere="VLLM_WORKER_MULTIPROC_METHOD takes only fork and spawn",
        scope="get_mp_context is replaced while an AsyncLLM is constructed",
        breaks="CoreEngineProcManager no longer taking its context from there",
        goes_away="when vLLM accepts forkserver or a context",
    ),
    "envs": Touched(
        "vllm:envs",
        why="the size of the slices in which outputs are handed to the output processor",
        why_not_elsewhere="rows are packed on the first output of each slice",
        scope="VLLM_V1_OUTPUT_PROC_CHUNK_SIZE",
        breaks="outputs cut in another way",
        goes_away="with the packing",
    ),
    "custom_ops": Touched(
        "vllm:_custom_ops",
        why="one operation for a norm on a CPU, where torch needs seven",
        why_not_elsewhere="the layer that vLLM has for it computes like torch on a CPU",
        scope="rms_norm, on CPUs, for what a model computes outside vLLM's layers (modelkit.code_predictor)",
        breaks="a vLLM that does not build the operation for CPUs",
        goes_away="with a torch that has one operation for it on CPUs, as it has on GPUs",
    ),
    "current_platform": Touched(
        "vllm.platforms",
        why="tells which worker class is to be extended",
        why_not_elsewhere="vLLM decides its platform itself",
        scope="is_cpu, register_triton_kernel_overrides (preload)",
        breaks="a renamed method",
        goes_away="never; it is public",
    ),
    "CPUWorker": Touched(
        "vllm.v1.worker.cpu_worker",
        why="our worker calls the model before and after vLLM's step",
        why_not_elsewhere="the worker is the only object that sees a step's scheduler output and its result",
        scope="our subclass overrides load_model, execute_model and sample_tokens; reads is_driver_worker",
        breaks="execute_model and sample_tokens no longer being two calls",
        goes_away="when the model runners have hooks for both",
    ),
    "GPUWorker": Touched(
        "vllm.v1.worker.gpu_worker:Worker",
        why="as CPUWorker, on CUDA",
        why_not_elsewhere="as CPUWorker",
        scope="as CPUWorker",
        breaks="as CPUWorker",
        goes_away="as CPUWorker",
    ),
    "GPUModelRunner": Touched(
        "vllm.v1.worker.gpu_model_runner",
        why="the first model runner has no hook for input embeddings or sampled rows",
        why_not_elsewhere="both exist only inside a step",
        scope="our mixin overrides _preprocess, sample_tokens and _init_mrope_positions; _model_forward is wrapped where "
        "hidden states are captured; reads input_batch, positions, input_ids, inputs_embeds, discard_request_mask, device and, "
        "of execute_model_state, hidden_states and sample_hidden_states; takes from input_batch.generators and writes "
        "execute_model_state.logits before they are sampled from; takes enable_prompt_embeds back within _preprocess",
        breaks="any of these names changing",
        goes_away="with the first model runner",
    ),
}
"""Every symbol of vLLM that core uses, by the name under which this module offers it."""


_MODULES = frozenset({"utils", "envs", "_custom_ops", "lora_ops", "punica_cpu"})
"""Which of the attributes behind a colon are modules: they may not be imported yet."""


def __getattr__(name: str) -> Any:
    if name not in TOUCHED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = TOUCHED[name].home.partition(":")
    if attribute in _MODULES:
        return importlib.import_module(f"{module}.{attribute}")
    return getattr(importlib.import_module(module), attribute or name)


def worker_base() -> Any:
    """Return vLLM's worker class of this platform."""
    platform = __getattr__("current_platform")
    return __getattr__("CPUWorker" if platform.is_cpu() else "GPUWorker")
