"""`omni bench connector` from outside: what it writes, what it refuses, and that it loads torch in its children only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omni_connectors.bench.command import parse_sizes
from omni_core.errors import ConfigError

SHORT = ("--sizes", "1KiB,1MiB", "--seconds", "0.05", "--rounds", "2")


def bench(*arguments: str, module: str = "omni_core") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, "bench", "connector", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_sizes_are_read() -> None:
    assert parse_sizes("1, 2KiB,3MiB,1GiB") == [1, 2048, 3 << 20, 1 << 30]


@pytest.mark.parametrize("text", ["", "0", "1KB", "2GiB", "-1", "1KiB,,"], ids=repr)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_sizes(text)


def test_it_writes_a_table_and_json(tmp_path: Path) -> None:
    done = bench(*SHORT, "--no-baselines", "--json", str(tmp_path / "out.json"))

    assert done.returncode == 0, done.stderr
    assert "1 MiB" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["schema"] == "omni-bench-connector/1"
    found = {(cell["way"], cell["nbytes"]): cell for cell in written["cells"]}
    assert set(found) == {
        (way, size) for way in ("memcpy", "message alone", "SharedMemoryConnector") for size in (1024, 1 << 20)
    }
    for (way, _), cell in found.items():
        assert cell["n"] >= 8
        assert 0 < cell["p10_us"] <= cell["p50_us"] <= cell["p90_us"]
        assert cell["put_p50_us"] <= cell["p50_us"]
        assert (cell["gb_per_s"] > 0) == (way != "message alone")
        assert way == "message alone" or (cell["of_memcpy"] > 0 and cell["stream_of_memcpy"] > 0)
        assert cell["times_segment"] is None


@pytest.mark.engine
def test_all_ways_are_measured_in_one_run_and_torch_is_loaded_by_its_own_processes_only(tmp_path: Path) -> None:
    script = (
        "import sys; from omni_core.cli import main; "
        f"code = main(['bench', 'connector', *{[*SHORT, '--json', str(tmp_path / 'out.json')]!r}]); "
        "print('HEAVY', *sorted({'torch', 'zmq'} & set(sys.modules))); sys.exit(code)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY"
    ways = {cell["way"] for cell in json.loads((tmp_path / "out.json").read_text())["cells"]}
    assert ways == {
        "memcpy",
        "message alone",
        "ZeroMQ ipc",
        "torch.multiprocessing",
        "segment per payload",
        "SharedMemoryConnector",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--connector", "SharedMemoryConector"), "did you mean 'SharedMemoryConnector'?"),
        (("--sizes", "huge"), "no size"),
        (("--seconds", "0"), "above 0"),
        (("--extra", '{"Other": {}}'), "its keys"),
        (("--extra", "{"), "--extra"),
    ],
    ids=str,
)
def test_a_wrong_flag_ends_with_2(arguments: tuple[str, ...], message: str) -> None:
    done = bench(*arguments)

    assert done.returncode == 2
    assert message in done.stderr


def test_a_connector_that_cannot_start_ends_the_run_with_an_error() -> None:
    done = bench(*SHORT, "--no-baselines", "--extra", '{"SharedMemoryConnector": {"size": 1}}')

    assert done.returncode == 1
    assert "a process of SharedMemoryConnector ended" in done.stderr
    assert "takes no options" in done.stderr
