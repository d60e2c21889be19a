"""RayServices run by KubeRay: each of their Ray clusters is a separate gang. A simulated Ray answers KubeRay about their applications."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys
from tests.support.people import role
from tests.support.rays import rayservice, worker_group
from tests.system.actions import apply, remove, run_command, until_empty, until_reason
from tests.system.forger import refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(2, gpus=8)
"""Of a group of workers: each pod takes a node."""
HEAD = PodSetManifest(1)
_RIGHTS = [{"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["*"]}]
_VERSION = "ray.io/kuberay-version"


def chat(workspace: Workspace, workers: PodSetManifest = WHOLE, **spec: Any) -> None:
    """A RayService of a head and two workers, which deletes a cluster soon after it has another one."""
    group = worker_group("workers", workers)
    made = rayservice("chat", workspace.namespace, HEAD, group, rayClusterDeletionDelaySeconds=1)
    made["spec"] |= spec
    workspace.submit(made)


def service(workspace: Workspace) -> str:
    return f"/apis/ray.io/v1/namespaces/{workspace.namespace}/rayservices/chat"


def clusters(workspace: Workspace) -> dict[str, Document]:
    """The RayClusters of the namespace, by name."""
    path = f"/apis/ray.io/v1/namespaces/{workspace.namespace}/rayclusters"
    return {one["metadata"]["name"]: one for one in workspace.client.get(path)["items"]}


def another(workspace: Workspace, *others: str) -> str:
    """The name of the RayCluster alongside these, once KubeRay has created it and queuectl knows it."""
    workspace.until(
        lambda: workspace.workloads().keys() & clusters(workspace).keys() - {*others},
        "a RayCluster is queued",
    )
    [name] = clusters(workspace).keys() - {*others}
    return name


def active(workspace: Workspace) -> tuple[str, Document]:
    """The name of the cluster that serves, and the status of its applications by name. During an upgrade, KubeRay states none."""
    status = workspace.client.get(service(workspace)).get("status", {})
    one = status.get("activeServiceStatus", {})
    return one.get("rayClusterName", ""), one.get("applicationStatuses", {})


def receives(workspace: Workspace) -> str:
    """The name of the cluster to which the Service sends requests; "" while it has no Service."""
    path = f"/api/v1/namespaces/{workspace.namespace}/services"
    selectors = {
        one["metadata"]["name"]: one["spec"].get("selector", {})
        for one in workspace.client.get(path)["items"]
    }
    return str(selectors.get("chat-serve-svc", {}).get("ray.io/cluster", ""))


def serves(workspace: Workspace, name: str, application: str = "echo") -> None:
    """Wait until this cluster receives the requests, and the application runs on it."""

    def now() -> bool:
        cluster, applications = active(workspace)
        running = applications.get(application, {}).get("status") == "RUNNING"
        return running and cluster == name == receives(workspace)

    workspace.until(now, f"{name} serves {application}")


def upgrade(workspace: Workspace) -> None:
    """A change of the cluster, for which KubeRay creates another one."""
    change = {"spec": {"rayClusterConfig": {"rayVersion": "2.99.0"}}}
    workspace.client.patch(service(workspace), change)


def test_the_cluster_of_a_rayservice_waits_for_quota_and_then_serves(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        workspace.job("first", PodSetManifest(4, gpus=8))
        workspace.until_state("first", "Running")
        chat(workspace, PodSetManifest(2, gpus=8, required=RACK))
        name = another(workspace)
        until_reason(workspace, name, "Pending", "WaitingForQuota")
        assert clusters(workspace)[name]["spec"]["suspend"]
        remove(workspace, "first")
        workspace.until_running(name, 3, lambda p: True, "all run")
        workers = [str(p.node) for p in workspace.running(name) if p.podset == "workers"]
        assert len({node.rsplit("-", 1)[0] for node in workers}) == 1
        serves(workspace, name)


def test_a_job_of_higher_priority_takes_the_nodes_of_a_service_and_gives_them_back(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        chat(workspace)
        name = another(workspace)
        serves(workspace, name)
        workspace.job("urgent", PodSetManifest(4, gpus=8), priority_class="high")
        workspace.until_state("urgent", "Running")
        until_empty(workspace, name)
        assert workspace.state(name) == "Pending"
        remove(workspace, "urgent")
        assert workspace.until_state(name, "Running")["attempt"] == 2
        serves(workspace, name)
        assert clusters(workspace).keys() == {name}


def test_an_upgrade_is_another_gang_alongside_the_one_that_serves(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace:
        chat(workspace)
        old = another(workspace)
        serves(workspace, old)
        upgrade(workspace)
        new = another(workspace, old)
        until_reason(workspace, new, "Pending", "WaitingForQuota")
        assert active(workspace)[0] == old == receives(workspace)
        assert len(workspace.running(old)) == 3
        apply(
            workspace,
            m.cluster_queue(workspace.namespace, "gpu", {"nvidia.com/gpu": 32, "cpu": "1M"}),
        )
        serves(workspace, new)
        workspace.until_state(old, "Finished")
        assert workspace.state(new) == "Running"


def test_the_clusters_of_a_rayservice_keep_the_pods_of_their_start(
    installation: Installation,
) -> None:
    """Changes of the applications, and of replicas, which KubeRay ignores, start no pod again."""
    with installation.workspace(32) as workspace:
        chat(workspace)
        name = another(workspace)
        serves(workspace, name)
        before = {pod.uid for pod in workspace.running(name)}
        config = json.dumps({"applications": [{"name": "other", "import_path": "other:app"}]})
        group = worker_group("workers", PodSetManifest(3, gpus=8))
        change = {"serveConfigV2": config, "rayClusterConfig": {"workerGroupSpecs": [group]}}
        workspace.client.patch(service(workspace), {"spec": change})
        serves(workspace, name, "other")
        assert {pod.uid for pod in workspace.running(name)} == before


def test_after_an_update_of_kuberay_its_version_on_a_running_cluster_is_renewed_by_hand(
    installation: Installation,
) -> None:
    """KubeRay writes its version with the spec of the RayService, which would remove the gate: it is refused."""
    with installation.workspace(32) as workspace:
        chat(workspace)
        name = another(workspace)
        serves(workspace, name)
        path = workspace.client.path_of(clusters(workspace)[name])
        present = clusters(workspace)[name]["metadata"]["annotations"][_VERSION]
        workspace.client.patch(path, {"metadata": {"annotations": {_VERSION: "v0"}}})
        listed = f"/apis/events.k8s.io/v1/namespaces/{workspace.namespace}/events"
        workspace.until(
            lambda: any(
                one["reason"] == "FailedToUpdateRayCluster" and "cannot be removed" in one["note"]
                for one in workspace.client.get(listed)["items"]
            ),
            "the change of KubeRay is refused",
        )
        assert workspace.state(name) == "Running"
        workspace.client.patch(path, {"metadata": {"annotations": {_VERSION: present}}})
        config = json.dumps({"applications": [{"name": "other", "import_path": "other:app"}]})
        workspace.client.patch(service(workspace), {"spec": {"serveConfigV2": config}})
        serves(workspace, name, "other")


def test_a_user_takes_no_cluster_of_a_rayservice_out_of_its_queue(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        chat(workspace)
        old = another(workspace)
        serves(workspace, old)
        # The label of the RayService is for its next cluster.
        client.patch(service(workspace), {"metadata": {"labels": {keys.QUEUE_LABEL: None}}})
        path = workspace.client.path_of(clusters(workspace)[old])
        removed = {"metadata": {"labels": {keys.QUEUE_LABEL: None}}}
        refused("cannot change its queue", client.patch, path, removed)
        client.patch(service(workspace), {"metadata": {"labels": {keys.QUEUE_LABEL: "main"}}})
        upgrade(workspace)
        new = another(workspace, old)
        path = workspace.client.path_of(clusters(workspace)[new])
        refused("only queuectl may resume", client.patch, path, {"spec": {"suspend": False}})
        # KubeRay would suspend its cluster with the templates of the RayService, which have no gate.
        suspended = {"spec": {"rayClusterConfig": {"suspend": True}}}
        client.patch(service(workspace), suspended)
        run_command(workspace, old, "hold")
        workspace.until_state(old, "Held")
        until_empty(workspace, old)


def test_a_rayservice_that_fails_after_a_time_in_the_queue_waits_with_the_reason(
    installation: Installation,
) -> None:
    with installation.workspace(16) as workspace:
        made = rayservice("chat", workspace.namespace, HEAD)
        made["metadata"]["annotations"] = {"ray.io/initializing-timeout": "5m"}
        workspace.submit(made)
        name = another(workspace)
        until_reason(workspace, name, "Pending", "UnsupportedConstraint")
        assert "initializing-timeout" in workspace.workload(name)["reason"]["message"]
