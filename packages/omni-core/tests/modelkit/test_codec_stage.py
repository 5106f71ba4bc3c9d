from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_core.errors import ConfigError, RequestError
from omni_core.pipeline import StagePipelineConfig
from omni_core.runner import LightChunk
from omni_core.stage import ResolvedStage

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.engine


def _stage(platform: str = "cpu", **engine_args: Any) -> ResolvedStage:
    topology = StagePipelineConfig(stage_id=0, model_stage="codec")
    return ResolvedStage("p", topology, "m", "A", None, "r", platform=platform, engine_args=engine_args)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, None), ("auto", None), ("half", "float16"), ("torch.bfloat16", "bfloat16")],
)
def test_the_type_is_the_stages_or_left_to_the_checkpoint(asked: str | None, expected: str | None) -> None:
    from omni_core.modelkit.codec_stage import stage_dtype

    assert stage_dtype(_stage(dtype=asked)) == (None if expected is None else getattr(torch, expected))


def test_an_unknown_type_is_refused() -> None:
    from omni_core.modelkit.codec_stage import stage_dtype

    with pytest.raises(ConfigError, match="cannot use dtype 'int8'"):
        stage_dtype(_stage(dtype="int8"))


def test_a_platform_may_have_another_name_in_torch() -> None:
    from omni_core.modelkit.codec_stage import stage_device

    assert [stage_device(_stage(name)) for name in ("cuda", "rocm", "cpu")] == ["cuda", "cuda", "cpu"]


def _codes(value: Any, *, fewer: bool = False, begun: bool = False, key: str = "codes") -> Any:
    from omni_core.modelkit.codec_stage import CodecStage

    return CodecStage.checked_codes(LightChunk("r", None, {key: value}, False), key, books=3, size=8, fewer=fewer, begun=begun)


def test_codes_become_whole_numbers_and_none_are_none() -> None:
    assert _codes(np.array([[1, 2, 7]], np.int32)).tolist() == [[1, 2, 7]]
    assert _codes(np.array([[1]]), fewer=True).shape == (1, 1)
    assert _codes(None).shape == (0, 3)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (np.array([[1, 2]]), {}, r"whole numbers \[frames, 3\], not int64 \[1, 2\]"),
        (np.array([[1, 2, 3, 4]]), {"fewer": True}, r"\[frames, 3 or fewer\], not int64 \[1, 4\]"),
        (np.array([[0.5, 1, 2]]), {}, "not float64"),
        (np.array([[1, 2, 8]]), {}, "ids from 1 to 8, but the codebooks have 8 rows"),
        (np.array([[1, 2, 3]]), {"key": "ref_codes", "begun": True}, "ref_codes came after the first frames"),
    ],
)
def test_what_are_no_codes_is_refused(value: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        _codes(value, **options)

    assert caught.value.where == "request r"


def test_sleep_moves_the_weights_to_the_host_and_waking_moves_them_back() -> None:
    from omni_core.modelkit.codec_stage import CodecStage

    moves: list[Any] = []

    class Decoder:
        device = torch.device("cpu")

        def move(self, device: Any = None) -> None:
            moves.append(device)

    class Stage(CodecStage):
        decoder = Decoder()
        load = begin = step = None  # type: ignore[assignment]

    stage = Stage()
    stage.sleep()
    stage.wake()

    assert moves == [torch.device("cpu"), None]
