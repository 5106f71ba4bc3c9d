"""Ask a running server what it hears, and play the spoken answer while it is made.

    omni serve Qwen/Qwen3-Omni-30B-A3B-Instruct
    python examples/chat.py http://127.0.0.1:8000 sound.wav answer.wav
    python examples/chat.py http://127.0.0.1:8000 sound.wav answer.wav --player "ffplay -f s16le -ar 24000 -ac 1 -nodisp -"

The answer is written into a file; with --player its samples also go to a program that reads them from its standard input.
Install the openai client first.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import shlex
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai import OpenAI

RATE = 24000


def main() -> None:
    """Describe a sound in text, then in speech."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="the server's, such as http://127.0.0.1:8000")
    parser.add_argument("sound", type=Path, help="a recording")
    parser.add_argument("answer", type=Path, help="a .wav file for the spoken answer")
    parser.add_argument("--player", help="a command that plays s16le samples of 24 kHz")
    options = parser.parse_args()
    client = OpenAI(base_url=f"{options.address}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = question(options.sound)
    written = client.chat.completions.create(model=model, messages=messages)
    print("in text:", written.choices[0].message.content)
    with sinks(options.answer, options.player) as play:
        speak(client, model, messages, play)


def question(sound: Path) -> list[Any]:
    """Return a conversation that asks about a recording."""
    data = base64.b64encode(sound.read_bytes()).decode()
    parts = [
        {"type": "input_audio", "input_audio": {"data": data, "format": sound.suffix[1:]}},
        {"type": "text", "text": "What do you hear?"},
    ]
    return [{"role": "user", "content": parts}]


def speak(client: OpenAI, model: str, messages: list[Any], play: Any) -> None:
    """Play the answer as it comes, and print what it says."""
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        modalities=["text", "audio"],
        audio={"voice": "default", "format": "pcm16"},
        stream=True,
    )
    print("spoken: ", end="")
    for chunk in stream:
        audio = chunk.choices[0].delta.audio if chunk.choices else None
        if audio is not None and audio.transcript:
            print(audio.transcript, end="", flush=True)
        if audio is not None and audio.data:
            play(base64.b64decode(audio.data))
    print()


@contextlib.contextmanager
def sinks(path: Path, player: str | None) -> Iterator[Any]:
    """Yield a function that takes samples: into the file, and to the player if there is one."""
    with wave.open(str(path), "wb") as file, contextlib.ExitStack() as stack:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        program = stack.enter_context(subprocess.Popen(shlex.split(player), stdin=subprocess.PIPE)) if player else None

        def play(samples: bytes) -> None:
            file.writeframes(samples)
            if program is not None and program.stdin is not None:
                program.stdin.write(samples)
                program.stdin.flush()

        yield play


if __name__ == "__main__":
    main()
