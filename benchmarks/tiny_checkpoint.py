"""The checkpoint that the benchmarks serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build_tiny(folder: Path) -> Path:
    """Build a tiny Qwen3-TTS checkpoint with random weights and return its folder."""
    command = [sys.executable, "-m", "omni_core", "tiny", "qwen3_tts", str(folder), "--seed", "0"]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return folder
