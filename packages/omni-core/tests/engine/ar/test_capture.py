"""Hidden states of a model of vLLM's own: what is captured equals what transformers computes from the same checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni_core.capabilities import HiddenCapture
from omni_core.errors import ConfigError

pytest.importorskip("vllm", reason="the engine is vLLM's")

import torch

from omni_core.engine.ar.capture import Capture, captured_layers
from omni_core.testing.in_process import InProcessEngine
from omni_core.testing.tiny_capture import LAYERS, capturing_stage, install_plugin

pytestmark = pytest.mark.engine


def prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(2, 64, length)]


@pytest.fixture(scope="module")
def reference(checkpoints: Callable[[str], Path]) -> Callable[[list[int]], Any]:
    """A function from ids to the hidden states that transformers computes, [K, n, H]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoints("LlamaForCausalLM"), dtype=torch.float32).eval()

    def states(ids: list[int]) -> Any:
        with torch.inference_mode():
            found = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        return torch.stack([found[0][0], found[1][0], found[-1][0]])

    return states


@pytest.fixture(scope="module")
def engine(checkpoints: Callable[[str], Path]) -> Iterator[InProcessEngine]:
    with pytest.MonkeyPatch.context() as patch:
        install_plugin(patch)
        made = InProcessEngine(capturing_stage(checkpoints("LlamaForCausalLM")))
        yield made
        made.close()


def check(engine: InProcessEngine, reference: Any, name: str, ids: list[int], tokens: int) -> None:
    whole = [*ids, *engine.tokens[name]][:-1]
    states = engine.states(name)

    assert len(engine.tokens[name]) == tokens
    assert states.shape[1] == len(whole)
    torch.testing.assert_close(states, reference(whole), rtol=1e-4, atol=1e-4)


def test_states_of_a_prompt_in_parts_and_of_each_token_fed_back(engine: InProcessEngine, reference: Any) -> None:
    ids = prompt(1, 61)

    engine.capture("alone", ids, max_tokens=6, ignore_eos=True)
    engine.drain()

    check(engine, reference, "alone", ids, 6)


def test_a_prefix_that_is_cached_is_computed_again_for_a_captured_request(engine: InProcessEngine, reference: Any) -> None:
    ids = prompt(2, 70)
    engine.plain("before", ids, max_tokens=2, ignore_eos=True)
    engine.drain()

    engine.plain("cached", ids, max_tokens=2, ignore_eos=True)
    engine.drain()
    engine.capture("captured", ids, max_tokens=3, ignore_eos=True)
    engine.drain()

    assert engine.tokens["cached"] == engine.tokens["before"] == engine.tokens["captured"][:2]
    check(engine, reference, "captured", ids, 3)


def test_requests_of_different_lengths_displace_each_other_and_give_each_position_once(
    engine: InProcessEngine, reference: Any
) -> None:
    prompts = {f"r{number}": prompt(10 + number, length) for number, length in enumerate((3, 40, 64, 25))}

    requests = []
    for number, (name, ids) in enumerate(prompts.items()):
        (engine.plain if number == 3 else engine.capture)(name, ids, max_tokens=40, ignore_eos=True)
        requests.append(list(engine.scheduler.requests.values())[-1])
        engine.step()
    engine.drain()

    assert sum(request.num_preemptions for request in requests[:3]) > 0
    for name in ("r0", "r1", "r2"):
        check(engine, reference, name, prompts[name], 40)
    assert len(engine.tokens["r3"]) == 40
    assert engine.frames["r3"] == []


def test_a_step_in_which_nothing_is_captured_asks_the_model_for_nothing(engine: InProcessEngine) -> None:
    runner = engine.worker.model_runner
    holder = runner.get_model().model

    engine.plain("plain", prompt(3, 5), max_tokens=3, ignore_eos=True)
    engine.step()
    without = (runner.use_aux_hidden_state_outputs, holder.aux_hidden_state_layers)
    engine.capture("captured", prompt(4, 5), max_tokens=3, ignore_eos=True)
    engine.step()
    beside = (runner.use_aux_hidden_state_outputs, holder.aux_hidden_state_layers)
    engine.drain()
    engine.step()

    assert without == (False, ())
    assert beside == (True, (1,))
    assert engine.worker.omni_live_slots() == 0


def test_an_aborted_request_leaves_nothing_behind(engine: InProcessEngine) -> None:
    engine.capture("gone", prompt(5, 50), max_tokens=9, ignore_eos=True)
    engine.step()
    engine.abort("gone")
    engine.step()

    assert engine.worker.omni_live_slots() == 0
    assert engine.ids["gone"] not in engine.scheduler._ledgers


def test_a_step_behind_the_end_gives_no_states(engine: InProcessEngine) -> None:
    """A stop string is found on the host's side, and the core goes on until it hears of it."""
    engine.capture("ended", prompt(6, 5), max_tokens=9, ignore_eos=True)
    engine.step()
    before = list(engine.rows[engine.ids["ended"]])
    late = engine.engine.engine_core.get_output().outputs
    assert [output.request_id for output in late] == [engine.ids["ended"]]

    processor = engine.engine.output_processor
    processor.abort_requests([engine.ids["ended"]], internal=True)
    processor.process_outputs(late)

    assert engine.rows[engine.ids["ended"]] == before
    engine.engine.engine_core.abort_requests([engine.ids["ended"]])
    engine.step()
    assert engine.worker.omni_live_slots() == 0


def test_the_second_model_runner_gives_the_same_states_under_preemption(
    checkpoints: Callable[[str], Path], reference: Any
) -> None:
    command = [sys.executable, "-c", SECOND_RUNNER, str(checkpoints("LlamaForCausalLM"))]
    # Without the plugins that are installed: nothing of theirs is needed.
    environment = {**os.environ, "VLLM_PLUGINS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).removeprefix("RESULT"))

    assert found["preemptions"] > 0
    for name, ids in found["prompts"].items():
        whole = [*ids, *found["tokens"][name]][:-1]
        torch.testing.assert_close(torch.tensor(found["states"][name]), reference(whole), rtol=1e-4, atol=1e-4)


SECOND_RUNNER = """
import json, sys
from omni_core.engine import mrv2_lane
mrv2_lane.install()
import numpy as np, pytest, torch
from omni_core.testing.in_process import InProcessEngine
from omni_core.testing.tiny_capture import capturing_stage, install_plugin

torch.set_num_threads(1)
install_plugin(pytest.MonkeyPatch())
engine = InProcessEngine(capturing_stage(sys.argv[1], model_runner="v2", max_model_len=96, num_gpu_blocks_override=4))
assert engine.worker.use_v2_model_runner
prompts = {f"r{i}": np.random.default_rng(i).integers(2, 64, 20 + 9 * i).tolist() for i in range(2)}
requests = []
for name, ids in prompts.items():
    engine.capture(name, ids, max_tokens=36, ignore_eos=True)
    requests.append(list(engine.scheduler.requests.values())[-1])
engine.drain()
print("RESULT" + json.dumps({
    "prompts": prompts, "tokens": engine.tokens, "states": {name: engine.states(name).tolist() for name in prompts},
    "preemptions": sum(request.num_preemptions for request in requests),
}))
"""


def test_a_model_that_gives_no_states_of_its_layers_is_refused() -> None:
    config = SimpleNamespace(get_inputs_embeds_size=lambda: 4, get_hidden_size=lambda: 4)
    runner = SimpleNamespace(get_model=object, model_config=config)

    Capture(runner, {"embeds": 0, "last": "last"}, switches=True, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"object gives no hidden states of layers \[3\]"):
        Capture(runner, {"deep": 3}, switches=True, device=torch.device("cpu"))


@pytest.mark.parametrize("found", [{}, {"a": -1}, {"a": "first"}])
def test_layers_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    monkeypatch.setattr("omni_core.testing.tiny_capture.LAYERS", found)

    with pytest.raises(ConfigError, match="tiny_capture:layers"):
        captured_layers(HiddenCapture("omni_core.testing.tiny_capture:layers"), SimpleNamespace(num_hidden_layers=2))


def test_layers_have_the_names_of_the_outputs() -> None:
    found = captured_layers(HiddenCapture("omni_core.testing.tiny_capture:layers"), SimpleNamespace(num_hidden_layers=2))

    assert found == LAYERS
