"""The flags of commands that start one stage, and what they refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from omni_core.engine.remote.settings import HeadAddress
from omni_core.errors import ConfigError
from omni_server.serve import ServeCommand
from omni_server.stage_flags import StageFlags, read_stage_flags, worker_command

HEAD = "--omni-master-address 127.0.0.1 --omni-master-port 26000"


def parse(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("omni serve")
    ServeCommand().configure(parser)
    return parser.parse_args(["m", *line.split()])


def read(line: str) -> StageFlags | None:
    return read_stage_flags(parse(line))


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNI_TOKEN", raising=False)


def test_command_without_these_flags_starts_every_stage() -> None:
    assert read("") is None


def test_head_has_its_own_stage() -> None:
    """SB-01."""
    flags = read(f"--stage-id 0 {HEAD} --port 8091")

    assert flags is not None
    assert not flags.headless
    assert flags.head.own_stages == {0}
    assert flags.address == HeadAddress("127.0.0.1", 26000)


def test_head_may_have_none() -> None:
    """SB-02."""
    flags = read(f"--stage-id none {HEAD}")

    assert flags is not None
    assert flags.stage_id is None
    assert flags.head.own_stages == frozenset()


def test_worker_has_a_stage_and_no_server() -> None:
    """SB-01, with the short names that other servers have."""
    flags = read("--headless --stage-id 1 -oma localhost -omp 26000 -ora 127.0.0.2 --omni-dp-size-local 2")

    assert flags is not None
    assert flags.headless
    assert flags.worker.stage_id == 1
    assert flags.worker.replica_address == "127.0.0.2"
    assert flags.replicas == 2


@pytest.mark.parametrize(
    ("line", "where", "message"),
    [
        ("--stage-id 0", "--stage-id", "needs --omni-master-address"),
        ("--stage-id 0 --omni-master-address 127.0.0.1", "--stage-id", "needs --omni-master-port"),
        ("--headless", "--headless", "start one stage"),
        (HEAD, "--omni-master-address", "start one stage"),
        ("--omni-dp-size-local 2", "--omni-dp-size-local", "start one stage"),
        (f"--stage-id none --headless {HEAD}", "--headless", "a worker runs a stage"),
        (f"--stage-id none --omni-dp-size-local 2 {HEAD}", "--omni-dp-size-local", "runs no stage"),
        (f"--stage-id 0 --omni-replica-address 127.0.0.1 {HEAD}", "--omni-replica-address", "only workers"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(line: str, where: str, message: str) -> None:
    """SB-03, E31."""
    with pytest.raises(ConfigError, match=message) as refused:
        read(line)

    assert refused.value.where == where
    assert refused.value.hint


@pytest.mark.parametrize("line", ["--stage-id -1", "--stage-id one", "--omni-dp-size-local 0", "--omni-master-port 0"])
def test_values_that_cannot_be_are_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SB-03."""
    with pytest.raises(SystemExit) as refused:
        parse(line)

    assert refused.value.code == 2
    assert line.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(("line", "reason"), [("--headless", "a worker has no API server"), ("", "a head has one API server")])
def test_stage_command_has_no_further_api_servers(line: str, reason: str) -> None:
    """SB-03."""
    with pytest.raises(ConfigError, match=reason) as refused:
        read(f"{line} --stage-id 1 --api-server-count 2 {HEAD}")

    assert refused.value.where == "--api-server-count"


def test_replica_id_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """SB-03."""
    assert read(f"--headless --stage-id 1 --replica-id 4 {HEAD}") is not None
    assert "--replica-id is ignored" in caplog.text


def test_token_is_needed_off_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """SB-10."""
    line = "--stage-id 0 --omni-master-address 192.0.2.7 --omni-master-port 26000"
    with pytest.raises(ConfigError, match="there is no token") as refused:
        read(line)
    monkeypatch.setenv("OMNI_TOKEN", "a long secret")

    flags = read(line)

    assert "OMNI_TOKEN" in refused.value.hint
    assert flags is not None
    assert flags.address.token == "a long secret"
    assert "a long secret" not in repr(flags)


def test_token_on_the_command_line_is_warned_of_and_one_in_a_file_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SB-10: `ps` shows what is on the command line."""
    (tmp_path / "token").write_text("a long secret\n")

    from_file = read(f"--stage-id 0 {HEAD} --omni-token @{tmp_path / 'token'}")
    assert caplog.text == ""
    on_the_line = read(f"--stage-id 0 {HEAD} --omni-token a-long-secret")

    assert from_file is not None
    assert from_file.address.token == "a long secret"
    assert on_the_line is not None
    assert "everybody on this host can read --omni-token" in caplog.text


def test_hint_for_a_missing_stage_is_a_command_that_can_be_run() -> None:
    """SB-11: what the head suggests is understood by the same parser."""
    args = parse(f"--stage-id 0 {HEAD} --deploy-config a.yaml --deploy-config b.yaml --max-num-seqs 3")
    plain = worker_command(args, "my model", HeadAddress("127.0.0.1", 26000))(2)

    assert plain == (
        "omni serve 'my model' --stage-id 2 --headless --omni-master-address 127.0.0.1 --omni-master-port 26000 "
        "--deploy-config a.yaml --deploy-config b.yaml"
    )
    assert worker_command(args, "m", HeadAddress("h", 1, "a long secret"))(2).startswith("OMNI_TOKEN=... omni serve m ")
