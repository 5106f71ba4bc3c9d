"""`omni config memory`; the arithmetic is tested in tests/deploy/test_memory.py."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

GIB = 1 << 30


@pytest.fixture(autouse=True)
def checkpoint(config: Any, tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [GIB]}}).encode()
    (tmp_path / "MODEL" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (tmp_path / "my.yaml").write_text(
        "stages: [{stage_id: 0, devices: '0', gpu_memory_utilization: 0.5}, "
        "{stage_id: 1, devices: '1', kv_cache_memory_bytes: 1073741824, enforce_eager: true}, {stage_id: 2, devices: '1'}]"
    )


def test_table_has_each_device_with_its_stages(config: Any) -> None:
    result = config("memory", "MODEL", "--deploy-config", "my.yaml", "--device-memory", "24")

    assert result.code == 0
    assert "device 0 of 24.00 GiB: fits" in result.rows
    assert "0 (thinker) 2.00 GiB 10.00 GiB 12.00 GiB 2.00 GiB whole checkpoint; gpu_memory_utilization 0.5" in result.rows
    assert "1 (talker) 2.00 GiB 1.00 GiB 3.00 GiB 0.00 GiB whole checkpoint; kv_cache_memory_bytes" in result.rows
    assert [row for row in result.rows if row.startswith("needed")] == ["needed 16.00 GiB", "needed 9.00 GiB"]


def test_device_that_is_too_small_is_1(config: Any) -> None:
    result = config("memory", "MODEL", "--deploy-config", "my.yaml", "--device-memory", "8", "--json")

    assert result.code == 1
    assert [(device["device"], device["verdict"]) for device in result.json] == [("0", "fits"), ("1", "does not fit")]


def test_without_a_capacity_the_verdict_is_unknown(config: Any) -> None:
    result = config("memory", "MODEL", "--deploy-config", "my.yaml")

    assert result.code == 0
    assert "device 0: unknown" in result.rows
    assert "needed ? give --device-memory for a verdict" in result.rows


@pytest.mark.parametrize("size", ["lots", "-1", "nan"])
def test_size_must_be_one(config: Any, size: str) -> None:
    with pytest.raises(SystemExit) as caught:
        config("memory", "MODEL", f"--device-memory={size}")

    assert caught.value.code == 2
