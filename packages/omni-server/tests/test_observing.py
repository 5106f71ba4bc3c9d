"""The trace that a request belongs to, and the flags that say what is observed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest

from omni_core.engine.profiling import PROFILE_DIR_ENV
from omni_core.observe.endpoint import TRACES_ENDPOINT_ENV
from omni_server.arguments import add_arguments, make_settings, set_environment
from omni_server.observing import TraceMiddleware

TRACE = "0af7651916cd43dd8448eb211c80319c"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["org/model", *arguments])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("header", "seen"), [(f"00-{TRACE}-b7ad6b7169203331-01", TRACE), ("nonsense", "0" * 32), (None, "0" * 32)]
)
async def test_spans_of_a_request_have_the_clients_trace(header: str | None, seen: str) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    found: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

    headers = [] if header is None else [(b"traceparent", header.encode())]
    await TraceMiddleware(app)({"type": "http", "headers": headers}, None, None)  # type: ignore[arg-type]

    assert found == [seen]
    assert not trace.get_current_span().get_span_context().is_valid


def test_statistics_are_logged_every_ten_seconds_unless_a_number_is_given() -> None:
    assert parsed().log_stats is None
    assert parsed("--log-stats").log_stats == 10
    assert parsed("--log-stats", "2.5").log_stats == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "often"])
def test_intervals_are_checked(text: str) -> None:
    with pytest.raises(SystemExit):
        parsed("--log-stats", text)


def test_stages_find_what_the_flags_say_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (TRACES_ENDPOINT_ENV, PROFILE_DIR_ENV):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)

    set_environment(parsed())
    assert (os.environ[TRACES_ENDPOINT_ENV], os.environ[PROFILE_DIR_ENV]) == ("", "")
    arguments = parsed("--otlp-traces-endpoint", "http://c:4317", "--profile-dir", "traces")
    set_environment(arguments)

    assert os.environ[TRACES_ENDPOINT_ENV] == "http://c:4317"
    assert os.environ[PROFILE_DIR_ENV] == str(tmp_path / "traces")
    assert make_settings(arguments).profile_dir == "traces"
