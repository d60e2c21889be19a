"""Checks the invariants from outside: by the revisions of the API server and the content of the database.

It uses no controller and no copy of one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from queuectl.db.engine import DatabaseSettings
from queuectl.demo.audit import CapacityAudit, Check, DomainAudit, Once, Quota, Whole
from queuectl.demo.recorder import ObjectRevision, ObservedState, Recording, Replay
from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.ledger import LIVE, Entry, State, violations
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
from tests.chaos.load import NAMESPACE, Quotas
from tests.chaos.stage import Stage
from tests.support.stores import PostgresStore

WAITING = (State.PENDING, State.RESERVED)


@dataclass
class Auditor:
    """Replays the new events at each check.

    Attributes:
        problems: every violation found, in the order they were found.
        steps: changes of pods that were checked.
        gaps: how often the recorder's watches had to begin again, as after a restart of the API server.
    """

    stage: Stage
    quotas: Quotas = Quotas()
    observed: ObservedState = field(default_factory=ObservedState)
    problems: list[str] = field(default_factory=list)
    steps: int = 0
    gaps: int = 0
    _seen: int = 0

    def __post_init__(self) -> None:
        self._whole = Whole(self.observed)
        self._once = Once(self.observed)
        self._capacity = CapacityAudit(self.observed)
        self._quota = Quota(self.observed, self.quotas.limits)
        self._checks: list[Check] = [
            self._whole,
            self._once,
            self._capacity,
            self._quota,
            DomainAudit(self.observed),
        ]

    def look(self) -> list[str]:
        """Violations since the last check."""
        before = len(self.problems)
        self._cluster()
        asyncio.run(self._ledger())
        return self.problems[before:]

    def last(self) -> list[str]:
        """The final check, after the end of all gangs."""
        before = len(self.problems)
        self.stage.recorder.settle(seconds=60.0)
        self._cluster()
        asyncio.run(self._ledger(ended=True))
        if not self.gaps:
            for check in self._checks:
                found = check.finding().problems
                self.problems += [p for p in found if p not in self.problems]
        return self.problems[before:]

    def _cluster(self) -> None:
        """Replay up to a revision that all watches have reached."""
        recorder = self.stage.recorder
        upto = max((event.version for event in recorder.recording().events), default=0)
        recorder.settle(seconds=60.0)
        recording = recorder.recording()
        new = [event for event in recording.events if self._seen < event.version <= upto]
        found = self._replay(new)
        # After a gap of a watch only the final state is known, in no defined order.
        if recording.gaps == self.gaps:
            self.problems += found
        self.gaps = recording.gaps
        self._seen = upto

    def _replay(self, new: list[ObjectRevision]) -> list[str]:
        found = [self._whole.problems, self._once.problems, self._capacity.problems]
        found.append(self._quota.problems)
        before = [len(problems) for problems in found]
        for step in Replay(Recording(tuple(new)), self.observed).steps():
            self.steps += 1
            for check in self._checks:
                check.see(step)
        return [
            problem
            for problems, known in zip(found, before, strict=True)
            for problem in problems[known:]
        ]

    async def _ledger(self, *, ended: bool = False) -> None:
        store = await PostgresStore.connect(DatabaseSettings(self.stage.server.url()))
        try:
            entries = (await store.load()).entries
            self._entries(entries)
            if ended:
                await self._end(store, entries)
        finally:
            await store.close()

    def _entries(self, entries: tuple[Entry, ...]) -> None:
        """Check the capacity of nodes and the quotas of queues, the reason of each pending gang, and the consistency of each entry."""
        jobs = {job.uid: job for job in self.stage.recorder.jobs()}
        nodes, _ = self.stage.recorder.now()
        on: Counter[str] = Counter()
        held: Counter[str] = Counter()
        for entry in entries:
            self.problems += [f"{entry.ref}: {problem}" for problem in violations(entry)]
            if entry.state in WAITING and not entry.reason.code:
                self.problems.append(f"{entry.ref} is pending without a reason")
            if entry.state not in LIVE or entry.placement is None:
                continue
            job = jobs.get(entry.uid)
            shapes = {p.name: p.shape.requests[GPU] for p in job.podsets} if job else {}
            for podset in entry.placement.podsets:
                for node, count in podset.nodes:
                    gpus = count * shapes.get(podset.podset, 0)
                    on[node] += gpus
                    held[entry.queue] += gpus
        for node, gpus in on.items():
            if node in nodes and gpus > nodes[node].allocatable[GPU]:
                who = [e.ref for e in entries if e.placement and node in str(e.placement)]
                self.problems.append(f"{gpus} GPUs of {node} are booked: {who}")
        for queues, most in self.quotas.sums.items():
            if (sums := sum(held[queue] for queue in queues)) > most:
                self.problems.append(f"{sums} of {most} GPUs of {sorted(queues)} are booked")

    async def _end(self, store: PostgresStore, entries: tuple[Entry, ...]) -> None:
        """Check that no entry remains, and no attempt was started twice."""
        self.problems += [f"{e.ref} is still {e.state} {e.reason.code}" for e in entries]
        starts: Counter[tuple[str, int]] = Counter()
        names: dict[str, str] = {}
        after = 0
        while lines := await store.history(None, after, 500):
            after = lines[-1].id
            for line in lines:
                names[line.uid] = f"{line.namespace}/{line.name}"
                if line.to_state is State.STARTING and line.from_state is not State.STARTING:
                    starts[line.uid, line.attempt] += 1
        self.problems += [
            f"{names[uid]}: attempt {attempt} was started {count} times"
            for (uid, attempt), count in starts.items()
            if count > 1
        ]
        self.starts = sum(starts.values())
        self.evictions = await self._evictions(store)

    async def _evictions(self, store: PostgresStore) -> dict[str, int]:
        found: Counter[str] = Counter()
        before: int | None = None
        while lines := await store.evictions(frozenset({NAMESPACE}), before=before, limit=500):
            before = lines[-1].id
            found.update(str(Code(line.reason.code)) for line in lines)
        return dict(found)


def unequal(
    entries: Iterable[Entry], jobs: Iterable[JobRecord], pods: Iterable[PodRecord]
) -> list[str]:
    """How the ledger differs from the cluster while gangs run, and nothing starts or ends.

    Args:
        entries: the unfinished gangs of the ledger.
        jobs: those that have not ended.
        pods: those that use a node or wait for one.
    """
    found = []
    names = {job.uid: job.name for job in jobs}
    there: dict[str, Counter[str]] = {uid: Counter() for uid in names}
    for pod in pods:
        if pod.owner in there:
            there[pod.owner][pod.node or "no node"] += 1
        else:
            found.append(f"pod {pod.name} belongs to no job that runs")
    for entry in entries:
        if names.pop(entry.uid, None) is None:
            found.append(f"{entry.ref} has no job")
        elif entry.state is not State.RUNNING or entry.placement is None:
            found.append(f"{entry.ref} is {entry.state}")
        else:
            booked: Counter[str] = Counter()
            for podset in entry.placement.podsets:
                booked.update(dict(podset.nodes))
            if booked != there[entry.uid]:
                found.append(f"{entry.ref} has {dict(booked)}, its pods {dict(there[entry.uid])}")
        if entry.intent is not None:
            found.append(f"{entry.ref} has a write that is not confirmed")
    return [*found, *(f"{name} is not in the ledger" for name in names.values())]
