"""`omni config schema`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.schema_doc import deploy_schema, schema_page, split_default
from omni_core.deploy.yaml_text import to_yaml

PAGE = Path(__file__).parents[5] / "docs" / "deploy-schema.md"


def errors(schema: Any, document: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    return [error.json_path for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


def test_schema_documents_every_field(config: Any) -> None:
    schema = config("schema", platform=None).json

    assert schema["properties"]["async_chunk"]["description"].startswith("Hand on chunks")
    for definition in (schema, *schema["$defs"].values()):
        assert all(field.get("description") for field in definition["properties"].values())


def test_schema_of_a_pipeline_knows_its_stages(config: Any) -> None:
    schema = config("schema", "--pipeline", "fake", platform=None).json

    assert schema["$defs"]["Stage2"]["description"] == "Stage 2 (vocoder), LLM_GENERATION."
    assert "attention_backend" in schema["$defs"]["Stage0"]["properties"]
    assert "attention_backend" not in schema["$defs"]["Stage2"]["properties"]
    assert errors(schema, {"stages": [{"stage_id": 2, "max_num_seqs": 4}]}) == []
    assert errors(schema, {"stages": [{"stage_id": 3}]}) == ["$.stages"]
    assert errors(schema, {"platforms": {"cpu": {"stages": [{"stage_id": 2, "attention_backend": "X"}]}}}) != []


@pytest.mark.parametrize(
    ("document", "valid"),
    [
        ({"stages": [{"stage_id": 0, "devices": 0, "limit_mm_per_prompt": {"image": 1}}]}, True),
        ({"stages": [{"stage_id": 0, "devices": [0, "1"], "env": {"A": 1}}], "async_chunk": None}, True),
        ({"stages": [{"stage_id": 0, "max_num_seq": 4}]}, False),
        ({"stages": [{"max_num_seqs": 4}]}, False),
        ({"stages": [{"stage_id": 0, "gpu_memory_utilization": 2}]}, False),
        ({"model_arch": "X"}, False),
    ],
)
def test_schema_accepts_what_the_reader_accepts(document: Any, valid: bool) -> None:
    assert (errors(deploy_schema(), document) == []) is valid


def test_what_show_writes_is_valid(config: Any) -> None:
    yaml = pytest.importorskip("yaml")

    document = yaml.safe_load(config("show", "MODEL").out)

    assert errors(config("schema", "--pipeline", "fake", platform=None).json, document) == []
    assert to_yaml(document)


def test_unknown_pipeline_is_an_error(config: Any) -> None:
    result = config("schema", "--pipeline", "fak", platform=None)

    assert result.code == 2
    assert "did you mean 'fake'?" in result.err


@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="docs/ is not beside the package")
def test_page_of_docs_is_up_to_date(config: Any) -> None:
    way_out = "run: omni config schema --markdown > docs/deploy-schema.md"

    assert PAGE.read_text() == schema_page(), way_out
    assert config("schema", "--markdown", platform=None).out == schema_page()


def test_page_has_type_default_and_stages_of_a_field() -> None:
    page = schema_page()

    assert "| `async_chunk` | true or false | true | Hand on chunks while a stage still works. |" in page
    assert re.search(r"^\| `attention_backend` \| string \| - \| AR \| ", page, re.MULTILINE)
    assert re.search(r"^\| `gpu_memory_utilization` \| number above 0 and at most 1 \| - \| all \| ", page, re.MULTILINE)


def test_default_is_taken_out_of_the_text() -> None:
    assert split_default("Most sessions (default: 1).") == ("Most sessions.", "1")
    assert split_default("Most sessions.") == ("Most sessions.", "")
