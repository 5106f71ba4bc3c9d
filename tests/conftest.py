"""Fixtures of the workspace tests: tiny checkpoints, and what a server run leaves on the machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from omni_duplex.manager import SessionManager
    from omni_duplex.model import DuplexModel
    from omni_server.testing import RunningServer

SHM = Path("/dev/shm")
POLL_S = 0.05


@dataclass(frozen=True)
class Traces:
    """What a program started with `env` has on this machine: its processes, their shared memory, their temporary files."""

    temporary: Path
    """The program's own folder for temporary files."""
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)
    shm_before: frozenset[str] = field(default_factory=lambda: frozenset(_inodes()))

    @property
    def env(self) -> dict[str, str]:
        """Variables that every descendant inherits, whoever its parent is by then."""
        return {"WORKSPACE_TEST_TAG": self.tag, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)}

    def processes(self) -> list[psutil.Process]:
        """Return the program and its descendants, zombies apart."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("WORKSPACE_TEST_TAG") == self.tag and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def shared_memory(self) -> set[str]:
        """Return files of /dev/shm that are new and that no other program uses."""
        new = {name: inode for name, inode in _inodes().items() if name not in self.shm_before}
        others = _shm_of_others(self.tag) if new else set()
        return {name for name, inode in new.items() if inode not in others}

    def files(self) -> set[str]:
        """Return the program's temporary files; torch keeps its cache of compiled code for the next start."""
        return {path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")}

    def wait_until_gone(self, timeout_s: float = 30.0) -> None:
        """Wait until nothing is left; fail after `timeout_s` seconds with what is."""
        deadline = time.monotonic() + timeout_s
        while left := [*self.processes(), *self.shared_memory(), *self.files()]:
            if time.monotonic() > deadline:
                pytest.fail(f"left after {timeout_s} s: {left}")
            time.sleep(POLL_S)


def _shm_of_others(tag: str) -> set[int]:
    """Return the inodes of shared memory that programs without the tag have mapped; a semaphore's mapping has another name."""
    inodes: set[int] = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("WORKSPACE_TEST_TAG") == tag:
                continue
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
            continue
        inodes |= {int(line.split()[4]) for line in maps.splitlines() if f"{SHM}/" in line}
    return inodes


def _inodes() -> dict[str, int]:
    found = {}
    for path in SHM.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_ino
    return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    """What is left of the program that the test starts with `traces.env`."""
    with _own_folder() as folder:
        yield Traces(folder)


@pytest.fixture(scope="module")
def module_traces() -> Iterator[Traces]:
    """The same for a program that all tests of a module use."""
    with _own_folder() as folder:
        yield Traces(folder)


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    # Not pytest's own folder: the path of a socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def plant() -> Callable[..., None]:
    """Put a plugin into a folder as an installed distribution: its name, its module's code, what it requires."""

    def plant(site: Path, name: str, code: str, requirement: str = "omni-core>=0.1") -> None:
        module = name.replace("-", "_")
        folder = site / f"{module}-9.9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\nRequires-Dist: {requirement}\n")
        (folder / "entry_points.txt").write_text(f"[omni]\n{module} = {module}\n")
        (site / f"{module}.py").write_text(code)

    return plant


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Build a tiny Qwen3-TTS checkpoint of a variant, once."""
    built: dict[str, Path] = {}

    def build(variant: str = "custom_voice") -> Path:
        if variant not in built:
            folder = tmp_path_factory.mktemp("tiny") / variant
            command = [sys.executable, "-m", "omni_core", "tiny", "qwen3_tts", str(folder), "--variant", variant]
            subprocess.run(command, check=True, timeout=240)
            built[variant] = folder
        return built[variant]

    return build


CHAT_MODEL = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
"""What the tiny stand-in is called over HTTP, so that the examples of the docs run as they are."""
_OMNI = {"qwen3-omni-moe": "qwen3_omni_moe", "qwen2.5-omni": "qwen2_5_omni"}
"""Golden checkpoints with three stages, and the deploy files for them."""
_SMALL = """
base_config: {base}.yaml
platforms:
  cpu:
    stages:
      - stage_id: 0
        max_model_len: 1024
        kv_cache_memory_bytes: 67108864
        max_num_seqs: 8
        tool_call_parser: hermes
        limit_mm_per_prompt: {{audio: 2, image: 2, video: 1}}
        default_sampling_params: {{max_tokens: 12}}
      - stage_id: 1
        max_model_len: 1024
        kv_cache_memory_bytes: 67108864
        max_num_seqs: 8
        default_sampling_params: {{max_tokens: 60}}
"""


@pytest.fixture(scope="session")
def omni_golden() -> Callable[[str], Path]:
    """Return the folder of a golden checkpoint with three stages, fp32."""
    root = Path(__file__).resolve().parents[1]

    def find(name: str) -> Path:
        shared = Path(os.environ.get("OMNI_GOLDEN", root.parent / "shared" / "golden")) / name
        return shared if shared.is_dir() else root / "packages/omni-models-qwen/tests/data" / name

    return find


@pytest.fixture(scope="session")
def chat_folder(omni_golden: Callable[[str], Path]) -> Path:
    """The golden Qwen3-Omni checkpoint."""
    return omni_golden("qwen3-omni-moe")


@pytest.fixture(scope="session")
def serve_chat(
    omni_golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., contextlib.AbstractContextManager[RunningServer]]:
    """Start a server of all three stages, which hears, sees and speaks; its media folder is the checkpoint's `inputs`."""
    from omni_server.testing import serve

    def start(*arguments: str, name: str = "qwen3-omni-moe") -> contextlib.AbstractContextManager[RunningServer]:
        folder, model = tmp_path_factory.mktemp("chat"), omni_golden(name)
        (folder / "small.yaml").write_text(_SMALL.format(base=_OMNI[name]))
        return serve(
            model,
            *("--deploy-config", str(folder / "small.yaml"), "--served-model-name", CHAT_MODEL),
            *("--allowed-local-media-path", str(model / "inputs")),
            *arguments,
            log=folder / "serve.log",
            env={"OMP_NUM_THREADS": "1"},
        )

    return start


@pytest.fixture(scope="session")
def chat_server(serve_chat: Callable[..., contextlib.AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """One for all tests."""
    with serve_chat() as server:
        yield server


class Served:
    """A server in this process."""

    def __init__(self, port: int, manager: SessionManager) -> None:
        self.url = f"ws://127.0.0.1:{port}"
        self.page = f"http://127.0.0.1:{port}/ui"
        from openai import AsyncOpenAI

        self.manager = manager
        self.client = AsyncOpenAI(api_key="key-1", base_url=f"http://127.0.0.1:{port}/v1", websocket_base_url=f"{self.url}/v1")

    async def free_slots(self) -> int:
        """Return the free slots once nothing is being closed any more."""
        async with asyncio.timeout(10):
            while self.manager.placement.held:
                await asyncio.sleep(0.01)
        return self.manager.placement.free


@pytest.fixture
def serve_sessions() -> Callable[..., Any]:
    """Return what serves realtime sessions of a duplex model in this process; None is a model without any."""
    import uvicorn  # these are not there where core alone is tested, which looks at tests of this folder, too

    from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
    from omni_core.deploy.frontends import Frontend
    from omni_duplex.manager import SessionManager, Tools
    from omni_duplex.testing import ScriptedTurnModel
    from omni_server.app import build_app
    from omni_server.context import ServerSettings, ServerState
    from omni_server.fake_engine import FakeEngine

    @contextlib.asynccontextmanager
    async def started(
        model: DuplexModel | None,
        *,
        max_sessions: int = 2,
        ear: Any = None,
        api_key: tuple[str, ...] = ("key-1",),
        **fields: Any,
    ) -> AsyncIterator[Served]:
        settings = DuplexSettings(max_sessions=max_sessions, **fields)
        frontend = Frontend(0, (), max_sessions)
        plan = DuplexPlan(settings, (), (frontend,))
        manager = SessionManager(model or ScriptedTurnModel(), plan, frontend, lambda group: None, Tools(ear=ear))  # type: ignore[arg-type,return-value]
        state = ServerState(sessions=manager if model is not None else None)
        app = build_app(FakeEngine(), ServerSettings("org/fake-tts", api_key=api_key), state=state)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            config = uvicorn.Config(app, log_config=None, lifespan="off", ws_per_message_deflate=False)
            server = uvicorn.Server(config)
            server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
            running = asyncio.create_task(server.serve(sockets=[sock]))
            served = Served(sock.getsockname()[1], manager)
            try:
                async with asyncio.timeout(20):
                    while not server.started:
                        await asyncio.sleep(0.01)
                yield served
            finally:
                await manager.close()
                await served.client.close()
                server.should_exit = True
                await running

    return started
