"""A house whose GPUs are measured: exporters for its nodes, and a real Prometheus that scrapes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE, Exporters
from queuectl.localcluster.progress import Lines
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from tests.system.house import House, house

SCRAPE = 0.5
NODES = NodeSpec(racks_per_block=1, hosts_per_rack=4)
QUICK = {
    "QUEUECTL_UTILIZATION__LOOK_SECONDS": "1",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE),
    "QUEUECTL_UTILIZATION__PATIENCE_SECONDS": "2",
    "QUEUECTL_ACCOUNT_SECONDS": "2",
}


@dataclass
class Measured:
    home: House
    exporters: Exporters
    prometheus: Prometheus

    def gangs(self, queue: str) -> dict[str, float]:
        """State to the number of gangs of a queue that are in it, as exported."""
        return self._gauge(rf'gangs{{cluster_queue="{queue}",status="(\w+)"}}')

    def alarms(self) -> dict[str, float]:
        """Pods concerned, by what is wrong; nothing that is not."""
        return self._gauge(r'alarms{reason="(\w+)"}')

    def _gauge(self, pattern: str) -> dict[str, float]:
        """Label to number, of those that are not 0: what is known to count is exported before it does."""
        text = httpx2.get(f"{self.home.controller.metrics}/metrics", trust_env=False).text
        found = re.findall(rf"^queuectl_utilization_{pattern} (\S+)$", text, re.MULTILINE)
        return {label: float(value) for label, value in found if float(value)}


@contextmanager
def measured_house() -> Iterator[Measured]:
    """Labels as Prometheus makes them where ``honor_labels`` is off, as the exporter's chart has it."""
    with Exporters() as exporters:
        job = exporters_job(exporters.targets_url, honor_labels=False)
        with Prometheus.start([job], scrape_seconds=SCRAPE, progress=Lines()) as prometheus:
            source = {"QUEUECTL_PROMETHEUS_URL": prometheus.url}
            with house(NODES, QUICK | source, training_operator=False) as built:
                for node in built.cluster.nodes.names():
                    exporters.add_node(node)
                with exporters.following(built.cluster.client):
                    yield Measured(built, exporters, prometheus)


def judged_quickly(name: str, gpus: int, mode: str = "Off", **rule: int | bool) -> Document:
    """A ClusterQueue whose gangs are judged after seconds instead of half an hour. ``rule``: more of ``idleReclaim``."""
    document = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
    document["spec"]["policy"] = {
        "idleReclaim": {
            "mode": mode,
            "windowSeconds": 6,
            "memoryWindowSeconds": 6,
            "warmupSeconds": 2,
            **rule,
        }
    }
    return document


def playing(profile: str) -> Pods:
    """Two pods of 8 GPUs each that do this."""
    return Pods(2, gpus=8, annotations={PROFILE: profile})
