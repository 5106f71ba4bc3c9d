"""Where the weights come from, and what is said when they come from nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_duplex.vad import weights


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "MEMBER", "silero_vad/data/none.onnx")


def test_a_file_that_is_given_is_taken_and_one_that_is_not_there_refused(tmp_path: Path) -> None:
    file = tmp_path / "vad.onnx"
    file.write_bytes(b"weights")

    assert weights.find_weights(str(file)) == file
    with pytest.raises(ConfigError, match="server_vad_model_path"):
        weights.find_weights(str(tmp_path / "other.onnx"))


def test_fetched_weights_are_found_again() -> None:
    weights.cache_file().parent.mkdir(parents=True)
    weights.cache_file().write_bytes(b"weights")

    assert weights.find_weights() == weights.cache_file()


def test_without_weights_the_way_out_is_named() -> None:
    with pytest.raises(DependencyError, match="omni vad"):
        weights.find_weights()
