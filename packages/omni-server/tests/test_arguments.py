"""The arguments of `omni serve`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from omni_core.engine.options import EngineOptions, LbPolicy
from omni_core.errors import ConfigError
from omni_server.arguments import make_engine_options, make_settings, model_of
from omni_server.context import ServerSettings
from omni_server.serve import ServeCommand


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("omni serve")
    ServeCommand().configure(parser)
    return parser


def test_defaults_are_those_of_the_settings(parser: argparse.ArgumentParser) -> None:
    args = parser.parse_args(["m", "--voices-dir", "/v"])

    assert make_settings(args) == ServerSettings("m", voices_dir="/v")
    assert (args.host, args.port) == ("127.0.0.1", 8000)


def test_every_setting_has_a_flag(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    line = "m --omni --served-model-name a b --api-key k --api-key l --allowed-media-domains A.example,b.example c.example"
    line += f" --allowed-local-media-path {tmp_path} --allowed-origins * --max-body-bytes 5 --max-media-bytes 6"
    line += " --media-timeout 7 --request-timeout 8 --reference-cache-entries 9 --reference-cache-bytes 0"
    line += f" --voices-dir {tmp_path}/v --max-voices 10 --voice-policy overwrite"

    settings = make_settings(parser.parse_args(line.split()))

    assert settings.served_model_name == ("a", "b")
    assert settings.api_key == ("k", "l")
    assert settings.allowed_media_domains == {"a.example", "b.example", "c.example"}
    assert settings.allowed_local_media_path == str(tmp_path)
    assert settings.allowed_origins == ("*",)
    assert (settings.max_body_bytes, settings.max_media_bytes) == (5, 6)
    assert (settings.media_timeout, settings.request_timeout) == (7, 8)
    assert (settings.reference_cache_entries, settings.reference_cache_bytes) == (9, 0)
    assert (settings.voices_dir, settings.max_voices, settings.voice_policy) == (f"{tmp_path}/v", 10, "overwrite")


def test_engine_options_are_the_engines_own_unless_flags_say_otherwise(parser: argparse.ArgumentParser) -> None:
    """DV-10."""
    line = "m --stage-init-timeout 3 --init-timeout 4 --omni-lb-policy least-queue-length --max-queued-requests 0"
    line += " --max-queue-time 5 --stall-timeout 0 --stage-heartbeat-timeout 6"

    assert make_engine_options(parser.parse_args(["m"])) == EngineOptions()
    assert make_engine_options(parser.parse_args(line.split())) == EngineOptions(
        stage_init_timeout_s=3,
        init_timeout_s=4,
        lb_policy=LbPolicy.LEAST_QUEUE_LENGTH,
        max_queued_requests=0,
        max_queue_time_s=5,
        stall_timeout_s=None,
        stage_heartbeat_timeout_s=6,
    )


@pytest.mark.parametrize(
    "line",
    [
        "--omni-lb-policy best",
        "--max-queued-requests -1",
        "--max-queue-time x",
        "--port 70000",
        "--port x",
        "--max-body-bytes 0",
        "--request-timeout nan",
        "--request-timeout -1",
    ],
)
def test_wrong_values_are_usage_errors(line: str, parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["m", *line.split()])

    assert caught.value.code == 2
    assert line.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "m --allowed-local-media-path /no/such/folder",
        "m --api-key=",
        "m --allowed-media-domains http://x/",
        "",
        "m --model n",
    ],
)
def test_values_that_cannot_work_are_config_errors(line: str, parser: argparse.ArgumentParser) -> None:
    with pytest.raises(ConfigError):
        make_settings(parser.parse_args(line.split()))


@pytest.mark.parametrize("line", ["m", "--model m", "m --model m"])
def test_model_is_an_argument_or_a_flag(line: str, parser: argparse.ArgumentParser) -> None:
    assert model_of(parser.parse_args(line.split())) == "m"


def test_help_is_grouped(parser: argparse.ArgumentParser) -> None:
    text = parser.format_help()

    assert [text.index(group) for group in ("listening:", "API:", "limits and media:", "stages and requests:")]
    assert "--omni " not in text
