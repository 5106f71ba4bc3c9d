"""Serve a tiny model from wheels, in an environment that has one model package and no other, for a session of nox.

    python serve_from_wheels.py MODULE TINY RATE CHANNELS

MODULE is the model package that must be there, TINY what `omni tiny` builds, RATE and CHANNELS what its audio must have. Run it
outside the checkout, with the Python of that environment.
"""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import urllib.request
import wave
from pathlib import Path

import omni_core
from omni_server.testing import serve

CHECKOUT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300


def main(module: str, tiny: str, rate: int, channels: int) -> int:
    """Run every check and return 0; the first that fails ends the program."""
    check_environment(module)
    with tempfile.TemporaryDirectory(prefix="omni-wheels-") as scratch:
        folder = Path(scratch)
        model = folder / "tiny"
        subprocess.run([sys.executable, "-m", "omni_core", "tiny", tiny, str(model)], check=True, timeout=TIMEOUT_S)
        with serve(model, log=folder / "stderr.log", timeout_s=TIMEOUT_S) as server:
            heard = speak(server.url)
    with wave.open(io.BytesIO(heard)) as sound:
        found = (sound.getframerate(), sound.getnchannels())
        expect(found == (rate, channels), f"the audio has {found} instead of {(rate, channels)}")
        expect(sound.getnframes() >= rate // 25, f"the audio has {sound.getnframes()} samples")
    print(f"wheels: served {tiny} with {module} alone: ok")
    return 0


def check_environment(module: str) -> None:
    """Check that the model package is the only one, and that nothing comes from the checkout."""
    models = sorted(d.name for d in metadata.distributions() if d.name.replace("_", "-").startswith("omni-models-"))
    expect(models == [module.replace("_", "-")], f"the environment has {models}")
    places = [spec.origin or "" for name in (module, "omni_server") if (spec := importlib.util.find_spec(name)) is not None]
    expect(len(places) == 2, f"{module} or omni_server cannot be imported")
    for place in (*places, str(omni_core.__file__)):
        expect(not Path(place).resolve().is_relative_to(CHECKOUT / "packages"), f"{place} is the checkout's")


def speak(url: str) -> bytes:
    """Return the answer to a request for speech."""
    body = json.dumps({"input": "Hello there world", "max_new_tokens": 12, "response_format": "wav"}).encode()
    request = urllib.request.Request(f"{url}/v1/audio/speech", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        audio: bytes = answer.read()
    return audio


def expect(condition: bool, message: str) -> None:
    """End the program with a message unless the condition holds."""
    if not condition:
        sys.exit(f"wheels: {message}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
