"""The usage ledger agrees with the events, for any leader, any time of the writes, and any failure.

The test computes an independent sum over the times of the committed entries.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.control.leader.accounting import Accountant, UsageInputs
from queuectl.db.engine import DatabaseSettings
from queuectl.db.ports import Commit
from queuectl.db.usage import UsageLedger
from queuectl.domain.accounting import HOUR, UNITS, Accounting, LostWork
from queuectl.domain.commands import Action
from queuectl.domain.errors import Fenced, StaleSnapshot, StoreUnavailable
from queuectl.domain.events import Admit, Event, Evict, ObjectDeleted
from queuectl.domain.fleet import Fleet
from queuectl.domain.folding import Fold
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.measured import FRESH_SECONDS
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import Upserted
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.usage_reports import Grouping, Period
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import PodSet, PodShape
from queuectl.lifecycle.machine import handle
from queuectl.planner.cache import PlannerCache
from queuectl.state.gpu_holders import SampleLog
from queuectl.state.marking import Marker
from queuectl.state.mirror import Mirror
from tests.db.histories import HERE, Lives, ask, submitted
from tests.support.examples import examples
from tests.support.gpu_seconds import GpuSeconds, gpu_seconds
from tests.support.postgres import TestPostgres
from tests.support.relay import LATE, postgres_relay
from tests.support.stores import PostgresStore

RUNS = count()
WAITS = (State.PENDING, State.RESERVED, State.BACKOFF)
HOLDS = (State.STARTING, State.RUNNING, State.EVICTING)
GPUS = {"worker": 8, "master": 1}
CONFIG = QueueConfig(cluster_queues={"gpus": ClusterQueue("gpus", cohort="all")})


@dataclass
class Fragile:
    """UsageProgress whose next write can fail, before or after its effect."""

    real: UsageLedger
    fails: str = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    async def keep(self, fold: Fold, **place: object) -> None:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreUnavailable("away")
        await self.real.keep(fold, **place)  # type: ignore[arg-type]  # as they came
        if fails == "after":
            raise StoreUnavailable("the answer was lost")


def job(entry: Entry) -> JobRecord:
    """A job that requests as many GPUs as the entry has."""
    gpus = int(entry.gpus)
    workers = (gpus - 1) // GPUS["worker"]
    masters = gpus - workers * GPUS["worker"]
    podsets = tuple(
        PodSet(name, pods, PodShape(Resources({GPU: GPUS[name]})))
        for name, pods in (("worker", workers), ("master", masters))
    )
    return JobRecord(
        entry.kind, entry.namespace, entry.name, entry.uid, entry.version, 0.0, entry.queue, podsets
    )


def held(entry: Entry) -> int:
    """GPUs of its slots, computed independently."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    return sum(GPUS[p.podset] * pods for p in placed for _, pods in p.nodes)


@dataclass
class Sums:
    """Sums over the committed entries, up to a time."""

    lives: dict[str, list[tuple[float, Entry]]] = field(default_factory=dict)

    def committed(self, changes: list[EntryChange]) -> None:
        for change in changes:
            life = self.lives.setdefault(change.after.uid, [])
            life.append((change.at if life else change.after.queued_at, change.after))

    def at(self, end: float) -> Mapping[str, tuple[float, float]]:
        """GPU-seconds allocated and waited, by uid."""
        found = {}
        for uid, life in self.lives.items():
            spans = [*life, (end, life[-1][1])]
            sums: defaultdict[str, float] = defaultdict(float)
            for (start, entry), (stop, _) in pairwise(spans):
                if entry.state in HOLDS:
                    sums["held"] += (stop - start) * held(entry)
                elif entry.state in WAITS:
                    sums["waited"] += (stop - start) * entry.gpus
            found[uid] = (sums["held"], sums["waited"])
        return found


@dataclass
class World:
    """One database, one leader after the other, and simulated time."""

    store: PostgresStore
    lives: Lives
    sums: Sums = field(default_factory=Sums)
    mirror: Mirror = field(default_factory=lambda: Mirror({"jobs": "Job"}))
    samples: SampleLog = field(default_factory=SampleLog)
    now: float = 1_700_000_000.0
    epoch: int = 0

    async def lead(self) -> None:
        """Start another leader, which has only the database and the watch."""
        self.epoch = await self.store.take_over("test", 0)
        self.marker = Marker(self.mirror, self.lives.entries.values)
        self.samples = SampleLog()
        self.usage_store = Fragile(self.store.usage)
        self.facts = UsageInputs(
            marker=self.marker,
            live=lambda: [e for e in self.lives.entries.values() if e.state is not State.FINISHED],
            config=lambda: CONFIG,
            samples=self.samples.of,
            snapshot=lambda: Snapshot(self.now, Fleet(()), CONFIG),
        )
        self.accountant = self.accounting(self.usage_store)

    def accounting(self, usage_store: Any) -> Accountant:
        """A new accountant of this leader, without state."""
        return Accountant(usage_store, self.facts, lambda: self.now, self.epoch, PlannerCache())

    async def step(self, choices: list[tuple[int, int]], lag: float) -> None:
        """Commit the next steps of some workloads, which were decided ``lag`` seconds ago."""
        changes = [self._timed(c, lag) for c in self.lives.batch(choices)]
        self.mirror.apply([Upserted(job(change.after)) for change in changes])
        changes = self.marker.marked(changes, CONFIG)
        await self.store.commit(Commit(changes), epoch=self.epoch, cycle=1)
        self.lives.committed(changes)
        self.sums.committed(changes)

    def _timed(self, change: EntryChange, lag: float) -> EntryChange:
        at = self.now - lag
        after = replace(change.after, since=at)
        if change.before is None:
            after = replace(after, queued_at=at - 40.0, gpus=72 + 1)
        return replace(change, at=at, after=after)

    async def account(self, fails: str) -> None:
        self.usage_store.fails = fails
        try:
            await self.accountant.account()
        except StoreUnavailable:
            assert fails
        else:
            assert not fails
            assert not self.accountant._accounts.new, "no account is stored again"

    async def stored(self) -> Mapping[str, tuple[float, float]]:
        period = Period.around(self.now - 1e6, self.now + 1e6)
        report = await self.store.usage.report(period, Grouping.parse("workload"))
        assert report.as_of == self.now
        found: dict[str, tuple[float, float]] = {}
        for row in report.rows:
            a, uid = row.amounts, row.names["uid"]
            assert a.used + a.unknown + a.stuck <= a.allocated + UNITS / 1000
            was = found.get(uid, (0.0, 0.0))
            found[uid] = (was[0] + a.allocated / UNITS, was[1] + a.waited / UNITS)
        return found


async def empty(url: str) -> None:
    """Empty the usage ledger: one database serves all examples."""
    connection = await asyncpg.connect(url)
    tables = ["marks", "meters", "subjects", "hours", "losses", "fleet", "curves"]
    await connection.execute("TRUNCATE " + ", ".join(f"usage_{name}" for name in tables))
    await connection.execute("UPDATE usage_progress SET until = NULL")
    await connection.close()


LOST = ("before", "after")
CHOICES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 23)), min_size=1, max_size=4)
SPANS = st.sampled_from([0.0, 0.5, 7.25, 59.0, 1800.0, 5000.0])
ACTS = st.one_of(
    st.tuples(st.just("step"), CHOICES, SPANS),
    st.tuples(st.just("late step"), CHOICES, SPANS),
    st.tuples(st.just("account"), st.sampled_from(["", "", "before", "after"]), SPANS),
    st.tuples(st.just("another leader"), st.none(), SPANS),
)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(acts=st.lists(ACTS, min_size=3, max_size=24))
async def test_allocated_and_waited_are_those_of_the_committed_history(
    store: PostgresStore,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    acts: list[tuple[str, object, float]],
):
    monkeypatch.setattr(
        "queuectl.control.leader.accounting.BATCH", 3
    )  # entries of several transactions
    monkeypatch.setattr("queuectl.control.leader.accounting.MOST_HOURS", 4)
    await empty(database_url)
    world = World(store, Lives(f"run{next(RUNS)}"))
    await world.lead()
    for what, detail, span in acts:
        world.now += span
        match what:
            case "step":
                await world.step(detail, 0.0)  # type: ignore[arg-type]  # CHOICES
            case "late step":
                await world.step(detail, min(span, 0.4))  # type: ignore[arg-type]
            case "account":
                await world.account(str(detail))
            case _:
                await world.lead()
    world.now += 1.0
    await world.account("")
    assert await store.usage.marks(1) == ()
    stored = await world.stored()
    expected = world.sums.at(world.now)
    assert stored.keys() <= expected.keys()
    for uid, amounts in expected.items():
        assert stored.get(uid, (0.0, 0.0)) == pytest.approx(amounts, abs=1e-3), uid
    lossless = all(what != "another leader" and detail not in LOST for what, detail, _ in acts)
    for uid, (held_seconds, _) in expected.items():
        drawn = world.accountant._curves.get(uid) or (await store.usage.job(uid)).curve
        total = sum(p.held * (p.end - p.start) for p in drawn.points()) if drawn else 0.0
        assert total <= held_seconds * 1.001 + 1.0, "no time is in a curve twice"
        assert not lossless or total == pytest.approx(held_seconds, rel=1e-3, abs=1.0)


LOOKS = st.lists(
    st.one_of(
        st.none(),
        st.tuples(st.sampled_from(list(UseState)), st.sampled_from([None, 0.0, 0.25, 1.0])),
    ),
    min_size=4,
    max_size=4,
)
MEASURED = st.one_of(
    st.tuples(st.just("step"), CHOICES, SPANS),
    st.tuples(st.just("look"), LOOKS, st.sampled_from([1.5, 30.0, 60.0, 290.0])),
    st.tuples(st.just("look"), LOOKS, st.sampled_from([1.5, 30.0, 60.0, 290.0])),
    st.tuples(st.just("account"), st.sampled_from(["", "", "before", "after"]), SPANS),
    st.tuples(st.just("another leader"), st.none(), SPANS),
)


@dataclass
class Recorded:
    """Each evaluation, the leaders that know it, and how far each leader has accounted: the input of a split."""

    samples: list[tuple[int, GangUse]] = field(default_factory=list)
    entries: list[tuple[float, int]] = field(default_factory=list)

    def of(self, entry: Entry, moment: float) -> GangUse | None:
        """The evaluation for a moment: the next one that was known at its accounting, otherwise the last one, if it is recent."""
        until, leader = next(one for one in self.entries if one[0] > moment)
        known = [
            sample
            for epoch, sample in self.samples
            if epoch == leader and sample.at <= until and sample.uid == entry.uid
        ]
        mine = [sample for sample in known if sample.attempt == entry.attempt]
        later = [sample for sample in mine if sample.at > moment]
        earlier = [sample for sample in mine if sample.at <= moment]
        if later and moment > later[0].at - FRESH_SECONDS:
            return later[0]
        return earlier[-1] if earlier and moment < earlier[-1].at + FRESH_SECONDS else None

    def boundaries(self) -> set[float]:
        """The times at which another evaluation can begin to count."""
        at = {sample.at for _, sample in self.samples}
        near = {moment + by for moment in at for by in (-FRESH_SECONDS, FRESH_SECONDS)}
        return at | near | {until for until, _ in self.entries}

    def split(self, sums: Sums, end: float) -> Mapping[str, float]:
        """GPU-seconds used, idle, stuck and unknown, moment by moment."""
        found: defaultdict[str, float] = defaultdict(float)
        for life in sums.lives.values():
            for (start, entry), (stop, _) in pairwise([*life, (end, life[-1][1])]):
                if entry.state not in HOLDS:
                    continue
                inside = (moment for moment in self.boundaries() if start < moment < stop)
                for low, high in pairwise([start, *sorted(inside), stop]):
                    self._add(found, self.of(entry, (low + high) / 2), (high - low) * held(entry))
        return found

    @staticmethod
    def _add(found: defaultdict[str, float], sample: GangUse | None, amount: float) -> None:
        if sample is None or sample.utilization is None or sample.state is UseState.UNKNOWN:
            found["unknown"] += amount
        elif sample.state is UseState.STUCK:
            found["stuck"] += amount
        else:
            found["used"] += amount * sample.utilization
            found["idle"] += amount if sample.state is UseState.IDLE else 0.0


def evaluated(
    world: World, recorded: Recorded, states: list[tuple[UseState, float | None] | None]
) -> None:
    """An evaluation of the gangs that hold GPUs now, without a result for some of them."""
    uses = {}
    for who, seen in enumerate(states):
        entry = world.lives.entries.get(f"{world.lives.prefix}-{who}")
        if entry is not None and entry.state in HOLDS and seen is not None:
            state, used = seen
            uses[entry.uid] = GangUse(
                entry.uid, entry.attempt, state, 0.0, world.now, used, 1.0, ""
            )
    world.samples.note(uses, world.now)
    recorded.samples += [(world.epoch, use) for use in uses.values()]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(acts=st.lists(MEASURED, min_size=3, max_size=24))
async def test_used_and_idle_are_those_of_every_evaluation_after_any_failure(
    store: PostgresStore, database_url: str, acts: list[tuple[str, object, float]]
):
    """Starts, evictions, evaluations and entries at random times. Leaders fail and lose the state that they have not written."""
    await empty(database_url)
    world, recorded = World(store, Lives(f"looks{next(RUNS)}")), Recorded()
    await world.lead()
    for what, detail, span in [*acts, ("account", "", 1.0)]:
        world.now += span
        match what:
            case "step":
                await world.step(detail, 0.0)  # type: ignore[arg-type]  # CHOICES
            case "look":
                evaluated(world, recorded, detail)  # type: ignore[arg-type]  # LOOKS
            case "account":
                await world.account(str(detail))
                if detail != "before":
                    recorded.entries.append((world.now, world.epoch))
            case _:
                await world.lead()
    period = Period.around(world.now - 1e6, world.now + 1e6)
    report = await store.usage.report(period, Grouping.parse("cohort"))
    expected = recorded.split(world.sums, world.now)
    for name in ("used", "idle", "stuck", "unknown"):
        total = sum(getattr(row.amounts, name) for row in report.rows) / UNITS
        assert total == pytest.approx(expected[name], abs=1e-3), name


async def total(store: PostgresStore, now: float, reach: float = 1e6) -> GpuSeconds:
    period = Period.around(now - reach, now + reach)
    report = await store.usage.report(period, Grouping.parse("cohort"))
    (row,) = report.rows
    return gpu_seconds(row.amounts)


def until_it_runs(world: World) -> list[EntryChange]:
    """Submit and start one workload, as before the usage ledger existed."""
    first = submitted("old-0", at=world.now)
    return [first, handled(first.after, Admit(HERE), world.now)]


def handled(entry: Entry, event: Event, at: float) -> EntryChange:
    change = handle(entry, event, at)
    assert change is not None
    return change


async def test_a_gang_from_before_the_ledger_counts_from_its_first_entry_on(
    store: PostgresStore,
):
    world = World(store, Lives("old"))
    await world.lead()
    for change in until_it_runs(world):
        world.mirror.apply([Upserted(job(change.after))])
        await store.commit(Commit([change]), epoch=world.epoch, cycle=1)
        world.lives.committed([change])
    world.now += 1000.0
    await world.account("")
    world.now += 100.0
    await world.account("")
    assert (await total(store, world.now)).allocated == pytest.approx(65 * 100.0)


async def test_a_gang_that_ended_is_charged_by_its_last_evaluation(
    store: PostgresStore,
):
    world = World(store, Lives("old"))
    await world.lead()
    for change in until_it_runs(world):
        world.mirror.apply([Upserted(job(change.after))])
        marked = world.marker.marked([change], CONFIG)
        await store.commit(Commit(marked), epoch=world.epoch, cycle=1)
        world.lives.committed(marked)
    world.now += 60.0
    entry = world.lives.entries["old-0"]
    use = GangUse(entry.uid, 1, UseState.ACTIVE, 0.0, world.now, 0.5, 1.0, "")
    world.samples.note({entry.uid: use}, world.now)
    await world.account("")
    world.now += 20.0
    world.samples.note({}, world.now)
    over = world.marker.marked([handled(entry, ObjectDeleted(), world.now)], CONFIG)
    await store.commit(Commit(over), epoch=world.epoch, cycle=1)
    world.now += 40.0
    await world.account("")
    found = await total(store, world.now)
    assert found.allocated == pytest.approx(65 * 80.0)
    assert (found.used, found.unknown) == pytest.approx((65 * 40.0, 0.0))


async def test_workloads_without_a_mark_are_accounted_alongside_workloads_with_many(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queuectl.control.leader.accounting.BATCH", 3)
    world = World(store, Lives("old"))
    await world.lead()

    async def commit(change: EntryChange) -> Entry:
        marked = world.marker.marked([change], CONFIG)
        await store.commit(Commit(marked), epoch=world.epoch, cycle=1)
        return change.after

    busy = await commit(submitted("old-0", at=world.now))
    quiet = submitted("old-1", at=world.now)
    await commit(replace(quiet, after=replace(quiet.after, gpus=10)))
    await world.account("")
    for action in (Action.HOLD, Action.RELEASE, Action.HOLD):
        world.now += 10.0
        busy = await commit(handled(busy, ask(action), world.now))
    world.now += 10.0
    await world.account("")
    found = await total(store, world.now)
    assert (found.waited, found.waiting) == pytest.approx((10 * 40.0, 40.0 + 20.0))


async def test_a_job_that_is_submitted_again_waits_from_then_on(store: PostgresStore):
    world = World(store, Lives("old"))
    await world.lead()
    created = world.now
    first = submitted("old-0", at=created)
    first = replace(first, after=replace(first.after, gpus=1))
    world.now += 60.0
    over = handled(first.after, ObjectDeleted(), world.now)
    for change in (first, over):
        marked = world.marker.marked([change], CONFIG)
        await store.commit(Commit(marked), epoch=world.epoch, cycle=1)
    await world.account("")
    world.now += 1000.0
    again = replace(first, at=world.now, after=replace(first.after, queued_at=created))
    marked = world.marker.marked([again], CONFIG)
    await store.commit(Commit(marked), epoch=world.epoch, cycle=1)
    world.now += 30.0
    await world.account("")
    assert (await total(store, world.now)).waited == pytest.approx(60.0 + 30.0)


def transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of hours of workloads in each transaction from now on."""
    written: list[int] = []
    keep = world.usage_store.keep

    async def noted(fold: Fold, **place: Any) -> None:
        written.append(len(fold.hours))
        await keep(fold, **place)

    monkeypatch.setattr(world.usage_store, "keep", noted)
    return written


async def test_the_time_of_a_long_outage_is_accounted_for_in_several_transactions(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("queuectl.control.leader.accounting.MOST_HOURS", 20)
    world = World(store, Lives(f"run{next(RUNS)}"))
    await world.lead()
    await world.step([(0, 0), (1, 0)], 0.0)
    await world.account("")
    world.now += 3 * 24 * HOUR
    written = transactions(world, monkeypatch)
    await world.account("")
    assert sum(written) >= 2 * 3 * 24
    assert max(written) <= 20 + 2, "the first and the last hour are parts"
    for uid, amounts in world.sums.at(world.now).items():
        assert (await world.stored())[uid] == pytest.approx(amounts)


async def commit(world: World, changes: list[EntryChange]) -> list[EntryChange]:
    """Commit changes with their marks. They are in the database, and not yet in the memory of the leader."""
    marked = world.marker.marked(changes, CONFIG)
    await world.store.commit(Commit(marked), epoch=world.epoch, cycle=1)
    return marked


async def test_jobs_that_are_older_than_the_ledger_are_accounted_for_in_several_transactions(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    """They get their queue label long after their creation."""
    monkeypatch.setattr("queuectl.control.leader.accounting.MOST_HOURS", 100)
    world = World(store, Lives("old"))
    await world.lead()
    await world.account("")
    age = 3 * 24 * HOUR
    old = [submitted(f"old-{number}", at=world.now - age) for number in range(5)]
    await commit(world, [replace(one, at=world.now) for one in old])
    written = transactions(world, monkeypatch)
    world.now += 60.0
    await world.account("")
    assert sum(written) >= 5 * 3 * 24
    assert max(written) <= 100 + 10
    assert (await total(store, world.now)).waiting == pytest.approx(5 * (age + 60.0))


async def test_a_job_waits_no_longer_than_hours_are_kept(store: PostgresStore):
    """Its earlier hours would be deleted at once."""
    world = World(store, Lives("old"))
    await world.lead()
    await world.account("")
    await commit(world, [replace(submitted("old-0", at=world.now - 1e9), at=world.now)])
    world.now += 60.0
    await world.account("")
    kept = Accounting().keep_days * 24 * HOUR
    assert (await total(store, world.now, 1e9)).waiting == pytest.approx(kept + 60.0, abs=61.0)


async def test_a_gang_that_ends_while_marks_are_read_is_not_taken_for_one_without_marks(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise it would be charged without an end: no mark follows."""
    monkeypatch.setattr("queuectl.control.leader.accounting.BATCH", 2)
    world = World(store, Lives("old"))
    await world.lead()
    for change in until_it_runs(world):
        world.mirror.apply([Upserted(job(change.after))])
        world.lives.committed(await commit(world, [change]))
    await world.account("")
    world.accountant = world.accounting(world.usage_store)  # as after an error
    world.now += 60.0
    entry = world.lives.entries["old-0"]
    last = [handled(entry, ObjectDeleted(), world.now), submitted("old-1", at=world.now)]
    read, ended = store.usage.marks, list[EntryChange]()

    async def marks(limit: int) -> Any:
        if not ended:
            ended.extend(await commit(world, last))
        return await read(limit)

    monkeypatch.setattr(store.usage, "marks", marks)
    await world.account("")
    world.lives.committed(ended)
    world.now += 600.0
    await world.account("")
    assert "old-0" not in (await store.usage.progress()).meters
    assert (await total(store, world.now)).allocated == pytest.approx(65 * 60.0)


async def test_the_time_between_a_backup_and_its_restore_is_not_accounted_for(
    store: PostgresStore,
):
    world = World(store, Lives("old"), now=await store.now() - 10_000.0)
    await world.lead()
    for change in until_it_runs(world):
        world.mirror.apply([Upserted(job(change.after))])
        world.lives.committed(await commit(world, [change]))
    await world.account("")  # the backup was made at this time
    world.epoch = await store.take_over("test", world.epoch + 5)  # the Lease knows later leaders
    world.now = await store.now()
    world.accountant = world.accounting(world.usage_store)
    await world.account("")
    world.now += 60.0
    await world.account("")
    assert (await total(store, world.now)).allocated == pytest.approx(65 * 60.0, abs=65 * 10.0)


async def test_a_deposed_leader_writes_no_hours(store: PostgresStore):
    world = World(store, Lives("old"))
    await world.lead()
    await world.account("")
    await store.take_over("another", 0)
    world.now += 60.0
    with pytest.raises(Fenced):
        await world.accountant.account()


async def test_the_next_leader_knows_what_gangs_are_charged_for(store: PostgresStore):
    world = World(store, Lives("old"))
    await world.lead()
    first, start = until_it_runs(world)
    entry = start.after
    world.mirror.apply([Upserted(job(entry))])
    for change in (first, start):
        world.lives.committed(await commit(world, [change]))
    await world.lead()
    await world.account("")
    world.mirror.apply([Upserted(replace(job(entry), version=entry.version + 1, podsets=()))])
    world.now += 50.0
    eviction = handled(entry, Evict(Reason(Code.NODE_FAILURES)), world.now)
    (change,) = world.marker.marked([eviction], CONFIG)
    assert change.marks[0].loss == LostWork("NodeFailures", 50.0 * held(entry))


async def test_two_leaders_that_account_for_the_same_time_count_it_once(store: PostgresStore):
    world = World(store, Lives("old"))
    await world.lead()
    await world.account("")
    twin = world.accounting(store.usage)
    await twin.account()
    world.now += 60.0
    await world.account("")
    with pytest.raises(StaleSnapshot):
        await twin.account()
    await twin.account()


async def test_an_abandoned_fold_that_succeeds_later_is_not_added_twice(
    postgres: TestPostgres, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "queuectl.control.leader.accounting.BATCH", 1
    )  # entries of several transactions
    async with (
        connected(database_url) as direct,
        postgres_relay(postgres.server.sockets) as (relay, sockets),
        connected(database_url.replace(str(postgres.server.sockets), str(sockets))) as store,
    ):
        world = World(direct, Lives("late"))
        await world.lead()
        for span in (0.0, 100.0, 50.0):  # is pending, starts, and runs on
            world.now += span
            await world.step([(0, 6)], 0.0)
            if not span:
                await world.account("")
        world.now += 100.0
        world.usage_store = Fragile(store.usage)
        world.accountant = world.accounting(world.usage_store)
        late = iter([LATE])
        relay.judge = lambda asked: (
            next(late, None) if asked.does.startswith("COMMIT after INSERT INTO usage_") else None
        )
        with pytest.raises(StoreUnavailable):
            await world.accountant.account()
        assert relay.struck
        with contextlib.suppress(StaleSnapshot):  # nothing was written: the ledger is read again
            await world.accountant.account()
        await world.accountant.account()
        (stored,), (expected,) = (
            (await world.stored()).values(),
            world.sums.at(world.now).values(),
        )
        assert stored == pytest.approx(expected, abs=1e-3)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.connect(DatabaseSettings(url))
    try:
        yield opened
    finally:
        await opened.close()
