"""JobSets run by the JobSet operator: a gang across Jobs, whose pods can come in steps, and whose Jobs can be created again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import FAIL_SECONDS, Document, PodSetManifest
from queuectl.objects import keys
from tests.support.jobsets import jobset, replicated
from tests.support.people import role
from tests.system.actions import finish
from tests.system.forger import Tenant, job, owner, refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(2, gpus=8)
"""Of a Job: each pod takes a node."""


def jobs_of(workspace: Workspace, name: str) -> list[Document]:
    """The Jobs of a JobSet."""
    listed = workspace.client.get(f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs")["items"]
    return [one for one in listed if one["metadata"]["name"].startswith(f"{name}-")]


def fail(workspace: Workspace, pod: str) -> None:
    """Let a pod fail now."""
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod}"
    annotations = {FAIL_SECONDS: "0"}
    workspace.client.patch(path, {"metadata": {"annotations": annotations}})


def rack(node: str | None) -> str:
    return str(node).rsplit("-", 1)[0]


def test_a_copy_of_the_queue_label_changes_nothing(installation: Installation) -> None:
    with installation.workspace(48) as workspace:
        copied = {keys.QUEUE_LABEL: "main"}
        workers = replicated("workers", 2, PodSetManifest(2, gpus=8))
        workers["template"]["metadata"] = {"labels": copied}
        workers["template"]["spec"]["template"]["metadata"]["labels"] = copied
        driver = replicated("driver", 1, PodSetManifest(1, gpus=8))
        workspace.submit(jobset("train", workspace.namespace, driver, workers))
        workspace.until_state("train", "Running")
        assert set(workspace.workloads()) == {"train"}, "its Jobs are not workloads"
        assert {one["spec"]["suspend"] for one in jobs_of(workspace, "train")} == {False}
        assert {(pod.podset, pod.rank) for pod in workspace.running("train")} == {
            ("driver", 0), *(("workers", n) for n in range(4)),
        }  # fmt: skip


def test_pods_that_come_after_the_end_of_others_have_their_nodes_from_the_start(
    installation: Installation,
) -> None:
    with installation.workspace(128) as workspace:
        first = replicated("prepare", 1, PodSetManifest(1, gpus=8))
        then = replicated("train", 3, PodSetManifest(4, gpus=8))
        then["dependsOn"] = [{"name": "prepare", "status": "Complete"}]
        workspace.submit(jobset("steps", workspace.namespace, first, then))
        workspace.until_state("steps", "Running")
        assert len(workspace.pods("steps")) == 1
        workspace.job("other", PodSetManifest(4, gpus=8))
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
        workers = replicated("main", 2, PodSetManifest(2, gpus=8, required=RACK))
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
    one = replicated("main", 1, PodSetManifest(1, gpus=8))
    one["template"]["spec"]["template"]["metadata"]["labels"] = labels
    refused(_ONLY, tenant.create, jobset("set", tenant.workspace.namespace, one, queue=None))
    plain = tenant.create(job("plain", None, labels={}, ownerReferences=owner(tenant.job)))
    assert plain["spec"]["suspend"] is False
    path = tenant.workspace.made[-1]
    refused("immutable|only the controller of a job", tenant.client.patch, path,
        {"spec": {"template": {"metadata": {"labels": labels}}}})  # fmt: skip
    tenant.client.delete(path, propagationPolicy="Background")


def test_no_user_takes_the_jobs_of_a_jobset_out_of_its_queue(tenant: Tenant) -> None:
    workspace = tenant.workspace
    name = jobs_of(workspace, "mine")[0]["metadata"]["name"]
    path = f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/{name}"
    changed = "only the controller of a job"
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
