"""The cost of expected starts: ``python -m tests.bench.bench_estimates``.

1,000 nodes that are full, gangs of 50 users with learned run times, and pending gangs that differ in shape. *Event loop* is what the
leader does between two cycles: the snapshot again, and the input of the estimate. The other columns are of the thread alongside it. *Longest
without a pause* is the time for which a new cycle can compete with the estimate for the interpreter. Times are CPU time of the thread.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.past_jobs import FinishedRun, GangProfile
from queuectl.domain.queues import Backfill, QueueConfig, QueueingStrategy
from queuectl.domain.records import NamespaceRecord, NodeRecord
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import Placement, Workload
from queuectl.estimates.expected_starts import MOST_GANGS, expected_starts
from queuectl.estimates.scene import scene_of
from queuectl.planner.cache import PlannerCache
from queuectl.state.durations import LearnedDurations
from queuectl.state.estimates import Estimates
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.bench.clusters import NOW, Size, busy, chain_gang, config, fleet

_SIZE: Final = Size(2, 10, 50)
_USERS: Final = 50
_PAST_RUNS: Final = 5_000
_PENDING: Final = (100, 1_000, 10_000)
_STRATEGIES: Final = (QueueingStrategy.BEST_EFFORT_FIFO, QueueingStrategy.BACKFILL)


class Leader:
    """Mirror and ledger of a busy cluster, and what estimates read."""

    def __init__(self, strategy: QueueingStrategy, pending: int) -> None:
        rng = random.Random(3)
        self.config = _settings(strategy)
        self.mirror = Mirror({"jobs": "Job"})
        self.mirror.namespaces["team"] = NamespaceRecord("team", 1, ())
        nodes = fleet(_SIZE, rng)
        for node in nodes.nodes:
            self.mirror.nodes.put(NodeRecord(node, 1))
        self.ledger = Ledger()
        for held in busy(nodes, 1.0, rng):
            self._add(held.workload, rng, held.placement)
        for number in range(pending):
            self._add(chain_gang(f"p{number:05}", rng, float(number)), rng)
        self.durations = LearnedDurations(self.mirror)
        self.durations.learn(_past_runs(rng))
        usage = OtherPodUsage(self.mirror, self.ledger)
        self.builder = SnapshotBuilder(self.mirror, self.ledger, usage, durations=self.durations)
        self.estimates = Estimates(self.mirror, self.durations)
        self.builder.freeze(self.config, NOW, SolverLimits())  # as for the last plan

    def _add(self, gang: Workload, rng: random.Random, placement: Placement | None = None) -> None:
        uid, queue = gang.uid, "main"
        job = JobRecord("Job", "team", uid, uid, 1, 0.0, queue, gang.podsets)
        self.mirror.jobs[uid] = replace(job, suspended=placement is None)
        entry = Entry(
            uid,
            "Job",
            "team",
            uid,
            State.PENDING,
            queue,
            queue,
            user=f"user{rng.randrange(_USERS)}",
            pods=sum(podset.count for podset in gang.podsets),
            queued_at=gang.queued_at,
        )
        if placement is not None:
            began = NOW - rng.expovariate(1 / 3600)
            entry = replace(
                entry, state=State.RUNNING, attempt=1, placement=placement, started_at=began
            )
        self.ledger.apply([EntryChange(None, entry, NOW)])


def _settings(strategy: QueueingStrategy) -> QueueConfig:
    settings = config()
    queues = {
        name: replace(queue, strategy=strategy, backfill=Backfill(1, delay=0.1))
        for name, queue in settings.cluster_queues.items()
    }
    return replace(settings, cluster_queues=queues)


def _past_runs(rng: random.Random) -> Iterator[FinishedRun]:
    for number in range(_PAST_RUNS):
        work = GangProfile(
            "main", "team", "main", f"user{rng.randrange(_USERS)}", f"job-{number}", 1, 8
        )
        yield FinishedRun(work, rng.lognormvariate(8, 1.5))


class Pauses:
    """The longest time between two of them, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.thread_time()

    def __call__(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds of one estimate.

    Attributes:
        loop: of the event loop.
        scene: before the first simulation.
        simulations: all of them.
        pause: the longest time without a pause.
    """

    loop: float
    scene: float
    simulations: float
    pause: float


def measured(leader: Leader) -> Cost:
    """One estimate, as a leader makes it, without collections of what was there before."""
    gc.collect()
    gc.freeze()
    began = time.thread_time()
    snapshot = leader.builder.freeze(leader.config, NOW, SolverLimits())
    given = leader.estimates.current(leader.ledger, snapshot)
    loop = time.thread_time() - began
    pauses = Pauses()
    scene = scene_of(given.snapshot, PlannerCache(), MOST_GANGS, pauses)
    pauses()
    runs = given.runs(scene.uids)
    begins = time.thread_time()
    pauses()
    found = expected_starts(scene, runs, pauses)
    ends = time.thread_time()
    assert found.by_uid
    return Cost(
        1e3 * loop, 1e3 * (begins - began - loop), 1e3 * (ends - begins), 1e3 * pauses.longest
    )


def main() -> None:
    """Print the table."""
    print(f"{_SIZE.nodes:,} nodes; CPU milliseconds")
    print(
        "| strategy | pending gangs | event loop | preparation | simulations | longest without a pause |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for strategy in _STRATEGIES:
        for pending in _PENDING:
            cost = measured(Leader(strategy, pending))
            figures = (cost.loop, cost.scene, cost.simulations, cost.pause)
            cells = [strategy, f"{pending:,}", *(f"{figure:,.0f}" for figure in figures)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
