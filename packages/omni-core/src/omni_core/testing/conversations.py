"""Conversations with a whole pipeline, as the reference had them: requests of golden cases, and what was heard and read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.client import AsyncOmni
from omni_core.request import OmniOutput

_PARTS = {"audio": "audio_url", "image": "image_url"}
SMALL: Mapping[str, Any] = {
    "max_num_seqs": 8,
    "max_model_len": 1024,
    "max_num_batched_tokens": 1024,
    "kv_cache_memory_bytes": 64 << 20,
}
"""Engine arguments for tiny checkpoints."""


def golden_conversation(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a golden case's request as a client of the Python API sends it."""
    request = record["request"]
    files = iter(record["inputs"] or ())
    messages, media = [], {}
    for index, message in enumerate(request["messages"]):
        parts: list[dict[str, Any]] = []
        for part in message["content"]:
            if (kind := _PARTS.get(part["type"])) is None:
                parts.append(part)
                continue
            place = f"messages[{index}].content[{len(parts)}].{kind}"
            media[place] = (folder / "inputs" / next(files)["file"]).read_bytes()
            parts.append({"type": kind, kind: {"url": "beside"}})
        messages.append({"role": message["role"], "content": parts})
    return {"chat": {"messages": messages, "voice": request["speaker"]}, "media": media}


@dataclass
class Answer:
    """What was heard and read."""

    outputs: list[OmniOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text."""
        return "".join(output.data for output in self.outputs if output.type == "text")

    @property
    def token_ids(self) -> list[int]:
        """The ids of the text."""
        return [int(token) for output in self.outputs for token in output.tensors.get("token_ids", ())]

    @property
    def pieces(self) -> list[np.ndarray[Any, Any]]:
        """The audio piece by piece, [samples] each."""
        return [output.data[:, 0] for output in self.outputs if output.type == "audio"]

    @property
    def audio(self) -> np.ndarray[Any, Any]:
        """All audio, [samples]."""
        return np.concatenate(self.pieces)

    @property
    def codes(self) -> list[list[int]]:
        """The codes that became audio, [frame][codebook]."""
        return [row for output in self.outputs for row in np.asarray(output.tensors.get("codes", ())).tolist()]


async def ask(
    omni: AsyncOmni, prompt: Mapping[str, Any], sampling: Sequence[Mapping[str, Any]], *, outputs: Any = None
) -> Answer:
    """Return the answer to a conversation."""
    answer = Answer()
    async for output in omni.generate(prompt, sampling_params_list=sampling, outputs=outputs, timeout_s=120):
        answer.outputs.append(output)
    return answer


def with_pipeline(folder: Path, work: Callable[[AsyncOmni], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Return what `work` makes of the pipeline of a tiny checkpoint on a CPU."""

    async def run() -> Any:
        omni = AsyncOmni(folder, stage_overrides={0: SMALL, 1: SMALL}, platform="cpu", **options)
        async with omni, asyncio.timeout(240):
            return await work(omni)

    return asyncio.run(run())
