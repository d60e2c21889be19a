"""Shadow mode alongside a real Kueue, on a real API server whose audit log shows each write.

Kueue admits by quota: it has more than the nodes, so that a gang is admitted whose pods do not all find a node.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuectl.cluster.adapter import SYSTEM_NAMESPACE
from queuectl.demo import scenario as m
from queuectl.demo.controller import ControllerProcess
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, get_plain, wait_until
from queuectl.localcluster.layout import AUDIT_LOGS
from queuectl.localcluster.progress import LineProgress
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from tests.bench.kueue.peer import API, Kueue, jobs_alone
from tests.support.chart import documents
from tests.support.controllers import CheckedController
from tests.support.kueue import QUEUE_LABEL
from tests.support.real_kueue import kueue_folder

pytestmark = pytest.mark.operations

SPACE = "research"
ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:queuectl"
SECONDS = 5.0
SETTINGS = {
    "QUEUECTL_SHADOW": "true",
    "QUEUECTL_SHADOW_SECONDS": f"{SECONDS:g}",
    "QUEUECTL_SHADOW_SIMULATION_SECONDS": "20",
}
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
READS = {"get", "list", "watch"}


@dataclass(frozen=True)
class ShadowedKueue:
    """A Kueue with its cluster, and queuectl in shadow mode.

    Attributes:
        before: the objects of Kueue's gangs before queuectl was installed.
    """

    client: Client
    kueue: Kueue
    controller: ControllerProcess
    audit: Path
    before: dict[str, Any]

    def report(self, **query: str) -> dict[str, Any]:
        answer = get_plain(f"{self.controller.api}/api/v1/reports/shadow?since=1h")
        assert answer.is_success, answer.text
        return dict(answer.json())

    def gang(self, name: str) -> dict[str, Any]:
        """A gang of the report; empty if it is not in it."""
        gangs = self.report()["observed"]["gangs"]
        return next((one for one in gangs if one["name"].endswith(name)), {})

    def until(self, name: str, **fields: object) -> dict[str, Any]:
        """Wait until a gang of the report has these fields; a type stands for any value that is not 0 and not null."""

        def reached() -> bool:
            gang = self.gang(name)
            return bool(gang) and all(
                bool(gang[key]) if field is bool else gang[key] == field
                for key, field in fields.items()
            )

        wait_until(reached, f"{name} has {fields}", 90.0)
        return self.gang(name)


def configuration() -> list[Document]:
    queue = m.cluster_queue("pool", "gpu", {GPU: 40, "cpu": 1000})
    found = [m.flavor("gpu"), queue, m.local_queue(SPACE, "team", "pool")]
    return [one | {"apiVersion": API} for one in found]


def job(name: str, pods: int) -> Document:
    """A Job of pods with 8 GPUs each, suspended as Kueue's webhook leaves it."""
    document = m.job(name, SPACE, None, PodSetManifest(pods, gpus=8))
    document["metadata"]["labels"] = {QUEUE_LABEL: "team"}
    document["spec"]["suspend"] = True
    return document


def shown(client: Client) -> dict[str, Any]:
    """Jobs, Workloads and pods of the gangs: their uid, generation and spec."""
    paths = {
        "jobs": f"/apis/batch/v1/namespaces/{SPACE}/jobs",
        "workloads": f"/apis/{API}/namespaces/{SPACE}/workloads",
        "pods": f"/api/v1/namespaces/{SPACE}/pods",
    }
    return {
        f"{kind}/{one['metadata']['name']}": (
            one["metadata"]["uid"],
            one["metadata"].get("generation"),
            one["metadata"].get("labels"),
            one["metadata"].get("annotations"),
            one["metadata"].get("finalizers"),
            one["spec"],
        )
        for kind, path in paths.items()
        for one in client.get(path)["items"]
    }


def bound(client: Client, name: str) -> int:
    pods = client.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    own = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
    return sum("nodeName" in pod["spec"] for pod in own)


def _two_bound(client: Client, name: str) -> bool:
    return bound(client, name) == 2


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShadowedKueue]:
    folder = kueue_folder()
    logs = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(AUDIT_LOGS, str(logs))
        nodes = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=4)
        shape = ClusterSpec(nodes=(nodes,), fsync=False)
        with LocalCluster.start(shape, progress=LineProgress()) as cluster:
            client = cluster.client
            client.apply(*m.namespaces([SPACE, SYSTEM_NAMESPACE]))
            kueue = Kueue.start(cluster, folder, jobs_alone({"VisibilityOnDemand": False}))
            try:
                client.apply(*configuration())
                for name, pods in (("runs", 2), ("stuck", 3)):
                    client.apply(job(name, pods))
                    wait_until(partial(_two_bound, client, name), f"{name} has nodes", 90.0)
                client.apply(job("waits", 1))
                wait_until(lambda: len(workloads(client)) == 3, "Kueue's Workloads", 60.0)
                before = shown(client)
                values = {"image": {"repository": "queuectl"}, "shadow": True}
                client.apply(*(one for one in documents(values) if one["kind"] in RIGHTS))
                controller = CheckedController.start(cluster, SETTINGS)
                try:
                    controller.wait_ready()
                    [audit] = logs.iterdir()
                    yield ShadowedKueue(client, kueue, controller, audit, before)
                finally:
                    controller.stop()
            finally:
                os.kill(kueue.pid, signal.SIGCONT)
                kueue.stop()


def workloads(client: Client) -> list[Document]:
    return list(client.get(f"/apis/{API}/namespaces/{SPACE}/workloads")["items"])


def test_an_admitted_gang_whose_pods_have_no_node_is_reported(shadowed: ShadowedKueue) -> None:
    stuck = shadowed.until("stuck", state="Unbound", unboundHours=bool)
    assert (stuck["gpus"], stuck["pods"]) == (24.0, 3)
    assert stuck["unboundGpuHours"] == pytest.approx(8 * stuck["unboundHours"], abs=1e-4)
    assert stuck["admittedAt"] is not None
    assert shadowed.report()["observed"]["total"]["gpus"] == 32.0


def test_a_waiting_gang_has_the_reason_of_queuectl(shadowed: ShadowedKueue) -> None:
    waits = shadowed.until("waits", state="Waiting", waitedHours=bool)
    assert (waits["fitsSince"], waits["startableGpuHours"]) == (None, 0.0)
    assert waits["reasons"][0]["code"] == "WaitingForQuota"
    assert GPU in waits["message"]


def test_the_gangs_of_kueue_are_untouched(shadowed: ShadowedKueue) -> None:
    assert shown(shadowed.client) == shadowed.before


def test_a_gang_that_fits_while_its_controller_hangs_is_reported(shadowed: ShadowedKueue) -> None:
    client = shadowed.client
    client.delete(f"/apis/batch/v1/namespaces/{SPACE}/jobs/stuck", propagationPolicy="Background")
    wait_until(lambda: bound(client, "waits") == 1, "Kueue starts the next gang", 60.0)
    shadowed.until("waits", state="Elsewhere")
    registration = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("mutating", "validating"):
        listed = f"{registration}/{kind}webhookconfigurations"
        for one in client.get(listed)["items"]:
            client.delete(f"{listed}/{one['metadata']['name']}")
    os.kill(shadowed.kueue.pid, signal.SIGSTOP)
    # The API server calls the webhooks for an observation longer.
    wait_until(lambda: bool(client.apply(job("late", 1))), "the API server takes a job", 60.0)
    late = shadowed.until("late", state="Waiting", startableGpuHours=bool)
    assert late["startableGpuHours"] == pytest.approx(8 * late["fittedHours"], abs=1e-4)
    assert late["fitsSince"] is not None
    total = shadowed.report()["observed"]["total"]
    assert total["freeWhileFittingGpuHours"] >= total["startableGpuHours"] > 0.0
    os.kill(shadowed.kueue.pid, signal.SIGCONT)
    wait_until(lambda: bound(client, "late") == 1, "Kueue starts it", 60.0)
    shadowed.until("late", state="Elsewhere", fitsSince=None)


def test_the_report_is_a_page_too(shadowed: ShadowedKueue) -> None:
    page = get_plain(f"{shadowed.controller.api}/api/v1/reports/shadow/page?since=1h")
    assert page.is_success
    assert f"{SPACE}/" in page.text
    assert get_plain(f"{shadowed.controller.api}/ui/shadow").is_success


@pytest.mark.timeout(1000)
def test_the_simulated_report_continues_from_the_first_observation(shadowed: ShadowedKueue) -> None:
    """It has the gang that ran at the first observation, those that Kueue started late, and their waiting times on both sides.

    The next report is made after at least ten times the duration of the last one, which is long on a busy machine.
    """

    def made() -> dict[str, Any]:
        return dict(shadowed.report()["simulated"] or {})

    wait_until(lambda: made().get("gangs", 0) >= 4, "a report with the gang that came late", 450.0)
    report = made()
    assert (report["runningAtBegin"], report["whole"], report["leftOut"]) == (1, True, 0)
    assert [one["queue"] for one in report["queues"]] == [f"{SPACE}/team"]
    began = report["began"]
    for side in ("observed", "simulated"):
        assert report["total"]["p50Hours"][side]["least"] is not None
        assert 0.0 < report["utilization"][side]["least"] <= report["utilization"][side]["most"]
    later = made()
    wait_until(lambda: made()["madeAt"] > later["madeAt"], "the next report", 450.0)
    assert made()["began"] == began


def test_a_new_process_continues_from_the_last_observation(shadowed: ShadowedKueue) -> None:
    hours = shadowed.report()["observed"]["total"]["observedHours"]
    shadowed.controller.kill()
    shadowed.controller.restart()
    shadowed.controller.wait_ready()
    wait_until(
        lambda: shadowed.report()["observed"]["total"]["observedHours"] > hours,
        "time is observed again",
        60.0,
    )


def test_queuectl_has_written_nothing_but_its_lease(shadowed: ShadowedKueue) -> None:
    lines = [json.loads(line) for line in shadowed.audit.read_text().splitlines()]
    own = [one for one in lines if one["user"]["username"] == ACCOUNT]
    assert {one["verb"] for one in own} >= {"list", "watch", "patch"}
    followed = {one["objectRef"]["resource"] for one in own if one["verb"] == "watch"}
    assert followed == {kind.plural for kind in FOLLOWED[Owner.KUEUE]}
    assert [one for one in own if one.get("responseStatus", {}).get("code") == 403] == []
    written = {
        (
            one["verb"],
            one["objectRef"]["resource"],
            one["objectRef"]["namespace"],
            one["objectRef"].get("name"),
        )
        for one in own
        if one["verb"] not in READS
    }
    assert {(resource, namespace) for _, resource, namespace, _ in written} == {
        ("leases", SYSTEM_NAMESPACE)
    }
