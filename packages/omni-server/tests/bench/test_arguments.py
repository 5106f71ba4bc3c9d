"""Flags, and the plan that they make."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_server.bench.arguments import add_arguments, base_url, make_plan
from omni_server.bench.plan import BenchPlan, Bounds, Load
from omni_server.bench.prompts import BUILT_IN


def plan(*arguments: str) -> BenchPlan:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_plan(parser.parse_args(["http://a:1", *arguments]))


def test_defaults() -> None:
    made = plan()

    assert made.loads == (Load("closed", 1),)
    assert made.bounds == Bounds(requests=100)
    assert made.prompts == BUILT_IN


def test_levels_of_a_closed_and_of_an_open_loop() -> None:
    assert plan("--concurrency", "1,8,32").loads == (Load("closed", 1), Load("closed", 8), Load("closed", 32))
    assert plan("--rate", "0.5,2").loads == (Load("open", 0.5), Load("open", 2.0))


def test_a_duration_alone_bounds_a_level_by_time() -> None:
    assert plan("--duration", "5").bounds == Bounds(None, 5.0)
    assert plan("--duration", "5", "--requests", "7").bounds == Bounds(7, 5.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1,"],
        ["--concurrency", "2.5"],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--rate", "inf"],
        ["--rate", "1", "--concurrency", "1"],
        ["--duration", "-1"],
        ["--requests", "0"],
        ["--timeout", "0"],
        ["--body", "{"],
        ["--body", "[]"],
        ["--audible-level", "3"],
        ["--api-key", "schlüssel"],
        ["--endpoint", "chat"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        plan(*arguments)

    assert end.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://a:8000/", "http://a:8000"),
        ("http://a:8000/v1", "http://a:8000"),
        ("https://a/prefix/v1/", "https://a/prefix"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_base_url(given: str, used: str) -> None:
    assert base_url(given) == used


@pytest.mark.parametrize(
    "text", ["localhost:8000", "ftp://a", "http://", "http://a:99999", "http://u:p@a", "http://a?x=1", "http://[a"]
)
def test_what_is_no_url_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        base_url(text)

    assert "http://127.0.0.1:8000" in error.value.hint


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  zwei Wörter \n")

    assert plan("--prompts", str(path)).prompts == ("one", "zwei Wörter")


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"], ids=["missing", "empty", "blank", "no UTF-8"])
def test_prompt_files_without_text_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"prompts\.txt"):
        plan("--prompts", str(path))


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_output_into_a_missing_folder_is_refused_before_the_run(flag: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan(flag, str(tmp_path / "missing" / "file"))

    assert error.value.where == flag


def test_the_key_is_sent_and_not_shown() -> None:
    made = plan("--api-key", "secret-1")

    assert made.headers == {"Authorization": "Bearer secret-1"}
    assert "secret-1" not in repr(made)
