from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omni_core.errors import ServiceError
from omni_models_qwen.talking.positions import MediaFacts, prompt_positions

IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END, TEXT = range(11, 19)


@pytest.fixture
def media() -> MediaFacts:
    return MediaFacts(IMAGE, VIDEO, AUDIO, merge_size=2, positions_per_second=13)


def image(height: int, width: int) -> list[int]:
    return [VISION_START, *[IMAGE] * (height * width // 4), VISION_END]


def video(steps: int, height: int, width: int) -> list[int]:
    return [VISION_START, *[VIDEO] * (steps * height * width // 4), VISION_END]


def audio(length: int) -> list[int]:
    return [AUDIO_START, *[AUDIO] * length, AUDIO_END]


def heard_video(steps: int, height: int, width: int, sound: int, *, family: str = "qwen3") -> list[int]:
    """Return a video whose sound lies between its patches: by time in Qwen3-Omni, in chunks of two seconds in Qwen2.5-Omni."""
    span = 1 if family == "qwen3" else 26
    patches = [(step * 13 // span, 0, VIDEO) for step in range(steps) for _ in range(height * width // 4)]
    block = sorted(patches + [(tick // span, 1, AUDIO) for tick in range(sound)], key=lambda entry: entry[:2])
    return [VISION_START, AUDIO_START, *[kind for *_, kind in block], AUDIO_END, VISION_END]


def text(length: int) -> list[int]:
    return [TEXT] * length


def found(media: MediaFacts, ids: list[int], facts: dict[str, Any], kept: Any = None, tail: int = 0) -> Any:
    array = np.array(ids)
    return prompt_positions(media, array, np.ones(len(ids), bool) if kept is None else kept, facts, tail)


def test_text_and_audio_count_up(media: MediaFacts) -> None:
    assert found(media, text(3) + audio(9) + text(2), {"audio_feature_lengths": [70]}) is None


@pytest.fixture
def transformers_positions() -> Callable[..., tuple[Any, int]]:
    """Return what transformers makes of a prompt in a family of models: positions [3, n], and what later ones are moved by."""
    torch = pytest.importorskip("torch")

    def positions(family: str, ids: list[int], facts: dict[str, Any]) -> tuple[Any, int]:
        name = {"qwen3": "qwen3_omni_moe", "qwen2.5": "qwen2_5_omni"}[family]
        reference = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        kind = next(value for key, value in vars(reference).items() if key.endswith("PreTrainedModelForConditionalGeneration"))
        config = SimpleNamespace(
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            audio_token_id=AUDIO,
            vision_start_token_id=VISION_START,
            audio_start_token_id=AUDIO_START,
            position_id_per_seconds=13,
            seconds_per_chunk=2,
            audio_config=SimpleNamespace(n_window=50),
        )
        model = SimpleNamespace(spatial_merge_size=2, config=config)
        for method in ("get_llm_pos_ids_for_vision", "get_chunked_index"):
            if hasattr(kind, method):
                setattr(model, method, partial(getattr(kind, method), model))
        grids = {key: torch.tensor(value) for key, value in facts.items()}
        tokens = torch.tensor([ids])
        found, delta = kind.get_rope_index(
            model,
            tokens,
            grids.get("image_grid_thw"),
            grids.get("video_grid_thw"),
            torch.ones_like(tokens),
            use_audio_in_video=AUDIO_START in ids,
            audio_seqlens=grids.get("audio_feature_lengths"),
            second_per_grids=grids.get("second_per_grid_ts"),
        )
        return found[:, 0].long().tolist(), int(delta)

    return positions


CASES = {
    "image": (text(5) + image(4, 6) + text(3), {"image_grid_thw": [[1, 4, 6]]}),
    "images": (image(2, 2) + image(8, 4) + text(1), {"image_grid_thw": [[1, 2, 2], [1, 8, 4]]}),
    "video": (text(2) + video(3, 4, 4) + text(4), {"video_grid_thw": [[3, 4, 4]], "second_per_grid_ts": [1.0]}),
    "videos and an image": (
        text(1) + video(2, 2, 4) + image(6, 2) + video(4, 2, 2) + text(2),
        {"image_grid_thw": [[1, 6, 2]], "video_grid_thw": [[2, 2, 4], [4, 2, 2]], "second_per_grid_ts": [2.0, 1.0]},
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("family", ["qwen3", "qwen2.5"])
@pytest.mark.parametrize(("ids", "facts"), CASES.values(), ids=CASES)
def test_positions_are_transformers(
    media: MediaFacts,
    family: str,
    ids: list[int],
    facts: dict[str, Any],
    transformers_positions: Callable[..., tuple[Any, int]],
) -> None:
    wanted, delta = transformers_positions(family, ids + text(9), facts)

    positions, moved = found(replace(media, shared_marks=family == "qwen2.5"), ids, facts, tail=9)

    assert positions.tolist() == wanted
    assert moved == delta


@pytest.mark.engine
@pytest.mark.parametrize(("family", "lengths"), [("qwen3", {28: 211, 6: 45}), ("qwen2.5", {28: 111, 6: 23})])
@pytest.mark.parametrize(
    ("videos", "sounds"),
    [([(2, 4, 4)], [28]), ([(4, 4, 4)], [6]), ([(1, 16, 16)], [6]), ([(3, 2, 4), (2, 4, 2)], [28, 6])],
    ids=["as long", "longer", "large", "two"],
)
def test_positions_of_videos_with_their_sound_are_transformers(
    media: MediaFacts,
    family: str,
    lengths: dict[int, int],
    videos: list[tuple[int, int, int]],
    sounds: list[int],
    transformers_positions: Callable[..., tuple[Any, int]],
) -> None:
    """`lengths` are the features that make so many positions of sound."""
    blocks = [heard_video(*grid, sound, family=family) for grid, sound in zip(videos, sounds, strict=True)]
    ids = text(2) + image(4, 2) + text(1) + [token for block in blocks for token in block] + text(3)
    facts = {
        "image_grid_thw": [[1, 4, 2]],
        "video_grid_thw": [list(grid) for grid in videos],
        "second_per_grid_ts": [1.0] * len(videos),
        "audio_feature_lengths": [lengths[sound] for sound in sounds],
    }
    wanted, delta = transformers_positions(family, ids + text(9), facts)

    positions, moved = found(replace(media, shared_marks=family == "qwen2.5"), ids, facts, tail=9)

    assert positions.tolist() == wanted
    assert moved == delta


def test_audio_beside_an_image_takes_one_position_after_the_other(media: MediaFacts) -> None:
    positions, moved = found(media, audio(3) + image(4, 4) + text(1), {"image_grid_thw": [[1, 4, 4]]})

    assert positions.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 8, 9],
        [0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 9],
        [0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 9],
    ]
    assert moved == -2


def test_the_audio_of_a_video_runs_beside_its_patches(media: MediaFacts) -> None:
    block = [VIDEO] * 2 + [AUDIO] * 14 + [VIDEO] * 2 + [AUDIO] * 2
    ids = [VISION_START, AUDIO_START, *block, AUDIO_END, VISION_END, TEXT]
    facts = {"video_grid_thw": [[2, 2, 4]], "second_per_grid_ts": [1.0], "use_audio_in_video": [True]}

    positions, _ = found(media, ids, facts)

    assert positions[0].tolist() == [0, 1, 2, 2, *range(2, 16), 15, 15, 16, 17, 18, 19, 20]
    assert positions[2, 2:4].tolist() == [2, 3]


def test_a_video_that_does_not_say_its_seconds_has_one_for_each_step(media: MediaFacts) -> None:
    positions, moved = found(media, video(2, 2, 2), {"video_grid_thw": [[2, 2, 2]]})

    assert positions.tolist() == [[0, 1, 14, 15], [0, 1, 1, 15], [0, 1, 1, 15]]
    assert moved == 12


def test_media_of_turns_that_are_dropped_keep_their_number(media: MediaFacts) -> None:
    ids = text(2) + image(4, 4) + text(1) + image(2, 4) + text(1)
    kept = np.arange(len(ids)) >= 8

    positions, moved = found(media, ids, {"image_grid_thw": [[1, 4, 4], [1, 2, 4]]}, kept, tail=2)

    assert positions.tolist() == [[0, 1, 2, 2, 4, 5, 6, 7], [0, 1, 2, 2, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert moved == 0


def test_dropped_media_leave_a_line(media: MediaFacts) -> None:
    ids = image(4, 4) + text(4)

    assert found(media, ids, {"image_grid_thw": [[1, 4, 4]]}, np.arange(len(ids)) >= 6) is None


@pytest.mark.parametrize("facts", [{}, {"image_grid_thw": [[1, 4, 6]]}], ids=["missing", "another"])
def test_a_shape_that_does_not_belong_to_an_image_is_an_error(media: MediaFacts, facts: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="image 1 does not belong to the 4 positions"):
        found(media, image(4, 4), facts)
