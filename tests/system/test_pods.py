"""StatefulSets on a real control plane: their pods are one gang, whose number is decided with its start."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from tests.system.installation import Installation, Workspace

pytestmark = pytest.mark.system
Document = dict[str, Any]


def statefulset(workspace: Workspace, name: str, replicas: int) -> Document:
    template = m.PodSetManifest(1, gpus=8).template("main", None, restart="Always")
    queue = {keys.QUEUE_LABEL: "main", keys.PREFIX + keys.PRIORITY_CLASS: "low"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": workspace.namespace, "labels": queue},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
        },
    }


def test_the_pods_of_a_statefulset_have_places_before_they_exist(
    installation: Installation,
) -> None:
    """Its controller creates a pod after the one before it is ready."""
    with installation.workspace(32) as workspace:
        workspace.submit(statefulset(workspace, "db", 3))
        workspace.until(lambda: workspace.state("db") in ("Starting", "Running"), "it is admitted")
        workspace.job("later", m.PodSetManifest(2, gpus=8), priority_class="low", seconds=2)
        workspace.until_state("later", "Pending")
        started = workspace.until_state("db", "Running")
        assert (started["kind"], started["pods"], workspace.state("later")) == (
            "PodGroup",
            3,
            "Pending",
        )
        ranked = sorted((p.rank, p.name, str(p.node)) for p in workspace.running("db"))
        assert [name for _, name, _ in ranked] == ["db-0", "db-1", "db-2"]
        assert [node for *_, node in ranked] == sorted(node for *_, node in ranked)
        workspace.job("high", m.PodSetManifest(2, gpus=8), priority_class="high", seconds=3)
        workspace.until_state("high", "Finished")
        again = workspace.until_state("db", "Running")
        assert (again["uid"], again["attempt"]) == (started["uid"], 2)
        workspace.until(
            lambda: any(
                reason == "Preempted" and "high" in text
                for rank in range(3)
                for reason, text in workspace.events(f"db-{rank}")
            ),
            "an Event of the eviction",
        )


def test_a_statefulset_that_names_predecessors_outside_its_template_is_refused(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        document = statefulset(workspace, "db", 2)
        document["metadata"]["annotations"] = {keys.PREFIX + keys.AFTER: "Job/prep"}
        with pytest.raises(ApiServerError, match="write it into spec"):
            workspace.submit(document)


def test_a_statefulset_in_a_queue_is_scaled_only_to_0_and_back(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(statefulset(workspace, "db", 2))
        first = workspace.until_state("db", "Running")
        path = f"/apis/apps/v1/namespaces/{workspace.namespace}/statefulsets/db"
        for target in (path, f"{path}/scale"):
            with pytest.raises(ApiServerError, match="replicas of a StatefulSet in a queue"):
                workspace.client.patch(target, {"spec": {"replicas": 3}})
        workspace.client.patch(f"{path}/scale", {"spec": {"replicas": 0}})
        workspace.until(lambda: not workspace.pods("db"), "its pods are deleted")
        assert workspace.until_state("db", "Finished")["uid"] == first["uid"]
        workspace.client.patch(path, {"spec": {"replicas": 3}})
        workspace.until(
            lambda: workspace.workload("db").get("uid") != first["uid"], "it is another gang"
        )
        assert workspace.until_state("db", "Running")["pods"] == 3
