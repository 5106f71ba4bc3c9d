"""The reference implementation of Qwen3-TTS as a baseline: the qwen-tts package, in an environment of its own.

It needs transformers 4 and Omni needs 5, so `.venv-reference` is made beside `.venv` on first use (some minutes). With
arguments, this file is the program that runs there:

    .venv-reference/bin/python benchmarks/reference.py MODEL VOICE FRAMES TEXT...
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-reference"
PYTHON = VENV / "bin" / "python"
TORCH = ["torch==2.13.0"]
LIBRARIES = [
    *("librosa", "soundfile", "soxr", "sox", "onnxruntime", "einops", "scikit-learn", "scipy"),
    *("regex", "requests", "filelock", "pyyaml", "tqdm", "packaging", "safetensors", "psutil"),
]
PINNED = ["qwen-tts==0.1.1", "transformers==4.57.3", "huggingface_hub==0.36.0", "tokenizers==0.22.1", "accelerate==1.12.0"]
INSTALL_S = 1800
RUN_S = 1800


class MissingReference(Exception):
    """Report that the reference cannot be installed or run here."""


def run_reference(model: Path, voice: str, texts: list[str], frames: int) -> list[float]:
    """Return the seconds that the reference takes for each text, one after another, after a warm-up.

    Raises:
        MissingReference: It cannot be installed or run here; the message has the end of its output.
    """
    if not (VENV / ".complete").exists():
        _install()
    command = [str(PYTHON), __file__, str(model), voice, str(frames), *texts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise MissingReference(done.stderr[-2000:])
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def _install() -> None:
    print(f"reference: making {VENV} (some minutes)", file=sys.stderr)
    steps = [[sys.executable, "-m", "venv", str(VENV)]]
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    steps += [[*pip, *TORCH], [*pip, *LIBRARIES], [*pip, "--no-deps", *PINNED]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            raise MissingReference(done.stderr[-2000:])
    (VENV / ".complete").touch()


def generate(model_folder: str, voice: str, frames: int, texts: list[str]) -> list[float]:
    """Return the seconds for each text; runs in the reference's environment."""
    import torch
    import transformers.audio_utils  # noqa: F401  (it must see that torchaudio is absent before the stand-in comes)

    torch.set_num_threads(1)
    _stand_in_for_torchaudio()
    from qwen_tts import Qwen3TTSModel

    model = Qwen3TTSModel.from_pretrained(model_folder, device_map="cpu", dtype=torch.float32)
    greedy = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.05, "max_new_tokens": frames + 1}
    seconds = []
    for text in [texts[0], *texts]:
        started = time.perf_counter()
        model.generate_custom_voice(text=text, speaker=voice, language="English", instruct=None, **greedy)
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def _stand_in_for_torchaudio() -> None:
    """Offer the name: qwen-tts imports it for a tokenizer that is not used here, and PyPI's wheel needs CUDA."""
    outer, middle, inner = (
        types.ModuleType(name) for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi")
    )
    for module in (outer, middle, inner):
        module.__spec__ = ModuleSpec(module.__name__, None)
        module.__path__ = []
        sys.modules[module.__name__] = module
    outer.compliance = middle  # type: ignore[attr-defined]
    middle.kaldi = inner  # type: ignore[attr-defined]


if __name__ == "__main__":
    folder, speaker, most, *lines = sys.argv[1:]
    print(json.dumps(generate(folder, speaker, int(most), lines)))
