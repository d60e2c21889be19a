"""SparkApplications run by the Spark operator, and by Spark: the operator creates the driver, and the driver creates the executors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from queuectl.demo.scenario import FAIL_SECONDS, Document, PodSetManifest
from queuectl.localcluster.client import Client
from queuectl.objects import keys
from tests.support.people import role
from tests.support.spark_drivers import token_of_pod
from tests.support.sparkapplications import driver_account, sparkapplication
from tests.system.actions import until_reason
from tests.system.forger import Tenant, account_of_queuectl, owner, pod, refused, tenant_of
from tests.system.installation import Installation, Workspace

# The first test of an operator on a machine builds it, and downloads Spark.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

WHOLE = PodSetManifest(2, gpus=8)
"""Executors: each pod takes a node."""
_RIGHTS: Final = [{"apiGroups": ["sparkoperator.k8s.io"], "resources": ["*"], "verbs": ["*"]}]
_ONLY: Final = "only the controllers of"
_OWN_LABELS: Final = (
    keys.ATTEMPT_LABEL,
    keys.PODSET_LABEL,
    keys.KIND_LABEL,
    keys.WORKLOAD_LABEL,
)


def submit(
    workspace: Workspace, name: str, executors: PodSetManifest = WHOLE, **spec: Any
) -> Document:
    workspace.client.apply(*driver_account(name, workspace.namespace))
    return workspace.submit(sparkapplication(name, workspace.namespace, executors, **spec))


def driver(workspace: Workspace, name: str) -> Document:
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{name}-driver"
    found: Document = workspace.client.get(path)
    return found


def test_executors_have_their_nodes_before_the_driver_creates_them(
    installation: Installation,
) -> None:
    with installation.workspace(24) as workspace:
        submit(workspace, "late", driver=PodSetManifest(1, gpus=8))
        workspace.until_running("late", 1, lambda p: p.podset == "driver", "the driver runs")
        assert {one.podset for one in workspace.pods("late")} == {"driver"}
        workspace.job("next", PodSetManifest(1, gpus=8))
        until_reason(workspace, "next", "Pending", "WaitingForQuota")
        workspace.until_running("late", 3, lambda p: True, "all run")
        workspace.until_state("late", "Running")


def test_another_run_of_the_application_has_the_same_attempt(installation: Installation) -> None:
    with installation.workspace(24) as workspace:
        submit(workspace, "again", driver=PodSetManifest(1, gpus=8))
        workspace.until_running("again", 3, lambda p: True, "all run")
        first = {one.uid for one in workspace.running("again")}
        failed = {"metadata": {"annotations": {FAIL_SECONDS: "0"}}}
        path = workspace.client.path_of(driver(workspace, "again"))
        workspace.client.patch(path, failed)
        workspace.until_running("again", 3, lambda p: p.uid not in first, "three others run")
        assert {one.attempt for one in workspace.running("again")} == {1}
        assert workspace.until_state("again", "Running")["evictions"] == 0


# ---- forged objects, and changes by users


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the SparkApplication ``mine`` runs."""
    with installation.workspace(24) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        made = submit(workspace, "mine", driver=PodSetManifest(1, gpus=8))
        workspace.until_running("mine", 3, lambda p: True, "all run")
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {one.attempt for one in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 3


def executor(name: str, of: Document, by: Document) -> Document:
    """A pod as an executor of an application, of a driver."""
    labels = {
        keys.ATTEMPT_LABEL: "1",
        keys.PODSET_LABEL: "executor",
        keys.KIND_LABEL: "SparkApplication",
        keys.WORKLOAD_LABEL: of["metadata"]["uid"],
        keys.QUEUE_LABEL: "main",
    }
    owners = owner({"apiVersion": "v1", "kind": "Pod", **by})
    return pod(name, labels=labels, ownerReferences=owners)


def test_only_a_driver_creates_executors_and_only_of_its_own_gang(tenant: Tenant) -> None:
    workspace = tenant.workspace
    mine = driver(workspace, "mine")
    refused(_ONLY, tenant.create, executor("forged", tenant.job, mine))
    without = executor("forged", tenant.job, mine)
    del without["metadata"]["labels"][keys.KIND_LABEL]
    refused("only queuectl writes", tenant.create, without)

    submit(workspace, "other", PodSetManifest(1))
    workspace.until_running("other", 2, lambda p: True, "all of the other run")
    cluster, other = workspace.installation.cluster, driver(workspace, "other")
    with closing(Client(cluster.server, cluster.authority, token_of_pod(cluster, other))) as client:
        path = f"/api/v1/namespaces/{workspace.namespace}/pods"
        refused(_ONLY, client.create, path, executor("forged", tenant.job, mine))
        ungated = executor("forged", tenant.job, other)
        ungated["metadata"]["labels"] = {keys.ATTEMPT_LABEL: "1"}
        refused(_ONLY, client.create, path, ungated)
        forged = client.create(path, executor("forged", tenant.job, other))
    workspace.made.append(f"{path}/forged")
    assert keys.GATE in [one["name"] for one in forged["spec"]["schedulingGates"]]
    # Where an executor of the gang is lost, the forged pod does not take its place.
    lost = next(one for one in workspace.running("mine") if one.podset == "executor")
    workspace.client.delete(f"{path}/{lost.name}")
    workspace.until_running("mine", 3, lambda p: p.uid != lost.uid, "three run again")
    assert "nodeName" not in workspace.client.get(f"{path}/forged")["spec"]


def test_no_user_writes_the_labels_of_a_gang_into_an_application(tenant: Tenant) -> None:
    namespace = tenant.workspace.namespace
    for name in _OWN_LABELS:
        forged = sparkapplication("forged", namespace, WHOLE, queue=None)
        forged["spec"]["executor"]["labels"] = {name: tenant.job["metadata"]["uid"]}
        refused("only the controllers of queued jobs", tenant.create, forged)


def test_a_user_changes_a_queued_application_only_in_ways_that_its_queue_sees(
    tenant: Tenant,
) -> None:
    workspace = tenant.workspace
    tenant.create(sparkapplication("changed", workspace.namespace, PodSetManifest(9, gpus=8)))
    path, change = workspace.made[-1], tenant.client.patch
    refused("only queuectl may resume", change, path, {"spec": {"suspend": False}})
    none = {"spec": {"driver": {"labels": {keys.KIND_LABEL: None}}}}
    refused("cannot be removed", change, path, none)
    for name in _OWN_LABELS[:2]:
        marked = {"spec": {"executor": {"labels": {name: "7"}}}}
        refused("only queuectl writes", change, path, marked)
    priority = {"spec": {"driver": {"priorityClassName": "system-node-critical"}}}
    refused("keep the PriorityClass", change, path, priority)
    move = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
    refused("cannot change its queue", change, path, move)
    submitter = {"metadata": {"annotations": {keys.SUBMITTED_BY: "root"}}}
    refused("user who created the job", change, path, submitter)
    refused("together with its pods", tenant.client.delete, path, propagationPolicy="Orphan")
    change(path, {"spec": {"executor": {"instances": 8}}})
    mine = workspace.client.path_of(tenant.job)
    for spec in (
        {"executor": {"instances": 3}},
        {"driver": {"memory": "1g"}},
        {"sparkConf": {"spark.executor.memory": "9g"}},
    ):
        refused("while it runs", change, mine, {"spec": spec})
    tenant.client.delete(path, propagationPolicy="Background")


def test_the_account_of_queuectl_only_starts_stops_and_marks_an_application(
    tenant: Tenant,
) -> None:
    workspace = tenant.workspace
    path = workspace.client.path_of(tenant.job)
    says = "in a queued job, queuectl can change only"
    with account_of_queuectl(workspace) as client:
        for spec in (
            {"driver": {"labels": {"example.com/a": "b"}}},
            {"driver": {"memory": "1g"}},
            {"executor": {"instances": 3}},
            {"image": "other"},
        ):
            refused(says, client.patch, path, {"spec": spec})
        own = sparkapplication("own", "queuectl-system", WHOLE)
        refused(says, client.create, client.path_of(own).rpartition("/")[0], own)
