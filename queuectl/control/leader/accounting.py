"""Writes the usage ledger: each minute, it folds the marks and samples since the last time into hours.

It runs alongside the loop, and no commit waits for it. If it ends at any time, only the samples since the last time are lost: the marks
and the progress are in the database, and the next leader continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.leader.turns import in_turns
from queuectl.control.ports import Clock
from queuectl.db.ports import UsageStore
from queuectl.domain.accounting import (
    HOUR,
    AccountingTerms,
    ClusterGpus,
    Free,
    Mark,
    Meter,
    UsagePhase,
)
from queuectl.domain.errors import StaleSnapshot, StoreUnavailable
from queuectl.domain.estimates import DAY
from queuectl.domain.folding import Accounts, Fold
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.use_curve import UseCurve
from queuectl.domain.utilization import GangUse
from queuectl.planner.cache import PlannerCache
from queuectl.reports.fragmentation import free_gpus
from queuectl.reports.node_gpus import cluster_gpus
from queuectl.state.marking import Marker

log = structlog.get_logger()

BATCH: Final = 1000  # marks folded in one transaction
MOST_HOURS: Final = 20_000
"""Hours of workloads in one transaction: those of all old jobs, or of a long outage, can be too many rows for its timeout."""
TURN: Final = 500  # workloads that are accounted for before the event loop can run other tasks


@dataclass(frozen=True)
class UsageInputs:
    """The state of the loop; each function is called when its value is needed.

    Attributes:
        marker: of the loop's commits.
        live: the committed entries of all workloads that are not Finished.
        config: in use.
        samples: the recent samples of a gang, by uid, oldest first.
        snapshot: the current snapshot of the cluster.
    """

    marker: Marker
    live: Callable[[], Iterable[Entry]]
    config: Callable[[], QueueConfig]
    samples: Callable[[str], Sequence[GangUse]]
    snapshot: Callable[[], Snapshot]


async def _nothing_to_read() -> None:
    """No sums follow the ledger."""


@dataclass(frozen=True)
class Follower:
    """Sums that follow the usage ledger.

    Attributes:
        lock: held while hours are written and ``added`` is called, so that sums that are read at that time are complete.
        added: receives each folding that is written, and the time before which everything is counted then.
        read: reads the sums, because it is not known what was written.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    added: Callable[[Fold, float], None] = lambda *_: None
    read: Callable[[], Awaitable[None]] = _nothing_to_read


class Accountant:
    """Folds marks into hours for one epoch of the leader."""

    def __init__(
        self,
        store: UsageStore,
        facts: UsageInputs,
        clock: Clock,
        epoch: int,
        cache: PlannerCache,
        show: Callable[[Mapping[str, Free]], None] = lambda _: None,
        follower: Follower | None = None,
    ) -> None:
        """``show`` receives the free GPUs by flavor at each sample."""
        self._follower = follower or Follower()
        self._show = show
        self._store = store
        self._facts = facts
        self._clock = clock
        self._epoch = epoch
        self._cache = cache
        self._begins: float | None = None
        self._until: float | None = None
        self._meters: dict[str, Meter] | None = None
        self._accounts = Accounts()
        self._curves: dict[str, UseCurve] = {}
        self._checked = False

    async def run(self, seconds: float) -> None:
        """Account periodically until canceled.

        Raises:
            Fenced: another leader has taken over.
        """
        while True:
            try:
                await self.account()
            except (StoreUnavailable, StaleSnapshot) as error:
                log.info("usage_not_accounted", error=str(error))
                self._meters = None
            await asyncio.sleep(seconds)

    async def account(self) -> None:
        """Account for everything until now.

        Raises:
            Fenced: another leader has taken over.
            StoreUnavailable, StaleSnapshot: the outcome is unknown, or another process wrote; the progress is read again.
        """
        try:
            await self._account()
        except BaseException:
            self._meters = None
            raise

    async def _account(self) -> None:
        if self._meters is None:
            progress = await self._store.progress()
            self._begins, self._until = progress.begins, progress.until
            self._meters = dict(progress.meters)
            self._accounts = Accounts()
            self._curves = dict(await self._store.curves(self._meters))
            self._checked = False
            await self._follower.read()
        now = self._clock()
        live = [] if self._checked else list(self._facts.live())
        known = set(self._meters)
        while True:
            page = await self._store.marks(BATCH)
            marks = self._first(page, now)
            known |= {mark.uid for _, mark in marks}
            if len(marks) == len(page) < BATCH:
                break
            await self._keep(self._meters, marks, now, whole=False)
        marks += self._unknown(known, live, now)
        while self._until is not None and now - self._until > (span := self._span()):
            await self._keep(self._meters, marks, self._until + span, whole=True)
            marks = ()
        await self._keep(self._meters, marks, now, whole=True)
        if not self._checked:
            self._facts.marker.learn(self._meters)
        self._checked = True

    def _first(self, page: Sequence[tuple[int, Mark]], now: float) -> tuple[tuple[int, Mark], ...]:
        """The first marks, at least one, with which the hours of one transaction are not too many."""
        since = now if self._until is None else self._until
        oldest, hours = self._oldest(since), 0.0
        for number, (_, mark) in enumerate(page):
            hours += 1.0 + abs(since - max(mark.at, oldest)) / HOUR
            if hours > MOST_HOURS and number:
                return tuple(page[:number])
        return tuple(page)

    def _span(self) -> float:
        """Seconds that one transaction accounts for."""
        return HOUR * max(1, MOST_HOURS // max(1, len(self._meters or ())))

    def _oldest(self, until: float) -> float:
        """Hours before this time are deleted at once."""
        return until - self._facts.config().rules.accounting.keep_days * DAY

    def _unknown(
        self, uids: Container[str], live: Iterable[Entry], now: float
    ) -> tuple[tuple[int, Mark], ...]:
        """Marks for live workloads other than ``uids``. They are older than the usage ledger, and count from now on."""
        marker, config = self._facts.marker, self._facts.config()
        return tuple((0, marker.now(e, now, config)) for e in live if e.uid not in uids)

    async def _keep(
        self,
        meters: dict[str, Meter],
        marks: Sequence[tuple[int, Mark]],
        now: float,
        *,
        whole: bool,
    ) -> None:
        """Fold these marks. ``whole``: also advance to ``now`` for all workloads."""
        over = self._until
        since = now if over is None else over
        until = max(now, since) if whole else since
        self._begins = begins = since if self._begins is None else self._begins
        rules, oldest = terms(self._facts.config()), self._oldest(until)
        fold = Fold(since, until, rules, self._accounts, oldest=oldest, begins=begins)
        await self._account_for(fold, meters, marks, since, whole=whole)
        free: Mapping[str, Free] = {}
        cluster = ClusterGpus()
        if whole:
            snapshot = self._facts.snapshot()
            planned = await asyncio.to_thread(DeviceRows.of(self._cache).added, snapshot)
            free = await asyncio.to_thread(free_gpus, planned, snapshot, self._cache)
            self._show(free)
            cluster = await asyncio.to_thread(cluster_gpus, snapshot, self._cache)
        fold.divide(cluster)
        fold.draw(self._curves)
        numbers = [number for number, _ in marks if number]
        async with self._follower.lock:
            await self._store.keep(
                fold, over=over, until=until, marks=numbers, epoch=self._epoch, free=free
            )
            self._follower.added(fold, until)
        self._until = until
        self._accounts.settle(uid for uid, meter in fold.meters.items() if meter is None)
        for uid, meter in fold.meters.items():
            if meter is None:
                meters.pop(uid, None)
                self._curves.pop(uid, None)
            else:
                meters[uid] = meter

    async def _account_for(
        self,
        fold: Fold,
        meters: Mapping[str, Meter],
        marks: Sequence[tuple[int, Mark]],
        since: float,
        *,
        whole: bool,
    ) -> None:
        of: dict[str, list[Mark]] = {}
        for _, mark in marks:
            of.setdefault(mark.uid, []).append(mark)
        old = [uid for uid, first in of.items() if uid not in meters and first[0].at < since]
        known = await self._store.accounted(old) if old else frozenset()
        if known:
            self._curves |= await self._store.curves(known)
        by_uid = {**of, **dict.fromkeys(meters, ())} if whole else of
        async for uid in in_turns(by_uid, TURN):
            mine, meter = of.get(uid, ()), meters.get(uid)
            holds = mine or (meter is not None and meter.phase is UsagePhase.HOLDS)
            samples = self._facts.samples(uid) if holds else ()
            fold.workload(meter, mine, samples, at_start=uid in known)


def terms(config: QueueConfig) -> AccountingTerms:
    """The rules of accounting under this configuration."""
    cohorts = {name: queue.cohort or "" for name, queue in config.cluster_queues.items()}
    return AccountingTerms(cohorts, {p.name: p.gpu_hour for p in config.rules.accounting.prices})
