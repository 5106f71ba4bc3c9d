"""LoRA adapters in an AR stage: a real engine core in its own process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import RequestError
from omni_core.request import LoraAdapter
from omni_core.runner import StageInput

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    # vLLM's client leaves contexts of zmq to the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function Context.__del__"),
]

TEXT = {"engine_output_type": "text"}
LAYERS = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(2)
    for name, shape in {
        "self_attn.q_proj": (64, 64),
        "self_attn.v_proj": (32, 64),
        "self_attn.o_proj": (64, 64),
        "mlp.gate_proj": (128, 64),
        "mlp.down_proj": (64, 128),
    }.items()
}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()  # what a stopped engine leaves is collected under this module's filters, not in some later test


@pytest.fixture
async def make_runner(make_stage: Any) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a runner; all are stopped at the end."""
    from omni_core.engine.ar.runner import ArRunner

    started: list[ArRunner] = []

    async def runner(*args: Any, **kwargs: Any) -> ArRunner:
        one = ArRunner(make_stage(*args, topology=TEXT, **kwargs))
        started.append(one)
        await one.start()
        return one

    yield runner
    await asyncio.gather(*(one.stop() for one in started))


async def tokens(runner: Any, name: str, first: int, lora: LoraAdapter | None = None) -> list[int]:
    """Return the tokens that follow a prompt."""
    what = StageInput(name, {"prompt_token_ids": [first, 6, 7]}, dict(runner.stage.sampling), lora=lora)
    return [token async for output in runner.run(what) for token in output.token_ids]



async def test_probe(make_runner, checkpoints, tmp_path):
    from omni_core.testing.tiny_lora import build_adapter
    base = await make_runner("LlamaForCausalLM")
    for variant in ({}, {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2},):
        runner = await make_runner("LlamaForCausalLM", engine_args=variant)
        a = LoraAdapter("a0", str(build_adapter(tmp_path / "a0", LAYERS, seed=0)))
        print("VAR", variant)
        print("solo none", [await tokens(runner, f"s{n}", n) for n in range(2)])
        if variant:
            print("solo a0", [await tokens(runner, f"t{n}", n, a) for n in range(2)])
        print("batch none", await asyncio.gather(*(tokens(runner, f"b{n}", n) for n in range(2))))
    assert 0
