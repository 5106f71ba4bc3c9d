"""From a deployment to its sessions: which model, what is told of replicas, what is warm before anybody may come."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.duplex import DuplexPlan, DuplexSettings
from omni_core.deploy.frontends import Frontend
from omni_core.deploy.resolve import resolve_deployment
from omni_core.errors import ConfigError, ServiceError, StageStartError
from omni_core.observe.registry import Registry
from omni_core.stage import ResolvedPipeline
from omni_core.testing.plugins import make_manager as make_plugins
from omni_core.testing.plugins import make_plugin
from omni_duplex import hookspecs
from omni_duplex.errors import CapacityError
from omni_duplex.manager import SessionManager, Tools
from omni_duplex.model import Capabilities, Fence, SessionConfig, TurnEnd
from omni_duplex.personaplex.tiny import build_tiny
from omni_duplex.service import first_config, load_model, make_manager
from omni_duplex.testing import PlainDialect, ScriptedModel, ScriptedTurnModel, VirtualClock

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

TWO = ({0: 0, 1: 0}, {0: 1, 1: 1})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> ResolvedPipeline:
    """Two replica groups with a session each."""
    folder = tmp_path_factory.mktemp("service")
    build_tiny(folder / "model")
    (folder / "two.yaml").write_text(
        "base_config: personaplex.yaml\n"
        "duplex_session: {max_sessions: 2, replica_policy: least_sessions, max_sessions_per_replica: 1}\n"
        "stages: [{stage_id: 0, num_replicas: 2}, {stage_id: 1, num_replicas: 2}]\n"
    )
    return resolve_deployment(folder / "model", deploy_config=folder / "two.yaml", platform="cpu")


class Engine:
    """Replicas that die and come back when they are told to."""

    def __init__(self) -> None:
        self.telemetry = types.SimpleNamespace(registry=Registry())
        self.states = {(stage, replica): "ready" for stage in (0, 1) for replica in (0, 1)}
        self._deaths: list[Callable[[int, int, str], None]] = []
        self._returns: list[Callable[[], None]] = []

    def watch_deaths(self, told: Callable[[int, int, str], None]) -> None:
        self._deaths.append(told)

    def watch_returns(self, told: Callable[[], None]) -> None:
        self._returns.append(told)

    def health(self) -> Mapping[str, Any]:
        return {"stages": [{"stage_id": s, "replica": r, "state": state} for (s, r), state in self.states.items()]}

    def die(self, stage: int, replica: int) -> None:
        self.states[stage, replica] = "dead"
        for told in self._deaths:
            told(stage, replica, "it was ended by SIGKILL")

    def come_back(self, stage: int, replica: int) -> None:
        self.states[stage, replica] = "ready"
        for told in self._returns:
            told()

    def generate(self, prompt: Any, **options: Any) -> AsyncIterator[Any]:
        raise AssertionError("nobody asks")

    open = generate


def reserved(manager: SessionManager) -> int:
    """Return how many sessions the placement admits now."""
    names: list[str] = []
    try:
        while True:
            names.append(f"probe-{len(names)}")
            manager.placement.reserve(names[-1])
    except CapacityError:
        return len(names) - 1
    finally:
        for name in names:
            manager.placement.release(name)


async def test_a_dead_replica_takes_its_group_out_until_it_is_back(deployment: ResolvedPipeline) -> None:
    """DP-10. A second replica that is dead stays out when the first one returns."""
    engine = Engine()
    manager = make_manager(engine, deployment)  # type: ignore[arg-type]
    assert reserved(manager) == 2

    engine.die(1, 0)
    assert reserved(manager) == 1
    engine.die(0, 1)
    assert reserved(manager) == 0
    engine.come_back(1, 0)
    assert reserved(manager) == 1
    engine.come_back(0, 1)

    assert reserved(manager) == 2


async def test_the_first_settings_leave_turns_to_a_model_that_decides_itself(deployment: ResolvedPipeline) -> None:
    config = first_config(make_manager(Engine(), deployment), "m")  # type: ignore[arg-type]

    assert (config.voice, config.turn_detection) == ("NATF2", None)


def test_a_model_is_found_by_the_id_that_a_plugin_offers(deployment: ResolvedPipeline) -> None:
    plugins = make_plugins()
    plugins.add_hookspecs(hookspecs)
    plugins.add(make_plugin(omni_duplex_models={"acme": "omni_duplex.testing:ScriptedModel"}), "acme")
    named = replace(deployment, config=replace(deployment.config, duplex_plugin="acme"))

    assert isinstance(load_model(named, plugins), ScriptedModel)
    with pytest.raises(ConfigError, match="nobody offers the duplex model 'personaplex'"):
        load_model(deployment, plugins)


def test_two_plugins_that_offer_one_id_are_both_named(deployment: ResolvedPipeline) -> None:
    plugins = make_plugins()
    plugins.add_hookspecs(hookspecs)
    for owner in ("acme", "bolt"):
        plugins.add(make_plugin(omni_duplex_models={"same": "omni_duplex.testing:ScriptedModel"}), owner)

    with pytest.raises(ConfigError, match=r"(acme and bolt|bolt and acme) both offer the duplex model 'same'"):
        load_model(deployment, plugins)


def test_what_is_no_duplex_model_is_refused(deployment: ResolvedPipeline) -> None:
    other = replace(deployment, config=replace(deployment.config, duplex_plugin="omni_duplex.testing:VirtualClock"))

    with pytest.raises(ConfigError, match="no DuplexModel"):
        load_model(other)


class Port:
    def __init__(self, group: int) -> None:
        self.group = group


class Listener(ScriptedModel):
    """Notes what each group hears, and fails for one of them if it should."""

    def __init__(self, failing: int | None = None) -> None:
        super().__init__(capabilities=Capabilities(unit_ms=80))
        self.groups: list[int] = []
        self._failing = failing

    async def open(self, config: SessionConfig, replica: Any, fence: Fence) -> Any:
        if replica.group == self._failing:
            raise ServiceError("its process is gone", hint="look at its log")
        self.groups.append(replica.group)
        return await super().open(config, replica, fence)


def manage(model: Any, frames: int, groups: Any = TWO, owned: tuple[int, ...] = (0, 1), slots: int = 2) -> SessionManager:
    fields: dict[str, Any] = {"replica_policy": "least_sessions", "max_sessions_per_replica": 1} if groups else {}
    settings = DuplexSettings(max_sessions=2, warmup_frames=frames, **fields)
    frontend = Frontend(0, owned if groups else (), slots)
    return SessionManager(model, DuplexPlan(settings, groups, (frontend,)), frontend, Port, Tools(clock=VirtualClock()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frames", "groups", "owned", "slots", "expected"),
    [
        (3, TWO, (0, 1), 2, [0, 1]),
        (3, TWO, (1,), 1, [1]),
        (3, TWO, (0,), 0, []),
        (3, (), (), 2, [0]),
        (0, TWO, (0, 1), 2, []),
        (-1, TWO, (0, 1), 2, []),
    ],
    ids=["all groups", "its own", "no slots", "legacy", "off", "negative"],
)
async def test_a_frontend_warms_its_own_groups(frames: int, groups: Any, owned: Any, slots: int, expected: list[int]) -> None:
    """DX-02, FE-06."""
    model = Listener()

    await manage(model, frames, groups, owned, slots).warm_up(SessionConfig())

    assert model.groups == expected
    for stream in model.streams:
        heard = stream.heard  # type: ignore[attr-defined]
        assert len(heard) == frames
        assert all(len(unit.pcm) == 1920 and not unit.pcm.any() for unit in heard)
    assert model.closed == model.streams


async def test_a_turn_model_is_warmed_with_a_silent_turn() -> None:
    model = ScriptedTurnModel([lambda fence: [TurnEnd(fence)]])

    await manage(model, 5, ()).warm_up(SessionConfig())

    ((history, _),) = model.streams[0].asked  # type: ignore[attr-defined]
    assert len(history[0].content[0].audio) == 24_000 * 80 // 1000 * 5


async def test_a_group_that_fails_its_warm_up_ends_the_start() -> None:
    manager = manage(Listener(failing=1), 1)

    with pytest.raises(StageStartError, match="replica group 1 failed its warm-up: its process is gone"):
        await manager.warm_up(SessionConfig())

    manager.attach(await manager.open(PlainDialect(), SessionConfig()))
    assert await manager.close("test")


def test_the_folder_of_deploy_files_is_a_part_of_the_package() -> None:
    import omni_duplex

    assert omni_duplex.__file__ is not None
    assert {path.name for path in (Path(omni_duplex.__file__).parent / "deploy").glob("*.yaml")} == {
        "personaplex.yaml",
        "personaplex_8gpu.yaml",
    }
