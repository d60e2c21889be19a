"""TrainJobs run by the Kubeflow trainer: a gang of the pods of the JobSet that the trainer creates from a runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import JobRecord
from queuectl.objects import keys
from queuectl.objects.kinds.jobset import JOBSET
from queuectl.objects.kinds.trainjob import jobset_of
from tests.support.jobsets import jobset
from tests.support.people import role
from tests.support.trainjobs import replicated, training_runtime, trainjob
from tests.system.actions import (
    create_runtime,
    finish,
    remove,
    run_command,
    until_empty,
    until_reason,
)
from tests.system.forger import Tenant, account_of_queuectl, refused, tenant_of
from tests.system.installation import RACK, Installation, Workspace

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(900)]

WHOLE = PodSetManifest(1, gpus=8)
"""Of a node of a TrainJob: each pod takes a node of the cluster."""


def torch(workspace: Workspace, pods: PodSetManifest = WHOLE) -> None:
    """Create the TrainingRuntime ``torch``."""
    node = replicated("node", pods, step="trainer")
    create_runtime(workspace, training_runtime("torch", workspace.namespace, node))


def child(workspace: Workspace, name: str) -> Document:
    """The JobSet of a TrainJob, once it exists."""
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{workspace.namespace}/jobsets/{name}"
    workspace.until(lambda: workspace.client.exists(path), f"the JobSet of {name} exists")
    found: Document = workspace.client.get(path)
    return found


def read(document: Document) -> JobRecord:
    return JOBSET.read(msgspec.convert(document, JOBSET.wire))


# ---- life cycle


def test_a_trainjob_is_gated_preempted_repaired_and_ends(installation: Installation) -> None:
    with installation.workspace(32, strategy="StrictFIFO") as workspace:
        torch(workspace, PodSetManifest(1, gpus=8, required=RACK))
        made = trainjob("train", workspace.namespace, "torch", nodes=4, priority_class="low")
        users = {"manager": "example.com/user", "trainingRuntimeSpec": {"template": {"metadata": {
            "labels": {"example.com/team": "a"}}}}}  # fmt: skip
        made["spec"]["runtimePatches"] = [users]
        stored = workspace.submit(made)
        assert stored["spec"]["suspend"] is True
        template = child(workspace, "train")["spec"]["replicatedJobs"][0]["template"]
        assert template["spec"]["template"]["spec"]["priorityClassName"] == keys.POD_PRIORITY_CLASS
        workspace.until_running("train", 4, lambda _: True, "all run")
        workspace.until_state("train", "Running")
        assert set(workspace.workloads()) == {"train"}, "its JobSet is not a workload"
        placed = sorted((p.podset, p.rank or 0) for p in workspace.running("train"))
        assert placed == [("node", rank) for rank in range(4)]
        assert child(workspace, "train")["metadata"]["labels"]["example.com/team"] == "a"

        workspace.submit(
            trainjob("urgent", workspace.namespace, "torch", nodes=4, priority_class="high")
        )
        workspace.until_state("urgent", "Running")
        until_empty(workspace, "train")
        remove(workspace, "urgent")
        again = workspace.until_state("train", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)

        slots = {p.rank: p.node for p in workspace.running("train")}
        lost = workspace.running("train")[0]
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}")
        workspace.until_running("train", 4, lambda p: p.uid != lost.uid, "all run again")
        assert {p.rank: p.node for p in workspace.running("train")} == slots

        run_command(workspace, "train", "hold")
        workspace.until_state("train", "Held")
        run_command(workspace, "train", "release")
        assert workspace.until_state("train", "Running")["attempt"] == 3
        workspace.until_running("train", 4, lambda _: True, "all run")
        for pod in workspace.running("train"):
            finish(workspace, pod.name)
        assert workspace.until_state("train", "Finished")["reason"]["code"] == "Succeeded"


def test_the_nodes_of_a_trainjob_are_reserved_while_its_initializer_runs(
    installation: Installation,
) -> None:
    with installation.workspace(24) as workspace:
        first = replicated("dataset-initializer", WHOLE, step="dataset-initializer")
        depends = [{"name": "dataset-initializer", "status": "Complete"}]
        node = replicated("node", WHOLE, step="trainer", dependsOn=depends)
        create_runtime(workspace, training_runtime("torch", workspace.namespace, first, node))
        workspace.submit(trainjob("train", workspace.namespace, "torch", nodes=2))
        workspace.until_running("train", 1, lambda _: True, "the initializer runs")
        workspace.until_state("train", "Running")
        workspace.submit(trainjob("next", workspace.namespace, "torch", nodes=2))
        until_reason(workspace, "next", "Pending", "WaitingForQuota")
        [pod] = workspace.running("train")
        assert pod.podset == "dataset-initializer"
        finish(workspace, pod.name)
        workspace.until_running("train", 2, lambda p: p.podset == "node", "the nodes run")
        remove(workspace, "next")
        for one in workspace.running("train"):
            finish(workspace, one.name)
        workspace.until_state("train", "Finished")


def test_a_trainjob_of_kueues_users_runs_with_kueues_keys(installation: Installation) -> None:
    """As people write it for Kueue: its queue label alone, and the topology on a pod template of the runtime patches."""
    with installation.workspace(32) as workspace:
        torch(workspace)
        made = trainjob("bert", workspace.namespace, "torch", nodes=4, queue=None)
        queue = "kueue.x-k8s.io/queue-name"
        made["metadata"]["labels"] = {queue: "main"}
        level = {"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}}
        change = {"name": "node", "template": {"spec": {"template": {"metadata": level}}}}
        jobs = {"template": {"spec": {"replicatedJobs": [change]}}}
        patch = {"manager": "example.com/user", "trainingRuntimeSpec": jobs}
        made["spec"]["runtimePatches"] = [patch]
        stored = workspace.submit(made)
        assert stored["metadata"]["labels"] == {queue: "main", keys.QUEUE_LABEL: "main"}
        workspace.until_running("bert", 4, lambda _: True, "all run")
        assert len({str(p.node).rsplit("-", 1)[0] for p in workspace.running("bert")}) == 1


@pytest.mark.parametrize("key", [keys.QUEUE_LABEL, keys.KUEUE_PREFIX + keys.QUEUE_NAME])
def test_queue_labels_of_a_runtime_make_no_second_gang(
    installation: Installation, key: str
) -> None:
    """They are on the JobSet and on the pods."""
    with installation.workspace(16) as workspace:
        made = training_runtime(
            "torch", workspace.namespace, replicated("node", WHOLE, step="trainer")
        )
        template = made["spec"]["template"]
        [job] = template["spec"]["replicatedJobs"]
        for one in (template, job["template"]["spec"]["template"]):
            one.setdefault("metadata", {}).setdefault("labels", {})[key] = "main"
        create_runtime(workspace, made)
        workspace.submit(trainjob("bert", workspace.namespace, "torch", nodes=2))
        workspace.until_state("bert", "Running")
        workspace.until_running("bert", 2, lambda _: True, "both run")
        assert {*workspace.workloads()} == {"bert"}


# ---- the request, from a runtime and from the JobSet

CPU = PodSetManifest(1, cpu="2")
STEPS = [{"name": "dataset-initializer", "status": "Complete"}]
ASKED = {"requests": {"cpu": "3", "memory": "2Gi"}, "limits": {"nvidia.com/gpu": "4"}}
LEADS = {"numProcPerNode": 1, "mpiImplementation": "OpenMPI", "runLauncherAsNode": True}
AFTER_NODES = [{"name": "node", "status": "Ready"}]
PATCH = {
    "nodeSelector": {"example.com/zone": "a"},
    "tolerations": [{"key": "example.com/taint", "operator": "Exists"}],
}

RUNTIMES: dict[str, tuple[list[Document], Document | None, Document]] = {
    "torch": ([replicated("node", CPU, step="trainer")], None, {}),
    "torch-with-nodes": (
        [replicated("node", CPU, step="trainer")],
        None,
        {"trainer": {"numNodes": 3, "resourcesPerNode": ASKED}},
    ),
    "nodes-of-the-runtime": (
        [replicated("node", CPU, step="trainer")],
        {"numNodes": 5, "jax": {}},
        {"trainer": {"resourcesPerNode": ASKED}},
    ),
    "plain": (
        [replicated("node", PodSetManifest(2, cpu="1"), step="trainer"), replicated("store", PodSetManifest(3, cpu="1"))],
        {"numNodes": 2},
        {"trainer": {"numNodes": 4}},
    ),
    "xgboost": (
        [replicated("node", CPU, step="trainer")],
        {"numNodes": 2, "xgboost": {}},
        {"trainer": {"numNodes": 3}},
    ),
    "mpi-launcher-as-node": (
        [
            replicated("node", CPU),
            replicated("launcher", CPU, step="trainer", dependsOn=AFTER_NODES),
        ],
        {"numNodes": 1, "mpi": LEADS},
        {"trainer": {"numNodes": 4, "resourcesPerNode": ASKED}},
    ),
    "mpi-alone": (
        [replicated("node", CPU), replicated("launcher", CPU, step="trainer")],
        {"numNodes": 1, "mpi": LEADS | {"runLauncherAsNode": False}},
        {"trainer": {"numNodes": 4, "resourcesPerNode": ASKED}},
    ),
    "initializers": (
        [
            replicated("dataset-initializer", CPU, step="dataset-initializer"),
            replicated("node", CPU, step="trainer", dependsOn=STEPS),
        ],
        None,
        {"trainer": {"numNodes": 2}},
    ),
    "patched": (
        [replicated("node", CPU, step="trainer")],
        None,
        {
            "trainer": {"numNodes": 2},
            "runtimePatches": [
                {
                    "manager": "example.com/user",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                        {"name": "node", "template": {"spec": {"template": {
                            "metadata": {"annotations": {
                                "queuectl.dev/podset-preferred-topology": RACK}},
                            "spec": PATCH}}}}]}}},
                }
            ],
        },
    ),
}  # fmt: skip


def test_a_file_with_the_runtime_has_the_request_of_the_jobset_that_the_trainer_creates(
    installation: Installation,
) -> None:
    with installation.workspace(8) as workspace:
        for name, (jobs, policy, spec) in RUNTIMES.items():
            made = training_runtime(name, workspace.namespace, *jobs, policy=policy)
            create_runtime(workspace, made)
            # It never starts, because its LocalQueue does not exist.
            asked = trainjob(name, workspace.namespace, name, queue="none", **spec)
            stored = workspace.submit(asked)
            found, expected = read(child(workspace, name)), read(jobset_of(stored, made))
            assert found.podsets == expected.podsets, name
            assert (found.late, found.ranks) == (expected.late, expected.ranks), name
            assert read(jobset_of(asked, made)).podsets == found.podsets, name


# ---- forged objects, and changes by users

_RIGHTS = [{"apiGroups": ["trainer.kubeflow.org", "jobset.x-k8s.io"], "resources": ["*"], "verbs": ["*"]}]  # fmt: skip
_ONLY = "only the controllers of queued jobs"
_MARKS = {keys.ATTEMPT_LABEL: "1", keys.PODSET_LABEL: "node", keys.KIND_LABEL: "TrainJob"}


@pytest.fixture(scope="module")
def tenant(installation: Installation) -> Iterator[Tenant]:
    """A user of the namespace in which the TrainJob ``mine`` runs."""
    with installation.workspace(16) as workspace, tenant_of(workspace) as client:
        workspace.client.apply(role("training-edit", _RIGHTS))
        torch(workspace)
        made = workspace.submit(trainjob("mine", workspace.namespace, "torch", nodes=2))
        workspace.until_state("mine", "Running")
        yield Tenant(client, workspace, workspace, made)
        assert {pod.attempt for pod in workspace.running("mine")} == {1}
        assert len(workspace.running("mine")) == 2


def patches(owner: str, **changes: Any) -> Document:
    return {"manager": owner, "trainingRuntimeSpec": {"template": changes}}


def pods_of(name: str, **template: Any) -> Document:
    """A change of the pod template of a replicated job."""
    return {"replicatedJobs": [{"name": name, "template": {"spec": {"template": template}}}]}


def test_no_user_creates_pods_of_a_trainjob(tenant: Tenant) -> None:
    namespace = tenant.workspace.namespace
    marked = _MARKS | {keys.WORKLOAD_LABEL: tenant.job["metadata"]["uid"]}
    pod_labels = pods_of("node", metadata={"labels": marked})
    for changes in (
        {"metadata": {"labels": {keys.KIND_LABEL: "TrainJob"}}},
        {"spec": pod_labels},
        {"spec": pods_of("node", spec={"schedulingGates": [{"name": keys.GATE}]})},
    ):
        forged = trainjob("forged", namespace, "torch", queue=None)
        forged["spec"]["runtimePatches"] = [patches("example.com/user", **changes)]
        refused(_ONLY, tenant.create, forged)
        forged["metadata"]["labels"] = {keys.QUEUE_LABEL: "main"}
        refused("only queuectl writes", tenant.create, forged)
    node = replicated("node", WHOLE, step="trainer")
    node["template"]["spec"]["template"]["metadata"]["labels"] = marked
    refused(_ONLY, tenant.create, training_runtime("forged", namespace, node))
    refused(_ONLY, tenant.create, jobset("forged", namespace, node, queue=None))


def test_no_user_takes_the_jobset_of_a_trainjob_out_of_its_queue(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = workspace.client.path_of(child(workspace, "mine"))
    changed = "only the controller of a job"
    refused(changed, tenant.client.patch, path, {"spec": {"suspend": True}})
    refused(changed, tenant.client.patch, path, {"metadata": {"ownerReferences": None}})
    refused("together with its pods", tenant.client.delete, path, propagationPolicy="Orphan")


def test_a_user_changes_a_queued_trainjob_only_in_ways_that_its_queue_sees(tenant: Tenant) -> None:
    workspace = tenant.workspace
    made = tenant.create(trainjob("changed", workspace.namespace, "torch", nodes=9))
    path, change = workspace.made[-1], tenant.client.patch
    refused("only queuectl may resume", change, path, {"spec": {"suspend": False}})
    refused("cannot be removed", change, path, {"spec": {"runtimePatches": []}})
    [own] = made["spec"]["runtimePatches"]
    labels = {keys.KIND_LABEL: "TrainJob", keys.ATTEMPT_LABEL: "7"}
    mine = patches(own["manager"], metadata={"labels": labels})
    refused("only queuectl writes", change, path, {"spec": {"runtimePatches": [mine]}})
    other = patches("example.com/user", spec=pods_of("node", metadata={"labels": _MARKS}))
    refused("only queuectl writes", change, path, {"spec": {"runtimePatches": [own, other]}})
    move = {"metadata": {"labels": {keys.QUEUE_LABEL: "other"}}}
    refused("cannot change its queue", change, path, move)
    refused("together with its pods", tenant.client.delete, path, propagationPolicy="Orphan")
    selects = patches("example.com/user", spec=pods_of("node", spec={"nodeSelector": {"a": "b"}}))
    change(path, {"spec": {"runtimePatches": [own, selects]}})
    tenant.client.delete(path, propagationPolicy="Background")


def test_the_account_of_queuectl_changes_nothing_else_of_a_trainjob(tenant: Tenant) -> None:
    workspace = tenant.workspace
    path = workspace.client.path_of(tenant.job)
    [own] = workspace.client.get(path)["spec"]["runtimePatches"]
    says = "in a queued job, queuectl can change only"
    image = pods_of("node", spec={"nodeSelector": {"a": "b"}})
    with account_of_queuectl(workspace) as client:
        for spec in (
            {"suspend": True, "runtimePatches": [own, patches("example.com/a")]},
            {"suspend": True, "runtimePatches": [patches(own["manager"], spec=image)]},
            {"activeDeadlineSeconds": 5},
        ):
            refused(f"{says}|immutable", client.patch, path, {"spec": spec})
        mine = trainjob("mine", "queuectl-system", "torch")
        refused(says, client.create, client.path_of(mine).rpartition("/")[0], mine)
