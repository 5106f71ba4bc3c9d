"""The page about duplex sessions: its model is whole, its tables are the code's, its example runs."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_core.plugins import PluginManager
from omni_core.target import load_target
from omni_duplex import hookspecs
from omni_duplex.errors import DuplexError
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.model import AudioOut, DuplexModel, SessionConfig
from omni_duplex.session import events as ev
from omni_duplex.session.living import CODES
from omni_duplex.testing import PlainDialect, VirtualClock
from omni_server.web_socket import CloseCode

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "duplex.md").read_text()
UNIT = 1920


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def echo() -> Iterator[types.ModuleType]:
    """The page's model as the module that its hook names."""
    code = next(code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class EchoModel" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30, "thirty lines are enough"
    module = types.ModuleType("omni_plugin_echo_talk")
    sys.modules[module.__name__] = module
    exec(compile(code, "docs/duplex.md", "exec"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


@pytest.fixture
def manage(echo: types.ModuleType) -> Callable[[], SessionManager]:
    """Return what makes a manager for the model that the hook offers."""
    plugins = PluginManager()
    plugins.add_hookspecs(hookspecs)
    plugins.add(echo, "omni-plugin-echo-talk")
    ((_, offered),) = plugins.collect("omni_duplex_models")
    kind: Any = load_target(offered["echo"])
    assert issubclass(kind, DuplexModel)

    def make() -> SessionManager:
        frontend = Frontend(0, (), 2)
        plan = DuplexPlan(DuplexSettings(max_sessions=2), (), (frontend,))
        return SessionManager(kind(), plan, frontend, lambda group: None, Tools(VirtualClock(), max_lead_s=None))  # type: ignore[arg-type,return-value]

    return make


async def test_the_model_of_the_page_talks(manage: Callable[[], SessionManager]) -> None:
    """Silence, speech, silence: it listens, says what it heard at half the level, ends its turn and listens again."""
    manager = manage()
    actor = await manager.open(PlainDialect(), SessionConfig())
    channel = manager.attach(actor).channel
    silence, speech = np.zeros(UNIT, np.float32), np.full(UNIT, 0.4, np.float32)

    await actor.receive({"command": ev.Append(np.concatenate([silence, speech, speech, silence, silence]))})
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(10):
        while [event["type"] for event in found].count("response.listen") < 2:
            found.append(await channel.get())  # type: ignore[arg-type]

    kinds = [event["type"] for event in found]
    assert kinds.index("response.listen") < kinds.index("response.created") < kinds.index("response.done")
    words = [event["delta"] for event in found if event["type"] == "response.output_audio_transcript.delta"]
    sound = [event["delta"] for event in found if event["type"] == "response.output_audio.delta"]
    assert words == ["echo"]
    assert [round(float(out.pcm[0]), 3) for out in sound if isinstance(out, AudioOut)] == [0.2, 0.2, 0.0]
    assert await manager.close("test")


async def test_the_model_of_the_page_refuses_what_it_cannot_do(manage: Callable[[], SessionManager]) -> None:
    manager = manage()

    with pytest.raises(DuplexError) as refused:
        await manager.open(PlainDialect(), SessionConfig(extra={"gain": 2}))

    assert (refused.value.code, refused.value.param) == ("bad_gain", "session.extra_body.gain")
    async with asyncio.timeout(10):
        while manager.placement.held:
            await asyncio.sleep(0)


def test_the_table_of_closing_codes_is_complete() -> None:
    section = PAGE.split("## Closing codes")[1].split("##")[0]

    assert {int(code) for code in re.findall(r"^\| (\d{4}) \|", section, re.MULTILINE)} == {*CODES.values(), *CloseCode}


def test_every_code_in_the_table_of_errors_exists() -> None:
    section = PAGE.split("## Errors")[1].split("##")[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", section)) - {"event_id", "rate_limit_error", "server_error"}
    named -= {"invalid_request_error"}
    texts = [
        path.read_text() for name in ("omni-duplex", "omni-server") for path in (ROOT / "packages" / name).rglob("src/**/*.py")
    ]
    source = "\n".join(texts).replace("{name}_update_after_audio", "voice_update_after_audio instructions_update_after_audio")

    assert len(named) > 15
    assert {code for code in named if code.removesuffix("_unsupported") not in source} == set()
