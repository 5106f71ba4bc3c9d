from collections.abc import Callable
from typing import Any

import pytest

from omni_core.deploy.devices import replica_devices, split_devices, world_size
from omni_core.errors import ConfigError
from omni_core.stage import ResolvedPipeline

Resolve = Callable[..., ResolvedPipeline]


@pytest.mark.parametrize(
    ("engine_args", "expected"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, 6),
        ({"data_parallel_size": 4}, 4),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2, "tensor_parallel_size": 2}, 4),
        ({"data_parallel_size": 4, "data_parallel_size_local": 0}, 0),
    ],
)
def test_world_is_the_product_of_local_sizes(engine_args: dict[str, Any], expected: int) -> None:
    """DV-01."""
    assert world_size(engine_args) == expected


@pytest.mark.parametrize(
    ("devices", "replicas", "world", "expected"),
    [
        ("1,2,3,4", 2, 2, ["1,2", "3,4"]),
        ("0,1", 4, 2, ["0,1", "2,3", "4,5", "6,7"]),
        ("0", 2, 1, ["0", "1"]),
        ("5", 1, 1, ["5"]),
        ("GPU-a,GPU-b", 2, 1, ["GPU-a", "GPU-b"]),
    ],
    ids=["pool", "template", "template of one", "one replica", "names"],
)
def test_replicas_get_their_devices(devices: str, replicas: int, world: int, expected: list[str]) -> None:
    """DV-05."""
    assert split_devices(devices, replicas, world) == expected


@pytest.mark.parametrize(
    ("devices", "replicas", "world", "message"),
    [
        ("0,1,2", 2, 2, "lists 3 devices for 2 replicas of 2"),
        ("2,3", 2, 2, "count from 0 to 1"),
        ("GPU-a", 2, 1, "count from 0 to 0"),
    ],
)
def test_devices_that_fit_no_replica_are_refused(devices: str, replicas: int, world: int, message: str) -> None:
    """DV-05, E21."""
    with pytest.raises(ConfigError, match=message):
        split_devices(devices, replicas, world)


def test_wrong_number_of_devices_names_all_factors(resolve: Resolve) -> None:
    """DV-02, E20."""
    text = "stages: [{stage_id: 1, devices: '0,1,2', tensor_parallel_size: 2, num_replicas: 2}]"

    with pytest.raises(ConfigError) as caught:
        resolve("two", text)

    message = caught.value.message
    assert "stage 1 (vocoder) lists 3 device(s)" in message
    assert "runs 2 rank(s)" in message
    assert "tensor_parallel_size 2 x data_parallel_size 1 x pipeline_parallel_size 1" in message
    assert "has 2 replicas; it can list 2 or 4" in message
    assert caught.value.where == "my.yaml:1:33"


def test_broadcast_tensor_parallel_size_is_explained(resolve: Resolve) -> None:
    """DV-04: the hint of issue 5003."""
    text = "stages: [{stage_id: 0, devices: '0'}, {stage_id: 1, devices: '1'}]"

    with pytest.raises(ConfigError) as caught:
        resolve("two", text, tensor_parallel_size=2)

    assert "--tensor-parallel-size is given to every stage, but devices are not" in caught.value.hint
    assert '--stage-overrides \'{"0": {"tensor_parallel_size": 2, "devices": "0,1"}}\'' in caught.value.hint


def test_stage_without_devices_is_not_checked(resolve: Resolve) -> None:
    """DV-03."""
    resolved = resolve("two", "stages: [{stage_id: 0, num_replicas: 2}]", tensor_parallel_size=2)

    assert replica_devices(resolved.stages[0]) == [None, None]


def test_pool_of_a_resolved_stage_is_split(resolve: Resolve) -> None:
    resolved = resolve("two", "stages: [{stage_id: 0, num_replicas: 2, devices: '4,5'}]")

    assert replica_devices(resolved.stages[0]) == ["4", "5"]


def test_device_that_is_listed_twice_is_refused(resolve: Resolve) -> None:
    with pytest.raises(ConfigError, match="lists a device twice"):
        resolve("two", "stages: [{stage_id: 0, tensor_parallel_size: 2, devices: '1,1'}]")
