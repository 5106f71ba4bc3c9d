"""The thinker in vLLM: what is captured of it equals the states of transformers' thinker."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the thinker is vLLM's")

import torch

from omni_core.testing.in_process import InProcessEngine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def thinker_of(omni_stage: Any) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("OMP_NUM_THREADS", "1"), ("VLLM_PLUGINS", "omni"), ("VLLM_LOGGING_LEVEL", "ERROR")):
            patch.setenv(name, value)
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0"))
        torch.set_num_threads(1)
        made: dict[Path, InProcessEngine] = {}

        def thinker(folder: Path) -> InProcessEngine:
            if folder not in made:
                args = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 64 << 20, "dtype": "float32"}
                made[folder] = InProcessEngine(omni_stage(folder, 0, engine_args={**args, "max_num_batched_tokens": 512}))
            return made[folder]

        yield thinker
        for engine in made.values():
            engine.close()


def prompt_of(case: Any) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": case.record["prompt_text"]}
    for file in case.record["inputs"] or ():
        path = case.folder / "inputs" / file["file"]
        if file["type"] == "audio":
            with wave.open(str(path)) as found:
                samples = np.frombuffer(found.readframes(found.getnframes()), "<i2").astype(np.float32) / 32768
                prompt["multi_modal_data"] = {"audio": (samples, found.getframerate())}
        else:
            from PIL import Image

            prompt["multi_modal_data"] = {"image": Image.open(path).convert("RGB")}
    return prompt


def check(engine: InProcessEngine, case: Any) -> None:
    embeds, hidden = engine.states(case.id)

    assert engine.tokens[case.id] == case.record["thinker_tokens"]
    torch.testing.assert_close(embeds, torch.from_numpy(case.array("thinker_embeds")), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hidden, torch.from_numpy(case.array("thinker_hidden_last")), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_captured_rows_are_the_references_alone_and_together(golden_folder: Path, cases_of: Any, thinker_of: Any) -> None:
    engine, cases = thinker_of(golden_folder), cases_of(golden_folder)
    ends = {"stop_token_ids": [299, 301], "repetition_penalty": 1.0, "ignore_eos": False}

    for case in cases:
        engine.capture(case.id, prompt_of(case), max_tokens=case.record["max_thinker_tokens"], **ends)
        engine.drain()
        check(engine, case)
    for case in cases:
        engine.capture(case.id, prompt_of(case), max_tokens=case.record["max_thinker_tokens"], **ends)
    engine.drain()

    for case in cases:
        check(engine, case)
