"""A gang of two pods of one tenant, while another tenant creates hostile objects or floods the cluster, on a real control plane.

    python -m tests.bench.bench_neighbor [--samples 10] [NAME ...]

Each case has its own control plane. The neighbor creates a gang of two pods in its own queue, and deletes it when both pods run:
ten times before the case, and ten times during it. The case is a class of hostile objects (tests/chaos/hostile.py), which the tenant
also changes every second, or a flood. Printed for each: the median and the slowest time from the creation until both pods run, before
and during; whether the leader kept its lease; the memory of the controller; the time of each stage of the planning cycles.

In the case ``poison``, planning fails with each of 1,000 gangs that are edited every second.

Goals: the median is at most twice the undisturbed one, or 2 s; the slowest of ten is at most 5 s; the lease is kept; no unit is set
aside, except in the case ``poison``.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from queuectl.demo import scenario as m
from queuectl.demo.api_connection import ApiConnection
from queuectl.demo.controller import ControllerProcess, install
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.quantity import GPU
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.errors import LocalClusterError
from tests.bench.stage import BLOCK, RACK, resident_of
from tests.chaos import hostile
from tests.chaos.hostile import CLASSES, Attack
from tests.support.contained import contained, ended, metrics_of

NODES: Final = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
NEIGHBOR: Final = "neighbor"
PODS: Final = f"/api/v1/namespaces/{NEIGHBOR}/pods"
JOBS: Final = f"/apis/batch/v1/namespaces/{NEIGHBOR}/jobs"
TENANT_GPUS: Final = 32
SAMPLES: Final = 10
LONGEST_SECONDS: Final = 60.0
"""A gang that does not run until then counts with this time."""
MEDIAN_SECONDS, SLOWEST_SECONDS = 2.0, 5.0
CONNECTIONS: Final = 200
EDITED: Final = 1000
POLL_SECONDS: Final = 0.02
POISON: Final = "poison"
"""The case of gangs with which planning fails: the controller of this case has such a defect."""
POISONED: Final = Path(__file__).parent / "poisoned"


@dataclass
class Plane:
    """A control plane with queuectl. ``tenant``: the client of the tenant."""

    cluster: LocalCluster
    controller: ControllerProcess
    tenant: Client
    _number: int = 0

    def sample(self) -> float:
        """Seconds from the creation of a gang until both pods run. Then it is deleted."""
        self._number += 1
        name = f"gang-{self._number}"
        client = self.cluster.client
        began = time.monotonic()
        client.create(JOBS, m.job(name, NEIGHBOR, NEIGHBOR, PodSetManifest(2, gpus=8)))
        while (took := time.monotonic() - began) < LONGEST_SECONDS and self._running(name) < 2:
            time.sleep(POLL_SECONDS)
        client.delete(f"{JOBS}/{name}", propagationPolicy="Background")
        wait_until(lambda: not client.get(PODS)["items"], f"{name} has no pods", LONGEST_SECONDS)
        return took

    def _running(self, name: str) -> int:
        listed = self.cluster.client.get(PODS, labelSelector=f"batch.kubernetes.io/job-name={name}")
        return sum(pod["status"].get("phase") == "Running" for pod in listed["items"])


@contextmanager
def plane(settings: Mapping[str, str]) -> Iterator[Plane]:
    """A fresh one, with the default lease. ``settings``: of the environment of the controller."""
    with LocalCluster.start(ClusterSpec(nodes=(NODES,), fsync=False)) as cluster:
        client = cluster.client
        install(cluster)
        client.apply(*m.namespaces([NEIGHBOR]), *hostile.definitions())
        client.apply(*hostile.published(min(cluster.nodes.names())))
        controller = ControllerProcess.start(cluster, settings=settings)
        try:
            controller.wait_ready()
            with ApiConnection(controller.api) as rest, hostile.tenant(cluster) as tenant:
                rest.apply(configuration())
                yield Plane(cluster, controller, tenant)
        finally:
            controller.stop()


def configuration() -> list[Document]:
    """Two tenants with a ClusterQueue each."""
    return [
        m.topology("gpus", BLOCK, RACK),
        m.flavor("gpu", topology="gpus"),
        m.priority_class("low", 10),
        m.priority_class("high", 100),
        m.cluster_queue(NEIGHBOR, "gpu", {GPU: 16, "cpu": "1M"}),
        m.local_queue(NEIGHBOR, NEIGHBOR, NEIGHBOR),
        *hostile.configuration(TENANT_GPUS),
    ]


def _shape(number: int, name: str = "shape") -> Document:
    """A gang with a request that no other gang has."""
    return hostile.job(f"{name}-{number}", PodSetManifest(2, gpus=8, cpu=f"{1000 + number}m"))


def shapes(plane: Plane, count: int, name: str = "shape") -> Callable[[], None]:
    """A number of pending gangs of different shapes."""
    jobs = f"/apis/batch/v1/namespaces/{hostile.NAMESPACE}/jobs"

    def create(number: int) -> None:
        plane.tenant.create(jobs, _shape(number, name))

    plane.tenant.each(create, range(count))
    return lambda: None


def creations(plane: Plane) -> Callable[[], None]:
    """A storm: new gangs of different shapes, as fast as the API server accepts them."""
    numbers = iter(range(10**9))

    def create(_: int) -> None:
        plane.tenant.create(
            f"/apis/batch/v1/namespaces/{hostile.NAMESPACE}/jobs", _shape(next(numbers))
        )

    return lambda: plane.tenant.each(create, range(50))


def edits(plane: Plane, name: str = "shape") -> Callable[[], None]:
    """Pending gangs of which each one is changed every second."""
    shapes(plane, EDITED, name)
    jobs = f"/apis/batch/v1/namespaces/{hostile.NAMESPACE}/jobs"
    paths = [f"{jobs}/{name}-{number}" for number in range(EDITED)]
    turns = iter(range(10**9))

    def edit() -> None:
        began, turn = time.monotonic(), str(next(turns))
        change = {"metadata": {"annotations": {"example.com/turn": turn}}}
        plane.tenant.each(lambda path: plane.tenant.patch(path, change), paths)
        time.sleep(max(0.0, 1.0 - time.monotonic() + began))

    return edit


def connections(plane: Plane) -> Callable[[], None]:
    """Connections without credentials: idle, with half of a head, and with a body that does not end."""
    address = urlsplit(plane.controller.api)
    starts = (
        b"",
        b"GET /api/v1/workloads HTTP/1.1\r\nHost: x\r\nX-",
        b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
    )
    opened: list[socket.socket] = []

    def replace() -> None:
        """Open a quarter of them again, so that the server also sees new ones."""
        for old in opened[: CONNECTIONS // 4] if len(opened) >= CONNECTIONS else ():
            old.close()
        del opened[: CONNECTIONS // 4 if len(opened) >= CONNECTIONS else 0]
        while len(opened) < CONNECTIONS:
            with suppress(OSError):
                one = socket.create_connection((address.hostname, address.port), timeout=5.0)
                one.sendall(starts[len(opened) % len(starts)])
                opened.append(one)
        time.sleep(1.0)

    return replace


def attack(plane: Plane, name: str) -> Callable[[], None]:
    """The objects of one class, changed every second."""
    kind = CLASSES[name]
    made = Attack(plane.tenant, kind, name)
    made.create(kind.size)
    for text, count in made.refused.items():
        print(f"    refused at admission: {count}: {text}", flush=True)

    def change() -> None:
        made.change()
        time.sleep(1.0)

    return change


CASES: Final[dict[str, Callable[[Plane], Callable[[], None]]]] = {
    "2000-shapes": partial(shapes, count=2_000),
    "20000-shapes": partial(shapes, count=20_000),
    "creations": creations,
    "edits": edits,
    POISON: partial(edits, name=POISON),
    "connections": connections,
    **{name: partial(attack, name=name) for name in CLASSES},
}
"""By name, the start of each case. It returns what is repeated until the end."""


@contextmanager
def repeated(act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in another thread. An API server that does not answer is not an error of the case."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            with suppress(LocalClusterError):
                act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass
class Outcome:
    """Of one case. Seconds, MiB. ``trouble``: each broken rule besides the times."""

    name: str
    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    memory: tuple[float, float] = (0.0, 0.0)
    stages: str = ""
    load: float = 0.0
    trouble: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        before, during = statistics.median(self.before), statistics.median(self.during)
        met = during <= max(2 * before, MEDIAN_SECONDS) and max(self.during) <= SLOWEST_SECONDS
        cells = (
            self.name, f"{before:.2f}", f"{max(self.before):.2f}", f"{during:.2f}",
            f"{max(self.during):.2f}", f"{during / before:.1f}", f"{self.memory[0]:.0f}",
            f"{self.memory[1]:.0f}", f"{self.load:.0f}",
            "; ".join([*([] if met else ["goal missed"]), *self.trouble]) or "goal met",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


HEAD: Final = """\
| case | before: median | slowest | during: median | slowest | ratio | MiB before | during | load | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def measured(name: str, samples: int) -> Outcome:
    """Run one case."""
    found = Outcome(name)
    with plane({"PYTHONPATH": str(POISONED)} if name == POISON else {}) as built:
        built.sample()
        found.before = [built.sample() for _ in range(samples)]
        epoch, memory = _epoch(metrics_of(built.controller)), resident_of(built.controller.pid)
        act = CASES[name](built)
        first = _seconds(metrics_of(built.controller))
        with repeated(act):
            found.during = [built.sample() for _ in range(samples)]
            metrics = metrics_of(built.controller)
        found.memory = (memory, resident_of(built.controller.pid))
        found.stages, found.load = _difference(first, _seconds(metrics)), os.getloadavg()[0]
        if _epoch(metrics) != epoch:
            found.trouble.append(f"the lease was lost: epoch {epoch} to {_epoch(metrics)}")
        found.trouble += ended(built.controller)
        if name != POISON:
            found.trouble += contained(built.controller)
    return found


def _epoch(metrics: str) -> str:
    found = re.search(r"^queuectl_leader_epoch (\S+)", metrics, re.MULTILINE)
    return found[1] if found else "unknown"


def _seconds(metrics: str) -> dict[str, tuple[float, float]]:
    """Sum and count of each stage of the planning cycles."""
    name = "queuectl_cycle_stage_duration_seconds"
    sums, counts = (
        dict(re.findall(rf'^{name}_{part}{{stage="(\w+)"}} (\S+)', metrics, re.MULTILINE))
        for part in ("sum", "count")
    )
    return {stage: (float(sums[stage]), float(counts[stage])) for stage in sums}


def _difference(first: dict[str, tuple[float, float]], last: dict[str, tuple[float, float]]) -> str:
    parts = []
    for stage, (total, count) in last.items():
        before, counted = first.get(stage, (0.0, 0.0))
        if count > counted:
            parts.append(f"{stage} {total - before:.1f} s in {count - counted:.0f}")
    return ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--samples", type=int, default=SAMPLES)
    given = parser.parse_args()
    lines: list[str] = []
    trouble: list[str] = []
    for name in given.names or CASES:
        found = measured(name, given.samples)
        print(f"    {name}: {found.stages}", flush=True)
        print(f"    during: {', '.join(f'{took:.2f}' for took in found.during)}", flush=True)
        print(HEAD if not lines else "", found.line, sep="\n", flush=True)
        lines.append(found.line)
        trouble += found.trouble
    print("\n".join(["", HEAD, *lines]))
    return int(bool(trouble))


if __name__ == "__main__":
    sys.exit(main())
