"""How a checkpoint is known, and what the bundled deploy files come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError
from omni_duplex.personaplex.shape import PUBLISHED_SILENCE, TEXT_TOKENIZER, Shape, is_checkpoint


@pytest.mark.parametrize(
    ("config", "has_tokenizer", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"model_type": "personaplex"}, False, True),
        ({"model_type": "moshi"}, True, False),
        ({"architectures": ["Other"]}, True, False),
    ],
    ids=["published", "empty", "named", "another model", "another architecture"],
)
def test_a_checkpoint_is_known_by_its_files(
    tmp_path: Path, config: dict[str, Any], has_tokenizer: bool, expected: bool
) -> None:
    if has_tokenizer:
        (tmp_path / TEXT_TOKENIZER).touch()

    assert is_checkpoint(tmp_path, config) is expected


def test_a_checkpoint_that_names_no_sizes_has_the_published_ones() -> None:
    shape = Shape.of_config({})

    assert (shape.dim, shape.layers, shape.heads, shape.context, shape.ffn) == (4096, 32, 32, 3000, 11_264)
    assert (shape.depth_dim, shape.depth_layers, shape.depth_heads, shape.card) == (1024, 6, 16, 2048)
    assert shape.silence == PUBLISHED_SILENCE


@pytest.mark.parametrize(
    "sizes", [{"depth": 1}, {"dim": "64"}, {"dim": -1}, {"dim": True}, {"silence": [1, 2]}, {"codec": 3}, [1]], ids=str
)
def test_sizes_that_are_none_are_named(sizes: Any) -> None:
    with pytest.raises(ConfigError, match="sizes"):
        Shape.of_config({"sizes": sizes})


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder as the published one looks from outside."""
    (tmp_path / "config.json").write_text(json.dumps({}))
    (tmp_path / TEXT_TOKENIZER).touch()
    return tmp_path


def test_the_default_file_serves_four_sessions_on_one_gpu(published: Path) -> None:
    """DX-02: warm-up is opt-in. DX-03: workers get the limit of all sessions under the legacy policy."""
    found = resolve_deployment(published, platform="cuda")

    assert found.duplex is not None
    assert (found.duplex.settings.max_sessions, found.duplex.settings.warmup_frames) == (4, 0)
    assert [stage.duplex_max_sessions for stage in found.stages] == [4, 4]
    assert [stage.devices for stage in found.stages] == ["0", "0"]
    assert found.stages[0].runner.endswith("LightRunner")


def test_the_example_gives_four_frontends_two_groups_and_sixteen_sessions_each(published: Path) -> None:
    """FE-06, the contract's example: 64 sessions, 8 replicas with 8 each, 4 frontends."""
    found = resolve_deployment(published, deploy_config="personaplex_8gpu.yaml", platform="cuda", frontend_count=4)

    assert found.duplex is not None
    assert found.duplex.groups == tuple({0: number, 1: number} for number in range(8))
    assert [(frontend.groups, frontend.max_sessions) for frontend in found.duplex.frontends] == [
        ((0, 4), 16),
        ((1, 5), 16),
        ((2, 6), 16),
        ((3, 7), 16),
    ]
    assert [stage.duplex_max_sessions for stage in found.stages] == [8, 8]
    assert [stage.num_replicas for stage in found.stages] == [8, 8]


def test_the_example_is_what_the_contract_says_to_write(published: Path, tmp_path: Path) -> None:
    """A copy of the default file with the settings of the contract's text resolves alike."""
    copy = tmp_path / "scaled.yaml"
    stage = {"num_replicas": 8, "devices": "0,1,2,3,4,5,6,7"}
    session = {"max_sessions": 64, "replica_policy": "least_sessions", "max_sessions_per_replica": 8}
    document = {
        "base_config": "personaplex.yaml",
        "duplex_session": session,
        "stages": [{"stage_id": 0, **stage}, {"stage_id": 1, **stage}],
    }
    copy.write_text(json.dumps(document))

    ours, theirs = (
        resolve_deployment(published, deploy_config=name, platform="cuda", frontend_count=4)
        for name in ("personaplex_8gpu.yaml", str(copy))
    )

    assert ours.duplex is not None
    assert theirs.duplex is not None
    assert (ours.duplex.groups, ours.duplex.frontends) == (theirs.duplex.groups, theirs.duplex.frontends)
    fields = ("num_replicas", "devices", "duplex_max_sessions", "engine_args")
    for one, other in zip(ours.stages, theirs.stages, strict=True):
        assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]


def test_in_turn_mode_there_are_no_sessions(published: Path, tmp_path: Path) -> None:
    (tmp_path / "turn.yaml").write_text("base_config: personaplex.yaml\nsession_mode: turn\n")

    found = resolve_deployment(published, deploy_config=str(tmp_path / "turn.yaml"), platform="cuda")

    assert found.duplex is None
    assert [stage.duplex_max_sessions for stage in found.stages] == [None, None]
