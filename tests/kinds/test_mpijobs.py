"""MPIJobs run by the MPI operator: a launcher, which is the pod of a Job, and workers, which are pods of the MPIJob."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import FAIL_SECONDS, Document, PodSetManifest
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from tests.support.mpijobs import mpijob
from tests.support.people import role
from tests.system.actions import finish, remove, run_command, until_empty, until_reason
from tests.system.forger import (
    PYTORCHJOBS,
    Tenant,
    job,
    owner,
    pod,
    refused,
    tenant_of,
)
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(4, gpus=8)
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
    annotations = {FAIL_SECONDS: "0"}
    change_pod(workspace, name, {"metadata": {"annotations": annotations}})


def test_a_launcher_that_is_a_worker_shifts_the_indexes_and_not_the_ranks(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        document = mpijob(
            "ranks",
            workspace.namespace,
            PodSetManifest(12, gpus=8),
            launcher=PodSetManifest(1, gpus=8),
            runLauncherAsWorker=True,
        )
        workspace.submit(document)
        workspace.until_running("ranks", 13, lambda p: True, "all run")
        change = {"spec": {"runLauncherAsWorker": False}}
        with pytest.raises(
            ApiServerError, match="runLauncherAsWorker of a job in a queue cannot change"
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
        one_node = PodSetManifest(1, gpus=8, required=RACK)
        made = mpijob("late", workspace.namespace, WHOLE, launcher=one_node, **waits)
        workspace.submit(made)
        workspace.until_running("late", 5, lambda p: True, "all run")
        workspace.until_state("late", "Running")
        workspace.submit(mpijob("next", workspace.namespace, PodSetManifest(1, gpus=8)))
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


# ---- forged objects


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the MPIJob ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", PYTORCHJOBS))
        made = workspace.submit(mpijob("mine", workspace.namespace, PodSetManifest(2, gpus=8)))
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
    forged = mpijob("forged", tenant.workspace.namespace, PodSetManifest(1, gpus=8), queue=None)
    worker = forged["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    worker["metadata"]["labels"] = labels
    refused(only, tenant.create, forged)


def test_no_user_takes_the_launcher_of_an_mpijob_out_of_its_queue(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/mine-launcher"
    assert launcher(workspace, "mine")["spec"]["suspend"] is False
    changed = "only the controller of a job"
    refused(changed, tenant.client.patch, path, {"spec": {"parallelism": 3}})
    refused(changed, tenant.client.patch, path, {"metadata": {"ownerReferences": None}})
    refused("together with its pods", tenant.client.delete, path)
