"""`omni bench serve` against servers on a fake engine."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.cli import CommandParser
from omni_core.errors import ConfigError, DependencyError, ServiceError
from omni_server.bench import plot
from omni_server.bench.command import command

PATIENCE_S = 60.0
Bench = Callable[..., dict[str, Any]]


def run_bench(*arguments: str) -> int:
    parser: argparse.ArgumentParser = CommandParser(prog="omni bench")
    command.configure(parser)
    return command.run(parser.parse_args(["serve", *arguments]))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Run the command with success and return its JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        path = tmp_path / "out.json"
        assert run_bench(*arguments, "--json", str(path)) == 0
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    return run


@pytest.fixture
def prompts(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: str) -> str:
        path = tmp_path / "prompts.txt"
        path.write_text("\n".join(lines))
        return str(path)

    return write


class TestResults:
    """What is measured."""

    @pytest.mark.parametrize("delivery", ["audio", "sse", "whole"])
    def test_each_delivery_is_counted_and_measured(
        self, delivery: str, servers: Any, bench: Bench, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = servers[0].began()

        found = bench(servers[0].url, "--delivery", delivery, "--requests", "9", "--warmup", "3", "--concurrency", "2")

        (level,) = found["levels"]
        (server,) = level["servers"]
        assert servers[0].began() - before == 9 + 3
        assert (server["sent"], server["succeeded"], server["errors"]) == (9, 9, {})
        assert server["measures"]["audio_s"]["mean"] == pytest.approx(3 * 5 * 1920 / 24000)
        assert server["measures"]["first_audible_s"]["n"] == 9
        assert server["produced_per_s"] == pytest.approx(9 * 1.2 / level["wall_s"])
        assert server["measures"].get("gap_s", {"n": 0})["n"] == sum(request["gaps"] for request in level["requests"])
        assert "concurrency 2: " in capsys.readouterr().out

    def test_errors_are_counted_by_kind(self, servers: Any, bench: Bench, prompts: Callable[..., str]) -> None:
        path = prompts("hello", "fail", "fail-later", "nothing", "hello again")

        found = bench(servers[0].url, "--prompts", path, "--requests", "10", "--concurrency", "2", "--warmup", "1")

        server = found["levels"][0]["servers"][0]
        assert (server["sent"], server["succeeded"]) == (10, 4)
        assert server["errors"] == {"status 503": 2, "cut off": 2, "no audio": 2}
        assert "ended with signal 9" in server["error_examples"]["status 503"]
        failed = [request for request in found["levels"][0]["requests"] if request["error"]]
        assert len(failed) == 6
        assert not any("total_s" in request for request in failed)

    def test_open_loop_of_events_with_a_failure_in_the_middle(
        self, servers: Any, bench: Bench, prompts: Callable[..., str]
    ) -> None:
        path = prompts("hello", "fail-later")
        arguments = ("--prompts", path, "--requests", "6", "--rate", "50", "--delivery", "sse", "--warmup", "1")

        (level,) = bench(servers[0].url, *arguments)["levels"]

        assert level["load"] == {"kind": "open", "value": 50.0}
        assert level["servers"][0]["errors"] == {"error event": 3}
        starts = [request["started_s"] for request in level["requests"]]
        assert starts == sorted(starts)

    def test_two_servers_are_interleaved_and_compared(
        self, servers: Any, bench: Bench, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = [server.began() for server in servers]

        found = bench(*(server.url for server in servers), "--requests", "12", "--concurrency", "1,3", "--warmup", "2")

        assert [server.began() - count for server, count in zip(servers, before, strict=True)] == [2 + 24, 2 + 24]
        for level in found["levels"]:
            order = [request["server"] for request in level["requests"]]
            pairs = list(zip(order[::2], order[1::2], strict=True))
            assert set(pairs) == {(0, 1), (1, 0)}
            compared = {(item["measure"], item["statistic"]) for item in level["comparisons"]}
            names = ("first_packet_s", "first_audible_s", "total_s", "real_time_factor")
            assert compared == {(name, statistic) for name in names for statistic in ("mean", "p50", "p90")}
            for item in level["comparisons"]:
                assert item["pairs"] == 12
                assert 0 < item["ratio"]["low"] <= item["ratio"]["high"]
            means = [server["measures"]["total_s"]["mean"] for server in level["servers"]]
            ratio = next(item for item in level["comparisons"] if (item["measure"], item["statistic"]) == ("total_s", "mean"))
            assert ratio["ratio"]["value"] == pytest.approx(means[1] / means[0])
        text = capsys.readouterr().out
        assert f"A = {servers[0].url}\nB = {servers[1].url}\n" in text
        assert "B / A, with 95 % intervals" in text

    def test_the_form_of_the_json(self, servers: Any, bench: Bench) -> None:
        body = '{"voice": "Ryan", "response_format": "wav"}'

        found = bench(servers[0].url, "--requests", "2", "--body", body, "--api-key", "secret-1", "--seed", "4")

        assert set(found) == {
            *("schema", "omni_version", "started_at", "endpoint", "urls", "body", "requests", "duration_s", "warmup"),
            *("timeout_s", "seed", "prompts", "measures", "levels"),
        }
        assert (found["schema"], found["endpoint"], found["seed"]) == ("omni-bench/1", "speech", 4)
        assert found["body"] == {"voice": "Ryan", "response_format": "wav", "stream_format": "audio"}
        assert "secret-1" not in json.dumps(found)
        (level,) = found["levels"]
        assert set(level) == {
            *("load", "complete", "unfinished", "wall_s", "client_cpu_share", "late_p99_s", "servers", "comparisons"),
            "requests",
        }
        names = {measure["name"] for measure in found["measures"]}
        assert set(level["servers"][0]["measures"]) <= names
        assert set(level["requests"][0]) == (names - {"gap_s"}) | {
            *("number", "block", "server", "started_s", "late_s", "ended_s", "error", "detail", "gaps", "longest_gap_s")
        }

    def test_a_request_without_an_end_is_a_timeout(self, servers: Any, bench: Bench, prompts: Callable[..., str]) -> None:
        path = prompts("hello", "stall-later")

        found = bench(servers[0].url, "--prompts", path, "--requests", "2", "--timeout", "5", "--warmup", "1")

        assert found["levels"][0]["servers"][0]["errors"] == {"timeout": 1}


class TestRefusals:
    """One clear line and an exit code."""

    def test_unreachable_server(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"

            with pytest.raises(ServiceError) as error:
                run_bench(url)

        assert error.value.exit_code == 1
        assert error.value.where == f"warm-up of {url}"
        assert "connect" in error.value.message
        assert "is the server running" in error.value.hint

    def test_wrong_status_at_the_warm_up(self, servers: Any) -> None:
        with pytest.raises(ServiceError) as error:
            run_bench(servers[0].url, "--body", '{"voice": "nobody"}')

        assert "status 400: the voice `nobody` is unknown" in error.value.message

    def test_the_second_server_is_named(self, servers: Any) -> None:
        url = f"{servers[1].url}/elsewhere"

        with pytest.raises(ServiceError, match="status 404") as error:
            run_bench(servers[0].url, url)

        assert error.value.where == f"warm-up of {url}"

    def test_a_run_without_any_success_fails_after_its_table(self, servers: Any, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ServiceError, match="none of 3 requests succeeded: no audio"):
            run_bench(servers[0].url, "--warmup", "0", "--requests", "3", "--body", '{"input": "nothing"}')

        assert "3 x no audio" in capsys.readouterr().out

    def test_a_wrong_url_is_a_configuration_error(self) -> None:
        with pytest.raises(ConfigError):
            run_bench("localhost:8000")

    def test_a_plot_without_matplotlib_is_refused_before_the_run(
        self, servers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
        before = servers[0].began()

        with pytest.raises(DependencyError, match="matplotlib") as error:
            run_bench(servers[0].url, "--plot", str(tmp_path / "plot.png"))

        assert "omni-server[bench]" in error.value.hint
        assert servers[0].began() == before

    def test_a_url_instead_of_an_action_names_the_actions(self, capsys: pytest.CaptureFixture[str]) -> None:
        parser = CommandParser(prog="omni bench")
        command.configure(parser)

        with pytest.raises(SystemExit):
            parser.parse_args(["http://127.0.0.1:8000"])

        assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize("urls", [1, 2])
@pytest.mark.parametrize("load", ["--concurrency", "--rate"])
def test_the_plot_is_a_png_with_something_on_it(urls: int, load: str, servers: Any, bench: Bench, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "plot.png"

    bench(*(server.url for server in servers[:urls]), load, "60,2", "--requests", "4", "--plot", str(path))

    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(data)) as opened:
        colours = {colour for _, colour in opened.convert("RGB").getcolors(2**24)}
    drawn = [tuple(bytes.fromhex(colour[1:])) in colours for colour in plot.COLOURS]
    assert drawn == [True, urls == 2]


def test_ctrl_c_writes_what_was_measured(servers: Any, prompts: Callable[..., str], tmp_path: Path) -> None:
    path = prompts("hello", "hello", "hello", "stall-later")
    json_path = tmp_path / "out.json"
    arguments = ["--prompts", path, "--requests", "9", "--warmup", "1", "--json", str(json_path)]
    before = servers[0].began()
    process = subprocess.Popen(
        [sys.executable, "-m", "omni_core", "bench", "serve", servers[0].url, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        servers[0].wait_for_began(before + 1 + 4)

        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait(PATIENCE_S)

    assert process.returncode == 130, err
    assert "interrupted with 1 requests unfinished" in out
    assert "3 requests, 0 failed" in out
    assert "Traceback" not in err
    (level,) = json.loads(json_path.read_text())["levels"]
    assert (level["complete"], level["unfinished"], len(level["requests"])) == (False, 1, 3)
