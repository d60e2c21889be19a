"""What gangs do with their GPUs, measured by a real Prometheus on a real control plane, and what is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE, Exporters
from queuectl.localcluster.progress import Lines
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.planner.cost import RESTART_COST
from tests.system.house import House, Room, house

pytestmark = pytest.mark.system

SCRAPE = 0.5
NODES = NodeSpec(racks_per_block=1, hosts_per_rack=4)
QUICK = {
    "QUEUECTL_UTILIZATION__LOOK_SECONDS": "1",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE),
    "QUEUECTL_UTILIZATION__PATIENCE_SECONDS": "2",
}


@dataclass
class Measured:
    home: House
    exporters: Exporters
    prometheus: Prometheus

    def gangs(self, queue: str) -> dict[str, float]:
        """State to the number of gangs of a queue, as exported."""
        return self._gauge(rf'gangs{{cluster_queue="{queue}",status="(\w+)"}}')

    def alarms(self) -> dict[str, float]:
        """Pods concerned, by what is wrong; nothing that is not."""
        found = self._gauge(r'alarms{reason="(\w+)"}')
        return {reason: pods for reason, pods in found.items() if pods}

    def _gauge(self, pattern: str) -> dict[str, float]:
        text = httpx2.get(f"{self.home.controller.metrics}/metrics", trust_env=False).text
        found = re.findall(rf"^queuectl_utilization_{pattern} (\S+)$", text, re.MULTILINE)
        return {label: float(value) for label, value in found}


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
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


def judged_quickly(room: Room, name: str, gpus: int) -> Document:
    document = m.cluster_queue(name, "gpu", {GPU: gpus, "cpu": "1M"})
    document["spec"]["policy"] = {
        "idleReclaim": {
            "mode": "Off",
            "windowSeconds": 6,
            "memoryWindowSeconds": 6,
            "warmupSeconds": 2,
        }
    }
    return document


def low(profile: str) -> Pods:
    return Pods(2, gpus=8, annotations={PROFILE: profile})


def test_of_two_gangs_the_one_that_does_nothing_makes_room_and_runs_again_later(
    measured: Measured,
) -> None:
    with measured.home.room(32) as room:
        room.rest.apply([judged_quickly(room, room.namespace, 32)])
        # The idle one has run longer: counted as if it worked, it would lose more.
        room.job("idle", low("idle"), priority_class="low")
        room.until_state("idle", "Running")
        room.job("busy", low("busy"), priority_class="low")
        room.until_state("busy", "Running")
        room.until(
            lambda: measured.gangs(room.namespace) == {"Idle": 1.0, "Active": 1.0},
            "one idle and one active gang",
        )
        assert measured.alarms() == {}
        room.job("urgent", low("busy for 20; idle"), seconds=12, priority_class="high")
        room.until_state("urgent", "Running")
        assert room.state("busy") == "Running"
        assert room.state("idle") != "Running"
        (preempted,) = (line for line in room.history("idle") if line["event"] == "Preempted")
        assert preempted["reason"]["details"]["lostGpuSeconds"] == RESTART_COST
        room.until_state("idle", "Running")
        assert room.workload("busy")["attempt"] == 1


def test_without_metrics_nobody_is_idle_and_the_cycles_go_on(measured: Measured) -> None:
    with measured.home.room(32) as room:
        room.rest.apply([judged_quickly(room, room.namespace, 32)])
        room.job("idle", low("idle"), priority_class="low")
        room.until_state("idle", "Running")
        room.until(lambda: measured.gangs(room.namespace).get("Idle") == 1.0, "an idle gang")
        measured.prometheus.pause()
        try:
            room.until(
                lambda: measured.gangs(room.namespace) == {"Unknown": 1.0}, "nothing to be known"
            )
            assert measured.alarms().keys() == {"unreachable"}
            room.job("next", low("busy"), priority_class="low")
            room.until_state("next", "Running")
        finally:
            measured.prometheus.resume()
        room.until(lambda: "unreachable" not in measured.alarms(), "Prometheus back")
