"""The process of shadow mode, on doubles of the store and of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from queuectl.control.progress import SteadyClock
from queuectl.control.settings import Settings
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterUnavailable, WriteConflict
from queuectl.domain.records import LeaderRecord
from queuectl.domain.shadow_trace import SimulatedReport, TracedState
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.configuration.owners import FOLLOWED, Owner
from queuectl.objects.kinds import KINDS
from queuectl.ownership.source import ObjectWatcher
from queuectl.shadow.loop import ShadowLoop
from queuectl.shadow.simulation import SimulationFailed
from queuectl.telemetry.metrics import MetricsRecorder
from tests.db.conformance import SHADOW_SIMULATED
from tests.doubles.objects import MemoryObjects
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support import polling
from tests.unit.test_shadow_observing import node, queues, workload

until = partial(polling.until, seconds=60.0)

INTERVAL = 0.02


class Objects:
    """The objects of a cluster, and its Lease. ``failure``: of each list."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = [node("a"), workload("w", 1, 8)]
        self.failure: Exception | None = None
        self.lists = 0
        self.leader: LeaderRecord | None = None

    async def objects(self) -> list[dict[str, Any]]:
        self.lists += 1
        if self.failure is not None:
            raise self.failure
        return self.bodies

    async def read_leader(self) -> LeaderRecord | None:
        return self.leader

    async def write_leader(self, record: LeaderRecord, over: LeaderRecord | None) -> LeaderRecord:
        version = self.leader.version if self.leader is not None else ""
        if version != (over.version if over is not None else ""):
            raise WriteConflict("another process wrote the lease")
        written = str(int(version or 0) + 1)
        self.leader = LeaderRecord(
            record.holder, record.epoch, record.renewed, record.duration, written
        )
        return self.leader


class Rig:
    """A database and a cluster, with processes of shadow mode."""

    clock = staticmethod(SteadyClock)

    def __init__(self) -> None:
        self.objects: MemoryObjects | None = MemoryObjects()
        self.objects.apply(*queues())
        self.database = MemoryDatabase()
        self.cluster = Objects()
        self.loop: ShadowLoop
        self.simulations = 0
        self.refuses = False

    async def simulation(self, setting: Snapshot, now: float) -> SimulatedReport:
        """A report with the extent of the trace."""
        self.simulations += 1
        if self.refuses:
            raise SimulationFailed("status 1")
        whole = await MemoryStore(self.database).shadow.trace(0.0)
        assert whole is not None
        span, gangs = whole.span, len(whole.gangs)
        assert setting.config.cluster_queues
        return replace(
            SHADOW_SIMULATED, began=span.began, until=span.until, made_at=now, gangs=gangs
        )

    @property
    def fitted(self) -> float:
        """Seconds for which gangs fitted."""
        return sum(one.fitting for one in self.database.shadow.hours.values())

    def fitted_longer_than(self, seconds: float) -> bool:
        return self.fitted > seconds

    @asynccontextmanager
    async def running(self, holder: str = "first") -> AsyncIterator[ShadowLoop]:
        settings = Settings(shadow=True, holder=holder, lease_duration=0.4, lease_renew=0.05)
        times = {"shadow_seconds": INTERVAL, "shadow_simulation_seconds": 5 * INTERVAL}
        settings = settings.model_copy(update={**times, "configuration_settle_seconds": 0.0})
        clock = self.clock()
        loop = ShadowLoop(
            store=MemoryStore(self.database),
            cluster=self.cluster,
            settings=settings,
            clock=clock,
            kinds=KINDS,
            containment=Containment(clock),
            simulation=self.simulation,
            metrics=MetricsRecorder(),
            objects=self.objects,
        )
        stop = asyncio.Event()
        task = asyncio.create_task(loop.run(stop))
        try:
            yield loop
        finally:
            stop.set()
            await task


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_observations_are_stored_and_the_process_is_ready_after_the_first(rig: Rig):
    async with rig.running() as loop:
        assert loop.blockers() == ["no observation yet"]  # it has not read the Lease either
        await until(lambda: rig.fitted > 0.0)
        assert loop.blockers() == []
        assert loop.stalled() == ""
    [record] = rig.database.shadow.gangs.values()
    assert (record.gang.name, record.fits_since) == ("w", record.first_at)
    assert rig.cluster.leader is not None
    assert rig.cluster.leader.holder == "", "the lease is released"


async def test_the_ledger_of_a_live_queuectl_stays_empty(rig: Rig):
    async with rig.running():
        await until(lambda: rig.fitted > 0.0)
    assert (rig.database.entries, rig.database.history, rig.database.commands) == ({}, [], {})


async def test_a_list_that_fails_is_not_an_empty_cluster(rig: Rig):
    async with rig.running() as loop:
        await until(lambda: rig.fitted > 0.0)
        rig.cluster.failure = ClusterUnavailable("pods: 503")
        await until(lambda: loop.blockers() != [])
        assert loop.blockers() == ["the last observation failed: pods: 503"]
        last, lists = rig.database.shadow.last, rig.cluster.lists
        await until(lambda: rig.cluster.lists > lists + 1)
        assert rig.database.shadow.last == last
        rig.cluster.failure = None
        await until(lambda: loop.blockers() == [])


async def test_only_one_replica_observes_and_the_next_one_continues(rig: Rig):
    async with rig.running("first") as first:
        await until(lambda: rig.fitted > 0.0)
        async with rig.running("second") as second:
            await asyncio.sleep(5 * INTERVAL)
            assert second.blockers() == []
            before = rig.fitted
            assert first.blockers() == []
    async with rig.running("third"):
        await until(lambda: rig.fitted > before)
    [record] = rig.database.shadow.gangs.values()
    assert record.fitted == pytest.approx(rig.fitted)


async def test_an_observation_of_a_deposed_leader_is_not_stored(rig: Rig):
    async with rig.running():
        await until(lambda: rig.fitted > 0.0)
        rig.database.epoch += 1  # another process has taken over
        await until(lambda: rig.cluster.leader is not None and rig.cluster.leader.epoch > 2)
        before = rig.fitted
        await until(lambda: rig.fitted > before)


async def test_the_simulated_report_follows_the_records(rig: Rig):
    async with rig.running() as loop:
        await until(lambda: rig.database.shadow.simulated is not None)
        first = rig.database.shadow.simulated
        assert first is not None
        assert first.gangs == 1
        await until(lambda: rig.database.shadow.simulated != first)
        assert loop.blockers() == []


async def test_a_simulation_that_fails_is_tried_again_and_observations_go_on(rig: Rig):
    rig.refuses = True
    async with rig.running() as loop:
        await until(lambda: rig.simulations > 1)
        before = rig.fitted
        await until(lambda: rig.fitted > before)
        assert loop.blockers() == []
        rig.refuses = False
        await until(lambda: rig.database.shadow.simulated is not None)


async def test_the_trace_of_a_new_leader_continues(rig: Rig):
    async with rig.running("first"):
        await until(lambda: rig.fitted > 0.0)
    before = rig.database.shadow.span
    async with rig.running("second"):
        await until(lambda: rig.database.shadow.span != before)
    [gang] = rig.database.shadow.traced.values()
    assert before is not None
    assert (gang.arrived, gang.gone) == (before.began, None)


# ---- The configuration


def fits(rig: Rig) -> bool:
    """Whether the waiting gang fits at the last observation."""
    last = rig.database.shadow.last
    return last is not None and bool(last.fits)


def left_out(rig: Rig) -> str:
    last = rig.database.shadow.last
    return "; ".join(last.left_out) if last is not None else ""


async def test_each_observation_has_the_configuration_of_the_objects(rig: Rig):
    assert rig.objects is not None
    async with rig.running():
        await until(lambda: fits(rig))
        rig.objects.apply(queues(quota=4)[1])
        await until(lambda: not fits(rig))
        assert rig.objects.writes == []


async def test_objects_that_are_not_known_or_not_valid_leave_the_last_configuration(rig: Rig):
    assert rig.objects is not None
    _, queue, _ = queues()
    async with rig.running():
        await until(lambda: fits(rig))
    rig.objects.apply({**queue, "spec": {**queue["spec"], "queueingStrategy": "Random"}})
    rig.objects.unknown["localqueues"] = "403"
    async with rig.running():
        await until(lambda: "localqueues.kueue.x-k8s.io: 403" in left_out(rig))
        assert "ClusterQueue pool: " in left_out(rig)
        assert fits(rig)


class UnlistedObjects(MemoryObjects):
    """An API server that does not answer."""

    async def watch(self, observer: ObjectWatcher) -> None:
        del observer
        await asyncio.Event().wait()


async def test_a_leader_is_not_ready_before_it_knows_the_configuration(rig: Rig):
    rig.objects = UnlistedObjects()
    async with rig.running() as loop:
        await until(lambda: loop.blockers() == ["no observation yet"])
        assert rig.cluster.lists == 0


async def test_without_any_configuration_observations_are_recorded(rig: Rig):
    """A cluster without Kueue: its kinds do not exist."""
    rig.objects = MemoryObjects()
    rig.objects.unknown = {kind.plural: "does not exist" for kind in FOLLOWED[Owner.KUEUE]}
    async with rig.running() as loop:
        await until(lambda: "clusterqueues.kueue.x-k8s.io: does not exist" in left_out(rig))
        assert loop.blockers() == []
    assert rig.database.shadow.last is not None
    assert rig.database.shadow.last.gpus == 8.0


async def test_the_database_can_own_the_configuration(rig: Rig):
    rig.objects = None
    store = MemoryStore(rig.database)
    for document in queues():
        await store.put_config(document)
    async with rig.running():
        await until(lambda: fits(rig))


# ---- Faults


class Clock(SteadyClock):
    """A clock that a test sets forward and back."""

    jump = 0.0

    def __call__(self) -> float:
        return super().__call__() + Clock.jump


async def test_a_clock_that_jumps_adds_no_time(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Rig, "clock", Clock)
    began = asyncio.get_running_loop().time()
    async with rig.running():
        for jump in (0.0, 86400.0, -7200.0, 60.0):
            monkeypatch.setattr(Clock, "jump", jump)
            before = rig.fitted
            await until(partial(rig.fitted_longer_than, before))
    assert rig.fitted <= asyncio.get_running_loop().time() - began


async def test_an_hour_without_a_database_is_not_observed_and_observations_go_on_after_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Rig, "clock", Clock)
    async with rig.running() as loop:
        await until(lambda: rig.fitted > 0.0)
        rig.database.down = True
        await until(lambda: loop.blockers() != [])
        before = rig.fitted
        monkeypatch.setattr(Clock, "jump", 3600.0)
        rig.database.down = False
        await until(lambda: rig.fitted > before)
        await until(lambda: loop.blockers() == [])
    assert rig.fitted < 3600.0
    span = rig.database.shadow.span
    assert span is not None
    assert [gap.most - gap.least >= 3600.0 for gap in span.gaps] == [True]
    [gang] = rig.database.shadow.traced.values()
    assert (gang.state, gang.attempts, gang.gone) == (TracedState.WAITING, (), None)


async def test_a_restart_in_the_middle_of_an_hour_counts_no_time_twice(rig: Rig):
    clock = asyncio.get_running_loop().time
    began = clock()
    for number in range(4):
        before = rig.fitted
        async with rig.running(f"process-{number}"):
            await until(partial(rig.fitted_longer_than, before))
    assert rig.fitted <= clock() - began
    [record] = rig.database.shadow.gangs.values()
    assert record.fitted == pytest.approx(rig.fitted)
    [gang] = rig.database.shadow.traced.values()
    assert gang.state is TracedState.WAITING
