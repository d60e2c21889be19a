"""queuectl alongside the gang scheduling of each version of Kubernetes that has it, with its beta and its alpha gates.

Whole gangs start, and no user gives their pods another priority. The tests of tests/system run alongside it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import ApiServerError
from queuectl.objects import keys
from tests.support.jobs import batch_job, template
from tests.system.installation import Installation, Workspace
from tests.system.test_gangs import (  # noqa: F401
    test_a_failed_pod_is_replaced_in_its_slot,
    test_a_preemptor_starts_when_its_victim_has_left_and_the_victim_runs_again,
    test_a_pytorchjob_is_suspended_at_birth_and_gone_through_by_the_real_operator,
    test_twenty_gangs_submitted_at_once_all_run_and_end,
)
from tests.versions.native_gangs import VARIANTS, NativeGangs, priority_class

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=VARIANTS)
def native(request: pytest.FixtureRequest) -> NativeGangs:
    return VARIANTS[request.param]


@pytest.fixture(scope="module")
def installation(native: NativeGangs) -> Iterator[Installation]:
    with native.installed() as made:
        priority_class(made, "rush", 1000)
        yield made


@pytest.fixture
def waiting(installation: Installation) -> Iterator[Workspace]:
    """A namespace with the Job ``waits``, which has no quota."""
    with installation.workspace(0) as workspace:
        workspace.job("waits", PodSetManifest(2, gpus=8))
        workspace.until_state("waits", "Pending")
        yield workspace


def groups_of(workspace: Workspace, native: NativeGangs, name: str) -> dict[str, Document]:
    """The PodGroups that the pods of a job name, as the API server has them."""
    pods = workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}/pods")["items"]
    named = {
        pod["spec"].get("schedulingGroup", {}).get("podGroupName")
        for pod in pods
        if pod["metadata"]["name"].startswith(f"{name}-")
    }
    path = native.path(workspace.namespace, "podgroups")
    return {one: workspace.client.get(f"{path}/{one}") for one in named if one}


def test_the_pod_group_of_a_job_has_no_priority_of_a_user(
    installation: Installation, native: NativeGangs
) -> None:
    """Its victims and its quota are those of queuectl, even if the controller of Jobs makes it a gang of Kubernetes."""
    with installation.workspace(32) as workspace:
        workspace.job("first", PodSetManifest(4, gpus=8), priority_class="low", retries=6)
        workspace.until_running("first", 4, lambda pod: pod.attempt == 1, "first runs")
        groups = groups_of(workspace, native, "first")
        assert len(groups) == (1 if native.by_jobs else 0)
        priorities = {group["spec"].get("priority", 0) for group in groups.values()}
        # This alpha API copies the class of the pods to the group in some of its versions only.
        assert priorities <= {0, keys.POD_PRIORITY}

        workspace.job("urgent", PodSetManifest(2, gpus=8), priority_class="high")
        workspace.until_running("urgent", 2, lambda pod: pod.attempt == 1, "urgent runs")
        workspace.until_state("first", "Pending")
        workspace.client.delete(workspace.made.pop(), propagationPolicy="Background")
        workspace.until_running("first", 4, lambda pod: pod.attempt == 2, "first runs again")


def owned(workspace: Workspace, document: Document) -> Document:
    """As if the Job ``waits`` controlled it."""
    job = workspace.client.get(f"/apis/batch/v1/namespaces/{workspace.namespace}/jobs/waits")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "waits", "controller": True}
    document["metadata"]["ownerReferences"] = [{**owner, "uid": job["metadata"]["uid"]}]
    return document


Forgery = Callable[[Workspace, NativeGangs], Document]
JOB = {"apiGroup": "batch", "kind": "Job", "name": "waits"}
FORGED: dict[str, Forgery] = {
    "a PodGroup": lambda w, n: owned(
        w, n.pod_group("forged", w.namespace, priorityClassName="rush")
    ),
    "a PodGroup without a priority": lambda w, n: owned(w, n.pod_group("forged", w.namespace)),
    "a Workload": lambda w, n: owned(w, n.workload("forged", w.namespace, JOB, "rush")),
    "a Workload that names the Job alone": lambda w, n: n.workload(
        "forged", w.namespace, JOB, "rush"
    ),
    "a Workload of a JobSet": lambda w, n: n.workload(
        "forged", w.namespace, {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "a"}, "rush"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_no_user_creates_the_scheduling_objects_of_a_job(
    waiting: Workspace, native: NativeGangs, what: str
) -> None:
    document = FORGED[what](waiting, native)
    path = waiting.client.path_of(document).rsplit("/", 1)[0]
    with pytest.raises(ApiServerError, match="written by its controller alone"):
        waiting.client.create(path, document)


def test_no_user_gives_their_own_pod_group_to_a_job(
    waiting: Workspace, native: NativeGangs
) -> None:
    path = native.path(waiting.namespace, "podgroups")
    made = waiting.submit(native.pod_group("mine", waiting.namespace, priorityClassName="rush"))
    meta = owned(waiting, {"metadata": {}})["metadata"]
    with pytest.raises(ApiServerError, match="written by its controller alone"):
        waiting.client.patch(f"{path}/mine", {"metadata": meta})
    waiting.client.patch(f"{path}/mine", {"metadata": {"labels": {"a": "b"}}})
    assert made["spec"]["priority"] == 1000


def test_no_user_changes_the_scheduling_objects_of_a_job(
    waiting: Workspace, native: NativeGangs
) -> None:
    if not native.by_jobs:
        pytest.skip("without the gate, the controller of Jobs makes none")
    path = native.path(waiting.namespace, "workloads")
    waiting.until(lambda: waiting.client.get(path)["items"], "the Workload of the Job")
    [workload] = waiting.client.get(path)["items"]
    [one] = workload["spec"]["podGroupTemplates"]
    change: dict[str, Any] = {"podGroupTemplates": [{**one, "priorityClassName": "rush"}]}
    with pytest.raises(ApiServerError):
        waiting.client.patch(f"{path}/{workload['metadata']['name']}", {"spec": change})


def test_a_suspended_job_takes_no_other_pod_group(waiting: Workspace) -> None:
    """If it does one day, queuectl can choose the group late: docs/explanation/kubernetes-gangs.md."""
    path = f"/apis/batch/v1/namespaces/{waiting.namespace}/jobs/waits"
    spec = {"template": {"spec": {"schedulingGroup": {"podGroupName": "mine"}}}}
    with pytest.raises(ApiServerError, match="field is immutable"):
        waiting.client.patch(path, {"spec": spec})


def of_group(document: Document, name: str) -> Document:
    """A pod, or a template of pods, in a PodGroup of the user."""
    document["spec"]["schedulingGroup"] = {"podGroupName": name}
    return document


def until_unsupported(workspace: Workspace, name: str) -> None:
    def so() -> bool:
        reason = workspace.workload(name).get("reason", {})
        return reason.get("code") == "UnsupportedConstraint" and (
            "schedulingGroup" in reason["message"]
        )

    workspace.until(so, f"{name} is not supported")


def test_a_gang_that_names_a_pod_group_of_its_user_does_not_start(
    installation: Installation, native: NativeGangs
) -> None:
    with installation.workspace(64) as workspace:
        workspace.submit(native.pod_group("mine", workspace.namespace, priorityClassName="rush"))
        grouped = batch_job("grouped", namespace=workspace.namespace, gpus=8)
        of_group(grouped["spec"]["template"], "mine")
        alone = {**of_group(template(8), "mine"), "apiVersion": "v1", "kind": "Pod"}
        alone["metadata"] = {**grouped["metadata"], "name": "alone"}
        for document in (grouped, alone):
            workspace.submit(document)
            name = document["metadata"]["name"]
            until_unsupported(workspace, name)
        assert workspace.running("alone") == workspace.running("grouped") == []


def test_a_gang_of_kubernetes_in_no_queue_has_the_priority_that_its_user_wants(
    installation: Installation, native: NativeGangs
) -> None:
    with installation.workspace(0) as workspace:
        group = native.pod_group("mine", workspace.namespace, priorityClassName="rush")
        group["spec"]["schedulingPolicy"] = {"gang": {"minCount": 2}}
        workspace.submit(group)
        for name in ("free-0", "free-1"):
            pod = {**of_group(template(0), "mine"), "apiVersion": "v1", "kind": "Pod"}
            pod["metadata"] = {"name": name, "namespace": workspace.namespace}
            pod["spec"]["priorityClassName"] = "rush"
            workspace.submit(pod)
        workspace.until_running("free", 2, lambda _: True, "the gang of Kubernetes runs")
