"""Codes do not depend on company, on when rows come, or on preemption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engine

Rows = Callable[[int], np.ndarray[Any, Any]]


def tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def alone(engine: Any, name: str, inputs: dict[str, Any], **options: Any) -> list[list[int]]:
    engine.add(name, inputs, **options)
    engine.drain()
    codes: list[list[int]] = engine.codes(name)
    return codes


def test_each_step_gives_one_frame_up_to_max_tokens(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()

    codes = alone(engine, "one", {"rows": rows_of(1)})

    assert np.shape(codes) == (16, 4)
    assert engine.reasons["one"] == "length"
    assert len({tuple(frame) for frame in codes}) > 3


def test_codes_are_the_same_alone_and_in_a_batch(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()
    expected = [alone(engine, f"alone{i}", {"rows": rows_of(i)}, prompt_len=4 + i, max_tokens=8 + i) for i in range(8)]

    for i in range(8):
        engine.add(f"many{i}", {"rows": rows_of(i)}, prompt_len=4 + i, max_tokens=8 + i)
        engine.step()
    engine.drain()

    assert [engine.codes(f"many{i}") for i in range(8)] == expected
    assert len({str(codes) for codes in expected}) == 8


def test_the_cached_row_equals_what_the_model_embeds(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()
    expected = alone(engine, "cached", {"rows": rows_of(3)})
    state = engine.worker.omni

    engine.add("asked", {"rows": rows_of(3)})
    while engine.engine.has_unfinished_requests():
        state._next_position[:] = -1
        engine.step()

    assert engine.codes("asked") == expected


def test_a_finished_request_frees_its_slot(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()
    engine.add("running", {"rows": rows_of(1)}, max_tokens=40)
    for _ in range(3):
        engine.step()

    engine.abort("running")
    alone(engine, "next", {"rows": rows_of(2)}, max_tokens=2)
    engine.step()

    assert engine.worker.omni.live == 0
    assert engine.scheduler.kv_cache_manager.usage == 0
    assert not engine.scheduler._holders


def test_preemption_changes_no_code(make_engine: Any, rows_of: Rows) -> None:
    # 5 blocks of 32 positions, of which vLLM keeps one: the requests cannot all stay.
    engine = make_engine(block_size=32, num_gpu_blocks_override=7, max_model_len=128)
    expected = [alone(engine, f"calm{i}", {"rows": rows_of(i)}, max_tokens=70) for i in range(4)]

    for i in range(4):
        engine.add(f"pressed{i}", {"rows": rows_of(i)}, max_tokens=70)
    requests = list(engine.scheduler.requests.values())
    engine.drain()

    assert sum(request.num_preemptions for request in requests) > 0
    assert [engine.codes(f"pressed{i}") for i in range(4)] == expected
    engine.step()
    assert engine.worker.omni.live == 0


def test_what_may_be_sampled_follows_from_what_was_sampled_alone_in_company_and_under_preemption(
    make_engine: Any, rows_of: Rows
) -> None:
    engine = make_engine("TinyConstrainedTalker", block_size=32, num_gpu_blocks_override=7, max_model_len=128)
    expected = [alone(engine, f"calm{i}", {"rows": rows_of(i)}, max_tokens=70) for i in range(4)]

    for i in range(4):
        engine.add(f"pressed{i}", {"rows": rows_of(i)}, max_tokens=70)
    engine.drain()

    assert [engine.codes(f"pressed{i}") for i in range(4)] == expected
    for codes in expected:
        assert [frame[0] % 3 for frame in codes] == [(number + 1) % 3 for number in range(70)]


def test_the_frame_of_an_end_token_is_dropped(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()
    codes = alone(engine, "open", {"rows": rows_of(5)})
    end = next(frame[0] for index, frame in enumerate(codes) if index > 2)
    first = [frame[0] for frame in codes].index(end)

    stopped = alone(engine, "stopped", {"rows": rows_of(5)}, stop_token_ids=[end])

    assert stopped == codes[:first]
    assert engine.reasons["stopped"] == "stop"


def test_an_end_token_cannot_come_before_min_tokens(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine()
    first = alone(engine, "free", {"rows": rows_of(6)})[0][0]

    held = alone(engine, "held", {"rows": rows_of(6)}, stop_token_ids=[first], min_tokens=5)

    assert len(held) >= 5
    assert all(frame[0] != first for frame in held)


@pytest.mark.parametrize("step", [1, 2, 5], ids=["one row at a time", "two rows", "five rows"])
def test_staggered_rows_give_the_codes_of_rows_that_were_there(make_engine: Any, rows_of: Rows, step: int) -> None:
    engine = make_engine("TinyGatedTalker")
    engine.add("whole", {})
    engine.push("whole", tensor(rows_of(7)), final=True)
    engine.drain()

    name = f"staggered{step}"
    engine.add(name, {})
    rows = tensor(rows_of(7))
    for start in range(0, len(rows), step):
        engine.push(name, rows[start : start + step])
        for _ in range(4):
            engine.step()
    engine.push(name, None, final=True)
    engine.drain()

    assert engine.codes(name) == engine.codes("whole")


def test_eight_gated_requests_do_not_disturb_each_other(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine("TinyGatedTalker")
    for i in range(8):
        engine.add(f"whole{i}", {}, prompt_len=3 + i)
        engine.push(f"whole{i}", tensor(rows_of(i)), final=True)
        engine.drain()

    for i in range(8):
        engine.add(f"piece{i}", {}, prompt_len=3 + i)
    for position in range(12):
        for i in range(8):
            if (position + i) % 3:
                engine.step()
            engine.push(f"piece{i}", tensor(rows_of(i)[position : position + 1]), final=position == 11)
    engine.drain()

    assert [engine.codes(f"piece{i}") for i in range(8)] == [engine.codes(f"whole{i}") for i in range(8)]


def test_a_seed_fixes_the_codes_whoever_shares_the_batch(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine("TinySamplingTalker")
    options = {"temperature": 0.9, "max_tokens": 12}
    expected = [alone(engine, f"seed{i}", {"rows": rows_of(1)}, seed=i, **options) for i in range(4)]

    for i in range(4):
        engine.add(f"again{i}", {"rows": rows_of(1)}, seed=i, **options)
        engine.add(f"other{i}", {"rows": rows_of(i)}, **options)
        engine.step()
    engine.drain()

    assert [engine.codes(f"again{i}") for i in range(4)] == expected
    assert len({str(codes) for codes in expected}) == 4


@pytest.mark.parametrize(
    "sampling",
    [
        {"mtp": {"do_sample": False}, "temperature": 0.9, "seed": 1},
        {"mtp": {"temperature": 0.0}, "temperature": 0.9, "seed": 1},
        {"temperature": 0.0},
    ],
    ids=["do_sample false", "predictor's temperature 0", "temperature 0"],
)
def test_a_greedy_predictor_draws_nothing(make_engine: Any, rows_of: Rows, sampling: dict[str, Any]) -> None:
    engine = make_engine("TinySamplingTalker")

    first = alone(engine, f"a{sampling}", {"rows": rows_of(2)}, **sampling)
    second = alone(engine, f"b{sampling}", {"rows": rows_of(2)}, **sampling)

    assert first == second


def test_a_seed_survives_a_prompt_that_takes_several_steps(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine("TinySamplingTalker")
    in_pieces = make_engine("TinySamplingTalker", max_num_batched_tokens=8, max_num_seqs=4)
    options = {"temperature": 0.9, "max_tokens": 6, "prompt_len": 20, "seed": 5}
    expected = alone(engine, "whole", {"rows": rows_of(1)}, **options)

    in_pieces.add("first", {"rows": rows_of(1)}, **options)
    in_pieces.add("second", {"rows": rows_of(1)}, **options)
    in_pieces.drain()

    assert in_pieces.codes("first") == in_pieces.codes("second") == expected


def test_requests_without_a_seed_differ(make_engine: Any, rows_of: Rows) -> None:
    engine = make_engine("TinySamplingTalker")

    codes = [alone(engine, f"free{i}", {"rows": rows_of(1)}, temperature=0.9) for i in range(3)]

    assert len({str(one) for one in codes}) == 3
