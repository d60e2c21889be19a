"""JobSets run by the JobSet operator: a gang across Jobs, whose pods can come in steps, and whose Jobs can be created again."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from queuectl.demo.manifests import Document, Pods
from queuectl.objects import keys
from tests.support.jobsets import jobset, replicated
from tests.support.people import role
from tests.system.actions import finish, remove, run_command, until_empty
from tests.system.forger import Tenant, account_of_queuectl, job, owner, refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

WHOLE = Pods(2, gpus=8)
"""Of a Job: each pod takes a node."""


def jobs_of(workspace: Workspace, name: str) -> list[Document]:
    """The Jobs of a JobSet."""
    listed = workspace.client.get(f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs")["items"]
    return [one for one in listed if one["metadata"]["name"].startswith(f"{name}-")]


def fail(workspace: Workspace, pod: str) -> None:
    """Let a pod fail now."""
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod}"
    annotations = {"kwok.queuectl.dev/fail-after-seconds": "0"}
    workspace.client.patch(path, {"metadata": {"annotations": annotations}})


def rack(node: str | None) -> str:
    return str(node).rsplit("-", 1)[0]


def test_a_jobset_is_admitted_preempted_repaired_and_ends(installation: Installation) -> None:
    with installation.workspace(48, strategy="StrictFIFO") as workspace:
        # A copy of the label on the Jobs and on the pods changes nothing.
        copied = {keys.QUEUE_LABEL: "main"}
        workers = replicated("workers", 2, Pods(2, gpus=8, required=RACK))
        workers["template"]["metadata"] = {"labels": copied}
        workers["template"]["spec"]["template"]["metadata"]["labels"] = copied
        driver = replicated("driver", 1, Pods(1, gpus=8))
        made = workspace.submit(
            jobset("train", workspace.namespace, driver, workers, priority_class="low")
        )
        assert made["spec"]["suspend"] is True
        workspace.until_state("train", "Running")
        assert set(workspace.workloads()) == {"train"}, "its Jobs are no workloads"
        assert {one["spec"]["suspend"] for one in jobs_of(workspace, "train")} == {False}
        placed = workspace.running("train")
        assert sorted((pod.podset, pod.rank) for pod in placed) == [
            ("driver", 0), *(("workers", n) for n in range(4)),
        ]  # fmt: skip
        assert len({rack(pod.node) for pod in placed if pod.podset == "workers"}) == 1

        workspace.submit(
            jobset(
                "urgent",
                workspace.namespace,
                replicated("main", 3, WHOLE, seconds=2),
                priority_class="high",
            )
        )
        workspace.until_state("urgent", "Finished")
        again = workspace.until_state("train", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)
        assert {pod.attempt for pod in workspace.running("train")} == {2}

        slots = {(pod.podset, pod.rank): pod.node for pod in workspace.running("train")}
        lost = next(pod for pod in workspace.running("train") if pod.podset == "workers")
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}")
        workspace.until_running("train", 5, lambda p: p.uid != lost.uid, "all five run again")
        assert {(p.podset, p.rank): p.node for p in workspace.running("train")} == slots

        for pod in workspace.running("train"):
            finish(workspace, pod.name)
        done = workspace.until_state("train", "Finished")
        assert done["reason"]["code"] == "Succeeded"


def test_ranks_across_jobs_are_in_the_order_of_the_racks(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workspace.submit(
            jobset("ranks", workspace.namespace, replicated("main", 3, Pods(4, gpus=8)))
        )
        workspace.until_state("ranks", "Running")
        ranked = sorted((pod.rank, rack(pod.node)) for pod in workspace.running("ranks"))
        assert [number for number, _ in ranked] == list(range(12))
        assert [one for _, one in ranked] == sorted(one for _, one in ranked)


def test_pods_that_come_after_the_end_of_others_have_their_nodes_from_the_start(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        first = replicated("prepare", 1, Pods(1, gpus=8))
        then = replicated("train", 3, Pods(4, gpus=8))
        then["dependsOn"] = [{"name": "prepare", "status": "Complete"}]
        workspace.submit(jobset("steps", workspace.namespace, first, then))
        workspace.until_state("steps", "Running")
        assert len(workspace.pods("steps")) == 1
        workspace.job("other", Pods(4, gpus=8))
        workspace.until(
            lambda: workspace.workload("other").get("reason", {}).get("code") == "WaitingForQuota",
            "the nodes of the later pods are not free",
        )
        finish(workspace, workspace.running("steps")[0].name)
        workspace.until_running("steps", 12, lambda p: p.podset == "train", "the later pods run")
        assert workspace.workload("steps")["attempt"] == 1
        for pod in workspace.running("steps"):
            finish(workspace, pod.name)
        workspace.until_state("steps", "Finished")


def test_jobs_that_start_in_order_are_admitted_together(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        jobs = [replicated(name, 1, WHOLE, seconds=8) for name in ("first", "second")]
        order = {"startupPolicyOrder": "InOrder"}
        workspace.submit(jobset("order", workspace.namespace, *jobs, startupPolicy=order))
        workspace.until_running("order", 4, lambda p: True, "all run")
        assert workspace.until_state("order", "Finished")["attempt"] == 1


def test_jobs_that_a_failure_policy_creates_again_take_the_same_places(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        workers = replicated("main", 2, Pods(2, gpus=8, required=RACK))
        workers["template"]["spec"]["backoffLimit"] = 0
        workspace.submit(
            jobset("again", workspace.namespace, workers, failurePolicy={"maxRestarts": 1})
        )
        workspace.until_state("again", "Running")
        before = workspace.running("again")
        fail(workspace, before[0].name)
        old = {pod.uid for pod in before}
        workspace.until_running("again", 4, lambda p: p.uid not in old, "new pods run")
        after = workspace.running("again")
        assert {(p.rank, p.node) for p in after} == {(p.rank, p.node) for p in before}
        assert workspace.workload("again")["attempt"] == 1
        fail(workspace, after[0].name)
        done = workspace.until_state("again", "Finished")
        assert done["reason"]["code"] == "Failed"


def test_a_jobset_is_held_and_released(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(jobset("held", workspace.namespace, replicated("main", 2, WHOLE)))
        workspace.until_state("held", "Running")
        run_command(workspace, "held", "hold")
        workspace.until_state("held", "Held")
        until_empty(workspace, "held")
        run_command(workspace, "held", "release")
        assert workspace.until_state("held", "Running")["attempt"] == 2
        remove(workspace, "held")


def test_a_jobset_with_the_fields_of_kueues_users_runs_with_kueues_keys(
    installation: Installation,
) -> None:
    """The queue label of Kueue alone, its topology annotation, and the network of the JobSet set by its user."""
    with installation.workspace(32) as workspace:
        queue = "kueue.x-k8s.io/queue-name"
        topology = {"kueue.x-k8s.io/podset-required-topology": RACK}
        workers = replicated("workers", 2, Pods(1, gpus=8, annotations=topology), seconds=6)
        leader = replicated("leader", 1, Pods(1), seconds=6)
        made = jobset(
            "sleep",
            workspace.namespace,
            leader,
            workers,
            queue=None,
            network={"enableDNSHostnames": False, "subdomain": "some-subdomain"},
        )
        made["metadata"]["labels"] = {queue: "main"}
        stored = workspace.submit(made)
        assert stored["metadata"]["labels"] == {queue: "main", keys.QUEUE_LABEL: "main"}
        workspace.until_running("sleep", 3, lambda p: True, "all run")
        placed = [pod for pod in workspace.running("sleep") if pod.podset == "workers"]
        assert len({rack(pod.node) for pod in placed}) == 1
        workspace.until_state("sleep", "Finished")


# ---- forged objects


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the JobSet ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        made = workspace.submit(jobset("mine", workspace.namespace, replicated("main", 2, WHOLE)))
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {pod.attempt for pod in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 4


_RIGHTS = [{"apiGroups": ["jobset.x-k8s.io"], "resources": ["*"], "verbs": ["*"]}]
_ONLY = "only the controllers of queued jobs"
_MARKS = {
    keys.ATTEMPT_LABEL: "1",
    keys.PODSET_LABEL: "main",
    keys.KIND_LABEL: "JobSet",
}


def forged(tenant: Tenant, name: str, queue: str | None = None) -> Document:
    """A Job whose pods name the JobSet as their workload."""
    document = job(name, ownerReferences=owner(tenant.job))
    document["metadata"]["labels"] = {keys.QUEUE_LABEL: queue} if queue is not None else {}
    labels = _MARKS | {keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"]}
    document["spec"]["template"]["metadata"]["labels"] = labels
    return document


def test_no_user_creates_pods_of_a_jobset(tenant: Tenant) -> None:
    refused(_ONLY, tenant.create, forged(tenant, "child"))
    refused("workload-kind", tenant.create, forged(tenant, "queued", "main"))
    labels = _MARKS | {keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"]}
    one = replicated("main", 1, Pods(1, gpus=8))
    one["template"]["spec"]["template"]["metadata"]["labels"] = labels
    refused(_ONLY, tenant.create, jobset("set", tenant.workspace.namespace, one, queue=None))
    plain = tenant.create(job("plain", None, labels={}, ownerReferences=owner(tenant.job)))
    assert plain["spec"]["suspend"] is False
    path = tenant.workspace.made[-1]
    refused("immutable|changed by the controller", tenant.client.patch, path,
        {"spec": {"template": {"metadata": {"labels": labels}}}})  # fmt: skip
    tenant.client.delete(path, propagationPolicy="Background")


def test_no_user_takes_the_jobs_of_a_jobset_out_of_its_queue(tenant: Tenant) -> None:
    workspace = tenant.workspace
    name = jobs_of(workspace, "mine")[0]["metadata"]["name"]
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/{name}"
    changed = "changed by the controller"
    refused(changed, tenant.client.patch, path, {"spec": {"parallelism": 3}})
    refused(changed, tenant.client.patch, path, {"metadata": {"ownerReferences": None}})
    refused(changed, tenant.client.patch, path,
        {"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "other"}}})  # fmt: skip
    refused("together with its pods", tenant.client.delete, path)
    refused("only queuectl may resume", tenant.client.patch, *_resumed(tenant))


def _resumed(tenant: Tenant) -> tuple[str, Document]:
    """A waiting JobSet, and the patch that would resume it."""
    large = replicated("main", 9, WHOLE)
    tenant.create(jobset("waits", tenant.workspace.namespace, large))
    return tenant.workspace.made[-1], {"spec": {"suspend": False}}


# ---- changes by users, and by queuectl's own account


def entry(
    document: Document, labels: Document | None = None, pod: Document | None = None, **changes: Any
) -> Document:
    """The patch that replaces the list of replicated jobs with the stored one, after these changes of its pods' spec and labels."""
    [one] = deepcopy(document["spec"]["replicatedJobs"])
    template = one["template"]["spec"]["template"]
    template["metadata"]["labels"] |= labels or {}
    template["spec"] |= pod or {}
    return {"spec": {"replicatedJobs": [one | changes]}}


def test_a_user_changes_a_queued_jobset_only_in_ways_that_its_queue_sees(tenant: Tenant) -> None:
    workspace = tenant.workspace
    large = replicated("main", 9, WHOLE)
    made = tenant.create(jobset("changed", workspace.namespace, large))
    path, change = workspace.made[-1], tenant.client.patch
    refused("gate.*cannot be removed", change, path, entry(made, pod={"schedulingGates": []}))
    for label in (keys.ATTEMPT_LABEL, keys.KIND_LABEL, keys.WORKLOAD_LABEL, keys.RANKS_LABEL):
        refused("written by queuectl alone", change, path, entry(made, labels={label: "7"}))
    move = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
    refused("cannot change its queue", change, path, move)
    refused("user who created the job", change, path,
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "root"}}})  # fmt: skip
    running = workspace.client.get(workspace.client.path_of(tenant.job))
    mine = workspace.client.path_of(tenant.job)
    refused("immutable|while it runs", change, mine, entry(running, replicas=3))
    refused("together with its pods", tenant.client.delete, mine, propagationPolicy="Orphan")
    change(path, entry(made, pod={"nodeSelector": {"example.com/none": "x"}}))
    tenant.client.delete(path, propagationPolicy="Background")


def test_the_account_of_queuectl_changes_nothing_else_of_a_jobset(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = workspace.client.path_of(tenant.job)
    made = workspace.client.get(path)
    says = "queuectl changes of a job in a queue nothing but"
    with account_of_queuectl(workspace) as client:
        changes: tuple[Document, ...] = (
            entry(made, replicas=1),
            entry(made, pod={"nodeSelector": {"a": "b"}}),
            entry(made, labels={"example.com/a": "b"}),
            {"spec": {"replicatedJobs": []}},
            {"spec": {"ttlSecondsAfterFinished": 1}},
            {"metadata": {"labels": {"example.com/a": "b"}}},
        )
        for change in changes:
            refused(says, client.patch, path, {"spec": {"suspend": True}} | change)
        mine = jobset("mine", "queuectl-system", replicated("main", 1, WHOLE))
        refused(says, client.create, client.path_of(mine).rpartition("/")[0], mine)
