"""AppWrappers run by their operator: the pods of all components are one gang, and no component is queued for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster.operators import APPWRAPPER, OPERATORS
from queuectl.objects import keys
from tests.support.appwrappers import appwrapper, job, pod
from tests.support.jobsets import jobset, replicated
from tests.support.people import account, binding, role
from tests.support.trainjobs import trainjob
from tests.system.actions import finish, remove, run_command, until_empty, until_reason
from tests.system.forger import Tenant, account_of_queuectl, refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

APPWRAPPERS = OPERATORS[APPWRAPPER]
WHOLE = PodSetManifest(2, gpus=8)
"""Each pod takes a node."""
_RIGHTS = [{"apiGroups": ["workload.codeflare.dev"], "resources": ["*"], "verbs": ["*"]}]


def wrapped_jobset(name: str, workspace: Workspace, pods: PodSetManifest) -> Document:
    """A component: a JobSet of a driver and workers, with its own queue label."""
    made = jobset(
        name,
        workspace.namespace,
        replicated("driver", 1, PodSetManifest(1)),
        replicated("work", 1, pods),
    )
    return {**made, "metadata": {"name": name, "labels": {keys.QUEUE_LABEL: "main"}}}


def test_the_pods_of_all_components_are_one_gang(installation: Installation) -> None:
    """A pod, a JobSet whose queue label has no effect, and a Service."""
    with installation.workspace(32) as workspace:
        workspace.job("first", PodSetManifest(4, gpus=8))
        workspace.until_state("first", "Running")
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "all-service"}}
        service |= {"spec": {"ports": [{"port": 80}]}}
        workers = PodSetManifest(3, gpus=8, required=RACK)
        workspace.submit(
            appwrapper(
                "all",
                workspace.namespace,
                service,
                pod("all-pod", PodSetManifest(1)),
                wrapped_jobset("all-set", workspace, workers),
            )
        )
        until_reason(workspace, "all", "Pending", "WaitingForQuota")
        assert workspace.pods("all") == []
        remove(workspace, "first")
        workspace.until_running("all", 5, lambda p: True, "all run")
        workspace.until_state("all", "Running")
        assert set(workspace.workloads()) == {"first", "all"}, "its components are not workloads"
        placed = workspace.running("all")
        assert {p.podset for p in placed} == {"main-1", "driver-2", "work-2"}
        ranked = [p for p in placed if p.podset == "work-2"]
        assert sorted(p.rank or 0 for p in ranked) == [0, 1, 2]
        assert len({str(p.node).rsplit("-", 1)[0] for p in ranked}) == 1
        for one in placed:
            finish(workspace, one.name)
        done = workspace.until_state("all", "Finished")
        assert done["reason"]["code"] == "Succeeded"


def test_an_appwrapper_is_held_and_released(installation: Installation) -> None:
    with installation.workspace(32) as workspace:
        workspace.submit(appwrapper("held", workspace.namespace, job("held-job", WHOLE)))
        workspace.until_state("held", "Running")
        run_command(workspace, "held", "hold")
        workspace.until_state("held", "Held")
        until_empty(workspace, "held")
        run_command(workspace, "held", "release")
        assert workspace.until_state("held", "Running")["attempt"] == 2
        remove(workspace, "held")


def test_the_loss_of_a_component_that_is_a_pod_fails_the_appwrapper(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        one = pod("alone-pod", PodSetManifest(1, gpus=8))
        workspace.submit(appwrapper("alone", workspace.namespace, one))
        workspace.until_state("alone", "Running")
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/alone-pod")
        # The operator checks a running AppWrapper once a minute.
        done = workspace.until_state("alone", "Finished")
        assert done["reason"]["code"] == "Failed"


def test_a_component_whose_pods_would_run_outside_the_gang_waits_with_the_reason(
    installation: Installation,
) -> None:
    with installation.workspace(32) as workspace:
        serving = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
        workspace.submit(appwrapper("serves", workspace.namespace, job("j", WHOLE), serving))
        until_reason(workspace, "serves", "Pending", "UnsupportedConstraint")
        message = workspace.workload("serves")["reason"]["message"]
        assert "spec.components[1].template" in message


# ---- changes by users, and by queuectl's own account


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the AppWrapper ``mine`` runs."""
    with installation.workspace(32) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        made = workspace.submit(appwrapper("mine", workspace.namespace, job("mine-job", WHOLE)))
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {one.attempt for one in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 2


def marks(tenant: Tenant) -> Document:
    """Labels that name the AppWrapper ``mine`` as the workload of a pod."""
    return {
        keys.ATTEMPT_LABEL: "1",
        keys.PODSET_LABEL: "main",
        keys.KIND_LABEL: "AppWrapper",
        keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"],
    }


def test_a_user_changes_a_queued_appwrapper_only_in_ways_that_its_queue_sees(
    tenant: Tenant,
) -> None:
    workspace, change = tenant.workspace, tenant.client.patch
    large = appwrapper(
        "changed", workspace.namespace, job("changed-job", PodSetManifest(9, gpus=8))
    )
    made = tenant.create(large)
    path = workspace.made[-1]
    refused("only queuectl may resume", change, path, {"spec": {"suspend": False}})
    refused("cannot change its queue", change, path,
        {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}})  # fmt: skip
    refused("user who created the job", change, path,
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "root"}}})  # fmt: skip
    [component] = made["spec"]["components"]
    for other in ({"podSetInfos": [{"labels": marks(tenant)}]}, {"template": job("x", WHOLE)}):
        refused("do not change", change, path, {"spec": {"components": [component | other]}})
    mine = workspace.client.path_of(tenant.job)
    refused("do not change", change, mine, {"spec": {"components": []}})
    refused("together with its pods", tenant.client.delete, mine, propagationPolicy="Orphan")
    tenant.client.delete(path, propagationPolicy="Background")


def test_no_user_creates_pods_of_an_appwrapper(tenant: Tenant) -> None:
    namespace = tenant.workspace.namespace
    for queue, says in (("main", "only queuectl writes"), (None, "jobs in\\s+a queue")):
        forged = appwrapper(
            "forged", namespace, job("forged-job", PodSetManifest(1, gpus=8)), queue=queue
        )
        forged["spec"]["components"][0]["podSetInfos"] = [{"labels": marks(tenant)}]
        refused(says, tenant.create, forged)
    # Its operator creates the components with its own account: they can name no other gang.
    inside, own = pod("a-pod", PodSetManifest(1)), job("b-job", PodSetManifest(1))
    for template in (inside, own["spec"]["template"]):
        template["metadata"]["labels"] = {**template["metadata"].get("labels", {}), **marks(tenant)}
    changes = {"template": {"metadata": {"labels": marks(tenant)}}}
    patch = {"manager": "example.com/user", "trainingRuntimeSpec": changes}
    train = trainjob("c-train", namespace, "none", queue=None, runtimePatches=[patch])
    operator = account(APPWRAPPERS.namespace, APPWRAPPERS.account)
    rules = [{"apiGroups": ["trainer.kubeflow.org"], "resources": ["*"], "verbs": ["*"]}]
    tenant.workspace.client.apply(
        role("wrapped-trainjobs", rules),
        binding("wrapped-trainjobs", "wrapped-trainjobs", operator, namespace),
    )
    for name, one in (("a", inside), ("b", own), ("c", train)):
        tenant.create(appwrapper(name, namespace, one, queue=None))
    workspace = tenant.workspace
    workspace.until(
        lambda: {*_creation_errors(workspace)} == {"a", "b", "c"}, "no component is created"
    )
    found = _creation_errors(workspace)
    assert "queuectl-components" in found["a"]
    assert "queuectl-components" in found["b"]
    assert "queuectl-unqueued-trainjobs" in found["c"]
    assert [p.name for name in ("a", "b", "c") for p in workspace.pods(name)] == []
    for name in ("a", "b", "c"):
        remove(workspace, name)


def _creation_errors(workspace: Workspace) -> dict[str, str]:
    """By the name of the AppWrapper: why its operator could not create a component, from its Events."""
    found = workspace.client.get(f"/api/v1/namespaces/{workspace.namespace}/events")["items"]
    return {
        one["involvedObject"]["name"]: one["message"]
        for one in found
        if one["involvedObject"]["kind"] == "AppWrapper" and "CreateFailed" in one["message"]
    }


def test_no_user_takes_the_components_of_an_appwrapper_out_of_its_queue(tenant: Tenant) -> None:
    path = f"/apis/batch/v1/namespaces/{tenant.workspace.namespace}/jobs/mine-job"
    refused("only the controller of a job", tenant.client.patch, path, {"spec": {"suspend": True}})
    refused("together with its pods", tenant.client.delete, path, propagationPolicy="Orphan")


def test_the_account_of_queuectl_changes_nothing_else_of_an_appwrapper(tenant: Tenant) -> None:
    workspace = tenant.workspace
    with account_of_queuectl(workspace) as client:
        path = workspace.client.path_of(tenant.job)
        [component] = workspace.client.get(path)["spec"]["components"]
        infos = component["podSetInfos"][0]
        for other in (
            {"template": job("x", WHOLE)},
            {"podSetInfos": [infos | {"nodeSelector": {"a": "b"}}]},
            {"podSetInfos": [infos | {"labels": {"example.com/a": "b"}}]},
            {"podSetInfos": [infos | {"schedulingGates": [{"name": "example.com/a"}]}]},
        ):
            refused("in a queued job, queuectl can change only", client.patch, path,
                {"spec": {"suspend": True, "components": [component | other]}})  # fmt: skip
        refused("in a queued job, queuectl can change only", client.patch, path,
            {"spec": {"suspend": True, "managedBy": "example.com/other"}})  # fmt: skip
