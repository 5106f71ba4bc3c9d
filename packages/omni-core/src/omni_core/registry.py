"""The registry: pipelines and architectures that plugins offer, and the choice of a checkpoint's pipeline."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from omni_core.errors import ConfigError
from omni_core.plugins import Offer, PluginManager, clash, describe, unique_by_name
from omni_core.suggest import did_you_mean, way_out

if TYPE_CHECKING:
    from omni_core.model_info import ModelInfo
    from omni_core.pipeline import PipelineConfig

logger = logging.getLogger(__name__)


def pipelines(manager: PluginManager) -> dict[str, Offer[PipelineConfig]]:
    """Return every offered pipeline by key, which is its `model_type` (RG-01, RG-02).

    Raises:
        ConfigError: Two distributions offer one key.
    """
    return unique_by_name(manager.collect("omni_pipelines"), "pipeline", "model_type")


def architectures(manager: PluginManager) -> dict[str, str]:
    """Return the targets of model classes by architecture name.

    Raises:
        ConfigError: Two distributions offer one architecture.
    """
    owners: dict[str, str] = {}
    found: dict[str, str] = {}
    for distribution, mapping in manager.collect("omni_architectures"):
        for name, target in mapping.items():
            if name in owners:
                raise clash("architecture", name, owners[name], distribution)
            owners[name], found[name] = distribution, target
    return found


def resolve_pipeline(
    model: ModelInfo, manager: PluginManager, *, key: str | None = None, where: str = ""
) -> Offer[PipelineConfig]:
    """Choose the pipeline of a checkpoint.

    The order is: the key of the deploy file's `pipeline:` (RG-04), the hook `omni_resolve_pipeline`, the checkpoint's
    `model_type` (RG-05, RG-06), its architectures with the pipelines' predicates (RG-07), and where nothing of this says
    anything, a key in the checkpoint's name.

    Args:
        model: The checkpoint.
        manager: The plugins.
        key: The value of `pipeline:`, if the user gave one.
        where: The place of that value.

    Raises:
        ConfigError: The key is not known, two pipelines match (RG-08), or none does.
    """
    offers = pipelines(manager)
    if key is not None:
        return _by_key(key, offers, manager, where)
    chosen = manager.first("omni_resolve_pipeline", model=model)
    if chosen is not None:
        return _by_key(chosen[1], offers, manager, f"omni_resolve_pipeline of {chosen[0]}")
    inferred = _infer_key(model, offers)
    if inferred in offers and _accepts(offers[inferred], model):
        return offers[inferred]
    matches = [
        offer
        for offer in offers.values()
        if set(offer.record.hf_architectures) & set(model.architectures) and _accepts(offer, model)
    ]
    if len(matches) > 1:
        raise _ambiguous(model, matches, "architectures")
    if matches:
        return matches[0]
    named = None if model.model_type else _key_in_name(model, offers)
    if named is not None and _accepts(offers[named], model):
        return offers[named]
    raise _unknown_model(model, offers, manager)


def _by_key(key: str, offers: Mapping[str, Offer[PipelineConfig]], manager: PluginManager, where: str) -> Offer[PipelineConfig]:
    if key not in offers:
        hint = "; ".join(filter(None, (did_you_mean(key, offers), _known(offers), *_broken(manager))))
        raise ConfigError(f"there is no pipeline {key!r}", where=where, hint=hint, param="pipeline")
    return offers[key]


def _infer_key(model: ModelInfo, offers: Mapping[str, Offer[PipelineConfig]]) -> str | None:
    """Return the first of: `model_type`, a single `architecture`, the Diffusers class, a key in the checkpoint's name."""
    if model.model_type:
        return model.model_type
    if isinstance(single := model.config.get("architecture"), str):
        return single
    if class_name := model.diffusers_class:
        names = [
            offer
            for offer in offers.values()
            if class_name in (offer.record.diffusers_class_name, *offer.record.diffusers_class_aliases)
        ]
        if len(names) > 1:
            raise _ambiguous(model, names, f"the Diffusers class {class_name}")
        if names:
            return names[0].record.model_type
    return None if model.architectures else _key_in_name(model, offers)


def _key_in_name(model: ModelInfo, offers: Mapping[str, Offer[PipelineConfig]]) -> str | None:
    """Return the longest key that the last part of the checkpoint's name has in it."""
    tail = _plain(model.reference.rstrip("/").rsplit("/", 1)[-1])
    return max((key for key in offers if _plain(key) in tail), key=len, default=None)


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name.lower())


def _accepts(offer: Offer[PipelineConfig], model: ModelInfo) -> bool:
    predicate = offer.record.hf_config_predicate
    if predicate is None:
        return True
    try:
        return bool(predicate(model.config))
    except Exception as error:  # noqa: BLE001 - a predicate is a plugin's code; one that fails must not stop another pipeline (RG-07)
        logger.error(
            "the predicate of pipeline %s (%s) failed and is taken as no: %s",
            offer.record.model_type,
            offer.distribution,
            describe(error),
        )
        return False


def _ambiguous(model: ModelInfo, matches: list[Offer[PipelineConfig]], by: str) -> ConfigError:
    names = " and ".join(f"{offer.record.model_type!r} ({offer.distribution})" for offer in matches)
    return ConfigError(
        f"{model.reference}: pipelines {names} both match by {by}",
        hint="choose one with `pipeline: KEY` in a deploy file",
        param="pipeline",
    )


def _unknown_model(model: ModelInfo, offers: Mapping[str, Offer[PipelineConfig]], manager: PluginManager) -> ConfigError:
    facts = [f"model_type {model.model_type!r}"] if model.model_type else []
    facts += [f"architectures {', '.join(model.architectures)}"] if model.architectures else []
    described = " and ".join(facts) or "neither model_type nor architectures in its config.json"
    names = [model.model_type] if model.model_type else list(model.architectures)
    known = [*offers, *(name for offer in offers.values() for name in offer.record.hf_architectures)]
    guesses = [did_you_mean(name, known) for name in names]
    hint = "; ".join(filter(None, (*guesses, _known(offers), *_broken(manager), "install the package of this model")))
    return ConfigError(f"no pipeline serves {model.reference}, which has {described}", hint=hint, param="model")


def _known(offers: Mapping[str, Offer[PipelineConfig]]) -> str:
    return way_out("", offers, "known pipelines")


def _broken(manager: PluginManager) -> list[str]:
    return [
        f"plugin {report.name} is {report.status} ({report.reason})"
        for report in manager.reports
        if report.status in {"broken", "incompatible", "blocked"}
    ]
