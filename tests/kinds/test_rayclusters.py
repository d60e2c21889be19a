"""RayClusters run by KubeRay: the head and groups of workers, whose replicas can have several hosts."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from queuectl.demo.manifests import Document, Pods
from queuectl.objects import keys
from queuectl.objects.kinds.description import merged
from tests.support.people import role
from tests.support.rays import raycluster, worker_group
from tests.system.actions import remove, run_command, until_empty, until_reason
from tests.system.forger import Tenant, account_of_queuectl, refused, tenant_of
from tests.system.installation import RACK, Installation

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

WHOLE = Pods(2, gpus=8)
"""Of a group of workers: each pod takes a node."""
HEAD = Pods(1)


def rack(node: str | None) -> str:
    return str(node).rsplit("-", 1)[0]


def test_a_replica_of_several_hosts_is_replaced_as_a_whole_in_its_places(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        workers = worker_group("slices", Pods(6, gpus=8, preferred=RACK), hosts=3)
        workspace.submit(raycluster("hosts", workspace.namespace, HEAD, workers))
        workspace.until_state("hosts", "Running")
        placed = [pod for pod in workspace.running("hosts") if pod.podset == "slices"]
        slots = {pod.rank or 0: pod.node for pod in placed}
        assert sorted(slots) == list(range(6)), "replicas one after the other, each by host"
        ranked = [rack(node) for _, node in sorted(slots.items())]
        assert ranked == sorted(ranked)

        lost = next(pod for pod in placed if pod.rank == 4)
        replica = {pod.uid for pod in placed if pod.rank in (3, 4, 5)}
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}")
        workspace.until_running("hosts", 7, lambda p: p.uid not in replica, "new pods run")
        again = [pod for pod in workspace.running("hosts") if pod.podset == "slices"]
        assert {pod.rank or 0: pod.node for pod in again} == slots
        assert {pod.uid for pod in again} & {pod.uid for pod in placed} == {
            pod.uid for pod in placed if pod.rank in (0, 1, 2)
        }
        assert workspace.workload("hosts")["attempt"] == 1


def test_a_raycluster_is_held_and_released(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workers = worker_group("workers", WHOLE)
        workspace.submit(raycluster("held", workspace.namespace, HEAD, workers))
        workspace.until_state("held", "Running")
        run_command(workspace, "held", "hold")
        workspace.until_state("held", "Held")
        until_empty(workspace, "held")
        run_command(workspace, "held", "release")
        assert workspace.until_state("held", "Running")["attempt"] == 2
        remove(workspace, "held")


def test_a_cluster_whose_workers_kuberay_would_add_and_remove_waits_with_the_reason(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        document = raycluster("scales", workspace.namespace, HEAD, enableInTreeAutoscaling=True)
        workspace.submit(document)
        until_reason(workspace, "scales", "Pending", "UnsupportedConstraint")
        message = workspace.workload("scales")["reason"]["message"]
        assert "spec.enableInTreeAutoscaling" in message


def test_a_raycluster_with_the_fields_of_kueues_users_runs_with_kueues_keys(
    installation: Installation,
) -> None:
    """The queue label of Kueue alone, one worker of up to ten, ports, a hook, and a volume for logs."""
    with installation.workspace(32) as workspace:
        queue = "kueue.x-k8s.io/queue-name"
        workers = worker_group("small-group", Pods(1), minReplicas=1, maxReplicas=10)
        made = raycluster("complete", workspace.namespace, HEAD, workers, rayVersion="2.9.0")
        made["metadata"]["labels"] = {queue: "main", "controller-tools.k8s.io": "1.0"}
        spec = made["spec"]["headGroupSpec"]
        spec |= {"serviceType": "ClusterIP", "rayStartParams": {"dashboard-host": "0.0.0.0"}}
        ports = {"gcs": 6379, "dashboard": 8265, "client": 10001}
        hook = {"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}}
        for template in (spec["template"], made["spec"]["workerGroupSpecs"][0]["template"]):
            template["spec"]["volumes"] = [{"name": "ray-logs", "emptyDir": {}}]
            container = template["spec"]["containers"][0]
            container |= {"lifecycle": hook}
            container["volumeMounts"] = [{"mountPath": "/tmp/ray", "name": "ray-logs"}]
        listed = [{"name": name, "containerPort": port} for name, port in ports.items()]
        spec["template"]["spec"]["containers"][0]["ports"] = listed
        stored = workspace.submit(made)
        assert stored["metadata"]["labels"][keys.QUEUE_LABEL] == "main"
        workspace.until_running("complete", 2, lambda p: True, "both run")
        assert {p.podset for p in workspace.running("complete")} == {"head", "small-group"}


# ---- changes by users, and by queuectl's own account


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the RayCluster ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        workers = worker_group("workers", WHOLE)
        made = workspace.submit(raycluster("mine", workspace.namespace, HEAD, workers))
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {pod.attempt for pod in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 3


_RIGHTS = [{"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["*"]}]


def workers_of(
    document: Document, labels: Document | None = None, pod: Document | None = None, **changes: Any
) -> Document:
    """The patch that replaces the groups of workers with the stored one, after these changes of its pods' spec and labels."""
    [one] = deepcopy(document["spec"]["workerGroupSpecs"])
    one["template"]["metadata"]["labels"] |= labels or {}
    one["template"]["spec"] |= pod or {}
    return {"spec": {"workerGroupSpecs": [one | changes]}}


def head_of(labels: Document | None = None, pod: Document | None = None) -> Document:
    """The patch of the template of the head."""
    return {
        "spec": {
            "headGroupSpec": {"template": {"metadata": {"labels": labels or {}}, "spec": pod or {}}}
        }
    }


def test_a_user_changes_a_queued_raycluster_only_in_ways_that_its_queue_sees(
    tenant: Tenant,
) -> None:
    workspace = tenant.workspace
    large = worker_group("workers", Pods(9, gpus=8))
    made = tenant.create(raycluster("changed", workspace.namespace, HEAD, large))
    path, change = workspace.made[-1], tenant.client.patch
    refused("only queuectl may resume", change, path, {"spec": {"suspend": False}})
    for patch in (workers_of(made, pod={"schedulingGates": []}), head_of(pod={"schedulingGates": None})):  # fmt: skip
        refused("gate.*cannot be removed", change, path, patch)
    for label in (keys.ATTEMPT_LABEL, keys.WORKLOAD_LABEL, keys.RANKS_LABEL):
        refused("written by queuectl alone", change, path, workers_of(made, labels={label: "7"}))
        refused("written by queuectl alone", change, path, head_of(labels={label: "7"}))
    move = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
    refused("cannot change its queue", change, path, move)
    refused("user who created the job", change, path,
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "root"}}})  # fmt: skip
    mine = workspace.client.path_of(tenant.job)
    running = workspace.client.get(mine)
    refused("while it runs", change, mine, workers_of(running, replicas=3))
    refused("while it runs", change, mine, head_of(pod={"nodeSelector": {"a": "b"}}))
    refused("together with its pods", tenant.client.delete, mine, propagationPolicy="Orphan")
    change(path, workers_of(made, pod={"nodeSelector": {"example.com/none": "x"}}))
    tenant.client.delete(path, propagationPolicy="Background")


def test_the_account_of_queuectl_changes_nothing_else_of_a_raycluster(tenant: Tenant) -> None:
    workspace = tenant.workspace
    with account_of_queuectl(workspace) as client:
        path = workspace.client.path_of(tenant.job)
        made = workspace.client.get(path)
        says = "queuectl changes of a job in a queue nothing but"
        changes: tuple[Document, ...] = (
            workers_of(made, replicas=1),
            workers_of(made, pod={"nodeSelector": {"a": "b"}}),
            workers_of(made, labels={"example.com/a": "b"}),
            head_of(pod={"nodeSelector": {"a": "b"}}),
            {"spec": {"workerGroupSpecs": []}},
            {"spec": {"rayVersion": "1"}},
            {"metadata": {"labels": {"example.com/a": "b"}}},
        )
        for change in changes:
            refused(says, client.patch, path, merged([{"spec": {"suspend": True}}, change]))
        mine = raycluster("mine", "queuectl-system", HEAD)
        refused(says, client.create, client.path_of(mine).rpartition("/")[0], mine)
