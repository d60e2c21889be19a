"""`make soak`: gangs at a steady rate with faults for an hour. A figure that grows is a leak; at the end, the ledger equals the cluster.

    DURATION=3600 GANGS=30000 SEED=1 python -m tests.chaos.soak

The cluster, the load, the faults and the audit are those of `make chaos`, without hostile objects. RECORD=1 appends the result to
soak.jsonl.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg

from queuectl.db.engine import DatabaseSettings
from queuectl.db.tables import metadata
from queuectl.demo import scenario as m
from queuectl.demo.controller import install
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.jobs import PodPhase
from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.progress import LineProgress
from tests.bench.bench_system import print_table
from tests.bench.history import _commit
from tests.bench.stage import _status, descendants
from tests.chaos.audit import Auditor, unequal
from tests.chaos.flat import Sample, Verdict, rests, verdicts
from tests.chaos.load import NAMESPACE, Quotas, SteadyLoad
from tests.chaos.stage import Stage, stage
from tests.chaos.suite import FAILURES, Result, Run
from tests.support.contained import metrics_of
from tests.support.stores import PostgresStore

RESULTS: Final = Path(__file__).with_name("soak.jsonl")
NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8)
QUOTAS: Final = Quotas(cohort=320, solo=(64, 128))
SIZES: Final = (1, 2)
LONGEST_SECONDS: Final = 6.0
KEPT_SECONDS: Final = 60  # that finished workloads remain in the ledger
SAMPLES: Final = 360  # in the whole time, but not more than one each second
STANDING: Final = 20
STANDING_SECONDS: Final = 120.0
KILLED: Final = "leader killed"
FAULTS: Final = (
    "API server killed",
    "API server frozen",
    "database killed",
    "watches cut",
    "node lost",
    "node deleted",
    "pods deleted",
)
FAULTS_IN_ALL: Final = 60
KILLS_UNTIL: Final = 0.4
"""Processes are killed in this part of the time only. Later, the same two live on, and what they keep is compared."""

# ---- Figures

_METRIC: Final = re.compile(r"^(\w+)(\{[^}]*\})? ([\d.e+-]+)$", re.MULTILINE)
NAMES: Final = {
    "process_resident_memory_bytes": "memory, MiB",
    "process_open_fds": "open files",
    "queuectl_tasks": "tasks",
    "queuectl_threads": "threads",
    'queuectl_kept_objects{resource="jobs"}': "jobs in memory",
    'queuectl_kept_objects{resource="pods"}': "pods in memory",
    'queuectl_kept_objects{resource="nodes"}': "nodes in memory",
}
WORKLOADS: Final = "queuectl_workloads"
LEDGER: Final = "gangs in the ledger"
MEMORY, CONNECTIONS = "memory, MiB", "connections"
GROWING: Final = frozenset(
    {
        "history",
        "usage_subjects",
        "usage_hours",
        "usage_losses",
        "usage_fleet",
        "usage_cluster",
        "usage_containers",
        "usage_curves",
        "audit",
        "decisions",
    }
)
"""Tables that keep a record of each gang, hour or command for reports: their rows for each gang must not grow."""
SLACKS: Final = {
    MEMORY: 20.0,
    "open files": 10.0,
    "tasks": 20.0,
    "threads": 6.0,
    "jobs in memory": 150.0,
    "pods in memory": 300.0,
    "nodes in memory": 2.0,
    LEDGER: 150.0,
    CONNECTIONS: 6.0,
}
AT_REST: Final = dict.fromkeys(("jobs in memory", "pods in memory", LEDGER), 5.0)
"""The figures that follow the load, when all gangs have ended and are deleted."""
# Until ended Jobs are deleted, and finished workloads have left the ledger.
REST_SECONDS: Final = 100.0
ROWS_SLACK: Final = 300.0  # gangs that begin and end between two deletions of expired rows
ROWS_OF_A_GANG: Final = 0.5


def rows_of(table: str) -> str:
    return f"rows of {table}"


def slacks() -> dict[str, float]:
    """The constant by which each figure can grow."""
    tables = {table.name: table.name in GROWING for table in metadata.sorted_tables}
    rows = {rows_of(name): ROWS_SLACK for name, grows in tables.items() if not grows}
    each = {
        f"{rows_of(name)} for each gang": ROWS_OF_A_GANG for name, grows in tables.items() if grows
    }
    return SLACKS | rows | each


def figures_of(metrics: str) -> dict[str, float]:
    """The figures of a controller in its metrics. Only a leader has those of the ledger."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, labels, value in _METRIC.findall(metrics):
        if figure := NAMES.get(name + labels):
            found[figure] = float(value)
        elif name == WORKLOADS:
            found[LEDGER] += float(value)
    if MEMORY in found:
        found[MEMORY] /= 2**20
    return dict(found)


def ready(figures: dict[str, float]) -> dict[str, float]:
    """The figures; none of a controller that is killed or frozen, or has not read all objects."""
    return figures if figures.get("nodes in memory") else {}


@dataclass
class Sampler:
    """Samples in a thread of its own until it is closed."""

    stage: Stage
    load: SteadyLoad
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _done: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sample during the block. Raises the error that ended the samples."""
        with ThreadPoolExecutor(1) as pool:
            sampling = pool.submit(self._sample)
            try:
                yield
            finally:
                self._done.set()
        sampling.result()

    def _sample(self) -> None:
        while not self._done.wait(self.seconds):
            at = time.monotonic() - self._began
            for controller in self.stage.controllers:
                metrics = metrics_of(controller)
                if figures := ready(figures_of(metrics)):
                    # A leader has more tasks than a standby.
                    role = "leader" if "queuectl_leader 1.0" in metrics else "standby"
                    holder = controller.environment["QUEUECTL_HOLDER"]
                    life = f"{holder}, process {controller.pid}, {role}"
                    self.samples.append(Sample(at, life, figures))
            if figures := asyncio.run(self._database()):
                self.samples.append(Sample(at, "Postgres", figures))

    async def _database(self) -> dict[str, float]:
        """Empty while it is killed or frozen."""
        try:
            connection = await asyncpg.connect(self.stage.server.url(), timeout=3.0)
        except (OSError, TimeoutError, asyncpg.PostgresError):
            return {}
        try:
            counted = {
                rows_of(table.name): float(
                    await connection.fetchval(f"SELECT count(*) FROM {table.name}", timeout=5.0)
                )
                for table in metadata.sorted_tables
            }
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            counted[CONNECTIONS] = float(await connection.fetchval(sessions, timeout=5.0))
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return {}
        finally:
            connection.terminate()
        pid = self.stage.server.pid
        if pid is not None:
            counted[MEMORY] = sum(_status(one, "RssAnon") for one in (pid, *descendants(pid)))
        gangs = max(1, len(self.load.submitted))
        return counted | {
            f"{rows_of(name)} for each gang": counted[rows_of(name)] / gangs for name in GROWING
        }


# ---- The ledger and the cluster


async def differences(play: Stage) -> list[str]:
    """How the ledger differs from the jobs and pods of the cluster, while nothing starts or ends."""
    store = await PostgresStore.connect(DatabaseSettings(play.server.url()))
    try:
        entries = (await store.load()).entries
    finally:
        await store.close()
    jobs = [job for job in play.recorder.jobs() if job.outcome is None]
    _, pods = play.recorder.now()
    own = [pod for pod in pods if pod.namespace == NAMESPACE and not pod.terminal]
    return unequal(entries, jobs, own)


def standing(run: Run) -> list[str]:
    """Compare the ledger with the cluster while some gangs run and do not end, then delete them."""
    play, load = run.stage, run.load
    names = {f"stays-{number}" for number in range(STANDING)}
    for number, name in enumerate(sorted(names)):
        shape = PodSetManifest(1 + number % 4, gpus=1)
        load.submit(m.job(name, NAMESPACE, ("a", "b")[number % 2], shape, retries=9))

    def all_run() -> bool:
        jobs = {job.uid: job for job in load.live()}
        _, pods = play.recorder.now()
        running = Counter(pod.owner for pod in pods if pod.phase is PodPhase.RUNNING)
        return {job.name for job in jobs.values()} == names and all(
            running[uid] == job.pods for uid, job in jobs.items()
        )

    whole = play.until(all_run, STANDING_SECONDS)
    play.wait(3.0)  # the ledger records that they are ready
    found = [] if whole else ["the gangs that stay do not run"]
    found += asyncio.run(differences(play))
    load.deleted |= names
    for name in sorted(names):
        play.client.delete(load.submitted[name], propagationPolicy="Background")
    return found


# ---- The run

LIVES: Final = 3
"""Processes with a verdict at the end: two controllers and Postgres."""


@dataclass(frozen=True)
class SoakResult:
    """One run."""

    result: Result
    judged: Sequence[Verdict]
    differences: Sequence[str]

    @property
    def ok(self) -> bool:
        lives = {one.life for one in self.judged}
        return (
            self.result.ok
            and not self.differences
            and len(lives) == LIVES
            and all(one.flat for one in self.judged)
        )

    def line(self) -> dict[str, Any]:
        """For the file of results."""
        return {
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "load": round(os.getloadavg()[2], 1),
            "seed": self.result.seed,
            "seconds": round(self.result.seconds),
            "gangs": self.result.gangs,
            "starts": self.result.starts,
            "faults": len(self.result.injected),
            "violations": len(self.result.violations),
            "losses": len(self.result.losses),
            "differences": len(self.differences),
            "figures": {
                f"{one.life.partition(',')[0]}: {one.figure}": [
                    round(one.quarter, 1),
                    round(one.last, 1),
                    round(one.most, 1),
                ]
                for one in self.judged
            },
            "growing": [f"{one.life}: {one.figure}" for one in self.judged if not one.flat],
        }


def soak(cluster: LocalCluster, seed: int, seconds: float, gangs: int, say: Any) -> SoakResult:
    """Run on a cluster where queuectl is installed and does not run. A run that fails leaves its logs in :data:`FAILURES`."""
    draw, began = Random(seed), time.monotonic()
    cluster.client.apply(*m.namespaces([NAMESPACE]))
    with stage(cluster) as built:
        built.apply([*QUOTAS.configuration(), retention()])
        load = SteadyLoad(
            built, Random(draw.random()), gangs, LONGEST_SECONDS, QUOTAS, SIZES, seconds=seconds
        )
        run = Run(built, load, Auditor(built, QUOTAS), Result(seed), say)
        built.meanwhile = run.tick
        sampler = Sampler(built, load, max(1.0, seconds / SAMPLES))
        try:
            with sampler.running():
                for names in faults(draw, began, seconds, built):
                    run.inject(names, draw)
                built.wait(began + seconds - time.monotonic())
                under_load = len(sampler.samples)
                wound_up(run)
                different = standing(run)
                run.end()
                built.wait(REST_SECONDS)
            if not run.result.ok or different:
                run.save(FAILURES / f"seed-{seed}")
        finally:
            load.clear()
    run.result.seconds = time.monotonic() - began
    judged = verdicts(sampler.samples[:under_load], slacks()) + rests(sampler.samples, AT_REST)
    return SoakResult(run.result, judged, different)


def retention() -> dict[str, Any]:
    """Finished workloads leave the ledger after a minute."""
    kept = {"workloads": {"afterFinished": f"{KEPT_SECONDS}s"}}
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "objectRetentionPolicies": kept,
    }


def faults(draw: Random, began: float, seconds: float, built: Stage) -> Iterator[tuple[str, ...]]:
    """Each fault once in a round, with a pause before each. None begins in the last tenth of the time."""
    pause = max(10.0, seconds / FAULTS_IN_ALL)
    left: list[str] = []
    while (past := time.monotonic() - began) < 0.9 * seconds:
        built.wait(pause)
        if not left:
            left = draw.sample([*FAULTS, KILLED], len(FAULTS) + 1)
        if (name := left.pop()) != KILLED or past < KILLS_UNTIL * seconds:
            yield (name,)


def wound_up(run: Run) -> None:
    """Submit no more, and wait until all gangs have ended."""

    def none_left() -> bool:
        run.load.wind_up()
        return not run.load.live()

    run.stage.until(none_left, 300.0)


def main() -> int:
    # Shut down in order on each signal, even if a shell in the background ignores interrupts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seconds = float(os.environ.get("DURATION") or 3600)
    gangs = int(os.environ.get("GANGS") or 30_000)
    seed = int(os.environ.get("SEED") or time.time())
    print(f"soak: seed {seed}, {gangs} gangs in {seconds:.0f} s, commit {_commit()}", flush=True)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", flush=True)

    spec = ClusterSpec(nodes=(NODES,), fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        install(cluster)
        found = soak(cluster, seed, seconds, gangs, say)
    report(found)
    if os.environ.get("RECORD"):
        with RESULTS.open("a") as file:
            file.write(json.dumps(found.line()) + "\n")
    return 0 if found.ok else 1


def report(found: SoakResult) -> None:
    titles = (
        "process",
        "figure",
        "samples",
        "at a quarter",
        "at the end",
        "most",
        "growth in the second half",
        "",
    )
    zero = [one for one in found.judged if not one.most]
    print_table(titles, *(one.row() for one in found.judged if one.most))
    print(f"{len(zero)} figures were 0 all the time: {', '.join(one.figure for one in zero)}")
    print(found.result.summary())
    result = found.result
    for problem in (*result.violations, *result.losses, *result.contained, *found.differences):
        print(problem)


if __name__ == "__main__":
    sys.exit(main())
