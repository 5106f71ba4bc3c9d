import ast
import importlib.util
from pathlib import Path

import pytest

from omni_core.deploy.engine_names import ENGINE_ARG_NAMES, RESERVED_NAMES


@pytest.mark.engine
def test_names_are_those_of_vllm() -> None:
    """The table is vLLM's, less what Omni or the topology owns; its source is parsed, since importing vLLM costs seconds."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.fail("vLLM is not installed")
    tree = ast.parse(Path(spec.origin).with_name("engine").joinpath("arg_utils.py").read_text())
    names = {
        item.target.id
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in {"EngineArgs", "AsyncEngineArgs"}
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and not item.target.id.startswith("_")
    }

    assert names - set(RESERVED_NAMES) - {"scheduler_cls"} == ENGINE_ARG_NAMES
