"""Engines for the tests: one in this process, for what happens inside a step, and stages for `ArRunner`."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import ResolvedStage

if TYPE_CHECKING:
    from omni_core.testing.in_process import InProcessEngine

ROWS, HIDDEN = 12, 64


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever an engine's start sets in this process must not reach the next test.
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_NO_USAGE_STATS", "VLLM_PLUGINS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "omni")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    # The first engine core pays for the imports, the others are forked from there.
    os.environ["OMP_NUM_THREADS"] = "1"
    multiprocessing.util.get_temp_dir()  # before a test's own temporary folder comes and goes: the server's socket is in it
    multiprocessing.set_forkserver_preload(["omni_core.engine.ar.preload"])


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from an architecture to the folder of its tiny checkpoint."""
    from omni_core.testing import tiny_ar

    built: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in built:
            built[architecture] = tiny_ar.build_tiny_ar(tmp_path_factory.mktemp(architecture), architecture)
        return built[architecture]

    return folder


@pytest.fixture(scope="session")
def make_stage(checkpoints: Callable[[str], Path]) -> Callable[..., ResolvedStage]:
    """A function from an architecture to a resolved stage with one tiny engine."""

    def stage(architecture: str = "TinyTalker", *, topology: dict[str, Any] | None = None, **fields: Any) -> ResolvedStage:
        is_ours = architecture.startswith("Tiny")
        values: dict[str, Any] = {
            "pipeline": "tiny",
            "topology": StagePipelineConfig(stage_id=0, model_stage="talker", **(topology or {})),
            "model": str(checkpoints(architecture)),
            "architecture": architecture,
            "architecture_target": f"omni_core.testing.tiny_ar:{architecture}" if is_ours else None,
            "runner": "omni_core.engine.ar.runner:ArRunner",
            "sampling": {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True},
        }
        engine_args = {"max_model_len": 128, "max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20, "dtype": "float32"}
        values["engine_args"] = {**engine_args, **fields.pop("engine_args", {})}
        return ResolvedStage(**{**values, **fields})

    return stage


@pytest.fixture(scope="module")
def make_engine(make_stage: Callable[..., ResolvedStage]) -> Iterator[Callable[..., InProcessEngine]]:
    """A function from an architecture to an engine in this process, one for each module and architecture."""
    from omni_core.testing.in_process import InProcessEngine

    made: dict[Any, InProcessEngine] = {}

    def engine(architecture: str = "TinyTalker", **engine_args: Any) -> InProcessEngine:
        key = (architecture, tuple(engine_args.items()))
        if key not in made:
            made[key] = InProcessEngine(make_stage(architecture, engine_args=engine_args))
        return made[key]

    yield engine
    for found in made.values():
        found.close()


@pytest.fixture
def rows_of() -> Callable[[int], np.ndarray[Any, Any]]:
    """A function from a number to that many input rows of its own, float32 [12, H]."""

    def rows(seed: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(seed).standard_normal((ROWS, HIDDEN), dtype=np.float32)

    return rows
