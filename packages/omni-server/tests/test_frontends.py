"""What several frontends cannot be combined with is refused before anything is started."""

from __future__ import annotations

import argparse
import asyncio
import sys

import pytest

from omni_core.errors import ConfigError
from omni_server import frontends, listening
from omni_server.frontends import check_flags
from omni_server.serve import command


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(["model", *words])


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--api-server-count", "0"], "--api-server-count"),
        (["--api-server-count", "2", "--stage-id", "0"], "--stage-id"),
        (["--api-server-count", "2", "--headless"], "--headless"),
        (["--api-server-count", "2", "--uds", "/tmp/x.sock"], "--uds"),
        (["--api-server-count", "2", "--enable-control-routes"], "--enable-control-routes"),
        (["--api-server-count", "2", "--voices-dir", "/tmp"], "--voices-dir"),
    ],
)
def test_combinations_that_cannot_work_are_refused(words: list[str], where: str) -> None:
    """DP-08, FE-10."""
    with pytest.raises(ConfigError) as caught:
        check_flags(arguments(*words))

    assert where in caught.value.where
    assert caught.value.hint


SHARED = ["--api-server-count", "2", "--uds", "/x", "--accept", "shared"]


@pytest.mark.parametrize("words", [[], ["--api-server-count", "1", "--uds", "/x"], SHARED])
def test_what_can_work_is_taken(words: list[str]) -> None:
    check_flags(arguments(*words))


def test_two_processes_of_one_user_may_share_a_port_and_a_stranger_may_not() -> None:
    with listening.bind("127.0.0.1", 0, None, reuse_port=True) as first:
        port = first.getsockname()[1]
        with listening.bind("127.0.0.1", port, None, reuse_port=True) as second:
            first.listen()
            second.listen()
        with pytest.raises(ConfigError, match="the port is taken"), listening.bind("127.0.0.1", port, None):
            pass


def test_what_frontends_write_besides_neither_hides_that_they_are_ready_nor_stops_them(
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = "print('a library says hello'); print('Listening on http://x', flush=True); print('z' * 1_000_000)"

    async def run() -> None:
        with listening.bind("127.0.0.1", 0, None) as sock:
            parent = frontends._Parent(arguments("--api-server-count", "2"), sock)
            for _ in range(2):
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
                parent._frontends.append(process)
            await asyncio.wait_for(parent._tell_ready(), 30)
            assert [await asyncio.wait_for(process.wait(), 30) for process in parent._frontends] == [0, 0]

    asyncio.run(run())

    said = capfd.readouterr()
    assert said.out.startswith("Listening on http://127.0.0.1:")
    assert said.err.count("a library says hello") == 2
    assert said.err.count("z") == 2_000_000
