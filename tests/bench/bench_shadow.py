"""The records of shadow mode of a large cluster: size of the database, time of an observation, and time and memory of the simulated report.

    python -m tests.bench.bench_shadow [GANGS NODES LOCALQUEUES SECONDS]

A controller that starts the first gangs that fit runs random gangs of 1 to 32 GPUs for 30 days on nodes with 8 GPUs each. Its history is
written to a PostgreSQL as observations once a minute would do it. The report is made as by the leader: in a child process with its limits.
SECONDS is the limit of each of its simulations.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from queuectl.db.engine import DatabaseSettings
from queuectl.db.store import PostgresLeaderStore
from queuectl.domain.quantity import GPU
from queuectl.domain.shadow import GangName, LastObservation, Observation, SeenGang, ShadowFold
from queuectl.domain.shadow_trace import (
    Between,
    NodeVersion,
    TraceBook,
    TracedAttempt,
    TracedGang,
    TracedState,
    TraceSpan,
    TraceStep,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.shadow.configuration import on_hosts
from queuectl.shadow.simulation import ChildSimulation
from queuectl.shadow.tracing import after, trace
from queuectl.simulate.parts import PODSET, podsets_of
from queuectl.simulate.trace import TraceJob
from tests.support.postgres import running_postgres
from tests.unit.test_shadow_observing import SPACE, node, queues

BEGIN: Final = 1_800_000_000.0
DAYS: Final = 30
SECONDS: Final = 60.0
BATCH: Final = 2000
FLAVORS: Final = {GPU: "gpu"}
SIZES: Final = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8))
"""Pods, and GPUs of each."""
_LOAD: Final = 0.9


@dataclass
class Arrival:
    number: int
    at: float
    pods: int
    gpus: int
    seconds: float
    started: float | None = None
    ended: float | None = None
    nodes: dict[int, int] = field(default_factory=dict)


def history(gangs: int, nodes: int) -> list[Arrival]:
    """Random gangs with the times and nodes that a simple controller gave them."""
    chance = random.Random(0)
    span = DAYS * 86400.0
    mean = sum(pods * gpus for pods, gpus in SIZES) / len(SIZES)
    seconds = _LOAD * nodes * 8 * span / gangs / mean
    arrivals = [
        Arrival(n, at, *chance.choice(SIZES), chance.expovariate(1 / seconds) + 60.0)
        for n, at in enumerate(sorted(chance.uniform(0.0, span) for _ in range(gangs)))
    ]
    free = [8] * nodes
    ends: list[tuple[float, int]] = []
    waiting: deque[Arrival] = deque()
    for gang in arrivals:
        while ends and ends[0][0] <= gang.at:
            at, number = heapq.heappop(ends)
            for host, pods in arrivals[number].nodes.items():
                free[host] += pods * arrivals[number].gpus
            _start(waiting, free, ends, at)
        waiting.append(gang)
        _start(waiting, free, ends, gang.at)
    return arrivals


def _start(
    waiting: deque[Arrival], free: list[int], ends: list[tuple[float, int]], at: float
) -> None:
    while waiting:
        gang = waiting[0]
        places: dict[int, int] = {}
        left = gang.pods
        for host, gpus in enumerate(free):
            fits = min(left, gpus // gang.gpus)
            if fits:
                places[host] = fits
                left -= fits
            if not left:
                break
        if left:
            return
        waiting.popleft()
        for host, pods in places.items():
            free[host] -= pods * gang.gpus
        gang.nodes, gang.started, gang.ended = places, at, at + gang.seconds
        heapq.heappush(ends, (gang.ended, gang.number))


def _between(at: float) -> Between:
    minute = BEGIN + SECONDS * (at // SECONDS)
    return Between(minute, minute + SECONDS)


def traced(gang: Arrival, until: float, queues_: int) -> TracedGang:
    """The record of a gang at the end."""
    queue = f"train-{gang.number % queues_}"
    job = TraceJob(0, 1, 0.0, 1.0, gang.pods, gang.gpus, (SPACE, queue))
    uid, total = f"uid-{gang.number:032d}", float(gang.pods * gang.gpus)
    name = GangName(uid, SPACE, f"gang-{gang.number}", "Job", queue, "pool", total, gang.pods)
    record = TracedGang(name, podsets_of(job), 0, "", None, BEGIN + gang.at, TracedState.WAITING)
    if gang.started is None or gang.ended is None:
        return record
    hosts = tuple((f"n{host}", pods) for host, pods in gang.nodes.items())
    gone = _between(gang.ended) if gang.ended < until else None
    placement = Placement((PodSetPlacement(PODSET, hosts, FLAVORS),))
    attempt = TracedAttempt(_between(gang.started), placement, gone)
    state = TracedState.RUNNING if gone is None else TracedState.GONE
    return TracedGang(name, record.podsets, 0, "", None, record.arrived, state, (attempt,), gone)


def seen(gang: TracedGang) -> SeenGang:
    placement = gang.attempts[-1].placement if gang.attempts else None
    return SeenGang(gang.gang, gang.podsets, 0, "", None, gang.arrived, placement, admitted=True)


def setting(nodes: int, queues_: int) -> Snapshot:
    flavor, queue, local = queues(quota=nodes * 8)
    locals_ = [
        {**local, "metadata": {**local["metadata"], "name": f"train-{number}"}}
        for number in range(queues_)
    ]
    hosts = (node(f"n{number}") for number in range(nodes))
    bodies = on_hosts([flavor, {**queue, "spec": {**queue["spec"]}}, *locals_, *hosts])
    return read_snapshot(map(as_document, bodies), BEGIN).snapshot


def _batches(gangs: list[TracedGang]) -> Iterator[tuple[TracedGang, ...]]:
    for begin in range(0, len(gangs), BATCH):
        yield tuple(gangs[begin : begin + BATCH])


async def _main(gangs: int, nodes: int, queues_: int, seconds: float) -> None:
    until = DAYS * 86400.0
    snapshot = setting(nodes, queues_)
    records = [traced(one, until, queues_) for one in history(gangs, nodes)]
    span = TraceSpan(BEGIN, BEGIN + until)
    versions = tuple(NodeVersion(one.name, BEGIN, one) for one in snapshot.fleet.nodes)
    async with running_postgres() as postgres:
        name = await postgres.fresh()
        url = postgres.server.url(name)
        store = await PostgresLeaderStore.connect(DatabaseSettings(url))
        try:
            epoch = await store.take_over("bench", 0)
            over: float | None = None
            for number, batch in enumerate(_batches(records)):
                last = LastObservation(BEGIN + number, 0.0, 0.0, True)
                step = TraceStep(span, batch, versions if not number else (), begins=not number)
                await store.shadow.keep(ShadowFold(last, {}, ()), step, over=over, epoch=epoch)
                over = last.at
            for table in ("shadow_trace", "shadow_nodes"):
                [[size]] = await postgres.execute(f"SELECT pg_total_relation_size('{table}')", name)
                print(f"{table}: {size / 2**20:.1f} MiB", flush=True)
            began = time.process_time()
            book = await store.shadow.book(BEGIN + until - 3600.0)
            print(f"book: {len(book.gangs)} gangs, {time.process_time() - began:.2f} s", flush=True)
            _time_observation(book, snapshot, until)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            simulation = ChildSimulation(url, SECONDS, 60.0, seconds)
            report = await simulation(_without_nodes(snapshot), BEGIN + until)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(
                f"simulated report: {report.gangs} gangs, whole: {report.whole},"
                f" {(report.until - report.began) / 86400:.1f} days, took {report.took:.0f} s,"
                f" {used.ru_utime - before:.0f} s of CPU time, {used.ru_maxrss / 1024:.0f} MiB",
                flush=True,
            )
        finally:
            await store.close()


def _time_observation(book: TraceBook, snapshot: Snapshot, until: float) -> None:
    shown = tuple(seen(one) for one in book.gangs.values() if one.gone is None)
    observation = Observation(
        BEGIN + until + SECONDS, 0.0, 0.0, gangs=shown, nodes=snapshot.fleet.nodes
    )
    began = time.process_time()
    after(book, trace(book, observation, 3 * SECONDS))
    print(
        f"trace of an observation with {len(shown)} gangs: {time.process_time() - began:.3f} s",
        flush=True,
    )


def _without_nodes(snapshot: Snapshot) -> Snapshot:
    return Snapshot(
        now=snapshot.now,
        fleet=type(snapshot.fleet)(()),
        config=snapshot.config,
        namespaces=snapshot.namespaces,
        limits=snapshot.limits,
    )


def main() -> None:
    gangs, nodes, queues_, seconds = [int(one) for one in sys.argv[1:]] or [100_000, 250, 100, 600]
    asyncio.run(_main(gangs, nodes, queues_, seconds))


if __name__ == "__main__":
    main()
