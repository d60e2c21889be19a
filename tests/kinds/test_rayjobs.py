"""RayJobs run by KubeRay: a Ray cluster for each, and a pod that submits the entrypoint. KubeRay reads the end of the job from a simulated Ray."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.objects import keys
from tests.support.people import role
from tests.support.rays import cluster_spec, raycluster, rayjob, worker_group
from tests.support.simulated_ray import play
from tests.system.actions import remove, run_command, until_empty, until_reason
from tests.system.forger import Tenant, job, owner, refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(2, gpus=8)
"""Of a group of workers: each pod takes a node."""
HEAD = PodSetManifest(1)


def clusters(workspace: Workspace) -> list[Document]:
    """The RayClusters of the namespace."""
    path = f"/apis/ray.io/v1/namespaces/{workspace.namespace}/rayclusters"
    items: list[Document] = workspace.client.get(path)["items"]
    return items


def test_the_children_of_a_rayjob_are_not_workloads(installation: Installation) -> None:
    """Without a template of the submitter, admission writes one with the container and the image that KubeRay would use."""
    with installation.workspace(32) as workspace:
        workers = worker_group("small-group", PodSetManifest(1, cpu="200m"))
        made = rayjob("sample", workspace.namespace, HEAD, workers)
        stored = workspace.submit(made)
        [container] = stored["spec"]["submitterPodTemplate"]["spec"]["containers"]
        head = made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        assert (container["name"], container["image"]) == ("ray-job-submitter", head["image"])
        workspace.until_running("sample", 3, lambda p: True, "all run")
        assert set(workspace.workloads()) == {"sample"}
        [cluster] = clusters(workspace)
        assert cluster["metadata"]["labels"][keys.QUEUE_LABEL] == "main"
        assert not cluster["spec"].get("suspend")


def test_the_submitter_has_its_capacity_before_it_exists(installation: Installation) -> None:
    """The rest of the quota is less than the submitter requests, so the RayJob waits for room for all its pods."""
    with installation.workspace(24) as workspace:
        workers = worker_group("workers", PodSetManifest(1, gpus=8))
        submitter = PodSetManifest(1, gpus=8).template("ray-job-submitter", None, restart="Never")
        workspace.submit(
            rayjob(
                "late",
                workspace.namespace,
                HEAD,
                workers,
                submissionMode="K8sJobMode",
                submitterPodTemplate=submitter,
            )
        )
        workspace.job("other", PodSetManifest(2, gpus=8))
        until_reason(workspace, "other", "Pending", "WaitingForQuota")
        workspace.until_running("late", 3, lambda p: True, "all run")
        assert workspace.state("other") == "Pending"
        remove(workspace, "late")
        workspace.until_state("other", "Running")


def test_the_pods_of_another_try_take_the_same_places(installation: Installation) -> None:
    with installation.workspace(128) as workspace:
        workers = worker_group("workers", PodSetManifest(4, gpus=8, required=RACK))
        workspace.submit(
            rayjob(
                "again",
                workspace.namespace,
                HEAD,
                workers,
                submissionMode="HTTPMode",
                backoffLimit=1,
            )
        )
        workspace.until_state("again", "Running")
        before = workspace.running("again")
        assert {p.podset for p in before} == {"head", "workers"}
        path = f"/apis/ray.io/v1/namespaces/{workspace.namespace}/rayjobs/again"
        workspace.until(
            lambda: workspace.client.get(path)["status"].get("jobStatus") == "RUNNING",
            "KubeRay has submitted the entrypoint",
        )
        play(workspace, "again", "FAILED")
        old = {pod.uid for pod in before}
        workspace.until_running("again", 5, lambda p: p.uid not in old, "new pods run")
        after = workspace.running("again")
        assert {(p.podset, p.rank, p.node) for p in after if p.podset == "workers"} == {
            (p.podset, p.rank, p.node) for p in before if p.podset == "workers"
        }
        assert workspace.workload("again")["attempt"] == 1
        workspace.until(
            lambda: workspace.client.get(path)["status"].get("jobStatus") == "RUNNING",
            "KubeRay has submitted the entrypoint again",
        )
        play(workspace, "again", "FAILED")
        done = workspace.until_state("again", "Finished")
        assert done["reason"]["code"] == "Failed"


def test_a_rayjob_that_is_released_has_a_new_cluster(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workers = worker_group("workers", WHOLE)
        workspace.submit(rayjob("held", workspace.namespace, HEAD, workers))
        workspace.until_state("held", "Running")
        first = {one["metadata"]["name"] for one in clusters(workspace)}
        run_command(workspace, "held", "hold")
        workspace.until_state("held", "Held")
        until_empty(workspace, "held")
        assert clusters(workspace) == []
        run_command(workspace, "held", "release")
        assert workspace.until_state("held", "Running")["attempt"] == 2
        assert first.isdisjoint(one["metadata"]["name"] for one in clusters(workspace))
        remove(workspace, "held")


# ---- forged objects


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the RayJob ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        workers = worker_group("workers", WHOLE)
        made = workspace.submit(rayjob("mine", workspace.namespace, HEAD, workers))
        workspace.until_running("mine", 4, lambda p: True, "all run")
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {pod.attempt for pod in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 4


_RIGHTS = [{"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["*"]}]
_ONLY = "only the controllers of queued jobs"


def marked(tenant: Tenant, *, added: bool) -> Document:
    """The spec of a Ray cluster whose pods name the RayJob as their workload. ``added``: in the labels that KubeRay adds to the template."""
    marks = {
        keys.ATTEMPT_LABEL: "1",
        keys.PODSET_LABEL: "workers",
        keys.KIND_LABEL: "RayJob",
        keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"],
    }
    workers = worker_group("workers", PodSetManifest(1, gpus=8))
    (workers if added else workers["template"]["metadata"])["labels"] = marks
    return cluster_spec(HEAD, workers)


@pytest.mark.parametrize("added", [False, True], ids=["in a template", "added to a template"])
def test_no_user_creates_pods_of_a_rayjob(tenant: Tenant, added: bool) -> None:
    namespace = tenant.workspace.namespace
    base = raycluster("child", namespace, HEAD, queue=None)
    base["metadata"]["ownerReferences"] = owner(tenant.job, kind="RayJob")
    forged = base | {"spec": marked(tenant, added=added)}
    refused(_ONLY, tenant.create, forged)
    queued = raycluster("queued", namespace, HEAD) | {"spec": marked(tenant, added=added)}
    refused(r"only queuectl writes .*: remove them", tenant.create, queued)
    mine = rayjob("waits", namespace, HEAD)
    mine["spec"]["rayClusterSpec"] = marked(tenant, added=True)
    refused(r"only queuectl writes .*: remove them", tenant.create, mine)
    unqueued = rayjob("job", namespace, HEAD, queue=None)
    unqueued["spec"]["rayClusterSpec"] = marked(tenant, added=added)
    refused(_ONLY, tenant.create, unqueued)
    for queue in (None, "main"):
        serving = raycluster("serving", namespace, HEAD, queue=queue)
        serving |= {
            "kind": "RayService",
            "spec": {"rayClusterConfig": marked(tenant, added=added)},
        }
        refused(_ONLY, tenant.create, serving)
    submits = job("submits", None, labels={}, ownerReferences=owner(tenant.job, kind="RayJob"))
    submits["spec"]["template"]["metadata"]["labels"] = {keys.KIND_LABEL: "RayJob"}
    refused(_ONLY, tenant.create, submits)


def test_no_user_takes_the_cluster_of_a_rayjob_out_of_its_queue(tenant: Tenant) -> None:
    [cluster] = clusters(tenant.workspace)
    path = tenant.workspace.client.path_of(cluster)
    change = tenant.client.patch
    refused("cannot change its queue", change, path,
        {"metadata": {"labels": {keys.QUEUE_LABEL: None}}})  # fmt: skip
    head = {"headGroupSpec": {"template": {"spec": {"schedulingGates": None}}}}
    refused("while it runs|gate", change, path, {"spec": head})
    refused("together with its pods", tenant.client.delete, path, propagationPolicy="Orphan")


def test_no_user_removes_the_template_of_the_submitter_of_a_rayjob_that_runs(
    tenant: Tenant,
) -> None:
    mine = tenant.workspace.client.path_of(tenant.job)
    removed = {"spec": {"submitterPodTemplate": None}}
    refused("while it runs", tenant.client.patch, mine, removed)


def test_a_rayjob_that_keeps_its_cluster_is_refused(tenant: Tenant) -> None:
    namespace, mine = tenant.workspace.namespace, tenant.workspace.client.path_of(tenant.job)
    kept = rayjob("kept", namespace, HEAD, shutdownAfterJobFinishes=False)
    refused("shutdownAfterJobFinishes", tenant.create, kept)
    later = rayjob("later", namespace, HEAD, ttlSecondsAfterFinished=3600)
    refused("ttlSecondsAfterFinished", tenant.create, later)
    changes: list[Document] = [
        {"shutdownAfterJobFinishes": False},
        {"ttlSecondsAfterFinished": 3600},
        {"deletionStrategy": {"deletionRules": []}},
        {"backoffLimit": -1},
        {"runtimeEnvYAML": "{"},
        {"rayClusterSpec": {"authOptions": {"mode": "token"}}},
    ]
    for changed in changes:
        refused(next(iter(changed)), tenant.client.patch, mine, {"spec": changed})
