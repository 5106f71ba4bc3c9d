"""Words and levels on the terminal."""

from __future__ import annotations

import numpy as np
import pytest

from omni_server.talk.client import socket_address
from omni_server.talk.screen import WIDTH, Screen, bar
from omni_server.talk.sound import BLOCK, SILENCE, level


@pytest.mark.parametrize(("level_db", "filled"), [(-90, 0), (-60, 0), (-30, WIDTH // 2), (0, WIDTH), (6, WIDTH)])
def test_a_bar_grows_with_the_level(level_db: float, filled: int) -> None:
    assert bar(level_db) == f"[{'#' * filled}{'-' * (WIDTH - filled)}]"


def test_a_level_is_that_of_the_samples() -> None:
    assert level(SILENCE) == -90
    assert level(np.full(BLOCK, 16384, "<i2").tobytes()) == pytest.approx(-6.02, abs=0.01)


def test_the_meter_is_drawn_ten_times_a_second_and_gives_way_to_words(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    screen = Screen(shows_meter=True, clock=lambda: now)
    for _ in range(10):
        screen.hear("you", SILENCE)
        now += 0.04
    screen.say("model", " good day ")

    shown = capsys.readouterr()
    assert shown.err.count("\ryou [") == 4
    assert shown.err.endswith("\r\033[K")
    assert shown.out == "model: good day\n"


def test_without_a_terminal_there_are_only_words(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(shows_meter=False)
    screen.hear("you", SILENCE)
    screen.say("you", "hello")

    assert capsys.readouterr() == ("you: hello\n", "")


@pytest.mark.parametrize(
    ("url", "model", "address"),
    [
        ("http://host:8000", None, "ws://host:8000/v1/duplex"),
        ("https://host/v1/", "org/name", "wss://host/v1/duplex?model=org%2Fname"),
        ("host:8000", None, "ws://host:8000/v1/duplex"),
        ("ws://host/omni/v1", None, "ws://host/omni/v1/duplex"),
    ],
)
def test_sessions_are_found_from_the_servers_address(url: str, model: str | None, address: str) -> None:
    assert socket_address(url, model) == address
