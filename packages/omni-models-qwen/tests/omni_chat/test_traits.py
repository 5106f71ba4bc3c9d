"""What conversations the families answer, read from their files without torch."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.chat import served_chat
from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError
from omni_core.model_info import ModelInfo
from omni_models_qwen.qwen2_5_omni.chat import voice_names
from omni_models_qwen.qwen3_omni.chat import chat_traits

DATA = Path(__file__).parents[1] / "data"
QWEN3, QWEN2_5 = DATA / "qwen3-omni-moe", DATA / "qwen2.5-omni"


@pytest.mark.parametrize(
    ("folder", "voices", "default", "frame"),
    [(QWEN3, {"aiden", "chelsie", "ethan"}, "ethan", 1920), (QWEN2_5, {"Chelsie", "Ethan"}, "Chelsie", 480)],
)
def test_a_checkpoint_that_speaks_has_its_voices(folder: Path, voices: set[str], default: str, frame: int) -> None:
    chat = served_chat(resolve_deployment(folder, platform="cpu"))

    assert chat is not None
    assert chat.outputs == ("text", "audio")
    assert (chat.text_stage, chat.stages) == (0, 3)
    assert set(chat.traits.voices) == voices
    assert (chat.traits.default_voice, chat.traits.sample_rate, chat.traits.samples_per_frame) == (default, 24_000, frame)
    assert chat.traits.inputs == {"text", "image", "audio", "video"}


@pytest.mark.parametrize(
    ("folder", "pipeline"), [(QWEN3, "qwen3_omni_moe_thinker_only"), (QWEN2_5, "qwen2_5_omni_thinker_only")]
)
def test_a_thinker_alone_writes_and_has_no_voice(folder: Path, pipeline: str, tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text(f"pipeline: {pipeline}\n")

    chat = served_chat(resolve_deployment(folder, deploy_config=tmp_path / "alone.yaml", platform="cpu"))

    assert chat is not None
    assert chat.outputs == ("text",)
    assert chat.traits.voices == ()
    assert chat.traits.default_voice is None


def test_completions_are_shut_with_a_reason() -> None:
    chat = served_chat(resolve_deployment(QWEN3, platform="cpu"))

    assert chat is not None
    assert "/v1/chat/completions" in chat.restrictions["completions"]


def test_a_checkpoint_without_the_preferred_voice_takes_its_first(model_info: Callable[[Path], ModelInfo]) -> None:
    config: dict[str, Any] = {"talker_config": {"speaker_id": {"zoe": 1, "max": 2}}}

    assert chat_traits(ModelInfo("x", Path("x"), config)).default_voice == "zoe"
    assert chat_traits(ModelInfo("x", Path("x"), {})).voices == ()


@pytest.mark.parametrize("talker", ["none", {"speaker_id": ["zoe"]}, {"speaker_id": {"zoe": "1"}}])
def test_voices_that_are_no_voices_are_an_error_that_names_the_field(talker: Any) -> None:
    with pytest.raises(ConfigError, match="talker_config"):
        chat_traits(ModelInfo("x", Path("x"), {"talker_config": talker}))


def test_the_file_of_voices_runs_no_code_that_is_in_it(tmp_path: Path) -> None:
    """It is a pickle, and a pickle can name any function."""

    class Attack:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "touched",))

    with zipfile.ZipFile(tmp_path / "spk_dict.pt", "w") as archive:
        archive.writestr("spk_dict/data.pkl", pickle.dumps({"Ada": Attack(), "Bob": {"cond": 1}}))

    assert voice_names(tmp_path / "spk_dict.pt") == ("Ada", "Bob")
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_a_file_of_voices_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "spk_dict.pt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"spk_dict\.pt"):
        voice_names(path)


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(["Ada"]), pickle.dumps("Ada"), b"\x80\x02K\x01}b.", b"\x80\x02h\x05.", b"."],
    ids=["a list", "a text", "a number with parts", "nothing kept", "nothing at all"],
)
def test_an_archive_without_voices_by_name_is_named(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "spk_dict.pt", "w") as archive:
        archive.writestr("spk_dict/data.pkl", content)

    with pytest.raises(ConfigError, match=r"spk_dict\.pt"):
        voice_names(tmp_path / "spk_dict.pt")


def test_parsers_are_for_stages_that_generate_token_by_token() -> None:
    resolved = resolve_deployment(QWEN3, flags={"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}, platform="cpu")

    for stage in resolved.stages:
        own = {name: stage.engine_args.get(name) for name in ("tool_call_parser", "reasoning_parser")}
        wanted = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
        assert own == (wanted if stage.stage_id < 2 else dict.fromkeys(wanted))
