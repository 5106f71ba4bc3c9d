from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.capabilities import MtpSampling, SampleUniforms, read_capabilities
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedStage
from omni_models_moss.pipeline import MOSS_TTS_REALTIME

pytest.importorskip("torch")
pytestmark = pytest.mark.engine


def test_declared_capabilities_fit_together() -> None:
    """MR-08."""
    from omni_models_moss.realtime.talker import MossTTSRealtimeTalker

    record = read_capabilities(MossTTSRealtimeTalker)

    assert record.constrains_sampling
    assert record.mtp is not None
    assert record.mtp.num_codes == 16
    assert record.mtp.sample_uniforms == SampleUniforms(steps=15, vocab_size=1024)  # vLLM samples the first code
    assert record.mtp.sampling == MtpSampling(do_sample=True, temperature=0.8, top_k=30, top_p=0.6, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rvq": 1}, "frames of 1 codes"),
        ({"audio_pad_token": 1000}, "codes below 1000"),
        ({"local_config": None}, "local_config is missing"),
        ({"local_config": {"hidden_size": 64, "num_attention_heads": 4}}, r"local_config\.intermediate_size is missing"),
        (
            {"local_config": {"hidden_size": 32}},
            r"local_config\.hidden_size 32 .* do not fit a backbone of 64",
        ),
    ],
    ids=["one code", "another pad", "no depth transformer", "a size missing", "another width"],
)
def test_a_checkpoint_of_another_form_is_refused(
    changes: dict[str, Any],
    message: str,
    tiny: Callable[..., Path],
    tmp_path: Path,
    stage_of: Callable[..., ResolvedStage],
    unloaded: Callable[[ResolvedStage], Any],
) -> None:
    config = json.loads((tiny("moss_tts_realtime") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))

    with pytest.raises(ConfigError, match=message) as error:
        unloaded(stage_of(tmp_path, 0, pipeline=MOSS_TTS_REALTIME, engine_args={"dtype": "float32", "max_model_len": 64}))

    assert error.value.where == str(tmp_path / "config.json")
