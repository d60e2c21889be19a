"""MPIJobs run by the MPI operator: a launcher, which is the pod of a Job, and workers, which are pods of the MPIJob."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import RUN_SECONDS, Document, Pods
from queuectl.localcluster import RequestError
from queuectl.objects import keys
from tests.support.mpijobs import mpijob
from tests.support.people import role
from tests.system.actions import apply, finish, remove, run_command, until_empty, until_reason
from tests.system.forger import (
    PYTORCHJOBS,
    Tenant,
    account_of_queuectl,
    job,
    owner,
    pod,
    refused,
    tenant_of,
)
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

WHOLE = Pods(4, gpus=8)
"""Workers: each pod takes a node."""


def launcher(workspace: Workspace, name: str) -> Document:
    """The Job of the launcher of an MPIJob."""
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/{name}-launcher"
    found: Document = workspace.client.get(path)
    return found


def change_pod(workspace: Workspace, name: str, change: Document, part: str = "") -> None:
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{name}{part}"
    workspace.client.patch(path, change)


def fail(workspace: Workspace, name: str) -> None:
    """Let a pod fail now."""
    annotations = {"kwok.queuectl.dev/fail-after-seconds": "0"}
    change_pod(workspace, name, {"metadata": {"annotations": annotations}})


def test_an_mpijob_with_the_fields_of_kueues_users_runs_with_kueues_keys(
    installation: Installation,
) -> None:
    """As people write it for Kueue: its queue label alone, a launcher with mpirun, and workers with sshd."""
    with installation.workspace(32) as workspace:
        quota = {"cpu": "16", "memory": "64Gi"}
        apply(workspace, m.cluster_queue(workspace.namespace, "gpu", quota))
        queue = "kueue.x-k8s.io/queue-name"
        limits = {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
        image = {"image": "registry.invalid/pi:1", "securityContext": {"runAsUser": 1000}}

        def replica(count: int, name: str, seconds: str | None, **what: Any) -> Document:
            annotations = {} if seconds is None else {RUN_SECONDS: seconds}
            containers = [{"name": name, **image, **limits, **what}]
            template = {
                "metadata": {"annotations": annotations},
                "spec": {"containers": containers},
            }
            return {"replicas": count, "template": template}

        serve = ["-De", "-f", "/home/mpiuser/.sshd_config"]
        made = mpijob(
            "pi",
            workspace.namespace,
            Pods(2),
            queue=None,
            slotsPerWorker=1,
            runPolicy={"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 60},
            sshAuthMountPath="/home/mpiuser/.ssh",
        )
        made["metadata"]["labels"] = {queue: "main"}
        made["spec"]["mpiReplicaSpecs"] = {
            "Launcher": replica(
                1, "mpi-launcher", "3", command=["mpirun"], args=["-n", "2", "/pi"]
            ),
            "Worker": replica(2, "mpi-worker", None, command=["/usr/sbin/sshd"], args=serve),
        }
        stored = workspace.submit(made)
        assert stored["metadata"]["labels"] == {queue: "main", keys.QUEUE_LABEL: "main"}
        workspace.until_state("pi", "Finished")
        assert workspace.workload("pi")["reason"]["code"] == "Succeeded"
        until_empty(workspace, "pi")


def test_a_launcher_that_is_a_worker_shifts_the_indexes_and_not_the_ranks(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        document = mpijob(
            "ranks",
            workspace.namespace,
            Pods(12, gpus=8),
            launcher=Pods(1, gpus=8),
            runLauncherAsWorker=True,
        )
        workspace.submit(document)
        workspace.until_running("ranks", 13, lambda p: True, "all run")
        change = {"spec": {"runLauncherAsWorker": False}}
        with pytest.raises(
            RequestError, match="runLauncherAsWorker of a job in a queue cannot change"
        ):
            workspace.client.patch(workspace.made[0], change)
        found = sorted((p.podset, p.rank, p.name) for p in workspace.running("ranks"))
        workers = [("worker", n, f"ranks-worker-{n}") for n in range(12)]
        assert [(podset, rank) for podset, rank, _ in found[:1]] == [("launcher", 0)]
        assert sorted(found[1:], key=lambda one: one[1] or 0) == workers
        racks = [
            str(p.node).rsplit("-", 1)[0]
            for p in sorted(workspace.running("ranks"), key=lambda p: p.rank or 0)
            if p.podset == "worker"
        ]
        assert racks == sorted(racks)
        lost = next(p for p in workspace.running("ranks") if p.rank == 11)
        path = f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}"
        workspace.client.delete(path)
        workspace.until_running("ranks", 13, lambda p: p.uid != lost.uid, "all run again")
        again = next(p for p in workspace.running("ranks") if p.rank == 11)
        assert again.node == lost.node


def test_a_launcher_that_waits_for_the_workers_has_its_node_from_the_start(
    installation: Installation,
) -> None:
    with installation.workspace(40) as workspace:
        waits = {"launcherCreationPolicy": "WaitForWorkersReady"}
        one_node = Pods(1, gpus=8, required=RACK)
        made = mpijob("late", workspace.namespace, WHOLE, launcher=one_node, **waits)
        workspace.submit(made)
        workspace.until_running("late", 5, lambda p: True, "all run")
        workspace.until_state("late", "Running")
        workspace.submit(mpijob("next", workspace.namespace, Pods(1, gpus=8)))
        until_reason(workspace, "next", "Pending", "WaitingForQuota")
        [pod] = [p for p in workspace.running("late") if p.podset == "launcher"]
        finish(workspace, pod.name)
        workspace.until_state("late", "Finished")


def test_a_worker_that_a_kubelet_evicts_fails_the_job_for_good(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(mpijob("evicted", workspace.namespace, WHOLE, restart="Never"))
        workspace.until_state("evicted", "Running")
        lost = next(p for p in workspace.running("evicted") if p.podset == "worker")
        status = {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}
        change_pod(workspace, lost.name, status, "/status")
        done = workspace.until_state("evicted", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Failed", 1)


def test_workers_that_ended_in_an_earlier_attempt_hold_the_next_one_until_they_are_deleted(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        made = mpijob("kept", workspace.namespace, WHOLE, clean="Running", restart="Never")
        workspace.submit(made)
        workspace.until_state("kept", "Running")
        fail(workspace, "kept-worker-2")
        workspace.until(
            lambda: any(p.terminal for p in workspace.pods("kept")), "a worker has failed"
        )
        run_command(workspace, "kept", "hold")
        workspace.until_state("kept", "Held")
        until_empty(workspace, "kept")
        run_command(workspace, "kept", "release")
        waits = until_reason(workspace, "kept", "Pending", "WaitingForPods")
        assert "delete kept-worker-2" in waits["reason"]["message"]
        path = f"/api/v1/namespaces/{workspace.namespace}/pods/kept-worker-2"
        workspace.client.delete(path)
        assert workspace.until_state("kept", "Running")["attempt"] == 2
        remove(workspace, "kept")


# ---- forged objects, and changes by users


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the MPIJob ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", PYTORCHJOBS))
        made = workspace.submit(mpijob("mine", workspace.namespace, Pods(2, gpus=8)))
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {one.attempt for one in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 3


_MARKS = {keys.ATTEMPT_LABEL: "1", keys.PODSET_LABEL: "worker", keys.KIND_LABEL: "MPIJob"}


def test_no_user_creates_pods_of_an_mpijob(tenant: Tenant) -> None:
    only = "only the controllers of"
    labels = _MARKS | {keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"]}
    refused(only, tenant.create, pod("w", labels=labels, ownerReferences=owner(tenant.job)))
    child = job("child", ownerReferences=owner(tenant.job))
    child["metadata"]["labels"] = {}
    child["spec"]["template"]["metadata"]["labels"] = labels
    refused(only, tenant.create, child)
    forged = mpijob("forged", tenant.workspace.namespace, Pods(1, gpus=8), queue=None)
    worker = forged["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    worker["metadata"]["labels"] = labels
    refused(only, tenant.create, forged)


def test_no_user_takes_the_launcher_of_an_mpijob_out_of_its_queue(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/mine-launcher"
    assert launcher(workspace, "mine")["spec"]["suspend"] is False
    changed = "changed by the controller"
    refused(changed, tenant.client.patch, path, {"spec": {"parallelism": 3}})
    refused(changed, tenant.client.patch, path, {"metadata": {"ownerReferences": None}})
    refused("together with its pods", tenant.client.delete, path)


def test_a_user_changes_a_queued_mpijob_only_in_ways_that_its_queue_sees(tenant: Tenant) -> None:
    workspace = tenant.workspace
    made = tenant.create(mpijob("changed", workspace.namespace, Pods(9, gpus=8)))
    path, change = workspace.made[-1], tenant.client.patch

    def worker(**fields: Any) -> Document:
        return {"spec": {"mpiReplicaSpecs": {"Worker": fields}}}

    def template(**fields: Any) -> Document:
        return worker(template=fields)

    refused("only queuectl may resume", change, path, {"spec": {"runPolicy": {"suspend": False}}})
    refused("gate.*cannot be removed", change, path, template(spec={"schedulingGates": []}))
    for label in (keys.ATTEMPT_LABEL, keys.KIND_LABEL, keys.FIRST_RANK_LABEL):
        labels = {"labels": {label: "7"}}
        refused("written by queuectl alone", change, path, template(metadata=labels))
    move = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
    refused("cannot change its queue", change, path, move)
    mine = workspace.client.path_of(tenant.job)
    refused("while it runs", change, mine, worker(replicas=3))
    refused("together with its pods", tenant.client.delete, mine, propagationPolicy="Orphan")
    change(path, template(spec={"nodeSelector": {"example.com/none": "x"}}))
    without = deepcopy(made["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"])
    assert without["priorityClassName"] == keys.POD_PRIORITY_CLASS
    tenant.client.delete(path, propagationPolicy="Background")


def test_the_account_of_queuectl_changes_nothing_else_of_an_mpijob(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = workspace.client.path_of(tenant.job)
    says = "queuectl changes of a job in a queue nothing but"
    worker: Document = {"mpiReplicaSpecs": {"Worker": {"replicas": 1}}}
    image: Document = {"template": {"spec": {"nodeSelector": {"a": "b"}}}}
    with account_of_queuectl(workspace) as client:
        for spec in (
            worker,
            {"mpiReplicaSpecs": {"Worker": image}},
            {"slotsPerWorker": 2},
            {"runLauncherAsWorker": True},
            {"runPolicy": {"cleanPodPolicy": "All"}},
        ):
            refused(says, client.patch, path, {"spec": spec})
        mine = mpijob("mine", "queuectl-system", Pods(1))
        refused(says, client.create, client.path_of(mine).rpartition("/")[0], mine)
