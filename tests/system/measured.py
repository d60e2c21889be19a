"""An installation whose GPUs are measured: exporters for its nodes, and a real Prometheus that scrapes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import get_plain
from queuectl.localcluster.exporter import PROFILE
from queuectl.localcluster.exporter import Exporters as PlainExporters
from queuectl.localcluster.gpus import GpuPod
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from tests.system.installation import Installation, installed

SCRAPE = 0.5
PODS_JOB = "kubernetes-pods"
NODES = NodeSpec(racks_per_block=1, hosts_per_rack=4)
QUICK = {
    "QUEUECTL_UTILIZATION__EVALUATION_SECONDS": "1",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE),
    "QUEUECTL_UTILIZATION__TIMEOUT_SECONDS": "2",
    "QUEUECTL_ACCOUNT_SECONDS": "2",
}


WINDOW = 6
"""Seconds that a gang of :func:`judged_quickly` must do nothing to be idle."""
_SLACK = 0.1 * WINDOW + 3 * SCRAPE  # what a quantile passes over, and when samples are taken


class Exporters(PlainExporters):
    """They remember every pod that ever held GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: dict[tuple[str, str], GpuPod] = {}

    def put(self, load: GpuPod) -> None:
        self.ever[load.namespace, load.pod] = load
        super().put(load)


@dataclass
class MeasuredInstallation:
    installation: Installation
    exporters: Exporters
    prometheus: Prometheus
    forger: PlainExporters
    """A tenant's own exporter, which Prometheus scrapes as it does any pod that asks for it."""

    def called_idle(self) -> list[tuple[str, float]]:
        """Gangs (``namespace/name``) that the controller took for idle since it began, and when."""
        names = {one["uid"]: ref for ref, one in self.installation.rest.workloads().items()}
        lines = self.installation.controller.log.read_text(errors="replace").splitlines()
        said = [json.loads(line) for line in lines if '"utilization_changed"' in line]
        return [
            (names[one["uid"]], datetime.fromisoformat(one["timestamp"]).timestamp())
            for one in said
            if one["state"] == "Idle" and one["uid"] in names
        ]

    def worked(self, ref: str, at: float) -> float:
        """Seconds for which the busiest GPU of a gang worked, by the simulated load, in the window before."""
        steps = [at - WINDOW + 0.1 * number for number in range(10 * WINDOW)]
        namespace, _, name = ref.partition("/")
        return max(
            0.1 * sum(load.work(number, step).engine > 0.05 for step in steps)
            for (where, pod), load in self.exporters.ever.items()
            if where == namespace and pod.startswith(f"{name}-")
            for number in range(load.gpus)
        )

    def gangs(self, queue: str) -> dict[str, float]:
        """State to the number of gangs of a queue that are in it, as exported."""
        return self._gauge(rf'gangs{{cluster_queue="{queue}",status="(\w+)"}}')

    def alarms(self) -> dict[str, float]:
        """Pods concerned, by what is wrong; nothing that is not."""
        return self._gauge(r'alarms{reason="(\w+)"}')

    def _gauge(self, pattern: str) -> dict[str, float]:
        """Label to number, of those that are not 0: what is known to count is exported before it does."""
        text = get_plain(f"{self.installation.controller.metrics}/metrics").text
        found = re.findall(rf"^queuectl_utilization_{pattern} (\S+)$", text, re.MULTILINE)
        return {label: float(value) for label, value in found if float(value)}


@contextmanager
def measured_installation(
    settings: Mapping[str, str] | None = None,
) -> Iterator[MeasuredInstallation]:
    """Labels as Prometheus makes them where ``honor_labels`` is off, as the exporter's chart has it.

    At its end, it checks that no gang with working GPUs was classified as idle.
    """
    with Exporters() as exporters, PlainExporters() as forger:
        job = exporters_job(exporters.targets_url, honor_labels=False)
        pods = exporters_job(forger.targets_url, honor_labels=False) | {"job_name": PODS_JOB}
        with Prometheus.start(
            [job, pods], scrape_seconds=SCRAPE, progress=LineProgress()
        ) as prometheus:
            source = {"QUEUECTL_PROMETHEUS_URL": prometheus.url}
            with installed(NODES, QUICK | source | dict(settings or {}), operators=()) as built:
                for node in built.cluster.nodes.names():
                    exporters.add_node(node)
                with exporters.following(built.cluster.client):
                    measured = MeasuredInstallation(built, exporters, prometheus, forger)
                    yield measured
                    idle = measured.called_idle()
                    assert [one for one in idle if measured.worked(*one) > _SLACK] == []


def judged_quickly(name: str, gpus: int, mode: str = "Off", **rule: int | bool) -> Document:
    """A ClusterQueue whose gangs are judged after seconds instead of half an hour. ``rule``: more of ``idleReclaim``."""
    document = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
    document["spec"]["policy"] = {
        "idleReclaim": {
            "mode": mode,
            "windowSeconds": WINDOW,
            "memoryWindowSeconds": WINDOW,
            "warmupSeconds": 2,
            **rule,
        }
    }
    return document


def playing(profile: str) -> PodSetManifest:
    """Two pods of 8 GPUs each that do this."""
    return PodSetManifest(2, gpus=8, annotations={PROFILE: profile})
