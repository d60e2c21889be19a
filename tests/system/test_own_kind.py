"""A job kind that the configuration declares, with its policies from the chart and a simulated controller, on a real control plane."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuectl.cli.doctor import own_kinds
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.server import mismatches
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import ApiServerError, LocalCluster, NodeSpec
from queuectl.localcluster.client import wait_until
from queuectl.objects import keys
from queuectl.objects.kinds import with_declared
from queuectl.objects.kinds.declared import read_kinds
from tests.kinds.entry import racks
from tests.support import teamruns
from tests.support.gangruns import (
    JOB_KINDS,
    OWN_KINDS,
    admission,
    gangrun,
)
from tests.support.shared_resource import SharedResource, shared_resource
from tests.system.actions import finish, remove, until_empty
from tests.system.installation import RACK, Installation, Workspace, installed

__all__ = ["shared_resource"]

pytestmark = [pytest.mark.system, pytest.mark.kinds]

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
DECLARED: Final = [*JOB_KINDS, teamruns.JOB_KIND]
KNOWN: Final = with_declared(read_kinds(yaml.safe_dump({"jobKinds": DECLARED}), "job-kinds.yaml"))
QUEUECTL: Final = f"system:serviceaccount:{SYSTEM_NAMESPACE}:queuectl"
Document = dict[str, Any]


@contextmanager
def _admission(cluster: LocalCluster) -> Iterator[None]:
    cluster.client.apply(teamruns.DEFINITION)
    wait_until(lambda: cluster.client.discovers(teamruns.GROUP), "TeamRuns are served", 30.0)
    with admission(cluster, DECLARED, teamruns.reconcile):
        yield


@contextmanager
def _installed() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job-kinds.yaml"
        file.write_text(yaml.safe_dump({"jobKinds": DECLARED}))
        settings = {"QUEUECTL_KINDS_FILE": str(file)}
        with installed(NODES, settings, _admission, KNOWN) as made:
            yield made


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return shared_resource.get(_installed)


def submit(
    workspace: Workspace, name: str, workers: int, priority: str = "low", **shape: Any
) -> Document:
    template = PodSetManifest(workers, gpus=8, **shape).template("main", None, restart="Never")
    labels = {"queue_name": "main", "priority_class": priority}
    return workspace.submit(gangrun(name, workspace.namespace, template, workers, **labels))


def runs(workspace: Workspace, name: str, workers: int) -> None:
    workspace.until_state(name, "Running")
    workspace.until_running(name, workers, lambda _: True, f"{workers} pods of {name} run")


def test_a_gang_is_placed_evicted_started_again_repaired_and_ends(
    installation: Installation,
) -> None:
    kind = OWN_KINDS["GangRun"]
    with installation.workspace(32, strategy="StrictFIFO") as workspace:
        made = submit(workspace, "gang", 4, required=RACK)
        assert kind.is_suspended(made)
        assert all(keys.GATE in str(one) for one in kind.templates(made))
        runs(workspace, "gang", 4)
        assert len({*racks(workspace.running("gang"))}) == 1
        assert sorted(pod.rank for pod in workspace.running("gang") if pod.rank is not None) == [
            0,
            1,
            2,
            3,
        ]

        submit(workspace, "urgent", 4, "high")
        workspace.until_state("urgent", "Running")
        until_empty(workspace, "gang")
        remove(workspace, "urgent")
        again = workspace.until_state("gang", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)

        runs(workspace, "gang", 4)
        slots = {pod.rank: pod.node for pod in workspace.running("gang")}
        lost = workspace.running("gang")[-1]
        workspace.client.delete(f"/api/v1/namespaces/{workspace.namespace}/pods/{lost.name}")
        workspace.until_running("gang", 4, lambda p: p.uid != lost.uid, "all four run again")
        assert {pod.rank: pod.node for pod in workspace.running("gang")} == slots

        for pod in workspace.running("gang"):
            finish(workspace, pod.name)
        done = workspace.until_state("gang", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Succeeded", 2)


def test_a_kind_with_jobs_and_two_podsets_in_one_object_runs_as_one_gang(
    installation: Installation,
) -> None:
    labels = {keys.QUEUE_LABEL: "main", "queuectl.dev/priority-class": "low"}
    template = PodSetManifest(1, gpus=8).template("main", None, restart="Never")
    with installation.workspace(40, strategy="StrictFIFO") as workspace:
        where = workspace.namespace
        workspace.submit(teamruns.teamrun("team", where, template, 2, 2, labels))
        runs(workspace, "team", 5)
        podsets = Counter(pod.podset for pod in workspace.running("team"))
        assert podsets == {"driver": 1, "worker": 4}
        with pytest.raises(ApiServerError, match="cannot change while it runs"):
            workspace.client.patch(workspace.made[0], {"spec": {"podsPerWorker": 3}})

        submit(workspace, "urgent", 4, "high")
        workspace.until_state("urgent", "Running")
        until_empty(workspace, "team")
        assert workspace.client.get(workspace.made[0])["spec"]["paused"]
        remove(workspace, "urgent")
        runs(workspace, "team", 5)
        for pod in workspace.running("team"):
            finish(workspace, pod.name)
        done = workspace.until_state("team", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Succeeded", 2)


HOSTILE: list[tuple[str, Document, str]] = [
    ("resumes", {"spec": {"suspend": False}}, "only queuectl may resume it"),
    (
        "leaves the queue",
        {"metadata": {"labels": {keys.QUEUE_LABEL: None}}},
        "a job cannot change its queue",
    ),
    (
        "removes the gate",
        {"spec": {"template": {"spec": {"schedulingGates": []}}}},
        "the scheduling gate queuectl.dev/placement of a job's pod templates cannot be removed",
    ),
    (
        "marks pods",
        {"spec": {"template": {"metadata": {"labels": {keys.ATTEMPT_LABEL: "7"}}}}},
        "only queuectl writes the labels queuectl.dev/attempt, podset and workload of a pod template",
    ),
    (
        "raises the priority",
        {"spec": {"template": {"spec": {"priorityClassName": "system-node-critical"}}}},
        "pods of a job in a queue keep the PriorityClass queuectl-managed",
    ),
    (
        "becomes another user",
        {"metadata": {"annotations": {keys.SUBMITTED_BY: "boss"}}},
        "queuectl.dev/submitted-by is the name of the user who created the job",
    ),
]


@pytest.mark.parametrize(("what", "patch", "refusal"), HOSTILE, ids=[one for one, *_ in HOSTILE])
def test_a_hostile_change_of_a_pending_job_is_refused(
    installation: Installation, what: str, patch: Document, refusal: str
) -> None:
    with installation.workspace(8) as workspace:
        submit(workspace, "waits", 2)
        with pytest.raises(ApiServerError, match=refusal):
            workspace.client.patch(workspace.made[0], patch)


def test_only_a_suspension_is_a_permitted_change_of_a_job_that_runs(
    installation: Installation,
) -> None:
    frozen = "the replicas and templates of a job in a queue cannot change while it runs"
    with installation.workspace(32, strategy="StrictFIFO") as workspace:
        submit(workspace, "gang", 2)
        runs(workspace, "gang", 2)
        path = workspace.made[0]
        image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
        for patch in ({"workers": 4}, {"template": image}):
            with pytest.raises(ApiServerError, match=frozen):
                workspace.client.patch(path, {"spec": patch})
        workspace.client.patch(path, {"spec": {"suspend": True}})
        workspace.until(
            lambda: workspace.workload("gang").get("attempt") == 2, "it is started again"
        )
        runs(workspace, "gang", 2)


def test_queuectl_itself_changes_no_other_field(installation: Installation) -> None:
    with (
        closing(installation.cluster.client_for_user(QUEUECTL)) as client,
        installation.workspace(8) as workspace,
    ):
        submit(workspace, "waits", 2)
        for patch in (
            {"script": "other.py"},
            {"workers": 4},
            {"template": {"spec": {"nodeName": "x"}}},
        ):
            with pytest.raises(
                ApiServerError, match=r"can change only spec\.suspend, its queue label"
            ):
                client.patch(workspace.made[0], {"spec": patch})


def test_only_the_controller_of_the_kind_creates_pods_with_the_labels_of_its_jobs(
    installation: Installation,
) -> None:
    with installation.workspace(8) as workspace:
        submit(workspace, "waits", 2)
        job = workspace.client.get(workspace.made[0])
        template = job["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "forged", **template["metadata"]},
            "spec": template["spec"],
        }
        with pytest.raises(
            ApiServerError,
            match="only the controllers of Jobs and of the other job kinds create such pods",
        ):
            workspace.client.create(f"/api/v1/namespaces/{workspace.namespace}/pods", pod)


def examined(installation: Installation) -> list[Finding]:
    async def ask() -> list[Finding]:
        api = await Api.connect(Connection(kubeconfig=installation.cluster.kubeconfig))
        try:
            return await own_kinds.examine(api, SYSTEM_NAMESPACE)
        finally:
            await api.close()

    return asyncio.run(ask())


def test_the_doctor_compares_the_declared_kinds_with_the_cluster(
    installation: Installation,
) -> None:
    assert [one.level for one in examined(installation)] == [Level.OK]
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/queuectl-job-kinds"
    client = installation.cluster.client
    before = client.get(path)["data"]["job-kinds.yaml"]
    for text, message in (
        (before.replace("spec.suspend", "spec.paused"), "jobKinds (GangRun): suspend: the schema of the CustomResourceDefinition has no field spec.paused"),
        (before.replace("kind: GangRun", "kind: JobSet"), "jobKinds[0] (JobSet): kind: JobSet is the name of another job kind"),
    ):  # fmt: skip
        client.patch(path, {"data": {"job-kinds.yaml": text}})
        try:
            [found] = examined(installation)
        finally:
            client.patch(path, {"data": {"job-kinds.yaml": before}})
        assert found.level is Level.PROBLEM
        assert message in found.message


def test_a_path_that_objects_do_not_have_is_found_at_the_start(installation: Installation) -> None:
    wrong = JOB_KINDS[0] | {"phase": {"path": "status.state", "succeeded": ["Done"]}}
    kinds = with_declared(read_kinds(yaml.safe_dump({"jobKinds": [wrong]}), "kinds.yaml"))

    async def ask() -> list[str]:
        api = await Api.connect(Connection(kubeconfig=installation.cluster.kubeconfig))
        try:
            return await mismatches(api, kinds)
        finally:
            await api.close()

    assert asyncio.run(ask()) == [
        "jobKinds (GangRun): phase.path: the schema of the CustomResourceDefinition has no field status.state"
    ]
