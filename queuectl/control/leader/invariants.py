"""Checks of the leader's invariants: some workloads every few seconds, all workloads on request of an administrator.

A violation is a defect. It is logged and counted, and the workload gets an Event. It has no other effect.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Final

import structlog

from queuectl.control.leader.leader_state import LeaderState
from queuectl.control.ports import Clock, Cluster
from queuectl.db.ports import LeaderStore
from queuectl.domain.errors import ClusterError, StoreUnavailable
from queuectl.domain.ledger import VIOLATED, Checked, Entry, Invariant, InvariantViolation
from queuectl.state.checks import CommittedSlots, HighWaterMarks, of_gang, of_row, violation
from queuectl.state.mirror import Mirror
from queuectl.telemetry.metrics import MetricsRecorder

log = structlog.get_logger()

EVERY_SECONDS = 10.0
CPU_SHARE = 0.005  # of one core, in the long run
GANGS: Final = 200  # checked each time
ROWS: Final = 3  # of them read from the database
AT_ONCE: Final = 500  # workloads of a complete check before the event loop can run other tasks
AGAIN_SECONDS = 2.0  # between the two passes of a complete check
EVENTS: Final = 5  # each time


class InvariantChecker:
    """Checks the invariants of the workloads of one leadership."""

    def __init__(
        self,
        *,
        leader_state: LeaderState,
        mirror: Mirror,
        store: LeaderStore,
        cluster: Cluster,
        metrics: MetricsRecorder,
        clock: Clock,
    ) -> None:
        self._leader_state = leader_state
        self._mirror = mirror
        self._store = store
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._ceilings = HighWaterMarks()
        self._suspected: set[tuple[Invariant, str]] = set()
        self._reported: set[tuple[Invariant, str]] = set()
        self._turn: list[str] = []  # uids of this round that are not checked yet
        self._worked = 0.0  # CPU seconds of the last check
        self._asked = asyncio.Lock()

    async def run(self) -> None:
        """Check some workloads periodically until canceled."""
        while True:
            await self._report(await self._violations())
            await asyncio.sleep(max(EVERY_SECONDS, self._worked / CPU_SHARE))

    async def check(self) -> Checked:
        """Check all workloads, also in the database. Concurrent calls wait. Can raise StoreUnavailable."""
        async with self._asked:
            found = await self._all()
            if found:
                await asyncio.sleep(AGAIN_SECONDS)
                keys = {one.key for one in found}
                found = [one for one in await self._all() if one.key in keys]
                await self._report(found)
            mirror = self._mirror
            counts = len(self._leader_state.ledger), len(mirror.pods), len(mirror.nodes)
            return Checked(self._clock(), *counts, tuple(found))

    async def _violations(self) -> list[InvariantViolation]:
        """The violations that this check and the last one found."""
        ledger = self._leader_state.ledger
        slots = CommittedSlots.of(ledger, self._mirror)
        over = await asyncio.to_thread(self._over, slots)
        began = time.thread_time()
        self._turn = self._turn or [entry.uid for entry in ledger]
        turn, self._turn = self._turn[:GANGS], self._turn[GANGS:]
        uids = dict.fromkeys([*turn, *(uid for _, uid in self._suspected)])
        entries = [entry for entry in map(ledger.get, uids) if entry is not None]
        found = [*self._of_gangs(entries), *over]
        self._worked += time.thread_time() - began
        suspects = [e for e in entries if (Invariant.DATABASE, e.uid) in self._suspected]
        drawn = random.sample(entries, min(ROWS, len(entries)))
        found += await self._of_rows({entry.uid: entry for entry in (*drawn, *suspects)}.values())
        confirmed = [one for one in found if one.key in self._suspected]
        self._suspected = {one.key for one in found}
        return confirmed

    def _over(self, slots: CommittedSlots) -> list[InvariantViolation]:
        """The nodes with more slots than room. A pass over all nodes would hold the event loop up."""
        began = time.thread_time()
        found = self._ceilings.over(slots)
        self._worked = time.thread_time() - began
        return found

    def _of_gangs(self, entries: Iterable[Entry]) -> list[InvariantViolation]:
        names = self._leader_state.names
        return [one for entry in entries for one in of_gang(entry, self._mirror, names)]

    async def _of_rows(self, entries: Iterable[Entry]) -> list[InvariantViolation]:
        """Workloads whose row differs from the entry in memory, without a change in progress."""
        found: list[InvariantViolation] = []
        for entry in entries:
            if not self._settled(entry):
                continue
            try:
                stored = await self._store.get_workload(entry.uid)
            except StoreUnavailable:
                return found  # another part reports it
            if self._settled(entry):
                found += of_row(entry, stored)
        return found

    def _settled(self, entry: Entry) -> bool:
        leader_state = self._leader_state
        return (
            leader_state.ledger.get(entry.uid) is entry and entry.uid not in leader_state.unwritten
        )

    async def _all(self) -> list[InvariantViolation]:
        violations: list[InvariantViolation] = []
        all_entries = list(self._leader_state.ledger)
        for first in range(0, len(all_entries), AT_ONCE):
            entries = all_entries[first : first + AT_ONCE]
            violations += self._of_gangs(entry for entry in entries if self._settled(entry))
            await asyncio.sleep(0)
        slots = CommittedSlots.of(self._leader_state.ledger, self._mirror)
        violations += await asyncio.to_thread(slots.over)
        before = [entry for entry in self._leader_state.ledger if self._settled(entry)]
        stored = {entry.uid: entry for entry in (await self._store.load()).entries}
        for entry in before:
            if self._settled(entry):
                violations += of_row(entry, stored.get(entry.uid))
        for entry in stored.values():
            if self._leader_state.ledger.get(entry.uid) is None:
                text = "the database holds it, the leader does not"
                violations.append(violation(Invariant.DATABASE, entry, text))
        return violations

    async def _report(self, violations: Iterable[InvariantViolation]) -> None:
        """Log, count, and raise an Event for each that is new."""
        events = EVENTS
        for broken in violations:
            self._metrics.violated(broken.invariant)
            where = f"{broken.namespace}/{broken.name}"
            log.error(
                "invariant_violated",
                invariant=str(broken.invariant),
                workload=where,
                message=broken.message,
            )
            job = self._mirror.jobs.get(broken.uid)
            if job is None or broken.key in self._reported or not events:
                continue
            events -= 1
            try:
                text = f"{broken.invariant}: {broken.message}"
                await self._cluster.create_event(job, "Warning", VIOLATED, text)
                self._reported.add(broken.key)
            except ClusterError as error:
                log.info("event_not_written", workload=where, error=str(error))
        self._reported &= {broken.key for broken in violations} | self._suspected
