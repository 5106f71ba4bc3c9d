from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_core.deploy.executors import is_worker_identity, ray_environment, resolve_executor
from omni_core.deploy.outcome import Outcome
from omni_core.errors import ConfigError
from omni_core.pipeline import ExecutionType, StagePipelineConfig
from omni_core.stage import Source

TALKER = StagePipelineConfig(stage_id=0, model_stage="talker")
DENOISER = StagePipelineConfig(stage_id=1, model_stage="dit", execution_type=ExecutionType.DIFFUSION)
FIELD = "distributed_executor_backend"
SOURCES = {FIELD: Source("base", "my.yaml:3:1")}


def resolve(stage: StagePipelineConfig, value: str | None, ranks: int = 1, ray: bool = True) -> Outcome:
    arguments: dict[str, Any] = {} if value is None else {FIELD: value}
    return resolve_executor(stage, arguments, SOURCES, ranks=ranks, ray_installed=ray)


@pytest.mark.parametrize("value", [None, "uni", "mp", "ray", "external_launcher", "json.decoder.JSONDecoder"])
def test_vllm_stage_forwards_its_executor(value: str | None) -> None:
    """EX-01: omitted means that vLLM chooses."""
    assert resolve(TALKER, value) == Outcome()


@pytest.mark.parametrize(("ranks", "expected"), [(1, "uni"), (2, "mp"), (8, "mp")])
def test_denoising_stage_without_executor_gets_one_by_its_devices(ranks: int, expected: str) -> None:
    """EX-02."""
    outcome = resolve(DENOISER, None, ranks)

    assert outcome.arguments == {FIELD: expected}
    assert outcome.sources == {FIELD: Source("default")}


@pytest.mark.parametrize(("value", "ranks"), [("mp", 1), ("ray", 1), ("ray", 4), ("uni", 1), ("json.decoder.JSONDecoder", 2)])
def test_denoising_stage_keeps_an_explicit_executor(value: str, ranks: int) -> None:
    """EX-02, RY-01: mp keeps a process of its own on one GPU."""
    assert resolve(DENOISER, value, ranks) == Outcome()


@pytest.mark.parametrize(
    ("stage", "value", "ranks", "message", "hint"),
    [
        (DENOISER, "external_launcher", 1, "'external_launcher' cannot run a stage that denoises", "use uni, mp or ray"),
        (DENOISER, "uni", 2, "'uni' runs one rank, and this stage has 2", "use mp"),
        (TALKER, "rya", 1, "there is no executor 'rya'", "did you mean 'ray'?"),
        (TALKER, "a b.c", 1, "there is no executor 'a b.c'", "package.module.Class"),
        (DENOISER, "no_such_package.Executor", 1, "in a package that is not installed", "install it"),
    ],
)
def test_executor_that_cannot_run_the_stage_is_refused(
    stage: StagePipelineConfig, value: str, ranks: int, message: str, hint: str
) -> None:
    """EX-01, EX-02, E33."""
    with pytest.raises(ConfigError) as caught:
        resolve(stage, value, ranks)

    assert message in caught.value.message
    assert f"stage {stage.stage_id} ({stage.model_stage})" in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.where == "my.yaml:3:1"


def test_in_process_executor_runs_one_rank_of_each_data_parallel_one() -> None:
    """EX-01."""
    arguments = {FIELD: "uni", "data_parallel_size": 2}
    assert resolve_executor(TALKER, arguments, SOURCES, ranks=2) == Outcome()

    arguments["tensor_parallel_size"] = 2
    with pytest.raises(ConfigError, match="'uni' runs one rank, and this stage has 2"):
        resolve_executor(TALKER, arguments, SOURCES, ranks=4)


@pytest.mark.parametrize("stage", [TALKER, DENOISER])
def test_ray_has_to_be_installed(stage: StagePipelineConfig) -> None:
    """E33."""
    with pytest.raises(ConfigError, match="the executor 'ray' needs Ray, which is not installed"):
        resolve(stage, "ray", ray=False)


def test_module_without_a_specification_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: (_ for _ in ()).throw(ValueError(name)))

    with pytest.raises(ConfigError, match="not installed"):
        resolve(TALKER, "__main__.Executor")


DRIVER = {
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "OMNI_LOG_LEVEL": "DEBUG",
    "DIFFUSION_ATTENTION_BACKEND": "TORCH_SDPA",
    "NCCL_DEBUG": "INFO",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "UCX_TLS": "tcp",
    "HF_TOKEN": "t",
    "HUGGINGFACE_HUB_CACHE": "/c",
    "HUGGING_FACE_HUB_TOKEN": "t",
    "PYTHONPATH": "/p",
    "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_NUM_THREADS": "2",
}


def test_driver_settings_reach_ray_workers() -> None:
    """RY-03: the prefixes and names of the contract, and nothing else."""
    others = {"PATH": "/bin", "HOME": "/root", "MY_VLLM_X": "1", "PYTHONPATH_2": "x", "HFX": "1"}

    assert ray_environment({**DRIVER, **others}, {}) == (DRIVER, ())


def test_stage_environment_reaches_ray_workers_and_wins() -> None:
    """RY-04."""
    env, warnings = ray_environment(DRIVER, {"NCCL_DEBUG": "WARN", "ANYTHING": "1"})

    assert env == {**DRIVER, "NCCL_DEBUG": "WARN", "ANYTHING": "1"}
    assert warnings == ()


IDENTITY = """
    CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES MUSA_VISIBLE_DEVICES
    ZE_AFFINITY_MASK RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT VLLM_LOCAL_RANK VLLM_DP_RANK
    VLLM_DP_MASTER_IP VLLM_HOST_IP VLLM_NIXL_SIDE_CHANNEL_HOST RAY_ADDRESS RAY_JOB_ID TORCHELASTIC_RUN_ID OMNI_RUN_DIR
    OMNI_WATCH_PIDS
"""


@pytest.mark.parametrize("name", IDENTITY.split())
def test_workers_keep_their_devices_rank_and_address(name: str) -> None:
    """RY-05: neither from the driver nor from the stage, and the latter is a warning."""
    assert ray_environment({name: "driver"}, {}) == ({}, ())

    env, warnings = ray_environment({name: "driver"}, {name: "stage", "OTHER": "1"})

    assert env == {"OTHER": "1"}
    assert warnings == (f"env.{name} is not given to Ray workers: each has its own",)


_NAMES = st.sampled_from([*DRIVER, *IDENTITY.split(), "PATH", "MY_SETTING"])


@settings(deadline=None)
@given(st.dictionaries(_NAMES, st.text(max_size=3)), st.dictionaries(_NAMES, st.text(max_size=3)))
def test_no_identity_passes_and_every_other_stage_setting_does(driver: dict[str, str], stage: dict[str, str]) -> None:
    """RY-03 to RY-05."""
    env, warnings = ray_environment(driver, stage)

    assert not any(is_worker_identity(name) for name in env)
    assert {name: env[name] for name in stage if not is_worker_identity(name)} == {
        name: value for name, value in stage.items() if not is_worker_identity(name)
    }
    assert set(env) <= set(driver) | set(stage)
    assert len(warnings) == sum(is_worker_identity(name) for name in stage)
