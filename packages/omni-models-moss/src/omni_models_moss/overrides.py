"""What stages may replace of their config.json (`hf_overrides`), checked in the main process before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.deploy.notes import warn
from omni_core.stage import ResolvedStage
from omni_models_moss.codec.location import NAME

OTHER_CODECS = frozenset({"codec_attention_backend"})
"""Settings of other servers' codecs. MO-02 has them, and the codec's own log says that they change nothing."""


def check_overrides(stages: Sequence[ResolvedStage]) -> None:
    """Warn about overrides that change nothing, and about a codec that only one of the two stages uses.

    Args:
        stages: The talker and the codec.
    """
    talker, codec = stages[0], stages[-1]
    if unused := ", ".join(sorted(codec.config_overrides.keys() - OTHER_CODECS - {NAME})):
        warn(
            f"stage {codec.name}: hf_overrides: {unused}: no effect: the codec's sizes are those of its config.json; "
            f"{NAME} says which codec it is"
        )
    heard, spoken = (stage.config_overrides.get(NAME) for stage in (talker, codec))
    if heard != spoken:
        warn(
            f"hf_overrides: {NAME} is {_said(heard)} for stage {talker.name}, which encodes recordings, "
            f"and {_said(spoken)} for stage {codec.name}, which decodes: name one codec for both"
        )


def _said(name: object) -> str:
    return "not set" if name is None else repr(name)
