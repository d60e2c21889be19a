"""The page on Reservations works as written, and on a real control plane they begin, evict and end. Seconds are instead of hours."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, configuration
from queuectl.domain.words import format_time
from tests.system.demo_cluster import DemoCluster, whole
from tests.system.transcript import Page, Shell

pytestmark = [pytest.mark.system, pytest.mark.docs, pytest.mark.timeout(400)]
NODES = 64
LONG = {"queuectl.dev/expected-duration-seconds": "31536000"}
"""Without it, the gang has the run time that is learned from the jobs of earlier tests, and can end before the Reservation."""


def test_the_page_on_reservations(demo_cluster: DemoCluster, shell: Shell) -> None:
    demo_cluster.installation.rest.apply(quota_for_all_nodes())
    page = Page("reservations.md", shell)
    page.write("training-run.yaml")
    page.type("queuectl apply -f training-run.yaml")
    demo_cluster.until(partial(has_phase, page, "training-run", "Planned"), "it is planned")
    page.type("queuectl get reservations")
    page.type("queuectl get reservations -o wide")
    page.write("firmware.yaml")
    page.type("queuectl apply -f firmware.yaml")
    demo_cluster.submit("team-b", "long", whole(NODES - 3), annotations=LONG)
    demo_cluster.waits("team-b/long", "ReservationAhead")
    page.type("queuectl get workloads --state Pending")
    page.type("queuectl delete reservation training-run")
    page.end()


def test_a_reservation_begins_and_ends_on_a_real_control_plane(
    demo_cluster: DemoCluster, shell: Shell
) -> None:
    apply = demo_cluster.installation.rest.apply
    apply(quota_for_all_nodes())
    demo_cluster.submit("team-b", "early", whole(1))
    demo_cluster.runs("team-b/early")
    begins = time.time() + 10.0
    apply([of_team_a(begins, begins + 8.0, evict=True)])
    demo_cluster.submit("team-b", "late", whole(1), annotations=LONG)
    demo_cluster.submit("team-a", "own", whole(NODES - 2))
    demo_cluster.waits("team-b/late", "ReservationAhead")
    demo_cluster.runs("team-a/own", "team-b/early")
    assert time.time() < begins, "the gang of the ClusterQueue starts before the Reservation does"
    demo_cluster.waits("team-b/early", "ReservationAhead")
    assert demo_cluster.installation.rest.workloads()["team-b/early"]["evictions"] == 1
    assert time.time() >= int(begins)
    demo_cluster.runs("team-b/early")
    assert time.time() >= int(begins) + 8.0


def quota_for_all_nodes() -> list[Document]:
    """The configuration of the demo, in which each team has quota for all nodes."""
    quotas: dict[str, int | str] = {
        "cpu": 64 * NODES,
        "memory": f"{NODES}Ti",
        "nvidia.com/gpu": 8 * NODES,
    }
    return [
        m.cluster_queue(each["metadata"]["name"], "h100", quotas)
        if each["kind"] == "ClusterQueue"
        else each
        for each in configuration()
    ]


def of_team_a(begins: float, ends: float, **spec: Any) -> Document:
    """All nodes."""
    capacity = {"pods": NODES, "requests": {"nvidia.com/gpu": 8}, "flavor": "h100"}
    times = {"from": format_time(begins), "until": format_time(ends)}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Reservation",
        "metadata": {"name": "all"},
        "spec": {"clusterQueue": "team-a", "capacity": capacity, **times, **spec},
    }


def has_phase(page: Page, name: str, phase: str) -> bool:
    return phase in page.shell.type(f"queuectl get reservation {name}")[1]
