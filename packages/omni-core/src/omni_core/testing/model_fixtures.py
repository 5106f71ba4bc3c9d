"""Fixtures for the tests of model packages, whose conftest imports those that it wants. What is heavy is imported when used."""

from __future__ import annotations

import gc
import json
import multiprocessing
import multiprocessing.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_core.model_info import ModelInfo
from omni_core.stage import ResolvedStage


@pytest.fixture(scope="session")
def model_info() -> Callable[[Path], ModelInfo]:
    """Return the facts of a checkpoint folder."""
    return lambda folder: ModelInfo(str(folder), folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Path], dict[str, Any]]:
    """Return the tensors of a checkpoint folder in float32."""

    def load(folder: Path) -> dict[str, Any]:
        from safetensors.torch import load_file

        return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}

    return load


@pytest.fixture
def inference() -> Iterator[None]:
    """Run a test as the light runner runs a model: one thread, no gradients."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test start engines: quiet, on one thread, forked from a process that pays once for the imports."""
    # An engine's start sets these in this process; they must not reach the next test.
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    multiprocessing.util.get_temp_dir()  # the server's socket is in it, so it must outlive a test's own folder
    multiprocessing.set_forkserver_preload(["omni_core.engine.ar.preload"])
    yield
    gc.collect()  # what a stopped engine leaves is collected under this test's filters, not in some later test


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give vLLM's layers, which ask for their rank, the only one."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        destroy_distributed_environment,
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )

    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("rank") / "store"
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{place}", 0, "gloo")
        initialize_model_parallel(1, 1)
    yield
    destroy_model_parallel()
    destroy_distributed_environment()


@pytest.fixture(scope="module")
def unloaded(one_rank: None) -> Callable[[ResolvedStage], Any]:
    """Return a stage's model without its weights, in this process."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    from omni_core.engine.ar.engine_args import build_engine_args
    from omni_core.engine.ar.model_class import capabilities_of, load_model_class
    from omni_core.engine.vllm_plugin import register

    def make(stage: ResolvedStage) -> Any:
        register()
        assert stage.architecture_target is not None
        kind = load_model_class(stage.architecture, stage.architecture_target, where="test")
        config = build_engine_args(stage, capabilities_of(kind)).create_engine_config()
        with set_current_vllm_config(config), set_default_torch_dtype(torch.float32):
            return kind(vllm_config=config)

    return make
