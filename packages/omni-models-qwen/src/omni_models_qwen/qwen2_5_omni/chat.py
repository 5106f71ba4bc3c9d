"""What conversations Qwen2.5-Omni answers, from its files. Read in the server's process; imports nothing heavy."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_core.chat import ChatTraits
from omni_core.errors import ConfigError
from omni_models_qwen.qwen3_omni.chat import INPUTS, SAMPLE_RATE, default_voice, silent_traits

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo

__all__ = ["chat_traits", "silent_traits"]

VOICES_FILE = "spk_dict.pt"
_SAMPLES_PER_FRAME = 480
DEFAULT_VOICE = "chelsie"
"""The reference's; a checkpoint without it speaks with its first voice."""

DAMAGED = (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError, StopIteration, RuntimeError, pickle.UnpicklingError),
    *(AttributeError, LookupError, TypeError, ValueError),  # what a pickle raises whose parts do not fit each other
)
"""What reading a file can raise that is no archive of a pickle, or a damaged one."""


def chat_traits(model: ModelInfo) -> ChatTraits:
    """Return the traits of a checkpoint that speaks.

    Raises:
        ConfigError: The file with its voices is missing or damaged.
    """
    voices = voice_names(model.path / VOICES_FILE)
    return ChatTraits(INPUTS, voices, default_voice(voices, DEFAULT_VOICE), SAMPLE_RATE, samples_per_frame=_SAMPLES_PER_FRAME)


def voice_names(path: Path) -> tuple[str, ...]:
    """Return the voices in a file that torch has written, without torch: the keys of the mapping that it holds.

    Raises:
        ConfigError: It is missing or no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            with archive.open(name) as file:
                found = _Outline(file).load()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing", hint="the checkpoint is not complete; fetch it again") from None
    except DAMAGED as error:
        raise ConfigError(f"{path} cannot be read: {error!r}", hint="the file is damaged; fetch it again") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no voices by name", hint="fetch the checkpoint again")
    return tuple(str(key) for key in found)


class _Outline(pickle.Unpickler):
    """Read the shape of a pickle: whatever class it names is nothing here, so that nothing in it runs."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for every class and function: something that makes empty objects."""
        return _Nothing

    def persistent_load(self, pid: Any) -> None:
        """Return None for the data of a tensor."""
        return


class _Nothing(dict[Any, Any]):
    """An object of a class that is not looked at."""

    def __init__(self, *values: Any) -> None:
        super().__init__()
