"""Serve a tiny checkpoint and ask it for speech over HTTP, as `scripts/demo` does after the set-up.

.venv/bin/python scripts/demo.py [--model DIR_OR_NAME] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import NoReturn

import openai
import psutil

ROOT = Path(__file__).resolve().parents[1]
OMNI = Path(sys.executable).with_name("omni")
TEXT = "Good morning. Two engines are at work here: one writes codes, the other turns them into sound."
RATE = 24000
"""Samples per second of `pcm` answers: mono, 16 bits."""
MOST_FRAMES = 60
"""Cap on codec frames, 12.5 a second: random weights do not know when to stop."""
READY_S = 240.0
REQUEST_S = 180.0
STOP_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What one request gave."""

    path: Path
    first_s: float
    """Seconds until the first bytes of audio."""
    total_s: float
    audio_s: float

    def __str__(self) -> str:
        factor = self.total_s / self.audio_s if self.audio_s else float("inf")
        return (
            f"{self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path}: {self.audio_s:.2f} s of audio "
            f"in {self.total_s:.2f} s (real-time factor {factor:.2f}), first audio after {self.first_s:.2f} s"
        )


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description="Serve a checkpoint and ask it for speech over HTTP.")
    parser.add_argument("--model", help="a checkpoint instead of a tiny one: a folder, or a name on the Hugging Face Hub")
    parser.add_argument("--out", type=Path, default=ROOT / "demo", help="folder for the .wav files (default: demo)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="omni-demo-") as scratch:
        model = options.model or str(build_tiny(Path(scratch) / "qwen3_tts"))
        step(f"Starting: omni serve {options.model or 'TINY_CHECKPOINT'} --port 0")
        with serving(model, Path(scratch) / "serve.log") as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=REQUEST_S, max_retries=0)
            request = {
                "model": client.models.list().data[0].id,
                "voice": first_voice(model),
                "input": TEXT,
                "extra_body": {} if options.model else {"max_new_tokens": MOST_FRAMES},
            }
            step(f"Asking for speech with the openai client, model {request['model']}, voice {request['voice']}")
            say(f"whole:    {ask_whole(client, request, options.out / 'whole.wav')}")
            say(f"streamed: {ask_streamed(client, request, options.out / 'streamed.wav')}")
    if not options.model:
        step("What you hear is noise: the weights of the tiny checkpoint are random numbers. The path is the real one.")
        say("With a GPU and a real checkpoint (4 GB):")
        say("    omni serve Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
        say("    scripts/demo --model Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
    return 0


def build_tiny(folder: Path) -> Path:
    """Build a tiny checkpoint with random weights and return its folder."""
    step("Building a tiny Qwen3-TTS checkpoint with random weights: omni tiny qwen3_tts DIR")
    subprocess.run([OMNI, "tiny", "qwen3_tts", str(folder)], check=True, timeout=READY_S)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{size / 2**20:.1f} MiB, in the file layout of the real one")
    return folder


def first_voice(model: str) -> str:
    """Return a speaker of the checkpoint, or one of the published CustomVoice checkpoints where it is not on this disk."""
    config = Path(model) / "config.json"
    if not config.exists():
        return "vivian"
    return next(iter(json.loads(config.read_text())["talker_config"]["spk_id"]))


@contextmanager
def serving(model: str, log: Path) -> Iterator[str]:
    """Yield the address of a running `omni serve`; stop it and check that it left nothing.

    Raises:
        SystemExit: It did not become ready, did not end with 0, or left something behind.
    """
    before = shared_memory()
    started = time.monotonic()
    with log.open("w") as errors:
        server = subprocess.Popen(
            [OMNI, "serve", model, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
    family: list[psutil.Process] = []
    try:
        url = wait_for_address(server, log)
        family = psutil.Process(server.pid).children(recursive=True)
        for line in re.findall(r"stage \d+.* ready in [\d.]+ s", log.read_text(errors="replace")):
            say(line)
        say(f"{url} ready after {time.monotonic() - started:.1f} s, {len(family) + 1} processes")
        yield url
    except BaseException:  # the server must not outlive a failed or interrupted demo
        stop(server, family, log, before, check=False)
        raise
    stop(server, family, log, before, check=True)


def wait_for_address(server: subprocess.Popen[str], log: Path) -> str:
    """Return the address from the server's `Listening on` line."""
    lines: Queue[str] = Queue()

    def read() -> None:
        assert server.stdout is not None
        for line in server.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + READY_S
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except Empty:
            break
        if found := re.match(r"Listening on (http://\S+)", line):
            return found[1]
        if not line:
            fail(f"the server ended before it was ready (exit code {server.wait(STOP_S)})", log)
    fail(f"the server was not ready after {READY_S:.0f} s", log)


def stop(
    server: subprocess.Popen[str], family: list[psutil.Process], log: Path, before: dict[str, int], *, check: bool
) -> None:
    """Stop the server with SIGTERM; with `check`, insist on exit code 0 and on nothing left."""
    started = time.monotonic()
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        code = server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(STOP_S)
        fail(f"the server did not end within {STOP_S:.0f} s of SIGTERM and was killed", log)
    if not check:
        return
    _, alive = psutil.wait_procs(family, timeout=10)
    left = [*alive, *orphans(before), *Path(tempfile.gettempdir()).glob(f"omni-{server.pid}-*")]
    if code or left:
        fail(f"the server ended with exit code {code} and left {left}", log)
    step(f"Stopped in {time.monotonic() - started:.1f} s: exit code 0; no process, shared memory or run directory left")


def shared_memory() -> dict[str, int]:
    """Return this user's files of shared memory, by inode."""
    found = {}
    for path in Path("/dev/shm").glob("*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            if status.st_uid == os.getuid():
                found[path.name] = status.st_ino
    return found


def orphans(before: dict[str, int]) -> list[str]:
    """Return new files of shared memory that no process uses; those of other programs are in use."""
    new = {inode: name for name, inode in shared_memory().items() if before.get(name) != inode}
    for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
        with suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                if "/dev/shm/" in line:
                    new.pop(int(line.split()[4]), None)
    return sorted(new.values())


def ask_whole(client: openai.OpenAI, request: dict[str, object], path: Path) -> Answer:
    """Ask for a whole .wav file."""
    started = time.monotonic()
    answer = client.audio.speech.create(**request, response_format="wav")  # type: ignore[arg-type]
    path.write_bytes(answer.content)
    total_s = time.monotonic() - started
    with wave.open(str(path)) as file:
        return Answer(path, total_s, total_s, file.getnframes() / file.getframerate())


def ask_streamed(client: openai.OpenAI, request: dict[str, object], path: Path) -> Answer:
    """Ask for a stream of samples and write them as .wav."""
    started, first_s, samples = time.monotonic(), 0.0, bytearray()
    speech = client.audio.speech.with_streaming_response
    with speech.create(**request, response_format="pcm", stream_format="audio") as answer:  # type: ignore[arg-type]
        for data in answer.iter_bytes():
            first_s = first_s or time.monotonic() - started
            samples += data
    total_s = time.monotonic() - started
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples)
    return Answer(path, first_s, total_s, len(samples) / 2 / RATE)


def step(text: str) -> None:
    """Print one step of the demo."""
    print(f"\n{text}", flush=True)


def say(text: str) -> None:
    """Print one fact about the step."""
    print(f"  {text}", flush=True)


def fail(text: str, log: Path) -> NoReturn:
    """End the demo with a message and the end of the server's log."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    sys.exit(f"demo: {text}\n--- end of the server's log ---\n{tail}")


if __name__ == "__main__":
    sys.exit(main())
