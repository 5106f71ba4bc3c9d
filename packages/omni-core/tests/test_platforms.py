from importlib import metadata
from pathlib import Path

import pytest

from omni_core.errors import ConfigError
from omni_core.platforms import CPU, CUDA, Platform, PlatformEntry, current_platform, detect_cuda
from omni_core.plugins import PluginManager
from omni_core.testing.plugins import make_manager, make_plugin

HERE = Platform("here", "cpu")


def detected() -> bool:
    return True


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNI_PLATFORM", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def manager_with(*entries: PlatformEntry) -> PluginManager:
    return make_manager({"acme": make_plugin(omni_platforms=list(entries))})


def test_cpu_is_used_where_nothing_is_detected() -> None:
    assert current_platform(make_manager()) is CPU


def test_variable_beats_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_PLATFORM", "cuda")

    assert current_platform(make_manager()) is CUDA


def test_unknown_platform_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_PLATFORM", "cudo")

    with pytest.raises(ConfigError, match="there is no platform 'cudo'") as caught:
        current_platform(make_manager())
    assert caught.value.hint == "did you mean 'cuda'?"
    assert caught.value.where == "OMNI_PLATFORM"


def test_plugin_platform_that_detects_itself_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_with(PlatformEntry("here", "omni_core.platforms:always", "omni_core.platforms:HERE"))
    monkeypatch.setattr("omni_core.platforms.always", detected, raising=False)
    monkeypatch.setattr("omni_core.platforms.HERE", HERE, raising=False)

    assert current_platform(manager) is HERE


def test_two_detected_platforms_are_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.platforms.always", detected, raising=False)
    manager = make_manager(
        {
            name: make_plugin(
                omni_platforms=[PlatformEntry(f"p-{name}", "omni_core.platforms:always", "omni_core.platforms:CPU")]
            )
            for name in ("acme", "bolt")
        }
    )

    with pytest.raises(ConfigError, match=r"'p-acme' \(acme\)") as caught:
        current_platform(manager)
    assert "'p-bolt' (bolt)" in caught.value.message


def test_target_that_is_no_platform_is_named() -> None:
    with pytest.raises(ConfigError, match="is no Platform"):
        current_platform(manager_with(PlatformEntry("odd", None, "omni_core.platforms:detect_cuda")), "odd")


@pytest.mark.parametrize(
    ("node", "visible", "torch", "expected"),
    [
        ("nvidia0", None, "2.13.0+cu130", True),
        ("nvidia0", None, None, True),
        ("nvidia0", None, "2.13.0+cpu", False),
        ("nvidia0", "", "2.13.0", False),
        ("nvidia0", "-1", "2.13.0", False),
        ("nvidia0", "1", "2.13.0", True),
        ("nvidiactl", None, "2.13.0", False),
    ],
    ids=["gpu", "without torch", "cpu torch", "hidden", "hidden by -1", "one shown", "no device node"],
)
def test_cuda_is_detected_by_its_device_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str, visible: str | None, torch: str | None, expected: bool
) -> None:
    def version(name: str) -> str:
        if torch is None:
            raise metadata.PackageNotFoundError(name)
        return torch

    (tmp_path / node).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(metadata, "version", version)

    assert detect_cuda(tmp_path) is expected
