"""What the pipeline costs a thinker: tokens per second of text-only requests, against the same class under plain vLLM.

Run: python benchmarks/thinker_overhead.py MODEL [--requests 1 8] [--rounds 6] [--tokens 64] [--deploy-config FILE] [--json]

MODEL is an omni checkpoint whose entry stage vLLM runs itself. Both engines run with the same arguments at the same time and
take turns with each round, in changing order, so that the machine's other work meets both alike. A request goes to both as
token ids and ends after `--tokens` tokens. The goal is a ratio of at least 0.97; with a tiny model on a CPU the engine takes
so little time that what is compared is mostly the way of a token out of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from rows import Row, as_json, as_table

from omni_core.client import AsyncOmni
from omni_core.deploy.resolve import resolve_deployment
from omni_core.stage import ResolvedPipeline, ResolvedStage

PROMPT = 64
SAMPLING = {"temperature": 0.0, "ignore_eos": True}

Ask = Callable[[list[int], int], Awaitable[int]]
"""Sends a prompt and returns how many tokens came back."""


@asynccontextmanager
async def plain(stage: ResolvedStage) -> AsyncIterator[Ask]:
    """Run a stage's engine under vLLM alone."""
    from omni_core.capabilities import ModelCapabilities
    from omni_core.engine.ar.engine_args import build_engine_args, engine_environment
    from omni_core.engine.vllm_bridge import AsyncLLM, RequestOutputKind, SamplingParams, tokens_input

    os.environ.update(engine_environment(stage))
    llm = AsyncLLM.from_vllm_config(build_engine_args(stage, ModelCapabilities()).create_engine_config())

    async def ask(prompt: list[int], tokens: int) -> int:
        params = SamplingParams(**SAMPLING, max_tokens=tokens, output_kind=RequestOutputKind.DELTA)
        made = 0
        async for output in llm.generate(tokens_input(prompt), params, uuid.uuid4().hex):
            made += len(output.outputs[0].token_ids)
        return made

    try:
        yield ask
    finally:
        llm.shutdown()


@asynccontextmanager
async def pipeline(resolved: ResolvedPipeline) -> AsyncIterator[Ask]:
    """Run the whole pipeline and ask it for text alone."""
    stages = len(resolved.stages)
    async with AsyncOmni.from_resolved(resolved) as omni:

        async def ask(prompt: list[int], tokens: int) -> int:
            sampling = [{**SAMPLING, "max_tokens": tokens}, *[{}] * (stages - 1)]
            made = 0
            inputs = {"prompt_token_ids": prompt}
            async for output in omni.generate(inputs, sampling_params_list=sampling, outputs={"text"}):
                made += len(output.tensors.get("token_ids", ()))
            return made

        yield ask


async def speed(ask: Ask, prompts: list[list[int]], tokens: int) -> float:
    """Return tokens per second of these prompts, all at once."""
    began = time.monotonic()
    made = await asyncio.gather(*(ask(prompt, tokens) for prompt in prompts))
    assert made == [tokens] * len(prompts), made
    return sum(made) / (time.monotonic() - began)


async def measure(resolved: ResolvedPipeline, requests: list[int], rounds: int, tokens: int, vocab: int) -> list[Row]:
    """Return the rows of every number of requests."""
    rows = []
    async with plain(resolved.stages[0]) as alone, pipeline(resolved) as inside:
        ways = {"vLLM alone": alone, "in the pipeline": inside}
        for count in requests:
            prompts = [[(number * 7 + position) % vocab for position in range(PROMPT)] for number in range(count)]
            found: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(-1, rounds):
                names = list(ways) if number % 2 else list(reversed(ways))
                for name in names:
                    value = await speed(ways[name], prompts, tokens)
                    if number >= 0:  # the first round warms up
                        found[name].append(value)
            baseline = Row.of(f"vLLM alone, {count} requests", found["vLLM alone"], "tokens/s")
            rows += [
                baseline,
                Row.of(f"in the pipeline, {count} requests", found["in the pipeline"], "tokens/s", baseline),
            ]
    return rows


def vocabulary(model: str) -> int:
    """Return how many ids every prompt may use: those below the checkpoint's smallest special one, or 250."""
    config: dict[str, Any] = json.loads(Path(model, "config.json").read_text())
    thinker = config.get("thinker_config", config)
    special = [value for name, value in thinker.items() if name.endswith("_token_id") and isinstance(value, int)]
    return min([250, *special])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--deploy-config", action="append")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    resolved = resolve_deployment(options.model, deploy_config=options.deploy_config)
    rows = asyncio.run(measure(resolved, options.requests, options.rounds, options.tokens, vocabulary(options.model)))
    gc.collect()  # vLLM's engine is part of a cycle, and cannot end itself once its modules are gone
    print(as_json(rows) if options.json else as_table(rows))


if __name__ == "__main__":
    main()
