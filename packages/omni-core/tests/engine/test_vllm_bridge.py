"""One contract test for each symbol of vLLM that core touches: its signature, and the behaviour that core leans on."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="the contract is with vLLM")

from omni_core.engine import vllm_bridge
from omni_core.engine.vllm_bridge import TOUCHED

pytestmark = pytest.mark.engine

CHECKS: dict[str, Callable[[Any], None]] = {}


def contract(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def register(check: Callable[[Any], None]) -> Callable[[Any], None]:
        CHECKS[name] = check
        return check

    return register


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def body(function: Any) -> str:
    return textwrap.dedent(inspect.getsource(function))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("name", sorted(TOUCHED))
def test_a_touched_symbol_keeps_its_contract(name: str) -> None:
    CHECKS[name](getattr(vllm_bridge, name))


def test_every_check_has_its_symbol_and_every_symbol_its_notes() -> None:
    assert set(CHECKS) == set(TOUCHED)
    for touched in TOUCHED.values():
        assert all(dataclasses.astuple(touched))


def test_an_unknown_symbol_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchThing"):
        _ = vllm_bridge.NoSuchThing


def test_the_table_of_sampling_parameters_holds_only_names_of_vllm() -> None:
    from omni_core.sampling import SAMPLING_RULES

    names = set(parameters(vllm_bridge.SamplingParams))

    assert set(SAMPLING_RULES) <= names


def test_the_table_of_engine_arguments_is_that_of_vllm() -> None:
    from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, RESERVED_NAMES

    names = {field.name for field in dataclasses.fields(vllm_bridge.AsyncEngineArgs) if not field.name.startswith("_")}

    # The scheduler belongs to the pipeline (`StagePipelineConfig.scheduler_cls`).
    assert names - set(RESERVED_NAMES) - {"scheduler_cls"} == ENGINE_ARG_NAMES


def test_the_types_of_engine_arguments_are_those_of_vllm() -> None:
    from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, engine_arg_choices, engine_arg_kinds

    # What vLLM's own annotations leave open, or do not say in words that a file can hold.
    ours = {
        "attention_backend": {"str"},  # `deploy.backends` has these three
        "linear_backend": {"str"},
        "moe_backend": {"str"},
        "distributed_executor_backend": {"str"},  # a class by its name, too
        "mm_encoder_attn_backend": {"str"},
        "tokenizer_mode": {"str"},
        "quantization_config": {"mapping"},
    }
    wrong = {}
    for field in dataclasses.fields(vllm_bridge.AsyncEngineArgs):
        if field.name in ENGINE_ARG_NAMES:
            table = set(engine_arg_kinds(field.name)) or engine_arg_choices(field.name)
            theirs = ours.get(field.name) or _written(field.type)
            if table != theirs:
                wrong[field.name] = (table, theirs)

    assert not wrong


def _written(annotation: Any) -> set[str] | tuple[str, ...]:
    """Return what a file may hold for an annotation: kinds of values, or the choices if there is a list of them."""
    kind = typing.get_origin(annotation) or annotation
    if kind is typing.Literal:
        return tuple(map(str, typing.get_args(annotation)))
    if kind in (typing.Union, types.UnionType):
        parts = [_written(part) for part in typing.get_args(annotation)]
        choices = [part for part in parts if isinstance(part, tuple)]
        return choices[0] if choices else set().union(*parts)
    if issubclass(kind, enum.Enum):
        return tuple(str(item.value) if isinstance(item.value, int) else item.name for item in kind)
    names = {list: "list", set: "list", dict: "mapping", bool: "bool", int: "int", float: "float", str: "str"}
    if dataclasses.is_dataclass(kind):
        return {"mapping"}
    return {names[kind]} if kind in names else set()  # objects of Python have no place in a file


@contract("AsyncEngineArgs")
def _(symbol: Any) -> None:
    names = {field.name for field in dataclasses.fields(symbol)}

    assert {
        "model",
        "tokenizer",
        "skip_tokenizer_init",
        "hf_overrides",
        "generation_config",
        "enforce_eager",
        "kv_cache_memory_bytes",
        "distributed_executor_backend",
        "worker_cls",
        "scheduler_cls",
        "enable_prefix_caching",
        "enable_prompt_embeds",
        "disable_log_stats",
        "enable_log_requests",
    } <= names
    with pytest.raises(TypeError):
        symbol(no_such_argument=1)


@contract("AsyncLLM")
def _(symbol: Any) -> None:
    assert {"vllm_config", "enable_log_requests", "disable_log_stats"} <= set(parameters(symbol.from_vllm_config))
    assert parameters(symbol.add_request)[:4] == ["self", "request_id", "prompt", "params"]
    assert "lora_request" in parameters(symbol.add_request)
    assert "lora_request" in parameters(symbol.add_lora)
    assert {"mode", "clear_cache"} <= set(parameters(symbol.pause_generation))
    assert {"level", "mode"} <= set(parameters(symbol.sleep))
    assert "tags" in parameters(symbol.wake_up)
    assert "reset_running_requests" in parameters(symbol.reset_prefix_cache)
    assert "weight_version" in parameters(symbol.finish_weight_update)
    assert "RequestOutputCollector" in str(inspect.signature(symbol.add_request).return_annotation)
    assert "internal" in parameters(symbol.abort)
    assert "timeout" in parameters(symbol.shutdown)
    assert isinstance(symbol.errored, property)
    # The answer is kept, so that adding a request asks the core nothing.
    assert "_supported_tasks" in body(symbol.get_supported_tasks)
    # The output task captures the output processor as an object.
    assert "output_processor = self.output_processor" in body(symbol._run_output_handler)


@contract("LLMEngine")
def _(symbol: Any) -> None:
    assert {"step", "add_request", "abort_request", "has_unfinished_requests"} <= set(dir(symbol))


@contract("SamplingParams")
def _(symbol: Any) -> None:
    params = symbol(temperature=0.0, stop_token_ids=[3], seed=4, extra_args={"omni": {"inputs": b"\x00\xff"}})

    import msgspec

    again = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=symbol)
    assert again.extra_args == {"omni": {"inputs": b"\x00\xff"}}
    assert (again.temperature, again.stop_token_ids, again.seed) == (0.0, [3], 4)
    assert params.eos_token_id is None
    assert params.clone().extra_args == params.extra_args


@contract("RequestOutputKind")
def _(symbol: Any) -> None:
    assert symbol.DELTA in symbol


@contract("tokens_input")
def _(symbol: Any) -> None:
    assert symbol([1, 2]) == {"type": "token", "prompt_token_ids": [1, 2]}


@contract("EngineCoreRequest")
def _(symbol: Any) -> None:
    import torch
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from omni_core.engine.ar.client import push_request

    pushed = push_request("id", torch.ones(2, 3), True)
    again = MsgpackDecoder(symbol).decode(MsgpackEncoder().encode(pushed))

    assert again.request_id == "id"
    assert again.prompt_token_ids is None
    assert torch.equal(again.prompt_embeds, torch.ones(2, 3))
    assert again.sampling_params.extra_args["omni"] == {"push": True, "final": True}


@contract("EngineDeadError")
def _(symbol: Any) -> None:
    assert issubclass(symbol, Exception)
    assert not issubclass(symbol, vllm_bridge.VLLMClientError)


@contract("VLLMClientError")
def _(symbol: Any) -> None:
    from vllm.exceptions import VLLMValidationError

    assert issubclass(VLLMValidationError, symbol)


@contract("supports_eagle3")
def _(symbol: Any) -> None:
    from vllm.model_executor.models import qwen3_omni_moe_thinker
    from vllm.model_executor.models.interfaces import EagleModelMixin, SupportsEagle3
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
    from vllm.v1.worker.gpu_model_runner import ExecuteModelState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as FirstRunner

    assert not symbol(object())
    assert parameters(SupportsEagle3.set_aux_hidden_state_layers) == ["self", "layers"]
    # In the order of the layers, each the sum of the stream and what is still to be added to it.
    assert "tuple(sorted(set(layers)))" in body(EagleModelMixin._set_aux_hidden_state_layers)
    assert "hidden_states + residual" in body(EagleModelMixin._maybe_add_hidden_state)
    assert {"hidden_states", "aux_hidden_states"} <= set(ExecuteModelState._fields)
    for runner in (FirstRunner, SecondRunner):
        assert "hidden_states, aux_hidden_states = model_output" in body(runner.execute_model)
    source = inspect.getsource(qwen3_omni_moe_thinker)
    assert all(f"self.{name} " in source for name in ("deepstack_input_embeds", "deepstack_input_embeds_num_tokens"))


@contract("OutputProcessor")
def _(symbol: Any) -> None:
    from vllm.v1.engine import EngineCoreOutput

    assert parameters(symbol.process_outputs)[:2] == ["self", "engine_core_outputs"]
    assert parameters(symbol.add_request)[:2] == ["self", "request"]
    assert not hasattr(symbol, "__slots__")
    assert {"pooling_output", "prefill_stats", "events"} <= set(EngineCoreOutput.__struct_fields__)


@contract("Scheduler")
def _(symbol: Any) -> None:
    assert parameters(symbol._reserve_prefill_lookahead) == ["self", "request", "num_computed_tokens", "num_new_tokens"]
    assert parameters(symbol._handle_blocked_waiting_request) == ["self", "request"]
    assert parameters(symbol._free_request)[:2] == ["self", "request"]
    assert parameters(symbol.update_from_output) == ["self", "scheduler_output", "model_runner_output"]
    schedule = body(symbol.schedule)
    assert schedule.count("_reserve_prefill_lookahead(") == 2, "asked for running and for waiting requests"
    assert schedule.count("_handle_blocked_waiting_request(") == 1
    update = body(symbol.update_from_output)
    assert "new_token_ids or pooler_output is not None or stopped" in update, "a part of a prompt may bring something, too"
    assert "pooler_outputs[req_index] if pooler_outputs else None" in update
    assert "pooling_output=pooler_output" in update
    assert isinstance(symbol.pause_state, property)


@contract("AsyncScheduler")
def _(symbol: Any) -> None:
    from omni_core.engine.ar.scheduler import AsyncArScheduler

    assert issubclass(symbol, vllm_bridge.Scheduler)
    assert issubclass(AsyncArScheduler, symbol)


@contract("PauseState")
def _(symbol: Any) -> None:
    assert {member.name for member in symbol} >= {"UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"}


@contract("AsyncModelRunnerOutput")
def _(symbol: Any) -> None:
    assert symbol.__abstractmethods__ == {"get_output"}


@contract("UniProcExecutor")
def _(symbol: Any) -> None:
    from types import SimpleNamespace

    from vllm.v1.executor.abstract import Executor

    parallel = SimpleNamespace(distributed_executor_backend=symbol)
    assert Executor.get_class(SimpleNamespace(parallel_config=parallel)) is symbol
    # The string would be rewritten on a CPU; a class is not equal to it.
    assert symbol != "uni"


@contract("ModelRegistry")
def _(symbol: Any) -> None:
    assert parameters(symbol.register_model) == ["model_arch", "model_cls"]
    assert "LlamaForCausalLM" in symbol.models


@contract("DefaultModelState")
def _(symbol: Any) -> None:
    from vllm.v1.worker.gpu.mm.rope import RopeState
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.model_states import resolve_model_state_cls

    assert parameters(symbol.prepare_inputs_embeds) == ["self", "scheduled_encoder_inputs", "input_batch", "req_states"]
    assert parameters(symbol.custom_sampler) == ["self", "sampler"]
    assert parameters(symbol.add_request) == ["self", "req_index", "new_req_data"]
    assert "get_mrope_input_positions(" in body(RopeState.init_prefill_positions)
    assert parameters(RopeState.init_prefill_positions) == ["self", "req_idx", "model", "prefill_token_ids", "mm_features"]
    assert "get_model_state_cls" in body(resolve_model_state_cls)
    sample = body(GPUModelRunner.sample)
    logits = sample.index("logits = self.model.compute_logits(sample_hidden_states)")
    assert logits < sample.index("self.sampler(logits, input_batch)")


@contract("engine_utils")
def _(symbol: Any) -> None:
    assert "context = get_mp_context()" in body(symbol.CoreEngineProcManager.__init__)
    assert "context.Process(" in body(symbol.CoreEngineProcManager.__init__)


@contract("envs")
def _(symbol: Any) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    assert symbol.VLLM_V1_OUTPUT_PROC_CHUNK_SIZE > 0
    assert "chunk_size = envs.VLLM_V1_OUTPUT_PROC_CHUNK_SIZE" in body(AsyncLLM._run_output_handler)


@contract("current_platform")
def _(symbol: Any) -> None:
    assert isinstance(symbol.is_cpu(), bool)
    assert callable(symbol.register_triton_kernel_overrides)


def _check_worker(symbol: Any) -> None:
    assert parameters(symbol.execute_model) == ["self", "scheduler_output"]
    assert parameters(symbol.sample_tokens) == ["self", "grammar_output"]
    assert callable(symbol.load_model)
    assert "is_driver_worker" in parameters(symbol.__init__)


@contract("custom_ops")
def _(symbol: Any) -> None:
    import torch

    x, weight, out = torch.linspace(-3, 5, 32).view(2, 16), torch.linspace(1, 2, 16), torch.empty(2, 16)
    symbol.rms_norm(out, x, weight, 1e-6)

    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (16,), weight, 1e-6))


@contract("CPUWorker")
def _(symbol: Any) -> None:
    _check_worker(symbol)


@contract("GPUWorker")
def _(symbol: Any) -> None:
    _check_worker(symbol)


@contract("GPUModelRunner")
def _(symbol: Any) -> None:
    assert parameters(symbol._preprocess) == ["self", "scheduler_output", "num_input_tokens", "intermediate_tensors"]
    assert parameters(symbol.sample_tokens) == ["self", "grammar_output"]
    assert parameters(symbol._init_mrope_positions) == ["self", "req_state"]
    assert "inputs_embeds=inputs_embeds" in body(symbol.execute_model)
    source = body(symbol.execute_model) + body(symbol.__init__) + body(symbol._bookkeeping_sync)
    for name in ("self.execute_model_state", "self.inputs_embeds", "self.positions", "self.discard_request_mask"):
        assert name in source, name
    assert "sample_hidden_states" in body(symbol.execute_model)
    assert "logits" in vars(inspect.getmodule(symbol))["ExecuteModelState"]._fields
    assert "elif self.enable_prompt_embeds and is_first_rank" in body(symbol._preprocess)


@contract("LlamaForCausalLM")
def _(symbol: Any) -> None:
    assert parameters(symbol.embed_input_ids) == ["self", "input_ids"]
    assert parameters(symbol.compute_logits) == ["self", "hidden_states"]


@contract("LoRARequest")
def _(symbol: Any) -> None:
    request = symbol(lora_name="a", lora_int_id=3, lora_path="/a")

    assert (request.name, request.adapter_id, request.path) == ("a", 3, "/a")


@contract("WeightTransferInitRequest")
def _(symbol: Any) -> None:
    assert symbol(init_info={"a": 1}).init_info == {"a": 1}


@contract("WeightTransferUpdateRequest")
def _(symbol: Any) -> None:
    assert symbol(update_info={"a": 1}).update_info == {"a": 1}


@contract("lora_ops")
def _(symbol: Any) -> None:
    for name in ("bgmv_expand", "bgmv_expand_slice"):
        assert parameters(getattr(symbol, name))[:4] == ["inputs", "lora_b_weights", "output_tensor", "lora_indices_tensor"]
        assert f"{name}(" in body(getattr(symbol, name.replace("bgmv", "sgmv")))


@contract("punica_cpu")
def _(symbol: Any) -> None:
    assert {"bgmv_expand", "bgmv_expand_slice", "sgmv_expand", "sgmv_expand_slice"} <= set(vars(symbol))


@contract("PrometheusStatLogger")
def _(symbol: Any) -> None:
    from vllm.v1.metrics.loggers import StatLoggerManager
    from vllm.v1.metrics.stats import IterationStats

    parts = [getattr(symbol, f"_{part}_cls") for part in ("spec_decoding", "kv_connector", "ec_connector", "perf_metrics")]
    for one in (symbol, *parts):
        made = {name for name in ("counter", "gauge", "histogram") if f"self._{name}_cls(" in inspect.getsource(one)}
        assert made <= {name for name in ("counter", "gauge", "histogram") if hasattr(one, f"_{name}_cls")}
        # Metrics made otherwise would end up in the registry of the process.
        assert not re.search(r"(?<!_)\b(Counter|Gauge|Histogram)\(", inspect.getsource(one))
    assert parameters(symbol.record)[1:3] == ["scheduler_stats", "iteration_stats"]
    assert "isinstance(global_stat_logger, PrometheusStatLogger)" in body(StatLoggerManager.__init__)
    stats = IterationStats()
    assert (stats.inter_token_latencies_iter, stats.time_to_first_tokens_iter) == ([], [])


@contract("OnlineRenderer")
def _(symbol: Any) -> None:
    wanted = {
        "model_config",
        "renderer",
        "request_logger",
        "chat_template",
        "chat_template_content_format",
        "trust_request_mm_kwargs",
        "enable_auto_tools",
        "tool_parser",
        "reasoning_parser",
    }
    assert wanted <= set(parameters(symbol))
    assert parameters(symbol.render_chat) == ["self", "request", "skip_mm_cache"]
    assert "return conversation, engine_inputs" in body(symbol.render_chat)
    assert parameters(symbol.effective_chat_template_kwargs) == ["self", "request"]


@contract("ChatCompletionRequest")
def _(symbol: Any) -> None:
    request = symbol.model_validate({"messages": [{"role": "user", "content": "hi"}], "no_such_field": 1})

    assert set(request.model_extra) == {"no_such_field"}
    assert request.extract_structured_outputs() is None
    assert request.resolve_reasoning_ended(None, []) is None
    assert (request.tools, request.tool_choice, request.include_reasoning) == (None, "none", True)
    assert request.skip_special_tokens is True


@contract("ErrorResponse")
def _(symbol: Any) -> None:
    error = symbol(error={"message": "m", "type": "t", "param": "p", "code": 400}).error

    assert (error.message, error.param) == ("m", "p")


@contract("MediaConnector")
def _(symbol: Any) -> None:
    assert parameters(symbol.load_from_url_async) == ["self", "url", "media_io", "fetch_timeout"]
    for kind in ("audio", "image", "video"):
        assert "await self.load_from_url_async(" in body(getattr(symbol, f"fetch_{kind}_async"))


@contract("MEDIA_CONNECTOR_REGISTRY")
def _(symbol: Any) -> None:
    from vllm.multimodal.audio import AudioResampler
    from vllm.renderers import chat_utils

    source = inspect.getsource(chat_utils.AsyncMultiModalContentParser)
    assert "MEDIA_CONNECTOR_REGISTRY.load(\n            envs.VLLM_MEDIA_CONNECTOR" in source
    assert {"soxr", "scipy", "pyav"} <= set(AudioResampler._METHODS)
    assert callable(symbol.register("contract"))
