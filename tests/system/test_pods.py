"""Single pods, groups of pods and Deployments on a real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.demo import manifests as m
from queuectl.localcluster import RequestError
from queuectl.objects import keys
from tests.system.installation import RACK, Installation, Workspace

pytestmark = pytest.mark.system
Document = dict[str, Any]
ROOT = Path(__file__).parents[2]
K = keys.KUEUE_PREFIX


def pod(workspace: Workspace, name: str, gpus: int = 8, seconds: float | None = None) -> Document:
    """A pod as users of Kueue write it."""
    shape = m.Pods(1, gpus=gpus)
    job = m.job(name, workspace.namespace, "main", shape, seconds=seconds)
    template = job["spec"]["template"]
    labels = {K + keys.QUEUE_NAME: "main", K + keys.PRIORITY_CLASS: "low"}
    metadata = {
        **template.get("metadata", {}),
        "name": name,
        "namespace": workspace.namespace,
        "labels": labels,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def of_group(document: Document, group: str, total: int, **annotations: str) -> Document:
    document["metadata"]["labels"][K + keys.POD_GROUP] = group
    own = {K + keys.POD_GROUP_TOTAL: str(total), **annotations}
    document["metadata"].setdefault("annotations", {}).update(own)
    return document


def test_a_group_starts_is_preempted_and_runs_again_when_its_pods_are_created_again(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        required = {keys.PREFIX + keys.REQUIRED_TOPOLOGY: RACK}
        for rank in range(3):
            workspace.submit(of_group(pod(workspace, f"g-{rank}"), "g", 4, **required))
        workspace.until(
            lambda: workspace.workload("g").get("reason", {}).get("code") == "WaitingForPods",
            "it waits for its last pod",
        )
        assert workspace.running("g") == []
        workspace.submit(of_group(pod(workspace, "g-3"), "g", 4, **required))
        started = workspace.until_state("g", "Running")
        assert (started["kind"], started["pods"]) == ("PodGroup", 4)
        assert len({str(p.node).rsplit("-", 1)[0] for p in workspace.running("g")}) == 1
        workspace.job("high", m.Pods(2, gpus=8), priority_class="high", seconds=3)
        workspace.until_state("high", "Finished")
        assert workspace.workload("g")["state"] == "Pending"
        for rank in range(4):
            workspace.submit(of_group(pod(workspace, f"g-{rank}", seconds=2), "g", 4, **required))
        done = workspace.until_state("g", "Finished")
        assert (done["uid"], done["attempt"]) == (started["uid"], 2)
        assert (done["evictions"], done["reason"]["code"]) == (1, "Succeeded")
        events = [event for rank in range(4) for event in workspace.events(f"g-{rank}")]
        assert any(reason == "Preempted" and "high" in text for reason, text in events)


def test_a_single_pod_is_a_gang_of_one(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(pod(workspace, "one", gpus=1, seconds=2))
        done = workspace.until_state("one", "Finished")
        assert (done["kind"], done["reason"]["code"]) == ("Pod", "Succeeded")


def test_each_pod_of_a_deployment_is_a_gang_of_one_and_is_replaced_after_its_eviction(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace:
        example = yaml.safe_load((ROOT / "docs/examples/deployment.yaml").read_text())
        example["metadata"]["namespace"] = workspace.namespace
        template = example["spec"]["template"]
        example["metadata"]["labels"][keys.QUEUE_LABEL] = "main"
        template["spec"] = pod(workspace, "serve")["spec"] | {"restartPolicy": "Always"}
        workspace.submit(example)
        workspace.until(lambda: len(workspace.running("serve")) == 2, "both pods run")
        before = {p.uid for p in workspace.running("serve")}
        workspace.job("high", m.Pods(1, gpus=8), priority_class="high", seconds=3)
        workspace.until_state("high", "Finished")
        workspace.until(lambda: len(workspace.running("serve")) == 2, "both pods run again")
        assert len(before & {p.uid for p in workspace.running("serve")}) == 1


def statefulset(workspace: Workspace, name: str, replicas: int) -> Document:
    spec = pod(workspace, name)["spec"] | {"restartPolicy": "Always"}
    queue = {keys.QUEUE_LABEL: "main", keys.PREFIX + keys.PRIORITY_CLASS: "low"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": workspace.namespace, "labels": queue},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def test_the_pods_of_a_statefulset_have_places_before_they_exist(
    installation: Installation,
) -> None:
    """Its controller creates a pod after the one before it is ready."""
    with installation.workspace(32) as workspace:
        workspace.submit(statefulset(workspace, "db", 3))
        workspace.until(lambda: workspace.state("db") in ("Starting", "Running"), "it is admitted")
        workspace.job("later", m.Pods(2, gpus=8), priority_class="low", seconds=2)
        started = workspace.until_state("db", "Running")
        assert (started["kind"], started["pods"], workspace.state("later")) == (
            "PodGroup",
            3,
            "Pending",
        )
        ranked = sorted((p.rank, p.name, str(p.node)) for p in workspace.running("db"))
        assert [name for _, name, _ in ranked] == ["db-0", "db-1", "db-2"]
        assert [node for *_, node in ranked] == sorted(node for *_, node in ranked)
        workspace.job("high", m.Pods(2, gpus=8), priority_class="high", seconds=3)
        workspace.until_state("high", "Finished")
        again = workspace.until_state("db", "Running")
        assert (again["uid"], again["attempt"]) == (started["uid"], 2)


def test_a_statefulset_that_names_predecessors_outside_its_template_is_refused(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        document = statefulset(workspace, "db", 2)
        document["metadata"]["annotations"] = {keys.PREFIX + keys.AFTER: "Job/prep"}
        with pytest.raises(RequestError, match="write it into spec"):
            workspace.submit(document)


def test_a_statefulset_in_a_queue_is_scaled_only_to_0_and_back(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(statefulset(workspace, "db", 2))
        first = workspace.until_state("db", "Running")
        path = f"/apis/apps/v1/namespaces/{workspace.namespace}/statefulsets/db"
        for target in (path, f"{path}/scale"):
            with pytest.raises(RequestError, match="replicas of a StatefulSet in a queue"):
                workspace.client.patch(target, {"spec": {"replicas": 3}})
        workspace.client.patch(f"{path}/scale", {"spec": {"replicas": 0}})
        workspace.until(lambda: not workspace.pods("db"), "its pods are deleted")
        assert workspace.until_state("db", "Finished")["uid"] == first["uid"]
        workspace.client.patch(path, {"spec": {"replicas": 3}})
        workspace.until(
            lambda: workspace.workload("db").get("uid") != first["uid"], "it is another gang"
        )
        assert workspace.until_state("db", "Running")["pods"] == 3
