"""POST /start_profile and /stop_profile on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_profiling_is_off_unless_there_is_a_folder(client: Any, engine: FakeEngine, path: str) -> None:
    response = await client.post(path)

    assert response.status_code == 501
    assert "--profile-dir" in response.json()["error"]["message"]
    assert engine.calls == []


async def test_every_stage_is_profiled_and_says_if_it_cannot(
    make_client: Callable[..., Any], engine: FakeEngine, tmp_path: Path
) -> None:
    client = make_client(profile_dir=str(tmp_path))

    started = (await client.post("/start_profile")).json()["stages"]
    stopped = (await client.post("/stop_profile", json={})).json()["stages"]

    assert engine.calls == [(0, "start_profile"), (1, "start_profile"), (0, "stop_profile"), (1, "stop_profile")]
    assert started[0] == {"stage_id": 0, "replica": 0, "status": "OK", "files": []}
    assert stopped[0]["files"] == ["/traces/stage0/trace.json.gz"]
    assert started[1]["status"] == "SKIPPED"
    assert "without torch" in started[1]["reason"]


async def test_stages_can_be_chosen(make_client: Callable[..., Any], engine: FakeEngine, tmp_path: Path) -> None:
    client = make_client(profile_dir=str(tmp_path))

    response = await client.post("/start_profile", json={"stages": [0]})

    assert response.status_code == 200
    assert engine.calls == [(0, "start_profile")]


@pytest.mark.parametrize("body", [{"stages": ["0"]}, {"stages": 0}, {"stage": [0]}], ids=["text", "no list", "misspelt"])
async def test_bodies_are_checked(make_client: Callable[..., Any], engine: FakeEngine, tmp_path: Path, body: Any) -> None:
    response = await make_client(profile_dir=str(tmp_path)).post("/start_profile", json=body)

    assert response.status_code == 400
    assert engine.calls == []


async def test_the_profiler_needs_the_key(make_client: Callable[..., Any], tmp_path: Path) -> None:
    client = make_client(profile_dir=str(tmp_path), api_key=("secret",))

    assert (await client.post("/start_profile")).status_code == 401
