"""/v1/omni/config: everything but secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_core.deploy.mps import MpsPlan, MpsReason, MpsRefusal
from omni_core.stage import ResolvedPipeline, Source
from omni_core.testing.pipelines import fake_pipeline
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

SECRET = "hf_do_not_show"


@pytest.fixture
def deployment() -> ResolvedPipeline:
    resolved = fake_pipeline(env={"HF_TOKEN": SECRET, "HOME": SECRET}, engine_args={0: {"hf_token": SECRET, "max_num_seqs": 8}})
    talker = replace(
        resolved.stages[0],
        async_chunk=False,
        sources={
            "max_num_seqs": Source("flag", "--max-num-seqs", 8),
            "env.HOME": Source("base", "my.yaml:3:5", SECRET),
            "async_chunk": Source("pipeline", "pipeline fake", False),
        },
        losers={
            "max_num_seqs": (Source("base", "my.yaml:2:5", 4),),
            "env.HOME": (Source("base", "base.yaml:3:5", SECRET),),
            "async_chunk": (Source("base", "my.yaml:1:14", True),),
        },
    )
    return replace(
        resolved,
        stages=(talker, *resolved.stages[1:]),
        files=("my.yaml",),
        warnings=(f"my.yaml: http://me:{SECRET}@host is odd",),
    )


async def test_resolved_values_have_their_places(make_client: Any, deployment: ResolvedPipeline) -> None:
    body = (await make_client(FakeEngine(pipeline=deployment)).get("/v1/omni/config")).json()

    assert body["config_hash"] == deployment.config_hash
    assert body["files"] == ["my.yaml"]
    assert [stage["name"] for stage in body["stages"]] == ["talker", "vocoder"]
    (setting,) = [item for item in body["settings"] if (item["stage"], item["field"]) == (0, "max_num_seqs")]
    assert setting == {
        "stage": 0,
        "field": "max_num_seqs",
        "value": 8,
        "layer": "flag",
        "place": "--max-num-seqs",
        "losers": [{"value": 4, "layer": "base", "place": "my.yaml:2:5"}],
    }


async def test_no_secret_leaves_the_server(make_client: Any, deployment: ResolvedPipeline) -> None:
    response = await make_client(FakeEngine(pipeline=deployment)).get("/v1/omni/config")

    assert SECRET not in response.text
    fields = {item["field"]: item["value"] for item in response.json()["settings"] if item["stage"] == 0}
    assert fields["env.HF_TOKEN"] == fields["env.HOME"] == fields["hf_token"] == "(hidden)"
    assert response.json()["warnings"] == ["my.yaml: http://(hidden)@host is odd"]


async def test_what_was_asked_for_and_is_not_done_is_listed(make_client: Any, deployment: ResolvedPipeline) -> None:
    body = (await make_client(FakeEngine(pipeline=deployment)).get("/v1/omni/config")).json()

    assert body["fallbacks"] == [
        {
            "stage": 0,
            "field": "async_chunk",
            "because": "pipeline fake",
            "asked": True,
            "place": "my.yaml:1:14",
            "value": False,
        }
    ]


@pytest.mark.parametrize(
    ("mps", "because"),
    [
        (None, ["the platform is cpu"]),
        (MpsPlan(wanted=True), []),
        (MpsPlan(wanted=True, refusals=(MpsRefusal(MpsReason.DIFFUSION_STAGE, "stage 1 denoises"),)), ["stage 1 denoises"]),
    ],
    ids=["platform", "used", "refused"],
)
async def test_reasons_to_do_without_mps_are_listed(
    make_client: Any, deployment: ResolvedPipeline, mps: MpsPlan | None, because: list[str]
) -> None:
    resolved = replace(deployment, values={"cuda_mps": True}, mps=mps)

    body = (await make_client(FakeEngine(pipeline=resolved)).get("/v1/omni/config")).json()

    assert [item["because"] for item in body["fallbacks"] if item["field"] == "cuda_mps"] == because


async def test_key_is_needed_where_the_api_needs_one(make_client: Any, deployment: ResolvedPipeline) -> None:
    client = make_client(FakeEngine(pipeline=deployment), api_key=("right",))

    assert (await client.get("/v1/omni/config")).status_code == 401
    answer = await client.get("/v1/omni/config", headers={"Authorization": "Bearer right"})
    assert answer.status_code == 200


async def test_engine_without_a_deployment_has_none_to_show(make_client: Any) -> None:
    response = await make_client(FakeEngine()).get("/v1/omni/config")

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
