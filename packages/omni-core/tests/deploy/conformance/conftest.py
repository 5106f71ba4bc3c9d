"""A checkpoint with nothing but a config.json, a plugin with fake pipelines, and a record of every process that is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.numa import NumaHost
from omni_core.deploy.resolve import resolve_deployment
from omni_core.platforms import Platform
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager, make_plugin

_STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "socket.bind"}
)
"""Audit events of a process that starts, or of a server that opens a door."""
_started: list[str] = []


def _watch(event: str, _: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(event)


sys.addaudithook(_watch)


class Desk:
    """A working directory with fake checkpoints, deploy files and a plugin; a test changes `hooks` as it needs."""

    def __init__(self, deployments: Any) -> None:
        self._deployments = deployments
        self.folder: Path = deployments.folder
        self.hooks: dict[str, Any] = deployments.hooks

    def model(self, model_type: str = "two", **config: Any) -> Path:
        """Make a checkpoint that holds only a config.json."""
        folder = self.folder / f"checkpoint-{model_type}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
        return folder

    def write(self, name: str, text: str) -> str:
        """Write a file and return its name."""
        (self.folder / name).write_text(text)
        return name

    def change(self, model_type: str, **fields: Any) -> None:
        """Replace fields of a fake pipeline; `stages` may be given as changes by stage id."""
        changed = []
        for config in self.hooks["omni_pipelines"]:
            if config.model_type == model_type:
                own = fields.pop("stages", {})
                stages = tuple(replace(stage, **own.get(stage.stage_id, {})) for stage in config.stages)
                config = replace(config, stages=stages, **fields)
            changed.append(config)
        self.hooks["omni_pipelines"] = changed

    def resolve(
        self,
        model_type: str = "two",
        text: str | None = None,
        *,
        files: list[str] | None = None,
        overrides: Mapping[Any, Any] | str | None = None,
        platform: str = "cuda",
        frontends: int = 1,
        config: Mapping[str, Any] | None = None,
        **flags: Any,
    ) -> ResolvedPipeline:
        """Resolve a checkpoint of this type; `text` is a deploy file, and any platform can be named."""
        return resolve_deployment(
            self.model(model_type, **(config or {})),
            deploy_config=[self.write("my.yaml", text)] if text is not None else files,
            flags=flags,
            stage_overrides=overrides,
            manager=make_manager({"acme": make_plugin(**self.hooks)}),
            platform=platform if platform in {"cpu", "cuda"} else Platform(platform, platform),
            frontend_count=frontends,
        )


@pytest.fixture
def desk(deployments: Any, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk on a machine with numactl, without Ray and without variables that resolving reads."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "DIFFUSION_ATTENTION_BACKEND", "OMNI_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(NumaHost, "read", lambda: NumaHost(numactl="/usr/bin/numactl"))
    return Desk(deployments)


class Starts:
    """What was started since the test began."""

    def __init__(self) -> None:
        self.forget()

    def __call__(self) -> list[str]:
        """Return the audit events."""
        return _started[self._begin :]

    def forget(self) -> None:
        """Begin anew."""
        self._begin = len(_started)


@pytest.fixture
def nothing_starts() -> Iterator[Starts]:
    """Fail a test during which a process was started or a socket bound."""
    starts = Starts()
    yield starts
    assert starts() == []
