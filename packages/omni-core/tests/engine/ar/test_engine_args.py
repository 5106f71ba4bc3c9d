"""The engine arguments of a stage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.capabilities import HiddenCapture, ModelCapabilities
from omni_core.errors import ConfigError

pytestmark = pytest.mark.engine


def build(stage: Any) -> Any:
    from omni_core.engine.ar.engine_args import build_engine_args
    from omni_core.engine.ar.model_class import capabilities_of
    from omni_core.testing import tiny_ar

    kind = getattr(tiny_ar, stage.architecture, object)
    return build_engine_args(stage, capabilities_of(kind))


def test_a_model_that_computes_its_inputs_gets_our_worker_and_scheduler(make_stage: Any) -> None:
    args = build(make_stage())

    assert args.worker_cls == "omni_core.engine.ar.worker.ArWorker"
    assert args.scheduler_cls == "omni_core.engine.ar.scheduler.ArScheduler"
    assert args.enable_prefix_caching is False
    assert args.skip_tokenizer_init is True
    assert args.enforce_eager is True
    assert args.enable_prompt_embeds is False


def test_cuda_gets_the_asynchronous_scheduler_and_embeddings_in_its_graphs(make_stage: Any) -> None:
    args = build(make_stage(platform="cuda"))

    assert args.scheduler_cls == "omni_core.engine.ar.scheduler.AsyncArScheduler"
    assert args.enable_prompt_embeds is True


def test_the_second_model_runner_is_asked_for_embeddings(make_stage: Any) -> None:
    assert build(make_stage(model_runner="v2")).enable_prompt_embeds is True


def test_a_model_without_declarations_keeps_vllms_own_path(make_stage: Any) -> None:
    from omni_core.engine.vllm_bridge import UniProcExecutor

    args = build(make_stage("LlamaForCausalLM"))

    assert args.worker_cls == "auto"
    assert args.scheduler_cls is None
    assert args.distributed_executor_backend is UniProcExecutor


@pytest.mark.parametrize(
    ("given", "runs_here"),
    [
        ({}, True),
        ({"distributed_executor_backend": "uni"}, True),
        ({"distributed_executor_backend": "mp"}, False),
        ({"distributed_executor_backend": "uni", "tensor_parallel_size": 2}, False),
    ],
    ids=["nothing", "uni", "mp", "uni for two ranks"],
)
def test_one_rank_runs_in_the_engine_core_unless_the_file_says_otherwise(
    make_stage: Any, given: dict[str, Any], runs_here: bool
) -> None:
    """On a CPU, too, where vLLM takes the name `uni` for `mp`."""
    from omni_core.engine.vllm_bridge import UniProcExecutor

    backend = build(make_stage("LlamaForCausalLM", engine_args=given)).distributed_executor_backend

    assert (backend is UniProcExecutor) is runs_here
    assert runs_here or backend == given["distributed_executor_backend"]


CAPTURE = ModelCapabilities(capture=HiddenCapture("a:b"))


def test_a_model_whose_states_are_captured_gets_our_worker_and_keeps_its_tokenizer_and_cache(make_stage: Any) -> None:
    from omni_core.engine.ar.engine_args import build_engine_args

    args = build_engine_args(make_stage("LlamaForCausalLM"), CAPTURE)
    other = build_engine_args(make_stage("LlamaForCausalLM"), ModelCapabilities())

    assert args.worker_cls == "omni_core.engine.ar.worker.ArWorker"
    assert args.scheduler_cls == "omni_core.engine.ar.scheduler.ArScheduler"
    for name in ("enable_prefix_caching", "generation_config", "skip_tokenizer_init", "enable_prompt_embeds"):
        assert getattr(args, name) == getattr(other, name)


@pytest.mark.parametrize(("name", "value"), [("speculative_config", {"method": "ngram"}), ("pipeline_parallel_size", 2)])
def test_a_model_whose_states_are_captured_is_neither_speculated_nor_split(make_stage: Any, name: str, value: Any) -> None:
    from omni_core.engine.ar.engine_args import build_engine_args

    with pytest.raises(ConfigError, match="whose hidden states go to the next stage"):
        build_engine_args(make_stage("LlamaForCausalLM", engine_args={name: value}), CAPTURE)


def test_a_stage_that_hands_nothing_on_is_not_captured(make_stage: Any) -> None:
    from omni_core.engine.ar.model_class import stage_capabilities

    assert stage_capabilities(make_stage("LlamaForCausalLM")) == ModelCapabilities()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_cls", "a.B"),
        ("enable_prefix_caching", True),
        ("speculative_config", {"method": "ngram"}),
        ("pipeline_parallel_size", 2),
    ],
)
def test_what_the_engine_cannot_do_is_refused(make_stage: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="stage 0"):
        build(make_stage(engine_args={name: value}))


@pytest.mark.parametrize(("asked", "expected"), [(None, False), (False, False), (True, True)])
def test_prompts_may_be_shared_where_their_ids_tell_them_apart(make_stage: Any, asked: bool | None, expected: bool) -> None:
    from omni_core.engine.ar.engine_args import build_engine_args

    capabilities = ModelCapabilities(computes_inputs=True, cacheable_prompts=True)
    given = {} if asked is None else {"enable_prefix_caching": asked}

    assert build_engine_args(make_stage(engine_args=given), capabilities).enable_prefix_caching is expected


def test_a_nested_configuration_is_chosen_and_given_the_architecture() -> None:
    from omni_core.engine.ar.engine_args import HfOverride

    inner = SimpleNamespace(architectures=["Other"], vocab_size=1, update=lambda values: inner.__dict__.update(values))
    outer = SimpleNamespace(talker_config=SimpleNamespace(text_config=inner), update=None)

    chosen = HfOverride("Talker", "talker_config.text_config", {"vocab_size": 7})(outer)

    assert chosen is inner
    assert inner.architectures == ["Talker"]
    assert inner.vocab_size == 7


def test_what_the_renderer_reads_does_not_reach_vllm(make_stage: Any) -> None:
    fields = {"tool_call_parser": "hermes", "chat_template": "/x.jinja"}

    assert build(make_stage("LlamaForCausalLM", engine_args=fields)).reasoning_parser == ""


def test_a_reasoning_parser_is_for_engines_that_write(make_stage: Any) -> None:
    """A flag gives it to every stage."""
    fields = {"reasoning_parser": "qwen3"}

    assert build(make_stage("LlamaForCausalLM", engine_args=fields)).reasoning_parser == "qwen3"
    assert build(make_stage(engine_args=fields)).reasoning_parser == ""
