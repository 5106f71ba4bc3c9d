"""The thinkers alone through the chat path: prompts and tokens equal to the reference's, for text, audio and image inputs."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="the thinker is vLLM's")

from omni_core.client import Omni
from omni_core.errors import ContextLengthError, RequestError
from omni_core.request import OmniResult

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PIPELINES = {"qwen3-omni-moe": "qwen3_omni_moe_thinker_only", "qwen2.5-omni": "qwen2_5_omni_thinker_only"}
MAX_MODEL_LEN = 1024


@pytest.fixture(scope="module")
def omni(golden_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Omni]:
    deploy = tmp_path_factory.mktemp("deploy") / "thinker.yaml"
    deploy.write_text(
        f"""
pipeline: {PIPELINES[golden_folder.name]}
dtype: float32
stages:
  - stage_id: 0
    max_num_seqs: 8
    max_model_len: {MAX_MODEL_LEN}
    max_num_batched_tokens: 256
    kv_cache_memory_bytes: 67108864
    limit_mm_per_prompt: {{audio: 2, image: 2, video: 1}}
"""
    )
    with Omni(golden_folder, deploy_config=deploy, platform="cpu") as omni:
        yield omni


def sampling(case: Any) -> list[dict[str, Any]]:
    return [{"temperature": 0.0, "max_tokens": case.record["max_thinker_tokens"]}]


def check(result: OmniResult, case: Any) -> None:
    assert list(result.token_ids) == case.record["thinker_tokens"], case.id
    assert result.metrics["prompt_tokens"] == len(case.record["prompt_token_ids"]), case.id
    assert result.text or case.record["thinker_text"].startswith("<|")


def test_every_case_alone_has_the_references_tokens(
    omni: Omni, golden_folder: Path, cases_of: Callable[..., list[Any]], conversation_of: Callable[..., dict[str, Any]]
) -> None:
    for case in cases_of(golden_folder):
        (result,) = omni.generate(conversation_of(case), sampling(case))

        check(result, case)


def test_all_cases_at_once_have_the_same_tokens(
    omni: Omni, golden_folder: Path, cases_of: Callable[..., list[Any]], conversation_of: Callable[..., dict[str, Any]]
) -> None:
    """Text, audio and image share steps of 256 tokens, so that longer prompts are computed in several."""
    cases = cases_of(golden_folder)
    longest = max(case.record["max_thinker_tokens"] for case in cases)

    results = omni.generate([conversation_of(case) for case in cases], [{"temperature": 0.0, "max_tokens": longest}])

    for case, result in zip(cases, results, strict=True):
        wanted = case.record["thinker_tokens"]
        assert list(result.token_ids[: len(wanted)]) == wanted


def _user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def _wav(samples: int, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((8000 * np.sin(np.arange(samples) / 9)).astype("<i2").tobytes())
    return file.getvalue()


TEXT = {"type": "text", "text": "What is it?"}
PLACE = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image_url", b"no image"),
        ("image_url", _wav(1600)),
        ("input_audio", b"no audio"),
        ("input_audio", _wav(0)),
        ("input_audio", _wav(1)),
        ("input_audio", _wav(160)),
        ("video_url", b"no video"),
    ],
)
def test_a_broken_file_is_refused_with_its_place_and_nothing_else_suffers(omni: Omni, kind: str, data: bytes) -> None:
    bad = {"chat": _user({"type": kind, kind: {"url": "x"}}, TEXT), "media": {f"{PLACE}.{kind}": data}}
    good = {"chat": _user(TEXT)}

    refused, answered = omni.generate([bad, good], [{"max_tokens": 2}], return_errors=True)

    assert isinstance(refused.error, RequestError)
    assert refused.error.param == f"{PLACE}.{kind}"
    assert answered.error is None
    assert omni.health()["healthy"]


def test_the_broken_one_of_several_files_is_named(omni: Omni, golden_folder: Path) -> None:
    """The processor refuses all of them at once and does not say which."""
    from PIL import Image

    thin = io.BytesIO()
    Image.new("RGB", (1, 500)).save(thin, "PNG")
    image = (golden_folder / "inputs" / "in_a.png").read_bytes()
    part = {"type": "image_url", "image_url": {"url": "x"}}
    files = {f"messages[0].content[{n}].image_url": data for n, data in enumerate((image, thin.getvalue()))}

    (result,) = omni.generate({"chat": _user(part, part, TEXT), "media": files}, return_errors=True)

    assert isinstance(result.error, RequestError)
    assert result.error.param == "messages[0].content[1].image_url"
    assert "aspect ratio" in result.error.message


def test_audio_of_another_rate_is_heard(omni: Omni) -> None:
    part = {"type": "input_audio", "input_audio": {"url": "x"}}
    counts = []
    for rate in (16_000, 48_000):
        prompt = {"chat": _user(part, TEXT), "media": {f"{PLACE}.input_audio": _wav(rate, rate)}}
        (result,) = omni.generate(prompt, [{"max_tokens": 1}])
        counts.append(result.metrics["prompt_audio_tokens"])

    assert counts[0] == counts[1] > 0


def test_the_context_is_used_up_to_the_last_position(omni: Omni) -> None:
    """Under, at and over the limit."""
    prompt = {"chat": _user(TEXT)}
    (short,) = omni.generate(prompt, [{"max_tokens": 1}])
    room = MAX_MODEL_LEN - int(short.metrics["prompt_tokens"])

    for most in (room - 1, room):
        (result,) = omni.generate(prompt, [{"max_tokens": most, "stop": ["a", "e", "i", " "]}])
        assert result.error is None
    (over,) = omni.generate(prompt, [{"max_tokens": room + 1}], return_errors=True)
    (long,) = omni.generate({"chat": _user({**TEXT, "text": "word " * 2000})}, return_errors=True)

    assert isinstance(over.error, ContextLengthError)
    assert over.error.param == "max_tokens"
    assert f"at most {room}" in over.error.hint
    assert isinstance(long.error, ContextLengthError)
    assert long.error.param == "messages"


def test_log_probabilities_come_with_each_token(omni: Omni) -> None:
    (result,) = omni.generate({"chat": _user(TEXT)}, [{"temperature": 0.0, "max_tokens": 4, "logprobs": 2}])

    entries = result.reply["logprobs"]
    assert len(entries) == len(result.token_ids)
    for entry in entries:
        assert len(entry["top_logprobs"]) == 2
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]


def test_a_response_format_is_kept(omni: Omni) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    body = {**_user(TEXT), "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}

    (result,) = omni.generate({"chat": body}, [{"temperature": 0.0, "max_tokens": 60}])
    (refused,) = omni.generate(
        {"chat": {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "odd"}}}}},
        return_errors=True,
    )

    assert result.text.lstrip().startswith("{")
    assert isinstance(refused.error, RequestError)
    assert refused.error.param == "response_format"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"no_such": 1}, "no_such"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(omni: Omni, fields: dict[str, Any], param: str) -> None:
    (result,) = omni.generate({"chat": {**_user(TEXT), **fields}}, return_errors=True)

    assert isinstance(result.error, RequestError)
    assert result.error.param == param or (param == "chat_template_kwargs" and result.error.param == "messages")
