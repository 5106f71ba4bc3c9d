"""The routes for operators and trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from omni_core.errors import DeadlineError, UnsupportedError
from omni_core.stage import ResolvedPipeline
from omni_core.testing.pipelines import fake_pipeline
from omni_server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


class OperatedEngine(FakeEngine):
    """An engine of two stages that notes what it is asked and answers what `answers` says."""

    pipeline: ResolvedPipeline | None

    def __init__(self, pipeline: ResolvedPipeline | None = None) -> None:
        super().__init__()
        self.pipeline = pipeline or fake_pipeline(engine_args={0: {"weight_transfer_config": {"backend": "folder"}}})
        self.asked: list[tuple[int, str, Mapping[str, Any], float]] = []
        self.answers: dict[tuple[int, str], Any] = {}

    async def call_stage(
        self, stage_id: int, method: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> list[Any]:
        """Note the call; raise or return its answer, True where there is none."""
        self.asked.append((stage_id, method, arguments or {}, timeout_s))
        answer = self.answers.get((stage_id, method), True)
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    @property
    def order(self) -> list[tuple[int, str]]:
        """Stages and methods, in the order of the calls."""
        return [(stage_id, method) for stage_id, method, *_ in self.asked]


@pytest.fixture
def operated() -> OperatedEngine:
    return OperatedEngine()


@pytest.fixture
def operator(make_client: Callable[..., Any], operated: OperatedEngine) -> Any:
    return make_client(operated, enable_control_routes=True)


POSTS = ("pause", "resume", "init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update")
PATHS = [
    *(("POST", f"/v1/omni/{name}") for name in ("pause", "resume", "sleep", "wakeup", "reload_weights")),
    *(("POST", f"/{name}") for name in (*POSTS, "update_weights", "finish_weight_update", "update_weight_version")),
    *(("GET", f"/{name}") for name in ("is_paused", "weight_info", "get_world_size")),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_control_routes_are_off_until_the_flag_says_otherwise(
    method: str, path: str, make_client: Callable[..., Any], operated: OperatedEngine
) -> None:
    response = await make_client(operated).request(method, path)

    assert response.status_code == 403
    assert "--enable-control-routes" in response.json()["error"]["message"]
    assert response.json()["error"]["type"] == "permission_error"
    assert operated.asked == []


async def test_control_routes_need_the_key_where_there_is_one(
    make_client: Callable[..., Any], operated: OperatedEngine
) -> None:
    guarded = make_client(operated, enable_control_routes=True, api_key=("secret",))

    assert (await guarded.post("/v1/omni/pause")).status_code == 401
    assert (await guarded.post("/pause")).status_code == 401
    assert operated.asked == []
    assert (await guarded.post("/pause", headers={"Authorization": "Bearer secret"})).status_code == 200


async def test_stages_are_paused_from_the_first_and_resumed_from_the_last(operator: Any, operated: OperatedEngine) -> None:
    paused = await operator.post("/v1/omni/pause", json={"mode": "wait", "timeout_s": 3})
    operated.answers[0, "resume"] = False
    resumed = await operator.post("/v1/omni/resume")

    assert operated.asked[:2] == [(0, "pause", {"mode": "wait"}, 3), (1, "pause", {"mode": "wait"}, 3)]
    assert operated.order[2:] == [(1, "resume"), (0, "resume")]
    assert paused.json() == {
        "status": "paused",
        "acks": [{"stage_id": 0, "replica": 0, "status": "OK"}, {"stage_id": 1, "replica": 0, "status": "OK"}],
    }
    assert [ack["status"] for ack in resumed.json()["acks"]] == ["OK", "SKIPPED"]


async def test_the_mode_may_come_as_vllms_clients_send_it(operator: Any, operated: OperatedEngine) -> None:
    response = await operator.post("/pause", params={"mode": "abort"})

    assert response.json()["status"] == "paused"
    assert [arguments for _, _, arguments, _ in operated.asked] == [{"mode": "abort"}] * 2


async def test_a_stage_that_cannot_sleep_is_501_with_its_reason_and_the_others_are_awake_again(
    operator: Any, operated: OperatedEngine
) -> None:
    operated.answers[1, "sleep"] = UnsupportedError("vLLM's sleep does nothing on a CPU", where="stage 1 (vocoder)")

    response = await operator.post("/v1/omni/sleep", json={"stage_ids": [0, 1], "level": 2})

    assert response.status_code == 501
    error = response.json()["error"]
    assert (error["type"], error["message"]) == (
        "not_implemented_error",
        "stage 1 (vocoder): vLLM's sleep does nothing on a CPU",
    )
    assert operated.order == [(0, "sleep"), (1, "sleep"), (0, "wake_up")]


async def test_waking_a_stage_that_is_awake_is_skipped(operator: Any, operated: OperatedEngine) -> None:
    operated.answers[0, "wake_up"] = False

    response = await operator.post("/v1/omni/wakeup", json={"stage_ids": [0]})

    assert response.json() == {"acks": [{"stage_id": 0, "replica": 0, "status": "SKIPPED"}]}
    assert operated.order == [(0, "wake_up")]


async def test_a_pause_that_fails_half_way_is_taken_back(operator: Any, operated: OperatedEngine) -> None:
    operated.answers[1, "pause"] = DeadlineError("pause took longer than 60 s")

    response = await operator.post("/v1/omni/pause", json={"mode": "wait"})

    assert response.status_code == 504
    assert operated.order == [(0, "pause"), (1, "pause"), (0, "resume")]


async def test_a_trainer_reaches_the_stages_that_take_updates(operator: Any, operated: OperatedEngine) -> None:
    """WT-01, with the bodies of vLLM's own client."""
    operated.answers |= {(0, "weight_version"): "step-7", (0, "world_size"): 1}

    steps = [
        await operator.post("/init_weight_transfer_engine", json={"init_info": {"folder": "/t"}}),
        await operator.post("/start_weight_update"),
        await operator.post("/update_weights", json={"update_info": {"file": "a"}}),
        await operator.post("/update_weights", json={"update_info": [{"file": "b"}]}),
        await operator.post("/finish_weight_update", json={"weight_version": "step-7"}),
        await operator.post("/update_weight_version", json={"new_version": "step-8"}),
        await operator.post("/shutdown_weight_transfer_engine"),
    ]

    assert [step.status_code for step in steps] == [200] * 7
    assert [(stage_id, method, arguments) for stage_id, method, arguments, _ in operated.asked] == [
        (0, "init_weight_transfer_engine", {"init_info": {"folder": "/t"}}),
        (0, "start_weight_update", {}),
        (0, "update_weights", {"update_info": {"file": "a"}}),
        (0, "update_weights", {"update_info": [{"file": "b"}]}),
        (0, "finish_weight_update", {"weight_version": "step-7"}),
        (0, "update_weight_version", {"version": "step-8"}),
        (0, "shutdown_weight_transfer_engine", {}),
    ]
    assert (await operator.get("/weight_info")).json() == {"weight_version": "step-7", "stages": {"0": ["step-7"]}}
    assert (await operator.get("/get_world_size")).json() == {"world_size": 1}


async def test_state_of_the_pause_is_told(operator: Any, operated: OperatedEngine) -> None:
    assert (await operator.get("/is_paused")).json() == {"is_paused": True}

    operated.answers |= {(0, "is_paused"): False, (1, "is_paused"): False}

    assert (await operator.get("/is_paused")).json() == {"is_paused": False}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/omni/pause", {"mode": "later"}, "mode"),
        ("/v1/omni/sleep", {"level": 3}, "level"),
        ("/v1/omni/sleep", {"stage_ids": [7]}, "stage_ids"),
        ("/v1/omni/wakeup", {"stages": [0]}, "stages"),
        ("/v1/omni/reload_weights", {"timeout_s": 0}, "timeout_s"),
        ("/update_weights", {}, "update_info"),
    ],
)
async def test_a_wrong_body_is_refused_before_a_stage_hears_of_it(
    path: str, body: dict[str, Any], param: str, operator: Any, operated: OperatedEngine
) -> None:
    response = await operator.post(path, json=body)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert operated.asked == []


async def test_weights_of_a_pipeline_without_a_backend_and_an_engine_without_a_deployment_are_501(
    make_client: Callable[..., Any],
) -> None:
    untrained = make_client(OperatedEngine(fake_pipeline()), enable_control_routes=True)
    unknown = make_client(FakeEngine(), enable_control_routes=True)

    response = await untrained.post("/start_weight_update")
    assert (response.status_code, "weight_transfer_config" in response.text) == (501, True)
    assert (await unknown.post("/v1/omni/pause")).status_code == 501
