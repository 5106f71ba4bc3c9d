"""Where a checkpoint's codec is: beside the talker, in a folder of its own, or in another repository."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError, DependencyError
from omni_core.model_info import read_model_info
from omni_core.modelkit.config_reader import read_json
from omni_core.stage import ResolvedStage
from omni_models_moss.pipeline import CODEC_FOLDER

NAME = "audio_tokenizer_name_or_path"
"""What a deployment calls the codec's folder or repository, in `hf_overrides`."""
NAMES = (NAME, "audio_tokenizer_pretrained_name_or_path", "codec_model_name_or_path")
"""Where talkers' config.json and processor_config.json name the repository of their codec."""
PUBLISHED = "codec"
"""Among a stage's `extras`: the repository of the codec that the published talkers belong to."""


def find_codec(stage: ResolvedStage) -> Path:
    """Return the folder of the codec that a stage needs, fetching its repository if need be.

    The first of these that is there: what `hf_overrides: {audio_tokenizer_name_or_path: ...}` of the stage names, the folder
    `audio_tokenizer` of the stage's checkpoint, that checkpoint itself (`model:` of the stage names one), what the talker's
    config.json or processor_config.json names, and the codec that the pipeline's published talkers belong to.

    Raises:
        ConfigError: There is none.
        DependencyError: A repository cannot be fetched.
    """
    folder = Path(stage.model)
    if (chosen := _chosen(stage)) is not None:
        return chosen if isinstance(chosen, Path) else _folder(chosen, folder)
    published, reason = stage.topology.extras.get(PUBLISHED), ""
    if published:
        try:
            return _folder(str(published), folder)
        except DependencyError as error:
            reason = f"; the published one, {published}, is not here either: {error.message}"
    raise ConfigError(
        f"the checkpoint has no codec: there is no {_inside(stage)}, and config.json has no {NAME}{reason}",
        where=f"stage {stage.name}",
        hint=f"name the codec's folder or repository in the deploy file: hf_overrides: {{{NAME}: ...}} of the stage",
    )


def find_codec_config(stage: ResolvedStage) -> Path | None:
    """Return the config.json of the codec that `find_codec` finds, without fetching weights.

    None means the codec that the pipeline's published talkers belong to, whose sizes the caller knows: it is not fetched.

    Raises:
        ConfigError: What the stage names is no codec's folder.
        DependencyError: What it names is a repository that cannot be fetched.
    """
    chosen = _chosen(stage)
    if chosen is None or chosen == stage.topology.extras.get(PUBLISHED):
        return None
    return (chosen if isinstance(chosen, Path) else _folder(chosen, Path(stage.model), weights=False)) / "config.json"


def _chosen(stage: ResolvedStage) -> Path | str | None:
    """Return the codec's folder, or what names it; None where nobody chooses one."""
    if named := stage.config_overrides.get(NAME):
        return str(named)
    folder = Path(stage.model)
    if (_inside(stage) / "config.json").is_file():
        return _inside(stage)
    config = read_json(folder / "config.json")
    return folder if "quantizer_kwargs" in config else _named(config) or _named(_processor_config(folder))


def _inside(stage: ResolvedStage) -> Path:
    return Path(stage.model) / (stage.topology.model_subdir or CODEC_FOLDER)


def _named(raw: Mapping[str, Any]) -> str | None:
    return next((str(raw[name]) for name in NAMES if raw.get(name)), None)


def _processor_config(folder: Path) -> Mapping[str, Any]:
    """Return what describes the reference's processor; it may lie in a part of its own."""
    path = folder / "processor_config.json"
    raw = read_json(path) if path.is_file() else {}
    inner = raw.get("audio_tokenizer")
    return {**raw, **inner} if isinstance(inner, Mapping) else raw


def _folder(name: str, checkpoint: Path, *, weights: bool = True) -> Path:
    """Return the folder that a name means: beside config.json, a path, or a repository."""
    beside = checkpoint / name
    return beside if (beside / "config.json").is_file() else read_model_info(name, weights=weights).path
