"""What runs servers in tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omni_server.testing import READY, _wait_for_ready


def test_ready_line_is_found_behind_one_that_came_with_it(tmp_path: Path) -> None:
    program = f"import os; os.write(1, b'a library says hello\\n{READY}http://x\\n'); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert _wait_for_ready(process, tmp_path / "log", 30.0, command) == "http://x"
        process.communicate("\n")
