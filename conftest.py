"""What every test of the repository shares: property tests, where engine tests are collected, why GPU tests are left out."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_ENGINE_MODULE = re.compile(r"^pytestmark = .*pytest\.mark\.(engine|gpu)\b", re.MULTILINE)
_HAS_TORCH = importlib.util.find_spec("torch") is not None

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A busy machine is no fault of the code, so that no example has a deadline.
    settings.register_profile("omni", deadline=None, print_blob=True)
    settings.load_profile("omni")


@pytest.fixture(scope="session", autouse=True)
def _run_dir() -> Iterator[None]:
    """Give engines that tests start without a server a folder for sockets and rendezvous files, which vLLM never removes."""
    # Not below pytest's own folder: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ort-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNI_RUN_DIR", folder)
        patch.setenv("VLLM_RPC_BASE_PATH", folder)
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules of engine tests out where torch is not installed: they import it. The `engine` session runs them."""
    if _HAS_TORCH or collection_path.suffix != ".py":
        return None
    return True if _ENGINE_MODULE.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests where the memory they ask for is not there, and say what was missing."""
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted or "not gpu" in (config.option.markexpr or ""):
        return
    have = _gpu_gib()
    for item in wanted:
        marker = item.get_closest_marker("gpu")
        need = marker.args[0] if marker and marker.args else 1
        if have < need:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU with {need} GiB, the largest here has {have:.0f}"))


def _gpu_gib() -> float:
    if not _HAS_TORCH:
        return 0.0
    import torch

    return max((torch.cuda.mem_get_info(i)[1] / 2**30 for i in range(torch.cuda.device_count())), default=0.0)
