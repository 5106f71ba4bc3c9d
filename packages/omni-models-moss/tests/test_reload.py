"""New weights under a talker that runs: what the checkpoint holds then is what speaks, and nothing of the old is left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.speech import SpeechPrompt

# vLLM leaves its zmq contexts to the garbage collector, which warns.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CHANGED = {
    "moss_tts_local": (
        "transformer.layers.0.self_attn.q_proj.weight",
        "local_transformer.h.0.mlp.fc_in.weight",
        "audio_embeddings.3.weight",
    ),
    "moss_tts_nano": (
        "transformer.h.1.attn.c_attn.weight",
        "local_transformer.h.0.mlp.fc_in.weight",
        "audio_embeddings.3.weight",
    ),
    "moss_tts_delay": ("language_model.layers.0.self_attn.q_proj.weight", "emb_ext.2.weight", "lm_heads.3.weight"),
    "moss_tts_realtime": (
        "language_model.layers.0.self_attn.q_proj.weight",
        "local_transformer.model.layers.0.mlp.up_proj.weight",
        "local_transformer.local_lm_heads.0.weight",
        "embed_tokens.5.weight",
    ),
}
"""Tensors of the backbone, of what makes frames, and of what reads them."""


def _change(folder: Path, names: tuple[str, ...]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in names:
        weights[name] = weights[name].roll(1, 0).contiguous()
    (folder / "model.safetensors").unlink()  # what is mapped into the engine's memory stays as it is
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", CHANGED)
def test_weights_are_read_again_from_what_the_checkpoint_holds_then(
    name: str, tiny: Callable[..., Path], talker: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny(name), tmp_path / "model")

    async def speak(running: Any, request: str) -> Any:
        return await running.speak(request, SpeechPrompt("Hello there"), max_tokens=24)

    async def run() -> list[Any]:
        # Without the cache of prompts: what was computed with the old weights must not be taken for the new ones'.
        async with talker(folder, enable_prefix_caching=False) as running:
            spoken = [await speak(running, "before")]
            await running.runner.call("reload_weights", {})
            spoken.append(await speak(running, "same"))
            _change(folder, CHANGED[name])
            await running.runner.call("reload_weights", {})
            spoken.append(await speak(running, "changed"))
        async with talker(folder, enable_prefix_caching=False) as fresh:
            spoken.append(await speak(fresh, "fresh"))
        return spoken

    before, same, changed, fresh = asyncio.run(run())

    assert before[0]
    assert same == before
    assert changed == fresh != before
