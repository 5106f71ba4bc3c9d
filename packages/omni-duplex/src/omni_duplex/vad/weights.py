"""Where the weights of Silero's speech detector are: given, fetched before, or in its own package.

Its package needs torch, which a frontend process must not load; only the file of weights is taken out of the wheel.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from omni_core.errors import ConfigError, DependencyError

VERSION = "6.2.3"
MEMBER = "silero_vad/data/silero_vad_16k_op15.onnx"
SHA256 = "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"
FETCH_TIMEOUT_S = 300.0


def cache_file() -> Path:
    """Return where fetched weights are kept: under `XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "omni" / f"silero_vad-{VERSION}.onnx"


def find_weights(given: str | None = None) -> Path:
    """Return the file of weights.

    Args:
        given: `duplex_session.server_vad_model_path`.

    Raises:
        ConfigError: The file that was given is not there.
        DependencyError: There is none anywhere; the hint says how to get it.
    """
    if given is not None:
        if not Path(given).is_file():
            raise ConfigError(
                f"there is no file {given}",
                where="duplex_session.server_vad_model_path",
                hint="name the ONNX file of Silero VAD, or leave it out and run `omni vad`",
            )
        return Path(given)
    if cache_file().is_file():
        return cache_file()
    try:
        package = importlib.metadata.distribution("silero-vad")
    except importlib.metadata.PackageNotFoundError:
        package = None
    if package is not None and (found := Path(str(package.locate_file(MEMBER)))).is_file():
        return found
    raise DependencyError(
        "the weights of the speech detector are not there", where="turn detection", hint="run `omni vad` once"
    )


def fetch_weights() -> Path:
    """Download the weights from PyPI with pip, check them and keep them.

    Raises:
        DependencyError: pip failed, or the file is not the one that is expected.
    """
    target = cache_file()
    with tempfile.TemporaryDirectory(prefix="omni-vad-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", folder]
        try:
            done = subprocess.run(
                [*command, f"silero-vad=={VERSION}"], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise DependencyError(f"pip took more than {FETCH_TIMEOUT_S:g} s", where="omni vad", hint="try again") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise DependencyError(f"pip could not download silero-vad: {reason}", where="omni vad", hint="look at the network")
        data = zipfile.ZipFile(wheels[0]).read(MEMBER)
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise DependencyError("the weights are not the ones expected", where=MEMBER, hint=f"report it; wanted {SHA256}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, target)
    return target
