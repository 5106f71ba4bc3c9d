from pathlib import Path
from typing import Any

import pytest

from omni_core.deploy.files import Bundle, find_deploy_file, read_deployment
from omni_core.errors import ConfigError
from omni_core.testing.plugins import make_manager, make_plugin


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    folder = tmp_path / "site" / "deploy"
    folder.mkdir(parents=True)
    (folder / "talker.yaml").write_text("async_chunk: false\nmodel_runner: v2\nstages: [{stage_id: 0, max_num_seqs: 4}]\n")
    (folder / "README.md").write_text("no deploy file")
    monkeypatch.chdir(tmp_path)
    return Bundle(make_manager({"acme": make_plugin(omni_deploy_dirs=[folder])}))


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def read(bundle: Bundle, *names: str) -> dict[str, Any]:
    return read_deployment(names, bundle).tree.plain()


@pytest.mark.parametrize("name", ["talker.yaml", "talker", "deploy/talker.yaml", "vllm_omni/deploy/talker.yaml"])
def test_bundled_file_is_found_by_its_name(bundle: Bundle, name: str) -> None:
    """RG-14."""
    assert find_deploy_file(name, bundle).label == "site/deploy/talker.yaml"


def test_file_in_the_working_directory_comes_before_a_bundled_one(bundle: Bundle) -> None:
    """RG-14."""
    write("talker.yaml", "async_chunk: true")

    assert read(bundle, "talker.yaml") == {"async_chunk": True}


@pytest.mark.parametrize("name", ["talkr.yaml", "some/where/talker.yaml"])
def test_missing_file_is_named(bundle: Bundle, name: str) -> None:
    """E05."""
    with pytest.raises(ConfigError, match=f"there is no deploy file {name}") as caught:
        find_deploy_file(name, bundle)
    assert "did you mean 'talker.yaml'?" in caught.value.hint


def test_name_that_two_distributions_bring_is_ambiguous(tmp_path: Path) -> None:
    folders = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.yaml").touch()
        folders.append(tmp_path / name)
    manager = make_manager({n: make_plugin(omni_deploy_dirs=[f]) for n, f in zip(("acme", "bolt"), folders, strict=True)})

    with pytest.raises(ConfigError, match="bolt and acme both bring"):
        find_deploy_file("x.yaml", Bundle(manager))


def test_overlay_lies_on_its_base(bundle: Bundle) -> None:
    """BC-01: a relative base starts at the overlay's own folder."""
    write("conf/base.yaml", "stages: [{stage_id: 0, max_num_seqs: 32, enforce_eager: true}, {stage_id: 1}]")
    write("conf/over.yaml", "base_config: base.yaml\nstages: [{stage_id: 0, max_num_seqs: 8}]")

    deployment = read_deployment(["conf/over.yaml"], bundle)

    assert deployment.tree.plain() == {"stages": {0: {"max_num_seqs": 8, "enforce_eager": True}, 1: {}}}
    assert deployment.files == ("conf/over.yaml", "conf/base.yaml")
    stage = deployment.tree.find(["stages", 0])
    assert stage.find(["max_num_seqs"]).source.layer == "overlay"
    assert stage.find(["enforce_eager"]).source.layer == "base"


def test_base_may_be_a_bundled_file(bundle: Bundle) -> None:
    """BC-01: the seed's overlays name one."""
    write("conf/over.yaml", "base_config: talker.yaml\nmodel_runner: v1")

    assert read(bundle, "conf/over.yaml")["async_chunk"] is False
    assert read(bundle, "conf/over.yaml")["model_runner"] == "v1"


def test_absolute_base_is_taken_as_it_is(bundle: Bundle, tmp_path: Path) -> None:
    write("base.yaml", "dtype: float32")
    write("conf/over.yaml", f"base_config: {tmp_path}/base.yaml")

    assert read(bundle, "conf/over.yaml") == {"dtype": "float32"}


def test_chain_has_any_depth(bundle: Bundle) -> None:
    """BC-02."""
    for depth in range(20):
        write(f"{depth}.yaml", f"base_config: {depth + 1}.yaml\n" if depth < 19 else "dtype: float32")

    deployment = read_deployment(["0.yaml"], bundle)

    assert deployment.tree.plain() == {"dtype": "float32"}
    assert len(deployment.files) == 20


def test_circle_is_reported_as_a_chain(bundle: Bundle) -> None:
    """BC-03, E06."""
    write("a.yaml", "base_config: b.yaml")
    write("b.yaml", "base_config: ./c.yaml")
    write("c.yaml", "base_config: conf/../b.yaml")
    Path("conf").mkdir()

    with pytest.raises(ConfigError, match=r"in a circle: b\.yaml -> c\.yaml -> conf/\.\./b\.yaml"):
        read(bundle, "a.yaml")


def test_missing_base_names_both_files(bundle: Bundle) -> None:
    """BC-04, E05."""
    write("over.yaml", "dtype: float32\nbase_config: nowhere.yaml")

    with pytest.raises(ConfigError, match=r"base_config nowhere\.yaml of over\.yaml does not exist") as caught:
        read(bundle, "over.yaml")
    assert caught.value.where == "over.yaml:2:14"


def test_later_files_go_on_top_of_earlier_ones(bundle: Bundle) -> None:
    write("one.yaml", "dtype: float32\nmodel_runner: v1")
    write("two.yaml", "dtype: bfloat16")

    deployment = read_deployment(["one.yaml", "two.yaml"], bundle)

    assert deployment.tree.plain() == {"dtype": "bfloat16", "model_runner": "v1"}
    assert deployment.files == ("two.yaml", "one.yaml")


def test_connector_options_merge_by_key(bundle: Bundle) -> None:
    """MG-04: the seed's rollback overlay names one option alone."""
    write("base.yaml", "connectors: {shm: {name: SharedMemoryConnector, extra: {a: 1, talker_first_audio: true}}}")
    write("over.yaml", "base_config: base.yaml\nconnectors: {shm: {extra: {talker_first_audio: false}}}")

    extra = read(bundle, "over.yaml")["connectors"]["shm"]["extra"]

    assert extra == {"a": 1, "talker_first_audio": False}


def test_platform_sections_merge_by_stage(bundle: Bundle) -> None:
    """MG-05."""
    write("base.yaml", "platforms: {npu: {model_runner: v1, stages: [{stage_id: 0, devices: '0', env: {A: 1}}]}}")
    write("over.yaml", "base_config: base.yaml\nplatforms: {npu: {stages: [{stage_id: 0, env: {B: x}}, {stage_id: 1}]}}")

    npu = read(bundle, "over.yaml")["platforms"]["npu"]

    assert npu == {"model_runner": "v1", "stages": {0: {"devices": "0", "env": {"A": 1, "B": "x"}}, 1: {}}}
