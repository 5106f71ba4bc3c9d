"""What a server says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from omni_server.app import build_app
from omni_server.context import ServerSettings, ServerState
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


async def test_models_are_listed_in_openais_shape(client: Any) -> None:
    body = (await client.get("/v1/models")).json()

    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["org/fake-tts", "fake-tts"]
    assert all(card["object"] == "model" and isinstance(card["created"], int) for card in body["data"])


@pytest.mark.parametrize("name", ["org/fake-tts", "org%2Ffake-tts", "fake-tts"])
async def test_one_model_is_found_by_its_names(name: str, client: Any) -> None:
    response = await client.get(f"/v1/models/{name}")

    assert response.status_code == 200
    assert response.json()["root"] == "org/fake-tts"


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
async def test_healthy_engine(path: str, client: Any) -> None:
    response = await client.get(path)

    assert (response.status_code, response.json()) == (200, {"status": "healthy"})


@pytest.mark.parametrize("path", ["/health", "/ready", "/ping"])
async def test_dead_stage_is_named(path: str, client: Any, engine: FakeEngine) -> None:
    engine.dead_stage = 1

    response = await client.get(path)

    assert response.status_code == 503
    assert response.json()["status"] == "unhealthy"
    assert response.json()["reason"] == "stage 1 (code2wav) is dead: ended by signal 9"


async def test_draining_server_is_healthy_but_not_ready(make_plugins: Any, engine: FakeEngine) -> None:
    import httpx

    state = ServerState()
    state.stopping.set()
    app = build_app(engine, ServerSettings("m"), state=state, plugins=make_plugins())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503


async def test_version_is_that_of_the_distribution(client: Any) -> None:
    from omni_core import __version__

    body = (await client.get("/version")).json()

    assert body["version"] == __version__
    assert body["packages"]["omni-server"] == __version__
