from __future__ import annotations

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


def text(length: int) -> list[int]:
    return [TEXT] * length


def found(media: MediaFacts, ids: list[int], facts: dict[str, Any], kept: Any = None, tail: int = 0) -> Any:
    array = np.array(ids)
    return prompt_positions(media, array, np.ones(len(ids), bool) if kept is None else kept, facts, tail)


def test_text_and_audio_count_up(media: MediaFacts) -> None:
    assert found(media, text(3) + audio(9) + text(2), {"audio_feature_lengths": [70]}) is None


@pytest.mark.engine
@pytest.mark.parametrize(
    ("ids", "facts"),
    [
        (text(5) + image(4, 6) + text(3), {"image_grid_thw": [[1, 4, 6]]}),
        (image(2, 2) + image(8, 4) + text(1), {"image_grid_thw": [[1, 2, 2], [1, 8, 4]]}),
        (text(2) + video(3, 4, 4) + text(4), {"video_grid_thw": [[3, 4, 4]], "second_per_grid_ts": [1.0]}),
        (
            text(1) + video(2, 2, 4) + image(6, 2) + video(4, 2, 2) + text(2),
            {"image_grid_thw": [[1, 6, 2]], "video_grid_thw": [[2, 2, 4], [4, 2, 2]], "second_per_grid_ts": [2.0, 1.0]},
        ),
    ],
    ids=["image", "images", "video", "videos and an image"],
)
def test_positions_are_transformers(media: MediaFacts, ids: list[int], facts: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as reference

    kind = reference.Qwen3OmniMoePreTrainedModelForConditionalGeneration
    config = SimpleNamespace(
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        vision_start_token_id=VISION_START,
        audio_start_token_id=AUDIO_START,
        position_id_per_seconds=13,
    )
    model = SimpleNamespace(spatial_merge_size=2, config=config)
    model.get_llm_pos_ids_for_vision = lambda *a: kind.get_llm_pos_ids_for_vision(model, *a)
    grids = {name: torch.tensor(value) for name, value in facts.items()}
    full = ids + text(9)
    tokens = torch.tensor([full])
    wanted, delta = kind.get_rope_index(
        model,
        tokens,
        grids.get("image_grid_thw"),
        grids.get("video_grid_thw"),
        torch.ones_like(tokens),
        second_per_grids=grids.get("second_per_grid_ts"),
    )

    positions, moved = found(media, ids, facts, tail=9)

    assert positions.tolist() == wanted[:, 0].long().tolist()
    assert moved == int(delta)


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
