"""The talker's weights read again, and LoRA adapters on its backbone: a real engine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.model_info import ModelInfo
from omni_core.request import LoraAdapter
from omni_core.runner import StageInput
from omni_core.stage import ResolvedStage
from omni_core.testing.ar_stage import running_stage
from omni_models_qwen.qwen3_tts.speech import Qwen3TTSSpeech

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("engine_process"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "max_model_len": 256,
    "kv_cache_memory_bytes": 16 << 20,
}
CHANGED = (
    "talker.model.layers.0.self_attn.q_proj.weight",
    "talker.model.norm.weight",
    "talker.codec_head.weight",
    "talker.text_projection.linear_fc2.weight",
    "talker.code_predictor.lm_head.3.weight",
    "talker.code_predictor.model.layers.0.self_attn.q_proj.weight",
    "talker.code_predictor.model.codec_embedding.2.weight",
)
"""A weight of the backbone, its norm and head, of the text's projection and of the code predictor."""
SAMPLING = {"temperature": 0.0, "min_tokens": 12, "max_tokens": 12, "stop_token_ids": [2150], "detokenize": False}


@pytest.fixture
def inputs(data_folder: Path, cases_of: Callable[[Path], list[Any]], model_info: Callable[[Path], ModelInfo]) -> Any:
    """A request's inputs."""
    return Qwen3TTSSpeech(model_info(data_folder)).prepare(cases_of(data_folder)[0].prompt).inputs


@pytest.fixture
def codes_of(listen: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the frames of a request."""

    async def run(runner: Any, name: str, inputs: Any, lora: LoraAdapter | None = None) -> list[list[int]]:
        frames, _ = await listen(runner, StageInput(name, inputs, SAMPLING, lora=lora))
        return list(frames)

    return run


def _attention(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the shapes of the attention's projections, by the layers' names in the talker."""
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "np") as file:
        names = [name for name in file.keys() if name.startswith("talker.model.layers.") and "_proj" in name]  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names if ".self_attn." in name}
    return {name.removeprefix("talker.").removesuffix(".weight"): shape for name, shape in shapes.items()}


@pytest.mark.parametrize("lora", [{}, {"enable_lora": True, "max_lora_rank": 8}], ids=["plain", "with LoRA"])
def test_weights_are_read_again_from_what_the_checkpoint_holds_then(
    data_folder: Path,
    inputs: Any,
    stage_of: Callable[..., ResolvedStage],
    codes_of: Callable[..., Coroutine[Any, Any, Any]],
    flip_weights: Callable[..., None],
    tmp_path: Path,
    lora: dict[str, Any],
) -> None:
    folder = shutil.copytree(data_folder, tmp_path / "model")
    stage = stage_of(folder, engine_args={**ENGINE, **lora})

    async def run() -> list[Any]:
        async with running_stage(stage) as runner:
            codes = [await codes_of(runner, "before", inputs)]
            await runner.call("reload_weights", {})
            codes.append(await codes_of(runner, "same", inputs))
            flip_weights(folder, CHANGED)
            await runner.call("reload_weights", {})
            codes.append(await codes_of(runner, "changed", inputs))
        async with running_stage(stage) as fresh:
            codes.append(await codes_of(fresh, "fresh", inputs))
        return codes

    before, same, changed, fresh = asyncio.run(run())

    assert np.shape(before) == (12, 16)
    assert same == before
    assert changed == fresh != before


@pytest.mark.parametrize("prefix", ["", "talker."], ids=["talker's names", "checkpoint's names"])
def test_an_adapter_changes_the_codes_of_the_requests_that_ask_for_it(
    data_folder: Path,
    inputs: Any,
    stage_of: Callable[..., ResolvedStage],
    codes_of: Callable[..., Coroutine[Any, Any, Any]],
    tmp_path: Path,
    prefix: str,
) -> None:
    from omni_core.testing.tiny_lora import build_adapter

    layers = {prefix + name: shape for name, shape in _attention(data_folder).items()}
    zero = LoraAdapter("zero", str(build_adapter(tmp_path / "zero", layers, size=0.0)))
    other = LoraAdapter("other", str(build_adapter(tmp_path / "other", layers, size=0.3)))

    async def run() -> tuple[Any, Any]:
        async with running_stage(stage_of(data_folder, engine_args=ENGINE)) as plain:
            alone = await codes_of(plain, "plain", inputs)
        lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
        async with running_stage(stage_of(data_folder, engine_args={**ENGINE, **lora})) as runner:
            wanted = {"none": None, "zero": zero, "other": other, "none again": None}
            found = await asyncio.gather(*(codes_of(runner, name, inputs, adapter) for name, adapter in wanted.items()))
            return alone, dict(zip(wanted, found, strict=True))

    alone, found = asyncio.run(run())

    assert found["none"] == found["zero"] == found["none again"] == alone
    assert len(found["other"]) == 12
    assert found["other"] != alone
