"""Start a server, ask it for speech while it is made, and stop it.

    python examples/serve_and_call.py MODEL "Hello, I am speaking." hello.wav

MODEL is a name on the Hugging Face Hub or a folder, for instance one that `omni tiny qwen3_tts FOLDER` made. Install the
openai client first.
"""

from __future__ import annotations

import subprocess
import sys
import wave

from openai import OpenAI

RATE = 24000


def main(model: str, text: str, path: str) -> None:
    """Speak `text` with `model` into the file `path`."""
    server = subprocess.Popen(["omni", "serve", model, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        address = wait_for_address(server)
        speak(address, text, path)
    finally:
        server.terminate()
        server.wait(timeout=60)


def wait_for_address(server: subprocess.Popen[str]) -> str:
    """Return the server's address; it prints `Listening on http://HOST:PORT` when it is ready, and ends if it cannot be."""
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("Listening on "):
            return line.removeprefix("Listening on ").strip()
    raise SystemExit("the server did not start; its messages are above")


def speak(address: str, text: str, path: str) -> None:
    """Write the speech for `text` into a .wav file, piece by piece as it is made."""
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    model = client.models.list().data[0].id
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        with client.audio.speech.with_streaming_response.create(
            model=model, voice="default", input=text, response_format="pcm", stream_format="audio"
        ) as answer:
            for samples in answer.iter_bytes():
                file.writeframes(samples)
                print(f"{file.getnframes() / RATE:.2f} s of audio")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
