from __future__ import annotations

from dataclasses import replace

import pytest

from omni_core.engine.requirements import check_requirements
from omni_core.errors import DependencyError
from omni_core.runner import UNAVAILABLE
from omni_core.testing.pipelines import fake_pipeline


def test_deployment_with_everything_it_needs_is_accepted() -> None:
    pipeline = fake_pipeline()

    check_requirements(replace(pipeline, stages=tuple(replace(stage, requires=("numpy",)) for stage in pipeline.stages)))


@pytest.mark.parametrize(("platform", "extra"), [("cpu", "cpu"), ("cuda", "vllm")])
def test_missing_package_is_named_with_the_extra_that_brings_it(platform: str, extra: str) -> None:
    pipeline = fake_pipeline()
    needing = replace(pipeline.stages[0], requires=("numpy", "no_such_engine"), platform=platform)

    with pytest.raises(DependencyError, match=r"stage 0 \(talker\) needs no_such_engine, not installed") as caught:
        check_requirements(replace(pipeline, stages=(needing, pipeline.stages[1])))

    assert caught.value.hint == f"pip install 'omni-core[{extra}]'"


def test_stage_that_nobody_can_run_is_refused_before_packages_are_looked_for() -> None:
    pipeline = fake_pipeline()
    needing = replace(pipeline.stages[0], requires=("no_such_engine",))
    planned = replace(pipeline.stages[1], runner=UNAVAILABLE.target, architecture="Planned")

    with pytest.raises(DependencyError, match=r"this version cannot run .* the architecture Planned of stage 1 \(vocoder\)"):
        check_requirements(replace(pipeline, stages=(needing, planned)))


def test_all_architectures_that_nobody_offers_are_in_one_error() -> None:
    pipeline = fake_pipeline()
    names = ("First", "Second")
    stages = tuple(replace(s, runner="", architecture=name) for s, name in zip(pipeline.stages, names, strict=True))

    with pytest.raises(DependencyError, match=r"First of stage 0 \(talker\) and Second of stage 1 \(vocoder\)"):
        check_requirements(replace(pipeline, stages=stages))
