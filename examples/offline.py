"""Speak several texts from Python, without a server.

    python examples/offline.py MODEL FOLDER

MODEL is a name on the Hugging Face Hub or a folder, for instance one that `omni tiny qwen3_tts FOLDER` made.
"""

from __future__ import annotations

import sys
from pathlib import Path

import soundfile

from omni_core import Omni, SpeechPrompt

TEXTS = ("Good morning.", "The train leaves at five.", "Nobody knew who had opened the window.")


def main(model: str, folder: Path) -> None:
    """Write one .wav file for each text."""
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [SpeechPrompt(text=text, language="English", max_new_tokens=200, seed=0) for text in TEXTS]
    with Omni(model) as omni:
        results = omni.generate(prompts)
    for number, result in enumerate(results):
        assert result.audio is not None
        assert result.sample_rate is not None
        path = folder / f"{number}.wav"
        soundfile.write(path, result.audio, result.sample_rate)
        print(f"{path}: {len(result.audio) / result.sample_rate:.2f} s, ended by {result.finish_reason}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
