"""Shadow mode alongside queuectl itself reports no free GPUs for gangs that fit; alongside a controller that is late, it does.

A simulation of random arrivals and ends: at each step the controller starts the gangs of a plan, and shadow mode observes before that,
when the newest gangs have not been considered yet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from queuectl.control.checked_plan import checked_plan
from queuectl.domain.shadow import ShadowSums
from queuectl.domain.snapshot import SolverLimits
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.shadow.configuration import on_hosts
from queuectl.shadow.observing import ClusterObserver
from tests.unit.test_shadow_folding import Recorder
from tests.unit.test_shadow_observing import NOW, node, pod, queues, workload

Body = dict[str, Any]
STEP = 60.0
STEPS = 24


@dataclass
class Simulated:
    """A cluster of three nodes, whose controller starts gangs at each step, or less often."""

    random: random.Random
    every: int
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)
    running: dict[str, tuple[int, int]] = field(default_factory=dict)
    pods: dict[str, list[Body]] = field(default_factory=dict)
    arrived: int = 0

    @property
    def bodies(self) -> list[Body]:
        own = [workload(name, *size, at=int(name[1:]) % 60) for name, size in self.waiting.items()]
        own += [workload(name, *size, admitted=True) for name, size in self.running.items()]
        nodes = [node(f"n{number}") for number in range(3)]
        pods = [one for gang in self.pods.values() for one in gang]
        return on_hosts([*queues(), *nodes, *own, *pods])

    def change(self) -> None:
        """Gangs arrive and end."""
        for _ in range(self.random.randint(0, 2)):
            size = self.random.randint(1, 2), self.random.choice((2, 4, 8))
            self.waiting[f"g{self.arrived}"] = size
            self.arrived += 1
        for name in [name for name in self.running if self.random.random() < 0.25]:
            del self.running[name], self.pods[name]

    def act(self) -> None:
        """Start the gangs of a plan on its nodes."""
        snapshot = read_snapshot(map(as_document, self.bodies), NOW).snapshot
        names = {one.workload.uid: one.workload.name for one in snapshot.pending}
        for start in checked_plan(snapshot).plan.admitted:
            name = names[start.uid]
            size = self.running[name] = self.waiting.pop(name)
            [placed] = start.placement.podsets
            hosts = [host for host, count in placed.nodes for _ in range(count)]
            self.pods[name] = [pod(name, n, size[1], host) for n, host in enumerate(hosts)]


def observed(seed: int, every: int) -> ShadowSums:
    """The sums of shadow mode alongside a controller that acts at every so many steps."""
    cluster = Simulated(random.Random(seed), every)
    observer, recorder = ClusterObserver(SolverLimits()), Recorder()
    for step in range(STEPS):
        cluster.change()
        recorder.see(observer.observation(cluster.bodies, NOW + STEP * step))
        if step % every == 0:
            cluster.act()
    return recorder.total


@pytest.mark.parametrize("seed", range(3))
def test_alongside_queuectl_no_gang_waits_that_fits(seed: int):
    total = observed(seed, 1)
    assert total.observed == STEP * (STEPS - 1)
    assert total.waiting > 0.0, "the cluster was full for a time"
    assert (total.fitting, total.startable, total.free_while_fitting) == (0.0, 0.0, 0.0)
    assert total.unbound == 0.0


def test_alongside_a_controller_that_is_late_gangs_wait_that_fit():
    assert all(observed(seed, 6).startable > 0.0 for seed in range(2))
