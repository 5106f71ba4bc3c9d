import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_core.model_info import ModelInfo, read_model_info


def write(folder: Path, name: str, content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Stand in for huggingface_hub: record calls, and fail them."""
    calls: list[tuple[str, dict[str, Any]]] = []
    module = ModuleType("huggingface_hub")

    class GatedRepoError(Exception):
        pass

    def snapshot_download(name: str, **kwargs: Any) -> str:
        calls.append((name, kwargs))
        raise GatedRepoError("401\nlong text")

    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_local_folder_never_touches_the_network(tmp_path: Path, hub: list[Any]) -> None:
    write(tmp_path / "m", "config.json", {"model_type": "fake", "architectures": ["A", "B"]})

    model = read_model_info(tmp_path / "m")

    assert (model.model_type, model.architectures) == ("fake", ("A", "B"))
    assert model.path == tmp_path / "m"
    assert hub == []


def test_missing_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()

    with pytest.raises(ConfigError, match=r"m/config\.json is missing"):
        read_model_info(str(tmp_path / "m"))


@pytest.mark.parametrize(
    "content", ["{", "[1]", "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "{", "[" * 100_000]
)
def test_corrupt_config_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path / "m", "config.json", content)

    with pytest.raises(ConfigError, match=r"m/config\.json") as caught:
        read_model_info(tmp_path / "m")
    assert "fetch the checkpoint again" in caught.value.hint


def test_diffusers_checkpoint_has_no_config(tmp_path: Path) -> None:
    write(tmp_path / "m", "model_index.json", {"_class_name": "FluxPipeline"})

    model = read_model_info(tmp_path / "m")

    assert dict(model.config) == {}
    assert model.diffusers_class == "FluxPipeline"


def test_load_json_names_a_missing_file(tmp_path: Path) -> None:
    model = ModelInfo("m", tmp_path, {})

    with pytest.raises(ConfigError, match=r"generation_config\.json is missing"):
        model.load_json("generation_config.json")


@pytest.mark.parametrize("reference", ["/no/such/folder", "./nothing", "~/nothing-here", "a/b/c"])
def test_path_that_does_not_exist_is_not_looked_up_in_the_hub(reference: str, hub: list[Any]) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        read_model_info(reference)
    assert hub == []


def test_file_and_empty_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "model.gguf", "x")

    with pytest.raises(ConfigError, match="is a file"):
        read_model_info(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="no model is named"):
        read_model_info(" ")


def test_gated_model_says_what_to_set(hub: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(DependencyError, match="GatedRepoError: 401") as caught:
        read_model_info("org/model", revision="v1", weights=False)

    assert "HF_TOKEN" in caught.value.hint
    name, kwargs = hub[0]
    assert (name, kwargs["revision"]) == ("org/model", "v1")
    assert "*.json" in kwargs["allow_patterns"]
    assert not any("safetensors" in pattern for pattern in kwargs["allow_patterns"])


def test_missing_hub_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(DependencyError) as caught:
        read_model_info("org/model")
    assert "pip install huggingface_hub" in caught.value.hint


def test_offline_mode_is_honoured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    with pytest.raises(DependencyError) as caught:
        read_model_info("org/never-downloaded")
    assert "HF_HUB_OFFLINE" in caught.value.hint
