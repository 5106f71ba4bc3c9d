"""Small facts of a prompt's images, audio and video, as vLLM's processor found them, for the stages after this one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_MAX_ELEMENTS = 16
"""Fields with more elements are data, not facts."""
_MAX_ITEMS = 65_536
"""Items whose facts are kept: more than any cache of processed inputs holds."""

Facts = Mapping[str, np.ndarray[Any, Any]]


class FactCache:
    """Read the facts of processed inputs, and remember them by the inputs' hashes.

    vLLM leaves out what its engine core has in its cache, so that an item that comes again brings no data.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Facts] = OrderedDict()

    def facts(self, prompt: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return `mm`: arrays by vLLM's names of fields, a row for each item in order; and `placeholders`: for each kind of
        input an int64 array [n, 2] of its items' first positions and lengths. None where the facts of an item are not known.
        """
        if prompt.get("type") != "multimodal":
            return {"mm": {}, "placeholders": {}}
        rows: dict[str, list[np.ndarray[Any, Any]]] = {}
        for modality, items in prompt["mm_kwargs"].items():
            for item, name in zip(items, prompt["mm_hashes"][modality], strict=True):
                found = self._item(item, f"{modality}:{name}")
                if found is None:
                    return None
                for key, value in found.items():
                    rows.setdefault(key, []).append(value)
        places = {
            modality: np.asarray([[place.offset, place.length] for place in ranges], np.int64).reshape(-1, 2)
            for modality, ranges in prompt["mm_placeholders"].items()
        }
        return {"mm": {key: np.stack(values) for key, values in rows.items()}, "placeholders": places}

    def _item(self, item: Any, key: str) -> Facts | None:
        if item is None or any(element.data is None for element in item.values()):
            return self._known.get(key)
        found = _facts_of(item)
        self._known[key] = found
        self._known.move_to_end(key)
        while len(self._known) > _MAX_ITEMS:
            self._known.popitem(last=False)
        return found


def _facts_of(item: Mapping[str, Any]) -> Facts:
    found = {}
    for name, element in item.items():
        value = element.data
        if name.endswith("attention_mask") and isinstance(value, torch.Tensor):
            name, value = f"{name}_lengths", value.sum()
        if not isinstance(value, (bool, int, float, torch.Tensor)):
            continue
        array = torch.as_tensor(value).cpu()
        if array.numel() > _MAX_ELEMENTS:
            continue
        plain = array.float() if array.is_floating_point() else array if array.dtype == torch.bool else array.long()
        found[name] = plain.numpy().reshape(() if plain.numel() == 1 else plain.shape)
    return found


def prompt_counts(prompt: Mapping[str, Any]) -> dict[str, float]:
    """Return how many positions of a prompt each kind of input has: `prompt_audio_tokens` and so on.

    A video and its sound share one range; of it each has its own positions, and the marks are text.
    """
    places = prompt.get("mm_placeholders") or {}
    return {
        f"prompt_{kind}_tokens": float(sum(place.get_num_embeds() for place in found))
        for kind, found in places.items()
        if found
    }
