"""The whole controller at 10,000 nodes, without the other components of a cluster: ``python -m tests.bench.bench_cycle``.

An API server in a process of its own (``api_replay.py``) has 10,000 nodes of 8 GPUs, 75% of them in use by about 13,000 pods, four flavors, 40
ClusterQueues in a tree of cohorts, and 20,000 pending gangs of 1,000 shapes in one queue. The controller is that of ``queuectl serve``: watches
over HTTP on loopback, a real Postgres, the planner, the writes. It runs on one core, everything else on another one.

    python -m tests.bench.bench_cycle [--nodes 10000] [--pending 20000] [--shapes 1000] [--phases idle,...] [--quick] [--profile FILE]

Phases, each with its own lines:

- ``idle``: nothing happens;
- ``heartbeats``: statuses of nodes without a change, 33 in a second, as kubelets send them;
- ``nodes``: the same as ``single``, and two nodes in a second that are not ready, or ready again;
- ``single``: a gang in another queue each second, which runs for 5 s: the cost of one change, and its wait;
- ``bursts``: 50 gangs in other queues at once;
- ``edits``: the same as ``single``, and 50 edits of the quotas of ClusterQueues in a second;
- ``stream``: five gangs in a second, 100 statuses of nodes in a second, and what follows.

Printed for each phase: CPU milliseconds of the thread and wall milliseconds of each stage, lag of the event loop, CPU seconds of the process,
and the wait of the gangs until their last pod is released. The last table has the figures that have a limit. It takes about five minutes of
a quiet machine. On a busy machine only CPU times mean something; no limit of wall time ends the run there.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import functools
import itertools
import json
import logging
import os
import pstats
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from queuectl.cli.program import tune_interpreter
from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.resources import watched
from queuectl.control.leader.decisions import Decider
from queuectl.control.leader.election import Leadership
from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.leader.ledger_writer import LedgerWriter
from queuectl.control.leader.recovery import recover
from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings, SolverSettings
from queuectl.control.supervisor import Supervisor
from queuectl.db.engine import DatabaseSettings
from queuectl.domain.jobs import PriorAdmission
from queuectl.domain.plan import Plan
from queuectl.domain.records import LeaderRecord
from queuectl.objects.kinds import KINDS
from queuectl.telemetry.metrics import CycleStage, MetricsRecorder
from tests.bench.api_replay import configuration
from tests.bench.bench_reflector import circumstances
from tests.bench.stage import resident_of
from tests.cluster.test_client import kubeconfig
from tests.support.contained import no_unit_is_set_aside
from tests.support.postgres import running_postgres
from tests.support.stores import PostgresStore

PHASES: Final[dict[str, dict[str, float]]] = {
    "idle": {"bursts": 20, "gangs": 0, "every": 1.0},
    "heartbeats": {"bursts": 10, "gangs": 0, "every": 1.0, "heartbeats": 33},
    "single": {"bursts": 20, "gangs": 1, "every": 1.0},
    "nodes": {"bursts": 20, "gangs": 1, "every": 1.0, "readiness": 2},
    "edits": {"bursts": 20, "gangs": 1, "every": 1.0, "edits": 50},
    "bursts": {"bursts": 20, "gangs": 50, "every": 5.0, "run_seconds": 6.0},
    "stream": {"bursts": 30, "gangs": 5, "every": 1.0, "heartbeats": 100},
}
REST_SECONDS: Final = 8.0
"""After a phase, until its gangs have ended."""
SAMPLE_SECONDS: Final = 0.01
PATIENCE: Final = 1800.0
"""Seconds for an answer, for a plan, and of the lease: of a busy machine, where nothing else ends either."""
STARTS, WAITS = "plan: gangs start", "plan: gangs wait"
"""Stages: the plans in which gangs start, and the others, which consider the next shapes of the long queue."""
FIGURES: Final = (
    ("plan for 50 new gangs", "bursts", STARTS),
    ("plan for other gangs that wait", "bursts", WAITS),
    ("freeze", "bursts", "freeze"),
    ("changes", "bursts", "changes"),
    ("loop lag, 50 new gangs", "bursts", "loop lag"),
    ("loop lag, nodes", "nodes", "loop lag"),
    ("loop lag, stream", "stream", "loop lag"),
    ("idle: a second of the event loop", "idle", "loop thread"),
)
"""Of the last table: the phase and the stage of each figure."""
Took = list[tuple[float | None, float]]
"""CPU seconds of the thread, if they are known, and wall seconds."""


@dataclass
class Times:
    """CPU seconds of the thread and wall seconds of each stage."""

    spent: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            yield
        finally:
            took = (time.thread_time() - cpu, time.perf_counter() - wall)
            self.spent.setdefault(stage, []).append(took)

    def follow(self, owner: type, name: str, stage: str) -> None:
        """Time each call of a method."""
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.of(stage):
                return method(*arguments, **named)

        setattr(owner, name, timed)


class TimedMetrics(MetricsRecorder):
    """Also has the CPU time of each stage."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self._times = times

    def stage(self, stage: CycleStage) -> AbstractContextManager[object]:
        return self._times.of(str(stage))

    def planned(self, plan: Plan) -> None:
        """Count the time of the plan also by its decision."""
        super().planned(plan)
        stage = STARTS if plan.admitted else WAITS
        last = self._times.spent.get(str(CycleStage.PLAN), [])[-1:]  # none between two phases
        self._times.spent.setdefault(stage, []).extend(last)


class ReplayedCluster(KubernetesCluster):
    """The adapter, with the answers that the replay does not have: the Lease, the policies and a Kueue."""

    _leader: LeaderRecord | None = None

    async def read_leader(self) -> LeaderRecord | None:
        return self._leader

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        del over
        self._leader = record
        return record

    async def probe_policies(self, *, kueue: bool = True) -> list[str]:
        return []

    async def kueue_runs(self) -> bool:
        return False

    async def kueue_keys_act(self) -> bool:
        return False

    async def read_admissions(self) -> list[PriorAdmission]:
        return []


@dataclass
class Run:
    """The controller and the process of the replay."""

    child: asyncio.subprocess.Process
    times: Times
    lags: list[float] = field(default_factory=list)
    queues: list[Any] = field(default_factory=list)
    edits: list[float] = field(default_factory=list)
    store: PostgresStore = field(init=False)

    async def phase(self, options: dict[str, float]) -> dict[str, Any]:
        """The answer of the replay."""
        editing = asyncio.create_task(self.edit(options.get("edits", 0)))
        try:
            return await self.answered({k: v for k, v in options.items() if k != "edits"})
        finally:
            editing.cancel()

    async def edit(self, rate: float) -> None:
        """Raise and lower the quota of each ClusterQueue in turn, until canceled."""
        for number in itertools.count() if rate else ():
            queue = self.queues[number % len(self.queues)]
            for flavor in queue["spec"]["resourceGroups"][0]["flavors"]:
                more = 8 if number // len(self.queues) % 2 == 0 else -8
                flavor["resources"][0]["nominalQuota"] += more
            began = time.perf_counter()
            await self.store.put_config(queue)
            self.edits.append(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, began + 1 / rate - time.perf_counter()))

    async def answered(self, options: dict[str, float]) -> dict[str, Any]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(options).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self.child.stdout.readline())
        return answer

    async def sample(self) -> None:
        """The lag of the event loop, until canceled."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(SAMPLE_SECONDS)
            self.lags.append(time.perf_counter() - began - SAMPLE_SECONDS)


def settings() -> Settings:
    """Nearly without statuses and Events of pending gangs, which would come for half an hour, and for a busy machine."""
    return Settings(
        holder="bench",
        events_per_second=0.1,
        lease_duration=PATIENCE,
        solver=SolverSettings(wall_seconds=PATIENCE),
    )


@asynccontextmanager
async def controller(url: str, port: int, nodes: int, times: Times) -> AsyncIterator[Supervisor]:
    """A leader that has planned once."""
    store = await PostgresStore.connect(DatabaseSettings(url))

    async def configure() -> None:
        for document in configuration(nodes):
            await store.put_config(document)

    with tempfile.TemporaryDirectory() as folder:
        connection = Connection(kubeconfig=kubeconfig(Path(folder), port), timeout=PATIENCE)
        clock = SteadyClock()
        for_ledger = ReplayedCluster(await Api.connect(connection, watches=len(watched())))
        leadership = Leadership.of(for_ledger, store, clock, settings())
        with stated("ledger from the cluster"):
            recovered = await recover(
                store, for_ledger, settings(), clock, leadership, KINDS, configure
            )
        await for_ledger.close()
        print(f"    {dict(recovered.states)}", flush=True)
        times.spent.clear()
        cluster = ReplayedCluster(await Api.connect(connection, watches=len(watched())))
        supervisor = Supervisor(
            store=store,
            cluster=cluster,
            metrics=TimedMetrics(times),
            settings=settings(),
            clock=clock,
            kinds=KINDS,
        )
        stop = asyncio.Event()
        with stated("start of the leader to its first plan"):
            running = asyncio.create_task(supervisor.run(stop))
            while "verify" not in times.spent:
                await asyncio.wait({running}, timeout=0.05)
                if running.done():
                    running.result()
        yield supervisor
        stop.set()
        await running
        await cluster.close()
        await store.close()


@contextmanager
def stated(what: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what}: {cpu:.1f} s of CPU, {wall:.1f} s of wall", flush=True)


@asynccontextmanager
async def replay(nodes: int, pending: int, shapes: int) -> AsyncIterator[tuple[Run, int]]:
    arguments = map(str, (nodes, pending, shapes))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.api_replay",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        first = json.loads(await child.stdout.readline())
        print(
            f"{nodes} nodes, {first['pods']} pods, {pending} pending of {shapes} shapes", flush=True
        )
        yield Run(child, Times()), first["port"]
    finally:
        child.stdin.close()
        child.kill()
        await child.wait()


def percentile(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def cells(values: Sequence[float | None]) -> str:
    """The median, the 99th percentile and the maximum, in milliseconds."""
    known = [value for value in values if value is not None]
    if not known:
        return "- | - | -"
    shown = (percentile(known, 0.5), percentile(known, 0.99), max(known))
    return " | ".join(f"{1000 * each:.1f}" for each in shown)


def print_table(lines: Mapping[str, Took]) -> None:
    print("| | n | CPU ms p50 | p99 | max | wall ms p50 | p99 | max |\n| --- |" + " ---: |" * 7)
    for name, took in lines.items():
        cpus, walls = [cpu for cpu, _ in took], [wall for _, wall in took]
        print(f"| {name} | {len(took)} | {cells(cpus)} | {cells(walls)} |", flush=True)


async def measured(name: str, run: Run, *, quick: bool) -> dict[str, Took]:
    """One phase, whose lines are also printed."""
    run.times.spent.clear()
    run.lags.clear()
    run.edits.clear()
    cpu, thread, wall = time.process_time(), time.thread_time(), time.perf_counter()
    options = PHASES[name]
    if quick:
        options = {**options, "bursts": max(3, options["bursts"] // 4)}
    answer = await run.phase(options)
    cpu, thread = time.process_time() - cpu, time.thread_time() - thread
    wall = time.perf_counter() - wall
    waited = {"commit", "actuate"}  # their CPU time is that of other tasks
    spent = {
        stage: [(None if stage in waited else cpu, wall) for cpu, wall in took]
        for stage, took in sorted(
            run.times.spent.items(), key=lambda item: -sum(cpu for cpu, _ in item[1])
        )
    }
    lines: dict[str, Took] = {
        **spent,
        "loop thread": [(thread / wall, 1.0)],
        "loop lag": [(None, lag) for lag in run.lags],
        "wait of a gang": [(None, wait) for wait in answer["waits"]],
        "wait of an edit": [(None, wait) for wait in run.edits],
    }
    await asyncio.sleep(REST_SECONDS if answer["waits"] else 0.0)
    events = answer["events"]
    each = f", {1000 * cpu / events:.2f} s for 1,000 events" if events else ""
    print(
        f"\n**{name}**: {cpu:.2f} s of CPU in {wall:.0f} s, {events} events, {answer['writes']} writes{each}"
    )
    print_table(lines)
    return lines


async def main(options: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    async with (
        running_postgres() as postgres,
        replay(options.nodes, options.pending, options.shapes) as (run, port),
    ):
        os.sched_setaffinity(0, {cores[0]})
        for owner, method, stage in (
            (LeaderState, "snapshot", "freeze: snapshot"),
            (LeaderState, "marked", "marks"),
            (LeaderState, "take_in", "apply"),
            (LedgerWriter, "_follow", "follow"),
            (Decider, "changes", "changes"),
            (Supervisor, "_sink", "events to mirror"),
        ):
            run.times.follow(owner, method, stage)
        url = postgres.server.url(await postgres.fresh())
        documents = configuration(options.nodes)
        run.queues = [deepcopy(one) for one in documents if one["kind"] == "ClusterQueue"]
        run.store = await PostgresStore.connect(DatabaseSettings(url))
        async with controller(url, port, options.nodes, run.times):
            sampler = asyncio.create_task(run.sample())
            await asyncio.sleep(REST_SECONDS)
            profile = cProfile.Profile(time.process_time)
            phases: dict[str, dict[str, Took]] = {}
            for name in options.phases.split(","):
                if options.profile:
                    profile.enable()
                phases[name] = await measured(name, run, quick=options.quick)
                profile.disable()
            sampler.cancel()
            await run.store.close()
            if options.profile:
                profile.dump_stats(options.profile)
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nmemory {resident_of(os.getpid()):.0f} MiB, peak {peak:.0f} MiB")
    print(
        f"{circumstances()}; {os.cpu_count()} cores; {options.nodes} nodes, {options.pending} pending"
    )
    print_table(
        {name: phases[phase].get(stage, []) for name, phase, stage in FIGURES if phase in phases}
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--pending", type=int, default=20_000)
    parser.add_argument("--shapes", type=int, default=1_000)
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--quick", action="store_true", help="a quarter of each phase")
    parser.add_argument("--profile", help="a file for cProfile; it makes everything slower")
    return parser.parse_args()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    tune_interpreter()
    with no_unit_is_set_aside():
        asyncio.run(main(arguments()))
