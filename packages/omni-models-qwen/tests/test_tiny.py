"""What building a tiny checkpoint promises, whatever the model."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.errors import ConfigError

MODELS = pytest.mark.parametrize(
    ("module", "variant"),
    [("omni_models_qwen.qwen3_tts.tiny", "base"), ("omni_models_qwen.qwen3_omni.tiny", "instruct")],
    ids=["qwen3_tts", "qwen3_omni"],
)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@MODELS
def test_equal_seeds_give_equal_files_and_others_give_other_weights(module: str, variant: str, tmp_path: Path) -> None:
    build = importlib.import_module(module).build_tiny
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        build(tmp_path / name, variant, seed)

    one, same, other = (files(tmp_path / name) for name in ("one", "same", "other"))
    assert one == same
    assert {name for name in one if one[name] != other[name]} == {name for name in one if name.endswith(".safetensors")}


@MODELS
def test_an_unknown_variant_is_refused(module: str, variant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tiny Qwen3-\w+ variant 'huge'") as caught:
        importlib.import_module(module).build_tiny(tmp_path / "x", "huge", 0)

    assert variant in caught.value.hint
    assert not (tmp_path / "x").exists()


@MODELS
def test_building_needs_neither_torch_nor_transformers(module: str, variant: str, tmp_path: Path) -> None:
    code = (
        f"import sys, pathlib; from {module} import build_tiny; "
        f"build_tiny(pathlib.Path({str(tmp_path)!r}), {variant!r}, 0); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
