"""The manifests of examples/kubernetes fit together, and each of their commands starts what it should; no cluster is asked.

What Kubernetes puts into `$(NAME)` is put in here; the commands are read by the program's own parser, and their deploy file is
resolved as it would be in the pod.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_core.cli import CommandParser
from omni_core.deploy import executors
from omni_core.deploy.agreement import disagreement
from omni_core.deploy.flags import typed_flags
from omni_core.deploy.stage_command import StageCommand, resolve_stage_command
from omni_core.platforms import CUDA
from omni_core.plugins import plugin_manager
from omni_server.serve import ServeCommand
from omni_server.stage_flags import StageFlags, read_stage_flags

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
KINDS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "RayCluster": "ray.io/v1",
}
MODEL_TYPES = {"Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": "qwen3_tts", "Qwen/Qwen3-Omni-30B-A3B-Instruct": "qwen3_omni_moe"}
SECRETS = {"omni-token"}
"""Secrets that the reader makes; the first lines of the manifests say how."""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(path: Path, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod template inside a document, as (metadata and) spec."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        else:
            for inner in value.values():
                yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_is_made_of_known_kinds_whose_parts_exist(path: Path) -> None:
    found = documents(path)
    maps = {document["metadata"]["name"] for document in found if document["kind"] == "ConfigMap"}

    for document in found:
        assert document["apiVersion"] == KINDS[document["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
    for pod in pods(found):
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for volume in volumes.values():
            assert volume.get("configMap", {}).get("name") in {None, *maps}
            assert volume.get("secret", {}).get("secretName") in {None, *SECRETS}
        for container in pod["spec"]["containers"]:
            assert container["image"]
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= set(volumes)
            named = {entry["name"] for entry in container.get("env", ())} | {"LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"}
            used = set(re.findall(r"\$\((\w+)\)", " ".join(container.get("args", ()))))
            assert used <= named


def test_services_lead_to_ports_that_are_there() -> None:
    path = FOLDER / "leader-worker-set.yaml"
    found = documents(path)

    for service in (document for document in found if document["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        (pod,) = [pod for pod in pods(found) if selector <= pod.get("metadata", {}).get("labels", {}).items()]
        ports = {port["name"]: port["containerPort"] for item in pod["spec"]["containers"] for port in item.get("ports", ())}
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in ports or target in ports.values()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that reads a container's command as its pod would."""
    (tmp_path / "token").write_text("a secret of this test\n")
    monkeypatch.setattr(executors, "_is_installed", lambda package: True)
    monkeypatch.delenv("OMNI_TOKEN", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def read(container: Mapping[str, Any], config: Mapping[str, Any], **variables: str) -> tuple[StageFlags, StageCommand]:
        assert container["command"] == ["omni"]
        values = {"POD_IP": "127.0.0.1", "LWS_LEADER_ADDRESS": "127.0.0.1", **variables}
        words = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in container["args"]]
        deploy = tmp_path / "deploy.yaml"
        deploy.write_text(config["data"]["deploy.yaml"])
        words = [word.replace("/run/omni/token", str(tmp_path / "token")) for word in words]
        words = [
            word.replace("/etc/omni/deploy.yaml", str(deploy)).replace("omni-head.default.svc", "127.0.0.1") for word in words
        ]
        args = _parse(words)
        flags = read_stage_flags(args)
        assert flags is not None
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[args.model]}))
        given = typed_flags(args)
        files = given.pop("deploy_config")
        command = resolve_stage_command(model, flags.stage_id, deploy_config=files, flags=given, platform=CUDA, environ={})
        return flags, command

    return read


def _parse(words: list[str]) -> argparse.Namespace:
    parser = CommandParser(prog="omni serve")
    ServeCommand().configure(parser)
    assert words[0] == "serve"
    return parser.parse_args(words[1:])


def test_group_of_the_leader_worker_set_is_one_whole_pipeline(pod: Any) -> None:
    """SB-01, SB-04, SB-10: a head, a worker for each further stage, one deployment, a token that `ps` does not show."""
    path = FOLDER / "leader-worker-set.yaml"
    spec = one(path, "LeaderWorkerSet")["spec"]
    template, config = spec["leaderWorkerTemplate"], one(path, "ConfigMap")
    (leader,) = template["leaderTemplate"]["spec"]["containers"]
    (worker,) = template["workerTemplate"]["spec"]["containers"]

    head_flags, head = pod(leader, config)
    workers = [pod(worker, config, LWS_WORKER_INDEX=str(index)) for index in range(1, template["size"])]

    assert not head_flags.headless
    assert all(flags.headless for flags, _ in workers)
    stages = [head.stage_id, *(command.stage_id for _, command in workers)]
    assert stages == [stage.stage_id for stage in head.pipeline.stages]
    assert {flags.address.port for flags, _ in workers} == {head_flags.address.port}
    assert {flags.address.token for flags, _ in workers} == {head_flags.address.token} == {"a secret of this test"}
    assert [disagreement(head.facts, command.facts) for _, command in workers] == [""] * len(workers)
    # A head that waited to be ready would wait for workers that are not started.
    assert spec["startupPolicy"] == "LeaderCreated"
    assert template["restartPolicy"] == "None"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_edge_between_pods_can_cross_hosts(path: Path, pod: Any) -> None:
    entries = {entry.target: entry for _, found in plugin_manager().collect("omni_connectors") for entry in found}
    config = one(path, "ConfigMap")
    containers = [
        item for found in pods(documents(path)) for item in found["spec"]["containers"] if item.get("command") == ["omni"]
    ]

    for container in containers:
        _, command = pod(container, config, LWS_WORKER_INDEX="1")
        edges = [edge for stage in command.pipeline.stages for edge in stage.outputs]
        assert edges
        assert all(entries[edge.target].cross_host for edge in edges)


def test_ray_stage_leaves_the_placement_of_its_ranks_to_ray(pod: Any) -> None:
    path = FOLDER / "ray-stage.yaml"
    cluster, config = one(path, "RayCluster")["spec"], one(path, "ConfigMap")
    (container,) = [item for item in cluster["headGroupSpec"]["template"]["spec"]["containers"] if "command" in item]

    flags, command = pod(container, config)

    stage = command.pipeline.stages[0]
    assert flags.headless
    assert stage.engine_args["distributed_executor_backend"] == "ray"
    assert stage.devices is None
    ranks = stage.engine_args["tensor_parallel_size"] * stage.engine_args["pipeline_parallel_size"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    gpus = [
        int(item["resources"]["limits"]["nvidia.com/gpu"]) * group.get("replicas", 1)
        for group in groups
        for item in group["template"]["spec"]["containers"]
        if "resources" in item
    ]
    assert sum(gpus) == ranks
