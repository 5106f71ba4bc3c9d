"""The application as a whole: routes of plugins, errors, keys, limits, and what is imported."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from types import ModuleType
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

from omni_core.errors import ConfigError, DeadlineError, OmniError, OverloadedError
from omni_core.hookspecs import hookimpl
from omni_server import speech
from omni_server.app import build_app
from omni_server.context import ServerContext, ServerSettings
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio
SETTINGS = ServerSettings("org/fake-tts")


def plugin_with(*routes: Any) -> ModuleType:
    module = ModuleType("acme")

    @hookimpl
    def omni_routes(context: ServerContext) -> Any:
        assert context.settings.model == "org/fake-tts"
        return routes

    module.omni_routes = omni_routes  # type: ignore[attr-defined]
    return module


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://test")


class TestRoutes:
    """The hook `omni_routes`."""

    async def test_route_of_a_plugin_is_served(self, make_plugins: Any) -> None:
        app = build_app(FakeEngine(), SETTINGS, plugins=make_plugins(acme=plugin_with(Route("/v1/hello", hello))))

        assert (await client_of(app).get("/v1/hello")).text == "hello"

    @pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/hello"])
    def test_one_path_and_method_from_two_plugins_names_both(self, path: str, make_plugins: Any) -> None:
        one = plugin_with(Route("/v1/hello", hello, methods=["POST"]))
        two = plugin_with(Route(path, hello, methods=["POST"]))

        with pytest.raises(ConfigError) as caught:
            build_app(FakeEngine(), SETTINGS, plugins=make_plugins(one=one, two=two))

        assert path in caught.value.message
        assert "two" in caught.value.message
        assert ("one" if path == "/v1/hello" else "omni-server") in caught.value.message

    async def test_other_method_of_one_path_is_no_clash(self, make_plugins: Any) -> None:
        one = plugin_with(Route("/v1/hello", hello, methods=["POST"]))
        two = plugin_with(Route("/v1/hello", hello, methods=["PUT"]))

        assert build_app(FakeEngine(), SETTINGS, plugins=make_plugins(one=one, two=two))

    async def test_plugin_that_raises_costs_only_itself(self, make_plugins: Any) -> None:
        module = ModuleType("broken")

        @hookimpl
        def omni_routes(context: ServerContext) -> Any:
            raise ImportError("libfoo")

        module.omni_routes = omni_routes  # type: ignore[attr-defined]
        plugins = make_plugins(broken=module)

        app = build_app(FakeEngine(), SETTINGS, plugins=plugins)

        assert (await client_of(app).get("/health")).status_code == 200
        assert {report.name: report.status for report in plugins.reports}["broken"] == "broken"


class TestErrors:
    """Every error is an OpenAI error object."""

    @pytest.mark.parametrize(
        ("method", "path", "status", "code"),
        [
            ("GET", "/nothing", 404, "path_not_found"),
            ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
            ("DELETE", "/v1/models", 405, "method_not_allowed"),
            ("GET", "/v1/models/other", 404, "model_not_found"),
            ("GET", "/v1/audio/speech/", 404, "path_not_found"),
        ],
    )
    async def test_path_and_method(self, method: str, path: str, status: int, code: str, client: Any) -> None:
        response = await client.request(method, path)

        assert response.status_code == status
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == code
        assert response.headers["x-request-id"]

    async def test_wrong_method_names_the_right_one(self, client: Any) -> None:
        response = await client.get("/v1/audio/speech")

        assert response.headers["allow"] == "POST"
        assert "GET cannot be used on /v1/audio/speech" in response.json()["error"]["message"]

    @pytest.mark.parametrize(
        ("error", "status", "kind"),
        [(OverloadedError("full"), 429, "rate_limit_error"), (DeadlineError("late"), 504, "timeout_error")],
    )
    async def test_error_classes_decide_status_and_type(
        self, error: OmniError, status: int, kind: str, make_plugins: Any
    ) -> None:
        async def fail(request: Request) -> None:
            raise error

        app = build_app(FakeEngine(), SETTINGS, plugins=make_plugins(acme=plugin_with(Route("/fail", fail))))

        response = await client_of(app).get("/fail")

        assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
        assert ("retry-after" in response.headers) == (status == 429)

    async def test_overload_says_when_there_may_be_room(self, make_plugins: Any) -> None:
        async def fail(request: Request) -> None:
            raise OverloadedError("full", retry_after_s=17)

        app = build_app(FakeEngine(), SETTINGS, plugins=make_plugins(acme=plugin_with(Route("/fail", fail))))

        assert (await client_of(app).get("/fail")).headers["retry-after"] == "17"

    async def test_bug_is_a_500_that_tells_nothing(self, make_plugins: Any) -> None:
        async def fail(request: Request) -> None:
            raise KeyError("secret")

        app = build_app(FakeEngine(), SETTINGS, plugins=make_plugins(acme=plugin_with(Route("/fail", fail))))

        response = await client_of(app).get("/fail", headers={"X-Request-Id": "mine"})

        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        assert "mine" in response.text

    @pytest.mark.parametrize(
        ("content", "media_type"),
        [(b"input=hi", "application/x-www-form-urlencoded"), (b'{"input": "hi"}', "text/plain"), (b"{", "application/json")],
    )
    async def test_wrong_body_is_400(self, content: bytes, media_type: str, client: Any) -> None:
        response = await client.post("/v1/audio/speech", content=content, headers={"Content-Type": media_type})

        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", None])
    async def test_usual_content_types_are_json(self, media_type: str | None, client: Any) -> None:
        headers = {} if media_type is None else {"Content-Type": media_type}

        assert (await client.post("/v1/audio/speech", content=b'{"input": "hi"}', headers=headers)).status_code == 200


class TestBodyLimit:
    """--max-body-bytes."""

    @pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/chat/completions", "/start_profile", "/pause"])
    async def test_body_that_does_not_come_is_not_waited_for(
        self, path: str, make_client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def nothing() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        monkeypatch.setattr(speech, "BODY_TIMEOUT_S", 0.01)
        client = make_client(profile_dir="/traces", enable_control_routes=True)

        response = await client.post(path, content=nothing(), headers={"Content-Type": "application/json"})

        assert response.status_code == 408
        assert "did not arrive" in response.json()["error"]["message"]

    async def test_declared_length_is_enough_to_refuse(self, make_client: Any, engine: FakeEngine) -> None:
        response = await make_client(max_body_bytes=1000).speak("x" * 1000)

        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert "--max-body-bytes" in response.json()["error"]["message"]
        assert engine.ids == []

    async def test_undeclared_length_is_counted(self, make_client: Any) -> None:
        async def pieces() -> Any:
            for _ in range(100):
                yield b"x" * 100

        client = make_client(max_body_bytes=1000)
        response = await client.post("/v1/audio/speech", content=pieces(), headers={"Content-Type": "application/json"})

        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"

    async def test_body_of_exactly_the_limit_is_taken(self, make_client: Any) -> None:
        body = json.dumps({"input": "hi"}).encode()
        client = make_client(max_body_bytes=len(body))

        assert (await client.post("/v1/audio/speech", content=body)).status_code == 200


class TestKeys:
    """--api-key (E11)."""

    async def test_key_beyond_ascii_is_taken_as_clients_send_it(self, make_client: Any) -> None:
        client = make_client(api_key=("schl\u00fcssel",))
        headers = [[(b"Authorization", "Bearer schl\u00fcssel".encode())], [(b"Authorization", b"Bearer schlussel")]]

        assert [(await client.get("/v1/models", headers=given)).status_code for given in headers] == [200, 401]

    @pytest.mark.parametrize(
        ("header", "status"),
        [
            ("Bearer one", 200),
            ("bearer two", 200),
            ("Bearer  one ", 200),
            (None, 401),
            ("Bearer", 401),
            ("Bearer ", 401),
            ("Bearer on", 401),
            ("Bearer oneone", 401),
            ("Basic one", 401),
            ("Bearer ünë", 401),
        ],
    )
    async def test_key_decides(self, header: str | None, status: int, make_client: Any) -> None:
        client = make_client(api_key=("one", "two"))
        headers = {} if header is None else {"Authorization": header.encode()}

        responses = [await client.speak(headers=headers), await client.get("/v1/models", headers=headers)]

        assert [response.status_code for response in responses] == [status, status]
        if status == 401:
            assert responses[0].json()["error"]["code"] == "invalid_api_key"
            assert responses[0].headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("path", ["/health", "/ready", "/ping", "/version"])
    async def test_monitoring_needs_no_key(self, path: str, make_client: Any) -> None:
        assert (await make_client(api_key=("one",)).get(path)).status_code == 200

    @pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", "/admin", "/health/../v1/models", "//v1/models"])
    async def test_everything_else_needs_one(self, path: str, make_client: Any) -> None:
        assert (await make_client(api_key=("one",)).get(path)).status_code == 401

    @pytest.mark.parametrize(
        ("headers", "subprotocols", "opens"),
        [
            ([], [], False),
            ([(b"authorization", b"Bearer wrong")], [], False),
            ([(b"authorization", b"Bearer one")], [], True),
            ([], ["realtime", "openai-insecure-api-key.one"], True),
            ([], ["realtime", "openai-insecure-api-key.wrong"], False),
        ],
        ids=["none", "wrong", "header", "subprotocol", "wrong-subprotocol"],
    )
    async def test_websocket_needs_a_key(
        self, headers: list[Any], subprotocols: list[str], opens: bool, make_plugins: Any
    ) -> None:
        async def accept(socket: Any) -> None:
            await socket.accept()
            await socket.close()

        plugins = make_plugins(acme=plugin_with(WebSocketRoute("/v1/live", accept)))
        app = build_app(FakeEngine(), ServerSettings("org/fake-tts", api_key=("one",)), plugins=plugins)
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0"},
            "scheme": "ws",
            "path": "/v1/live",
            "raw_path": b"/v1/live",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "subprotocols": subprotocols,
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)

        assert (sent[0]["type"] == "websocket.accept") == opens


class TestOptions:
    """OPTIONS, HEAD and CORS."""

    async def test_options_says_what_is_allowed(self, client: Any) -> None:
        response = await client.options("/v1/audio/speech")

        assert (response.status_code, response.headers["allow"]) == (204, "POST")

    async def test_head_has_no_body(self, client: Any) -> None:
        response = await client.head("/v1/models")

        assert response.status_code == 200

    async def test_browsers_are_let_in_only_from_listed_origins(self, make_client: Any) -> None:
        client = make_client(allowed_origins=("https://good.example",), api_key=("one",))
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}

        good = await client.options("/v1/audio/speech", headers={"Origin": "https://good.example", **ask})
        bad = await client.options("/v1/audio/speech", headers={"Origin": "https://bad.example", **ask})

        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        assert "access-control-allow-origin" not in bad.headers


def test_serving_imports_neither_torch_nor_vllm_nor_transformers() -> None:
    script = """
import asyncio, sys
import httpx
import omni_server.serve
from omni_core.plugins import PluginManager
from omni_server import hookspecs, plugin
from omni_server import speech
from omni_server.app import build_app
from omni_server.context import ServerSettings
from omni_server.fake_engine import FakeEngine

async def main():
    plugins = PluginManager()
    plugins.add_hookspecs(hookspecs)
    plugins.add(plugin, "omni-server")
    app = build_app(FakeEngine(), ServerSettings("model"), plugins=plugins)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        for form in ("wav", "mp3"):
            body = {"input": "hi", "response_format": form, "sample_rate": 8000}
            assert (await client.post("/v1/audio/speech", json=body)).status_code == 200

asyncio.run(main())
print([name for name in ("torch", "vllm", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
