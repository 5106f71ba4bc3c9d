"""Results as text."""

from __future__ import annotations

import pytest

from omni_server.bench.plan import Load
from omni_server.bench.report import Comparison, LevelResult, ServerResult
from omni_server.bench.speech import SpeechEndpoint
from omni_server.bench.statistics import Ratio, summarise
from omni_server.bench.tables import _number, as_text, warnings


def result(servers: int = 1, *, load: Load | None = None, cpu: float = 0.1, complete: bool = True) -> LevelResult:
    measures = {"total_s": summarise([0.1, 0.2, 0.3]), "real_time_factor": summarise([0.5])}
    server = ServerResult("http://a", 4, 3, {"timeout": 1}, {"timeout": "no end\nafter 1 s"}, 1.5, 2.5, measures)  # type: ignore[arg-type]
    comparisons = (Comparison("total_s", "p50", 3, Ratio(1.25, 1.0, 1.5)),) if servers > 1 else ()
    chosen = load or Load("closed", 8)
    return LevelResult(chosen, complete, 0 if complete else 2, 2.0, cpu, 0.001, (server,) * servers, comparisons)


def test_one_level() -> None:
    lines = as_text([result()], SpeechEndpoint({})).splitlines()

    assert lines == [
        "concurrency 8: 2.0 s; benchmark 10 % of a core",
        "  http://a: 4 requests, 1 failed, 1.50 requests/s, 2.50 audio s/s",
        "    1 x timeout: no end after 1 s",
        "  measure           n   mean    p50    p90    p99    max  unit",
        "  total             3    200    200    280    298    300    ms",
        "  real-time factor  1  0.500  0.500  0.500  0.500  0.500     x",
    ]


def test_two_servers_and_several_levels() -> None:
    text = as_text([result(2, load=Load("open", 2.0)), result(2, load=Load("open", 4.0))], SpeechEndpoint({}))

    assert text.startswith(
        "A = http://a\nB = http://a\n\n2 requests/s: 2.0 s; benchmark 10 % of a core, sent 1.00 ms late (p99)\n"
    )
    assert "  total    p50      3  1.250  1.000  1.500" in text
    assert text.splitlines()[-1].split() == ["4", "requests/s", "B", "1.50", "2.50", "1", "-", "-", "200,", "298"]


def test_an_interrupted_level_says_so() -> None:
    assert "interrupted with 2 requests unfinished" in as_text([result(complete=False)], SpeechEndpoint({}))


def test_a_busy_benchmark_is_warned_of() -> None:
    assert list(warnings([result()])) == []
    (text,) = warnings([result(), result(cpu=0.97)])
    assert text.startswith("concurrency 8: the benchmark used 97 % of the one core")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123"), (1e-9, "0.000000")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert _number(value) == text
