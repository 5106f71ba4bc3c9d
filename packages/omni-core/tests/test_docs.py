"""What docs/ says about the command line and deploy files is what the code says."""

from pathlib import Path
from typing import Any

import pytest

from omni_core import builtin
from omni_core.deploy import files
from omni_core.deploy.diffusion import DiffusionFields
from omni_core.deploy.reader import parse_deploy_text
from omni_core.deploy.schema import ConnectorSpec, DeployConfig, DuplexSession, StageDeployConfig

DOCS = Path(__file__).parents[3] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not beside the package")


@pytest.mark.parametrize("model", [DeployConfig, StageDeployConfig, DiffusionFields, DuplexSession, ConnectorSpec])
def test_every_field_of_a_deploy_file_is_described(model: Any) -> None:
    lines = set((DOCS / "deploy.md").read_text().splitlines())

    missing = [row for name, field in model.model_fields.items() if (row := f"| `{name}` | {field.description} |") not in lines]

    assert missing == []


def test_every_command_is_described() -> None:
    text = (DOCS / "cli.md").read_text()

    assert [entry.name for entry in builtin.omni_commands() if f"\n## `omni {entry.name}" not in text] == []


def test_examples_of_deploy_files_can_be_read(tmp_path: Path) -> None:
    blocks = (DOCS / "deploy.md").read_text().split("```yaml\n")[1:]
    assert len(blocks) >= 4

    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block.split("```")[0])
        tree = files.read_document(files.DeployFile(path, path.name, tmp_path))
        assert tree.plain()
        assert parse_deploy_text(path.read_text(), path.name).is_mapping
