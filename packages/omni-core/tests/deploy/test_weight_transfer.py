import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.outcome import Outcome
from omni_core.deploy.weight_transfer import WEIGHT_TRANSFER_BACKENDS, check_weight_transfer
from omni_core.errors import ConfigError
from omni_core.pipeline import StagePipelineConfig
from omni_core.stage import Source

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
FIELD = "weight_transfer_config"


def check(value: Any) -> Outcome:
    sources = {FIELD: Source("base", "my.yaml:1:1"), f"{FIELD}.backend": Source("base", "my.yaml:2:2")}
    return check_weight_transfer(TALKER, {} if value is None else {FIELD: value}, sources)


@pytest.mark.parametrize(
    ("given", "backend"), [({}, "nccl"), ({"backend": None}, "nccl"), ({"backend": "ipc"}, "ipc")], ids=str
)
def test_default_backend_is_nccl(given: dict[str, Any], backend: str) -> None:
    """WT-01."""
    assert check(given) == Outcome({FIELD: {"backend": backend}})


def test_nothing_is_set_where_nothing_is_written() -> None:
    """WT-01: the default is null."""
    assert check(None) == Outcome()


def test_registered_backend_is_taken_with_a_warning() -> None:
    """WT-01: a plugin may register one, and a typing error looks the same."""
    outcome = check({"backend": "ncll"})

    assert outcome.arguments == {FIELD: {"backend": "ncll"}}
    (warning,) = outcome.warnings
    assert warning.startswith("my.yaml:2:2: stage 0 (talker): weight transfer backend 'ncll' is none of vLLM's own")
    assert "did you mean 'nccl'?" in warning


@pytest.mark.parametrize(
    ("given", "message", "where"),
    [
        ({"bakend": "nccl"}, "has no key 'bakend'", "my.yaml:1:1"),
        ({"backend": 3}, "backend is 3, which is no name", "my.yaml:2:2"),
        ({"backend": " "}, "backend is ' ', which is no name", "my.yaml:2:2"),
    ],
)
def test_wrong_value_is_refused(given: dict[str, Any], message: str, where: str) -> None:
    """WT-01."""
    with pytest.raises(ConfigError, match=message) as caught:
        check(given)
    assert caught.value.where == where
    assert "stage 0 (talker)" in caught.value.message


@pytest.mark.engine
def test_backends_are_those_of_vllm() -> None:
    """WT-01."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    tree = ast.parse(Path(spec.origin).parent.joinpath("config", "weight_transfer.py").read_text())

    (config,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [node for node in config.body if isinstance(node, ast.AnnAssign)]
    assert [ast.unparse(field.target) for field in fields] == ["backend"]
    names = [node.value for node in ast.walk(fields[0].annotation) if isinstance(node, ast.Constant)]
    assert tuple(names) == WEIGHT_TRANSFER_BACKENDS
