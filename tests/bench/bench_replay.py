"""Kueue's own performance workloads without a cluster: ``python -m tests.bench.bench_replay [baseline|tas|large-scale]``.

The arrivals of :mod:`tests.bench.kueue.mix` are simulated on the copy of the cluster and the ledger: a gang that was
started is ready after the latency of an API server and ends when its run time is over, one that was evicted has left after
the same latency. Cycles follow each other as the control loop lets them, each as long as it took on the CPU and then a pause
that keeps to the loop's share of planning, unless a fixed time from one to the next is given. Printed: CPU seconds of each
stage, milliseconds per workload, cycles, evictions and how many of them cost work that was nearly done, time to admission by
class and the use of nominal quota. ``--profile`` prints the use of CPU time. Every plan is verified, as in the loop.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, TypeVar

from queuectl.control.leader.decisions import Decider
from queuectl.control.settings import Settings
from queuectl.domain.events import Drained, Ended, Event, PodsReady
from queuectl.domain.jobs import JobOutcome, JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.records import NamespaceRecord, NodeRecord
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.workload import PodSet
from queuectl.lifecycle.machine import handle
from queuectl.objects.documents import as_document
from queuectl.objects.kinds import KINDS
from queuectl.offline.inputs import read_snapshot
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import verify
from queuectl.state.claims import priority_of
from queuectl.state.durations import LearnedDurations
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.ledger import Ledger
from queuectl.state.mirror import Mirror
from queuectl.state.usage import OtherPodUsage
from tests.bench.kueue.mix import Arrival, Mix, read

LATENCY: Final = 0.05  # seconds until a start, or an eviction, has taken effect
STARTED_AT: Final = 1_000_000.0
T = TypeVar("T")


@dataclass
class Replay:
    """One run. Times are simulated seconds since the first moment."""

    mix: Mix
    settings: Settings
    period: float | None
    now: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    slowest: float = 0.0
    cycles: int = 0
    evictions: int = 0
    nearly_done: int = 0  # evicted with less of its run time left than an eviction takes
    waited: dict[str, list[float]] = field(default_factory=dict)
    worked: float = 0.0  # core-seconds of work that was finished
    _events: list[tuple[float, int, str, int, Event]] = field(default_factory=list)
    _due_at: float | None = None  # when time alone changes what a plan may do
    _numbers: int = 0

    def __post_init__(self) -> None:
        self.cache = PlannerCache()
        self.mirror = Mirror({"jobs": "Job"})
        self.ledger = Ledger()
        given = [as_document(d) for d in (*self.mix.config, *self.mix.spaces, *self.mix.nodes)]
        snapshot = read_snapshot(given, STARTED_AT).snapshot
        self.config = snapshot.config
        for name, labels in snapshot.namespaces.items():
            self.mirror.namespaces[name] = NamespaceRecord(name, 1, tuple(labels.items()))
        for node in snapshot.fleet.nodes:
            self.mirror.nodes.put(NodeRecord(node, 1))
        self.durations = LearnedDurations(self.mirror)
        self.snapshot_builder = SnapshotBuilder(
            self.mirror,
            self.ledger,
            OtherPodUsage(self.mirror, self.ledger),
            durations=self.durations,
        )
        self.decider = Decider(self.mirror, self.ledger)
        self.arriving = list(reversed(self.mix.arrivals))
        self.arrivals = {f"{a.queue}/{a.name}": a for a in self.mix.arrivals}
        self.ends: dict[str, float] = {}

    def run(self) -> None:
        while self.arriving or len(self.ledger):
            if self._take_in():
                before = sum(self.spent.values())
                self._cycle()
                took = sum(self.spent.values()) - before
                self.slowest = max(self.slowest, took)
                share = self.settings.planning_share
                pause = took / share + self.settings.debounce_seconds
                self.now += self.period if self.period is not None else pause
            else:
                moments = [self._events[0][0]] if self._events else []
                moments += [self.arriving[-1].at] if self.arriving else []
                moments += [self._due_at] if self._due_at is not None else []
                assert moments, "gangs wait, and nothing will ever change"
                self.now = max(self.now, min(moments))

    def _take_in(self) -> bool:
        """Everything that happened until now; whether there was anything."""
        changes = []
        while self.arriving and self.arriving[-1].at <= self.now:
            changes.append(EntryChange(None, self._submitted(self.arriving.pop()), self.now))
        self._apply(changes)
        seen = bool(changes) or (self._due_at is not None and self._due_at <= self.now)
        while self._events and self._events[0][0] <= self.now:
            at, _, uid, attempt, event = heappop(self._events)
            entry = self.ledger.get(uid)
            if entry is not None and entry.attempt == attempt:
                seen |= self._happens(entry, event, at)
        return seen

    def _apply(self, changes: Sequence[EntryChange]) -> None:
        """Commit changes, and learn from the gangs that finished."""
        self.ledger.apply(changes)
        self.durations.note(changes, self.config)

    def _happens(self, entry: Entry, event: Event, at: float) -> bool:
        if isinstance(event, Ended) and entry.state is not State.RUNNING:
            return False  # it is being evicted
        if isinstance(event, PodsReady) and entry.state is not State.STARTING:
            return False
        change = handle(entry, event, STARTED_AT + at)
        self._apply([change] if change is not None else [])
        if not isinstance(event, Ended):
            return not isinstance(event, PodsReady)
        arrival = self.arrivals[entry.uid]
        self.worked += arrival.cpu * arrival.runtime
        del self.mirror.jobs[entry.uid]
        self.snapshot_builder.forget(entry.uid)
        self.decider.forget(entry.uid)
        return True

    def _submitted(self, arrival: Arrival) -> Entry:
        uid = f"{arrival.queue}/{arrival.name}"
        document = as_document(arrival.document)
        kind = KINDS[document.kind]
        gang = kind.read(document.convert(kind.wire), strict=True)
        podsets = _PODSETS.setdefault(gang.podsets, gang.podsets)
        at, queue = STARTED_AT + arrival.at, arrival.queue
        job = JobRecord("Job", queue, arrival.name, uid, 1, at, queue, podsets, gang.priority_class)
        self.mirror.jobs[uid] = job
        pods = sum(podset.count for podset in podsets)
        return Entry(
            *(uid, "Job", queue, arrival.name, State.PENDING, queue, queue),
            priority_of(job, self.config, {}),
            pods=pods,
            queued_at=at,
            since=at,
        )

    def _cycle(self) -> None:
        now = STARTED_AT + self.now
        snapshot = self._timed(
            "freeze", lambda: self.snapshot_builder.freeze(self.config, now, SolverLimits())
        )
        made = self._timed("plan", lambda: plan(snapshot, cache=self.cache))
        due = next_plan_due(snapshot, made)
        self._due_at = None if due is None else due - STARTED_AT
        wrong = self._timed("verify", lambda: verify(snapshot, made))
        assert not wrong, wrong[:3]
        changes = self._timed("changes", lambda: self.decider.changes(snapshot, made, now))
        self._apply(changes)
        self.cycles += 1
        for change in changes:
            self._follow(change)

    def _follow(self, change: EntryChange) -> None:
        """The effects of a change in the cluster."""
        entry, arrival = change.after, self.arrivals[change.after.uid]
        if change.before is None or change.before.state is entry.state:
            return
        if entry.state is State.STARTING:
            if entry.evictions == 0:
                self.waited.setdefault(arrival.klass, []).append(self.now - arrival.at)
            self.ends[entry.uid] = self.now + LATENCY + arrival.runtime
            self._later(self.now + LATENCY, entry, PodsReady())
            self._later(self.ends[entry.uid], entry, Ended(JobOutcome.SUCCEEDED))
        elif entry.state is State.EVICTING:
            self.evictions += 1
            self.nearly_done += self.ends[entry.uid] - self.now <= LATENCY
            self._later(self.now + LATENCY, entry, Drained())

    def _later(self, at: float, entry: Entry, event: Event) -> None:
        self._numbers += 1
        heappush(self._events, (at, self._numbers, entry.uid, entry.attempt, event))

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.spent[stage] = self.spent.get(stage, 0.0) + time.process_time() - began
        return result

    def report(self) -> str:
        total, gangs = sum(self.spent.values()), len(self.mix.arrivals)
        nominal = sum(queue.nominal for queue in self.mix.queues)
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in self.spent.items())
        waits = ", ".join(f"{k} {statistics.mean(v):.1f}" for k, v in sorted(self.waited.items()))
        return (
            f"{self.mix.name}: {gangs} workloads in {self.now:.1f} s of simulated time\n"
            f"CPU s: {total:.1f} ({stages}); {1000 * total / gangs:.2f} ms per workload\n"
            f"cycles: {self.cycles}, {1000 * total / max(1, self.cycles):.1f} ms each, slowest {1000 * self.slowest:.0f} ms\n"
            f"evictions: {self.evictions}, {self.nearly_done} of them would have ended sooner\n"
            f"time to first admission, s: {waits}\n"
            f"use of nominal quota: {self.worked / self.now / nominal:.0%}"
        )


_PODSETS: Final[dict[tuple[PodSet, ...], tuple[PodSet, ...]]] = {}  # equal ones are one object


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mix", nargs="?", default="baseline")
    parser.add_argument("--part", type=float, default=1.0, help="share of the workloads")
    parser.add_argument("--period", type=float, help="seconds from one cycle to the next")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 20)  # as the controller does
    replay = Replay(read(options.mix, options.part), Settings(), options.period)
    profile = cProfile.Profile(time.process_time)
    if options.profile:
        profile.runcall(replay.run)
    else:
        replay.run()
    print(replay.report())
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
