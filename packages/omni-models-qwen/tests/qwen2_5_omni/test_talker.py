"""The talker in vLLM: codes of the golden cases, and of transformers' talker under an attention mask."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage

pytest.importorskip("vllm", reason="the engine is vLLM's")

import torch

from omni_core.engine.ar.wire import KEY
from omni_core.payload import encode_payload
from omni_core.testing.in_process import InProcessEngine
from omni_models_qwen.qwen2_5_omni.talker_input import TalkerInput
from omni_models_qwen.talking.marks import EMBEDDINGS

pytestmark = pytest.mark.engine

ENDS = (8292, 8294)
ARGS = {"max_model_len": 512, "max_num_seqs": 8, "kv_cache_memory_bytes": 16 << 20, "dtype": "float32", "block_size": 32}


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("OMP_NUM_THREADS", "1"), ("VLLM_PLUGINS", "omni"), ("VLLM_LOGGING_LEVEL", "ERROR")):
            patch.setenv(name, value)
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0"))
        torch.set_num_threads(1)
        yield


class Talker:
    """A talker's engine and its input processor."""

    def __init__(self, stage: ResolvedStage) -> None:
        self.engine = InProcessEngine(stage)
        self.read = TalkerInput(stage)

    def add(self, name: str, payload: Any, *, frames: int, penalty: float) -> None:
        made = self.read(payload, {})
        self.engine.plain(
            name,
            list(made.prompt_token_ids),
            max_tokens=frames,
            repetition_penalty=penalty,
            extra_args={KEY: {"inputs": encode_payload(made.model_inputs), "gated": True}},
            **made.sampling,
        )
        self.engine.push(name, made.rows, final=made.final)

    def codes(self, name: str) -> list[int]:
        tokens = self.engine.tokens[name]
        return tokens[:-1] if tokens[-1] in ENDS else tokens


@pytest.fixture(scope="module")
def talker_of(omni_stage: Callable[..., ResolvedStage]) -> Iterator[Callable[..., Talker]]:
    made: dict[Any, Talker] = {}

    def talker(folder: Path, **args: Any) -> Talker:
        key = (folder, str(args))
        if key not in made:
            made[key] = Talker(omni_stage(folder, 1, engine_args={**ARGS, **args}))
        return made[key]

    yield talker
    for found in made.values():
        found.engine.close()


def test_codes_are_the_references(case: Any, talker_of: Any, payload_of: Any) -> None:
    talker = talker_of(case.folder)

    talker.add(case.id, payload_of(case), frames=case.record["max_frames"], penalty=case.record["repetition_penalty"])
    talker.engine.drain()

    assert talker.codes(case.id) == case.record["codes"]
    assert len(talker.engine.tokens[case.id]) == case.record["num_frames"] + (case.record["stop_reason"] == "eos")


def test_cases_together_in_short_steps_displacing_each_other_give_the_same_codes(
    omni_folder: Path, cases_of: Any, talker_of: Any, payload_of: Any
) -> None:
    talker = talker_of(omni_folder, max_model_len=480, max_num_batched_tokens=64, num_gpu_blocks_override=16)
    cases = cases_of(omni_folder)
    requests = []

    for case in cases:
        talker.add(case.id, payload_of(case), frames=case.record["max_frames"], penalty=case.record["repetition_penalty"])
        requests.append(list(talker.engine.scheduler.requests.values())[-1])
        talker.engine.step()
    for number in range(3):
        talker.add(f"more{number}", payload_of(cases[-2]), frames=60, penalty=1.0)
    requests += list(talker.engine.scheduler.requests.values())[-3:]
    talker.engine.drain()
    talker.engine.step()

    assert sum(request.num_preemptions for request in requests) > 0
    assert [talker.codes(case.id) for case in cases] == [case.record["codes"] for case in cases]
    assert talker.codes("more0") == talker.codes("more1") == talker.codes("more2")
    assert talker.engine.worker.omni_live_slots() == 0


def test_rows_of_the_prompt_are_the_references(omni_folder: Path, cases_of: Any, talker_of: Any, payload_of: Any) -> None:
    talker = talker_of(omni_folder)
    model = talker.engine.worker.model_runner.get_model()
    for case in cases_of(omni_folder):
        made = talker.read(payload_of(case), {})
        count = len(made.prompt_token_ids)
        with torch.inference_mode():
            model.omni_begin(7, made.model_inputs, count)
            model.omni_ingest(7, 0, made.rows)
            found = model.omni_embed(torch.full((count,), 7), torch.arange(count), torch.tensor(made.prompt_token_ids))
            wanted, _ = model.thinker_to_talker_proj(torch.from_numpy(case.array("talker_prefill_embeds")))
            model.omni_end(7)

        assert case.array("talker_prefill_ids").tolist() == list(made.prompt_token_ids)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_the_published_kind_has_codec_marks_and_positions_in_three_dimensions(
    omni_folder: Path, cases_of: Any, talker_of: Any, payload_of: Any
) -> None:
    talker = talker_of(omni_folder, additional_config={"codec_opening": True})
    cases = [case for case in cases_of(omni_folder) if case.id in ("image", "one_word_short_reply")]

    for case in cases:
        talker.add(case.id, payload_of(case), frames=12, penalty=1.0)
    talker.engine.drain()

    for case in cases:
        assert talker.codes(case.id) == masked_reference(omni_folder, case, 12)[: len(talker.codes(case.id))]
        assert talker.codes(case.id) != case.record["codes"][:12]


def masked_reference(folder: Path, case: Any, steps: int) -> list[int]:
    """What transformers' talker chooses, greedily, when its attention mask reaches it."""
    from transformers import Qwen2_5OmniForConditionalGeneration

    model = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval().talker
    ids = torch.from_numpy(case.array("talker_input_text_ids")).long()[None]
    grid = {"image_grid_thw": torch.tensor([[1, 4, 6]])} if case.id == "image" else {}
    inputs: dict[str, Any] = {
        "inputs_embeds": torch.from_numpy(case.array("talker_prefill_embeds").copy())[None],
        "input_text_ids": ids,
        **grid,
    }
    reply = torch.from_numpy(case.array("thinker_reply_part"))[None]
    codes: list[int] = []
    cache, mask = None, torch.ones_like(ids)
    with torch.inference_mode():
        for _ in range(steps):
            out = model(**inputs, thinker_reply_part=reply, attention_mask=mask, past_key_values=cache, use_cache=True)
            logits = out.logits[0, -1]
            logits[8293] = -torch.inf
            codes.append(int(logits.argmax()))
            cache, reply = out.past_key_values, out.thinker_reply_part
            mask = torch.cat([mask, mask.new_ones((1, 1))], dim=1)
            inputs = {"input_ids": torch.tensor([codes[-1:]])}
    return codes


def test_a_reply_of_one_token_makes_no_codes(omni_folder: Path, cases_of: Any, talker_of: Any, payload_of: Any) -> None:
    talker = talker_of(omni_folder)
    payload = payload_of(cases_of(omni_folder)[0])
    rows = payload["rows"][: len(payload["prompt_token_ids"]) + 1]

    talker.add("silent", {**payload, "rows": rows}, frames=9, penalty=1.0)
    talker.engine.drain()

    assert talker.codes("silent") == []


def test_a_checkpoint_without_the_thinkers_table_is_refused(omni_folder: Path, talker_of: Any) -> None:
    model = talker_of(omni_folder).engine.worker.model_runner.get_model()

    with pytest.raises(ConfigError, match="reads its row"):
        model.load_weights([(EMBEDDINGS, torch.zeros(3, 128))])


def test_ids_that_the_decoder_has_no_sound_for_are_not_sampled(omni_folder: Path, talker_of: Any) -> None:
    suppressed = talker_of(omni_folder).engine.worker.model_runner.get_model().suppressed.numpy()

    assert not suppressed[:8193].any()
    assert np.flatnonzero(~suppressed[8193:]).tolist() == [8292 - 8193, 8294 - 8193]


def test_weights_that_are_read_again_make_the_same_codes(
    omni_folder: Path, cases_of: Any, talker_of: Any, payload_of: Any
) -> None:
    talker = talker_of(omni_folder)
    case = cases_of(omni_folder)[0]

    talker.engine.core.model_executor.collective_rpc("reload_weights")
    talker.add("again", payload_of(case), frames=case.record["max_frames"], penalty=case.record["repetition_penalty"])
    talker.engine.drain()

    assert talker.codes("again") == case.record["codes"]


SECOND_RUNNER = """
import json, pickle, sys
from omni_core.engine import mrv2_lane
mrv2_lane.install()
import torch
from omni_core.engine.ar.wire import KEY
from omni_core.payload import encode_payload
from omni_core.testing.in_process import InProcessEngine

torch.set_num_threads(1)
stage, inputs = pickle.load(open(sys.argv[1], "rb"))
engine = InProcessEngine(stage)
assert engine.worker.use_v2_model_runner
for number, made in enumerate(inputs):
    extra = {KEY: {"inputs": encode_payload(made.model_inputs), "gated": True}}
    engine.plain(str(number), list(made.prompt_token_ids), max_tokens=6, extra_args=extra, **made.sampling)
    engine.push(str(number), made.rows, final=True)
engine.drain()
print("RESULT" + json.dumps([engine.tokens[str(number)] for number in range(len(inputs))]))
"""


@pytest.mark.slow
def test_the_second_model_runner_has_the_same_positions_in_three_dimensions(
    omni_folder: Path, omni_stage: Any, cases_of: Any, payload_of: Any, tmp_path: Path
) -> None:
    args = {**ARGS, "max_num_seqs": 2, "additional_config": {"codec_opening": True}}
    stage = omni_stage(omni_folder, 1, model_runner="v2", engine_args=args)
    cases = [case for case in cases_of(omni_folder) if case.id in ("image", "one_word_short_reply")]
    made = [TalkerInput(stage)(payload_of(case), {}) for case in cases]
    (tmp_path / "inputs").write_bytes(pickle.dumps((stage, made)))

    command = [sys.executable, "-c", SECOND_RUNNER, str(tmp_path / "inputs")]
    # Without the plugins that are installed: nothing of theirs is needed.
    environment = {**os.environ, "VLLM_PLUGINS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).removeprefix("RESULT")

    assert json.loads(found) == [masked_reference(omni_folder, case, 6) for case in cases]
