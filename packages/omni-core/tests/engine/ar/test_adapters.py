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


async def test_each_request_of_a_batch_gets_its_own_adapter_or_none(make_runner: Any, checkpoints: Any, tmp_path: Path) -> None:
    from omni_core.testing.tiny_lora import build_adapter, merge_adapter

    base = checkpoints("LlamaForCausalLM")
    adapters = [LoraAdapter(f"a{seed}", str(build_adapter(tmp_path / f"a{seed}", LAYERS, seed=seed))) for seed in range(2)]
    wanted: dict[str | None, list[list[int]]] = {}
    for adapter in [None, *adapters]:
        folder = merge_adapter(base, Path(adapter.path), tmp_path / f"merged-{adapter.name}") if adapter else base
        merged = await make_runner("LlamaForCausalLM", model=str(folder))
        wanted[adapter.name if adapter else None] = [await tokens(merged, str(first), first) for first in range(2)]
        await merged.stop()
    assert len({str(one) for one in wanted.values()}) == 3
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    runner = await make_runner("LlamaForCausalLM", engine_args=lora)

    asked = [(adapter, first) for adapter in [None, *adapters] for first in range(2)]
    answers = await asyncio.gather(*(tokens(runner, f"r{n}", first, a) for n, (a, first) in enumerate(asked)))

    assert answers == [wanted[adapter.name if adapter else None][first] for adapter, first in asked]


async def test_an_adapter_that_cannot_be_used_costs_only_the_requests_that_want_it(make_runner: Any, tmp_path: Path) -> None:
    from omni_core.testing.tiny_lora import build_adapter

    runner = await make_runner("LlamaForCausalLM", engine_args={"enable_lora": True, "max_lora_rank": 8})
    plain = await tokens(runner, "plain", 5)
    good = LoraAdapter("good", str(build_adapter(tmp_path / "good", LAYERS)))
    big = LoraAdapter("big", str(build_adapter(tmp_path / "big", LAYERS, rank=16)))
    nowhere = LoraAdapter("nowhere", str(tmp_path / "nowhere"))

    for bad in (big, nowhere):
        with pytest.raises(RequestError, match="cannot be loaded") as caught:
            await tokens(runner, bad.name, 5, bad)
        assert caught.value.param == "lora_request"
    assert await tokens(runner, "good", 5, good) != plain
    with pytest.raises(RequestError, match="stands for"):
        await tokens(runner, "other", 5, LoraAdapter("good", big.path))

    assert await tokens(runner, "plain again", 5) == plain
    await runner.check()


async def test_of_two_adapters_that_come_with_one_name_at_once_the_second_is_refused(make_stage: Any) -> None:
    from omni_core.engine.ar.adapters import Adapters

    loading, loaded = asyncio.Event(), []

    class SlowLlm:
        async def add_lora(self, found: Any) -> None:
            await loading.wait()
            loaded.append(found.lora_path)

    adapters = Adapters(make_stage("LlamaForCausalLM", topology=TEXT, engine_args={"enable_lora": True}), SlowLlm())
    both = [asyncio.create_task(adapters.request(LoraAdapter("voice", path))) for path in ("/one", "/two")]
    await asyncio.sleep(0)
    loading.set()

    first, second = await asyncio.gather(*both, return_exceptions=True)

    assert first.lora_path == "/one"
    assert isinstance(second, RequestError)
    assert "stands for /one" in second.message
    assert loaded == ["/one"]
