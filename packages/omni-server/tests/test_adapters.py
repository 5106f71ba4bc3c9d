"""LoRA adapters that requests name as their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError
from omni_core.request import LoraAdapter
from omni_core.testing.pipelines import fake_pipeline
from omni_server.adapters import check_adapters, parse_lora_modules
from omni_server.fake_engine import FakeEngine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return tmp_path


def test_adapters_are_written_as_name_and_path(folder: Path) -> None:
    assert parse_lora_modules([f"warm={folder}", f"cold={folder}"]) == (
        LoraAdapter("warm", str(folder)),
        LoraAdapter("cold", str(folder)),
    )


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (["warm"], "is no adapter"),
        (["=/x"], "is no adapter"),
        (["warm=/no/such/folder"], "holds no adapter"),
        (["warm={folder}", "warm={folder}"], "comes twice"),
    ],
)
def test_a_wrong_adapter_is_refused_at_start(items: list[str], text: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_lora_modules([item.format(folder=folder) for item in items])
    assert caught.value.where == "--lora-modules"


def test_adapters_need_a_stage_that_takes_them(folder: Path) -> None:
    """LR-04: the stage is the first."""
    adapters = parse_lora_modules([f"warm={folder}"])

    check_adapters(adapters, fake_pipeline(engine_args={0: {"enable_lora": True}}))
    check_adapters((), None)
    with pytest.raises(ConfigError, match="takes no LoRA adapters") as caught:
        check_adapters(adapters, fake_pipeline(engine_args={1: {"enable_lora": True}}))
    assert "enable_lora: true for stage 0" in caught.value.hint
    with pytest.raises(ConfigError, match="takes no LoRA adapters"):
        check_adapters(adapters, None)


@pytest.mark.anyio
async def test_a_request_gets_the_adapter_that_it_names_as_its_model(
    make_client: Callable[..., Any], engine: FakeEngine
) -> None:
    warm = LoraAdapter("warm", "/adapters/warm")
    client = make_client(lora_modules=(warm,))

    for model in ({}, {"model": "fake-tts"}, {"model": "warm"}):
        assert (await client.speak(**model)).status_code == 200
    assert engine.adapters == [None, None, warm]

    message = await client.refused(404, "model", model="hot")
    assert message.endswith("(served: org/fake-tts, fake-tts, warm)")
    cards = (await client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["org/fake-tts", "fake-tts", "warm"]
    assert (cards[2]["root"], cards[2]["parent"]) == ("/adapters/warm", "org/fake-tts")
    assert (await client.get("/v1/models/warm")).json()["parent"] == "org/fake-tts"
