"""Facts of processed inputs, on records shaped like vLLM's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="facts are read from tensors")

from omni_core.engine.ar.mm_facts import FactCache, prompt_counts  # noqa: E402

pytestmark = pytest.mark.engine


def item(**fields: Any) -> dict[str, Any]:
    return {name: SimpleNamespace(data=value) for name, value in fields.items()}


def place(offset: int, length: int, embeds: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(offset=offset, length=length, get_num_embeds=lambda: length if embeds is None else embeds)


def prompt(items: dict[str, list[Any]], hashes: dict[str, list[str]] | None = None) -> dict[str, Any]:
    places = {kind: [place(10 * n, 3) for n in range(len(found))] for kind, found in items.items()}
    names = hashes or {kind: [f"{kind}{n}" for n in range(len(found))] for kind, found in items.items()}
    return {"type": "multimodal", "mm_kwargs": items, "mm_hashes": names, "mm_placeholders": places}


def image(height: int) -> dict[str, Any]:
    return item(pixel_values=torch.zeros(40, 8), image_grid_thw=torch.tensor([1, height, 6]))


def test_small_fields_are_stacked_and_large_ones_left_out() -> None:
    found = FactCache().facts(prompt({"image": [image(4), image(8)]}))

    assert found is not None
    assert set(found["mm"]) == {"image_grid_thw"}
    assert found["mm"]["image_grid_thw"].tolist() == [[1, 4, 6], [1, 8, 6]]
    assert found["mm"]["image_grid_thw"].dtype == np.int64
    assert found["placeholders"]["image"].tolist() == [[0, 3], [10, 3]]


def test_scalars_masks_and_flags_are_rows_of_their_own() -> None:
    audio = item(
        feature_attention_mask=torch.tensor([[1] * 30 + [0] * 10]),
        audio_feature_lengths=torch.tensor([30]),
        use_audio_in_video=torch.tensor(True),
        second_per_grid_ts=torch.tensor(0.5),
        name="text",
    )

    found = FactCache().facts(prompt({"audio": [audio, audio]}))

    assert found is not None
    values = {name: array.tolist() for name, array in found["mm"].items()}
    assert values == {
        "feature_attention_mask_lengths": [30, 30],
        "audio_feature_lengths": [30, 30],
        "use_audio_in_video": [True, True],
        "second_per_grid_ts": [0.5, 0.5],
    }


def test_an_item_that_the_engine_has_cached_is_remembered_by_its_hash() -> None:
    cache = FactCache()
    cache.facts(prompt({"image": [image(4)]}, {"image": ["h1"]}))

    again = cache.facts(prompt({"image": [None]}, {"image": ["h1"]}))

    assert again is not None
    assert again["mm"]["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert cache.facts(prompt({"image": [None]}, {"image": ["other"]})) is None
    assert cache.facts(prompt({"image": [item(image_grid_thw=None)]}, {"image": ["h1"]})) is not None


def test_a_prompt_of_text_has_none() -> None:
    assert FactCache().facts({"type": "token"}) == {"mm": {}, "placeholders": {}}
    assert prompt_counts({"type": "token"}) == {}


def test_positions_are_counted_by_kind() -> None:
    assert prompt_counts(prompt({"image": [image(4), image(4)], "audio": []})) == {"prompt_image_tokens": 6.0}


def test_a_video_and_its_sound_have_their_own_positions_of_one_range() -> None:
    both = {"mm_placeholders": {"video": [place(5, 318, 288)], "audio": [place(5, 318, 28)]}}

    assert prompt_counts(both) == {"prompt_video_tokens": 288.0, "prompt_audio_tokens": 28.0}
