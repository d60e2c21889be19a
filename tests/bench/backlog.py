"""A full cluster and a backlog of pending gangs, with controllers as ``queuectl serve`` runs them on the cluster double and a real
Postgres.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuectl.control.composition import ServeComponents
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.control.supervisor import Supervisor
from queuectl.db.engine import DatabaseSettings
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.ledger import State
from queuectl.domain.quantity import CPU, GPU
from queuectl.localcluster.nodes import BLOCK, RACK, NodeSpec
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import MetricsRecorder
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore

TEAMS: Final = {"language": 0.45, "platform": 0.1, "speech": 0.15, "vision": 0.3}
SIZES: Final = (1, 1, 2, 4, 8, 16)
"""Pods of a gang, each a whole node; those of several sit in one rack."""


@dataclass(frozen=True)
class Size:
    """``waiting``: gangs that find no place."""

    blocks: int = 10
    racks: int = 20
    hosts: int = 25
    waiting: int = 10_000

    @property
    def nodes(self) -> NodeSpec:
        return NodeSpec(blocks=self.blocks, racks_per_block=self.racks, hosts_per_rack=self.hosts)

    @property
    def places(self) -> int:
        return self.blocks * self.racks * self.hosts


LARGE: Final = Size()
SMALL: Final = Size(2, 4, 25, 300)


def configuration(size: Size) -> Iterator[Document]:
    """A ClusterQueue for each team, all in one cohort."""
    yield m.topology("fabric", BLOCK, RACK)
    yield m.flavor("gpu", topology="fabric")
    yield m.priority_class("high", 100)
    for team, part in TEAMS.items():
        quota: dict[str, int | str] = {GPU: int(8 * size.places * part), CPU: "1M"}
        queue = m.cluster_queue(team, "gpu", quota)
        queue["spec"]["cohortName"] = "research"
        yield queue
        yield m.local_queue(f"team-{team}", "main", team)


def gang(number: int, name: str, rng: random.Random, **options: Any) -> Document:
    """Of any team, by its share; every other one is a PyTorchJob."""
    team = rng.choices(list(TEAMS), list(TEAMS.values()))[0]
    count = rng.choice(SIZES)
    pods = PodSetManifest(count, gpus=8, required=RACK if count > 1 else None)
    if number % 2:
        return m.pytorchjob(name, f"team-{team}", "main", worker=pods, **options)
    return m.job(name, f"team-{team}", "main", pods, **options)


class Backlog:
    """The cluster, the database, and the two controllers by what they do."""

    def __init__(self, url: str, size: Size) -> None:
        self._url = url
        self._size = size
        spaces = ("default", "queuectl-system", *(f"team-{team}" for team in TEAMS))
        nodes = size.nodes.documents()
        self.cluster = FakeCluster(nodes, namespaces=spaces, clock=time.time)
        self.controllers: dict[str, ServeComponents] = {}
        self._stop = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []

    async def start(self, role: str) -> None:
        """One more controller; the first one leads."""
        store, command_service = [
            await PostgresStore.connect(DatabaseSettings(self._url)) for _ in range(2)
        ]
        supervisor = Supervisor(
            store=store,
            cluster=self.cluster,
            metrics=MetricsRecorder(),
            settings=Settings(holder=role, events_per_second=2000.0),
            clock=SteadyClock(),
            kinds=KINDS,
        )
        self.controllers[role] = ServeComponents(
            supervisor, command_service, MetricsRecorder(), command_service.registration("bench")
        )
        self._running.append(asyncio.create_task(supervisor.run(self._stop)))
        await self.until(lambda: not supervisor.blockers(), f"{role} ready")

    async def fill(self) -> None:
        """Gangs until nothing is free, a few that others must leave for, and those that wait."""
        rng = random.Random(7)
        places = self._size.places
        held = 0
        while held < places:
            document = gang(held, f"first-{held:05}", rng)
            self.cluster.submit(document)
            held += _pods_of(document)
        await self.at_rest("the cluster is full")
        for number in range(places // 100):
            self.cluster.submit(gang(number, f"urgent-{number:05}", rng, priority_class="high"))
        while not await self.controllers["leader"].store.evictions(limit=1):
            await self.pause(1.0, "a gang must be evicted")
        await self.at_rest("others have left")
        for number in range(self._size.waiting):
            self.cluster.submit(gang(number, f"wait-{number:05}", rng))
        await self.at_rest("the rest waits", step=False)

    async def at_rest(self, what: str, *, step: bool = True) -> None:
        """Wait until all jobs are known, and ledger and cluster have not changed for a few seconds; ``step``: advances the pods."""
        began = still = time.monotonic()
        now: tuple[int, dict[State, int]] = (0, {})
        seen: object = None
        jobs = sum(len(self.cluster.server.objects[kind.plural]) for kind in KINDS.values())
        while time.monotonic() - still < 5.0 or sum(now[1].values()) < jobs:
            if step:
                self.cluster.step()
            now = (self.cluster.server.version, dict(await self.counts()))
            if now != seen:
                seen, still = now, time.monotonic()
            await self.pause(0.2, what)
        print(f"{what} after {still - began:.0f} s: {now[1]}", file=sys.stderr, flush=True)

    async def counts(self) -> Counter[State]:
        """Workloads by state."""
        found: Counter[State] = Counter()
        for tally in await self.controllers["leader"].store.tallies():
            found[tally.state] += tally.workloads
        return found

    async def until(self, done: Callable[[], bool], what: str) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(120.0):
            while not done():
                await self.pause(0.05, what)

    async def pause(self, seconds: float, what: str) -> None:
        """Let everything go on; an error of a controller is raised here."""
        ended, _ = await asyncio.wait(self._running, timeout=seconds)
        for task in ended:
            task.result()
            raise RuntimeError(f"a controller ended before: {what}")

    async def close(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._running)


def _pods_of(document: Document) -> int:
    spec = document["spec"]
    if "parallelism" in spec:
        return int(spec["parallelism"])
    return sum(int(replica["replicas"]) for replica in spec["pytorchReplicaSpecs"].values())
