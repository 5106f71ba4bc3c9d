"""Several sessions in one pair of stages: each gives the bytes that it gives alone, whatever the others do."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_core.errors import RequestError
from omni_core.runner import LightChunk

pytestmark = pytest.mark.engine

NAMES = ("a", "b", "c")
FRAMES = 4


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def digest(frames: list[tuple[int, Any, bytes]]) -> str:
    return hashlib.sha256(b"".join(sound for *_, sound in frames)).hexdigest()


@pytest.fixture(scope="module")
def solo(pair: Any) -> dict[str, tuple[Any, str]]:
    """Each session's audio in, and the hash of what it gives alone."""
    found = {}
    with torch.inference_mode():
        for number, name in enumerate(NAMES):
            chance = np.random.default_rng(number)
            audio = (0.2 * chance.standard_normal((FRAMES, 1920))).astype(np.float32)
            found[name] = audio, digest(pair.alone(audio, instructions=f"you {name}"))
    assert len({hashed for _, hashed in found.values()}) == len(NAMES)
    return found


def opened(pair: Any, names: tuple[str, ...]) -> None:
    for name in names:
        pair.open(name, instructions=f"you {name}")


def closed(pair: Any, names: tuple[str, ...]) -> None:
    for name in names:
        pair.close(name)


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)), ids="".join)
def test_sessions_in_one_step_equal_those_alone(pair: Any, solo: Any, order: tuple[str, ...]) -> None:
    """Whoever opened first, so in whatever slot, and in whatever order the chunks come."""
    opened(pair, order)
    found: dict[str, list[Any]] = {name: [] for name in NAMES}

    for number in range(FRAMES):
        step = pair.step({name: solo[name][0][number] for name in reversed(order)})
        for name in NAMES:
            found[name].append(step[name])
    closed(pair, order)

    assert {name: digest(frames) for name, frames in found.items()} == {name: hashed for name, (_, hashed) in solo.items()}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_interleaving_equals_those_alone(pair: Any, solo: Any, data: st.DataObject) -> None:
    """Steps for any of the sessions, each at its own frame."""
    order = tuple(data.draw(st.permutations(NAMES)))
    found: dict[str, list[Any]] = {name: [] for name in NAMES}
    opened(pair, order)
    try:  # an example may be given up in the middle of its draws
        while left := [name for name in NAMES if len(found[name]) < FRAMES]:
            some = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
            for name, result in pair.step({name: solo[name][0][len(found[name])] for name in some}).items():
                found[name].append(result)
    finally:
        closed(pair, order)

    assert {name: digest(frames) for name, frames in found.items()} == {name: hashed for name, (_, hashed) in solo.items()}


@pytest.mark.parametrize("at", range(FRAMES + 1))
def test_a_session_that_is_cancelled_at_any_frame_leaves_nothing(pair: Any, solo: Any, at: int) -> None:
    """Its neighbour's bytes are those of a solo run, and so are those of the session that gets its slot."""
    opened(pair, ("a", "b"))
    neighbour: list[Any] = []
    for number in range(FRAMES):
        if number == at:
            pair.close("a")
        names = ("b",) if number >= at else ("a", "b")
        neighbour.append(pair.step({name: solo[name][0][number] for name in names})["b"])
    if at == FRAMES:
        pair.close("a")
    opened(pair, ("c",))
    successor = [pair.step({"c": frame})["c"] for frame in solo["c"][0]]
    closed(pair, ("b", "c"))

    assert digest(neighbour) == solo["b"][1]
    assert digest(successor) == solo["c"][1]


BAD = {
    "short": np.zeros(1919, np.float32),
    "two channels": np.zeros((1920, 1), np.float32),
    "whole numbers": np.zeros(1920, np.int16),
    "not a number": np.full(1920, np.nan, np.float32),
    "infinite": np.full(1920, np.inf, np.float32),
    "nothing": None,
}


@pytest.mark.parametrize("case", BAD)
def test_a_frame_that_is_none_changes_no_session(pair: Any, solo: Any, case: str) -> None:
    opened(pair, ("a", "b"))
    first = [pair.step({"a": solo["a"][0][0]})["a"]]

    with pytest.raises(RequestError, match="audio"):
        pair.step({"a": solo["a"][0][1], "b": BAD[case]})
    rest = [pair.step({"a": frame})["a"] for frame in solo["a"][0][1:]]
    closed(pair, ("a", "b"))

    assert digest(first + rest) == solo["a"][1]


@pytest.mark.parametrize("opening", [{"voice": "nobody"}, {"voice": "../NATF2"}, {"voice": 3}, {"instructions": 7}], ids=str)
def test_an_opening_that_cannot_be_used_is_refused(pair: Any, opening: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        pair.open("bad", **opening)
    pair.close("bad")


def test_chance_is_refused(pair: Any) -> None:
    with pytest.raises(RequestError, match="most likely"):
        pair.stage.begin("warm", {"temperature": 0.7})


def test_the_end_of_a_session_gives_nothing_and_prompts_are_not_mixed_with_frames(pair: Any) -> None:
    state = pair.stage.begin("end", {})
    opening = LightChunk("end", state, {"instructions": ""}, False)
    first = pair.stage.group(opening)
    pair.stage.step([opening])
    frame = LightChunk("end", state, {"audio": np.zeros(1920, np.float32)}, False)
    last = LightChunk("end", state, {}, True)

    assert len({first, pair.stage.group(frame), pair.stage.group(last)}) == 3
    assert pair.stage.step([last]) == [{}]
    pair.stage.end(state)
