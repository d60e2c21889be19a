"""Idle gangs are warned, evicted by the mode of their queue, and requeued, even if the controller is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from queuectl.domain.accounting import HOUR
from queuectl.domain.arrays import index_uid
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import HistoryLine
from queuectl.domain.reasons import Code
from queuectl.domain.usage_reports import Grouping, Period
from queuectl.domain.utilization import GangUse, UseState
from queuectl.planner.preempt.cost import RESTART_COST
from tests.control.rig import QUICK, Rig, configuration, gang, rig
from tests.control.test_crash_matrix import dying, fresh, several
from tests.control.test_elastic import elastic
from tests.control.test_pastuse import Clock
from tests.doubles.cluster import Moment
from tests.support.postgres import TestPostgres

GRACE, REST = 30.0, 40.0
PATIENCE = 2.0 * (QUICK.utilization.evaluation_seconds + QUICK.utilization.timeout_seconds)

NOTICE = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "queuectl": {"evictionGrace": "24h"},
}


@dataclass
class Watched:
    """A rig in which one second passes per evaluation. The gangs in ``idle`` have idle GPUs; the others use theirs."""

    world: Rig
    clock: Clock
    idle: set[str] = field(default_factory=set)
    unknown: bool = False
    blind: bool = False  # no more evaluations exist

    def look(self) -> None:
        self.clock.now += 1.0
        loop = self.world.loop
        if loop is None or self.blind:
            return
        before, uses = loop.leader_state.gang_uses, {}
        for entry in loop.leader_state.ledger.entries(State.RUNNING):
            state = UseState.IDLE if entry.uid in self.idle else UseState.ACTIVE
            uses[entry.uid] = self._use(
                entry, UseState.UNKNOWN if self.unknown else state, before.get(entry.uid)
            )
        loop.measured(uses)

    def _use(self, entry: Entry, state: UseState, was: GangUse | None) -> GangUse:
        now = self.clock.now
        same = was is not None and (was.attempt, was.state) == (entry.attempt, state)
        since = was.since if was is not None and same else now
        used = {UseState.IDLE: 0.0, UseState.ACTIVE: 1.0}.get(state)
        return GangUse(entry.uid, entry.attempt, state, since, now, used, 1.0, "seen", used)

    async def until(self, done: Callable[[], Any], what: str) -> None:
        def evaluated() -> Any:
            self.look()
            return done()

        await self.world.until(evaluated, what)

    async def until_state(self, uid: str, state: State, attempt: int = 1) -> Entry:
        found: list[Entry] = []

        async def reached() -> bool:
            entry = await self.world.store.get_workload(uid)
            if entry is not None and entry.state is state and entry.attempt >= attempt:
                found.append(entry)
            return bool(found)

        await self.until(reached, f"{uid} {state}, attempt {attempt}")
        return found[0]

    async def until_line(self, uid: str, code: Code, times: int = 1) -> list[HistoryLine]:
        async def has_lines() -> bool:
            return len(await self.lines(uid, code)) >= times

        await self.until(has_lines, f"{uid} has {times} lines of {code}")
        return await self.lines(uid, code)

    async def wait(self, seconds: float) -> None:
        """Let three seconds pass per evaluation: for periods without an expected change."""
        end = self.clock.now + seconds

        def passed() -> bool:
            self.clock.now += 2.0
            return self.clock.now >= end

        await self.until(passed, "time passes")

    async def lines(self, uid: str, *codes: Code) -> list[HistoryLine]:
        """The lines of its history with these codes."""
        found = await self.world.store.history(uid, 0, 500)
        return [line for line in found if line.reason.code in codes]

    def events(self, uid: str) -> list[str]:
        """Reasons of the Events on a job, in order."""
        return [e.reason for e in self.world.cluster.events if e.uid == uid]

    def counted(self, result: str) -> float | None:
        labels = {"cluster_queue": "pool", "result": result}
        registry = self.world.metrics.registry
        return registry.get_sample_value("queuectl_idle_reclaim_total", labels)


@asynccontextmanager
async def reclaiming(url: str, mode: str, **rule: Any) -> AsyncIterator[Watched]:
    """Two nodes, and a queue for both that reclaims idle gangs."""
    clock = Clock()
    async with rig(url, 2, clock=clock) as world:
        world.look_seconds = 0.0  # its clock advances with each evaluation
        (document,) = (d for d in configuration(16) if d["kind"] == "ClusterQueue")
        idle = {"mode": mode, "graceSeconds": GRACE, "cooldownSeconds": REST, **rule}
        spec = {**document["spec"], "policy": {"idleReclaim": idle}}
        await world.store.put_config({**document, "apiVersion": "queuectl.dev/v1", "spec": spec})
        yield Watched(world, clock)


async def one_idle(watched: Watched, pods: int = 2) -> str:
    uid = watched.world.cluster.submit(gang("Job", "sleepy", pods))
    await watched.until_state(uid, State.RUNNING)
    watched.idle = {uid}
    return uid


async def story(watched: Watched) -> str:
    """A gang is idle, is warned twice and evicted. After its second start it uses its GPUs, and ends."""
    uid = await one_idle(watched)
    await watched.until_state(uid, State.BACKOFF)
    watched.idle = set()
    again = await watched.until_state(uid, State.RUNNING, attempt=2)
    assert again.evictions == 1
    watched.world.cluster.finish(uid)
    await watched.until_state(uid, State.FINISHED)
    await watched.world.at_rest()
    return uid


class TestAlways:
    async def test_an_idle_gang_is_warned_twice_then_evicted_and_starts_again_after_a_back_off(
        self, database_url: str
    ) -> None:
        async with reclaiming(database_url, "Always") as watched:
            uid = await story(watched)
            first, second = await watched.lines(uid, Code.IDLE_GPUS)
            (taken,) = await watched.lines(uid, Code.IDLE_RECLAIMED)
            assert second.at >= first.at + GRACE / 2
            assert taken.at >= first.at + GRACE
            (rests,) = await watched.lines(uid, Code.BACKOFF)
            starts = await watched.lines(uid, Code.ADMITTED)
            assert starts[1].at >= rests.at + REST
            assert taken.reason.details["lostGpuSeconds"] == RESTART_COST
            reasons = [r for r in watched.events(uid) if r.startswith("Idle")]
            assert reasons == ["IdleGPUs", "IdleGPUs", "IdleReclaimed"]
            assert watched.counted("always") == 1
            assert watched.counted("warned") == 2

    async def test_what_it_lost_is_in_the_usage_ledger(self, database_url: str) -> None:
        async with reclaiming(database_url, "Always") as watched:
            watched.world.settings = QUICK.model_copy(update={"account_seconds": 0.02})
            await story(watched)
            now = watched.clock.now

            async def in_it() -> bool:
                leader_state = await watched.world.store.usage.progress()
                return (
                    leader_state.until is not None
                    and leader_state.until > now
                    and not leader_state.meters
                )

            await watched.until(in_it, "the usage ledger is complete")
            period = Period.around(now - 2 * HOUR, now + HOUR)
            report = await watched.world.store.usage.report(period, Grouping.parse("clusterqueue"))
            losses = [row.losses["IdleReclaimed"] for row in report.rows if row.losses]
            assert [(loss.gpu_seconds, loss.evictions) for loss in losses] == [(RESTART_COST, 1)]
            assert sum(row.lost_to_others for row in report.rows) == RESTART_COST

    async def test_a_pending_gang_has_the_reason_before_the_idle_gang_is_evicted(
        self, database_url: str
    ) -> None:
        # Without a grace period it can be reclaimed on demand before its eviction: that evaluation requests no plan.
        async with reclaiming(database_url, "Always", graceSeconds=0) as watched:
            await watched.world.store.put_config(NOTICE)
            uid = await one_idle(watched)
            waits = watched.world.cluster.submit(gang("Job", "waits", 2))
            await watched.until_state(uid, State.EVICTING)

            async def has_lines() -> bool:
                entry = await watched.world.store.get_workload(waits)
                return entry is not None and entry.reason.code is Code.WAITING_FOR_PREEMPTED

            await watched.until(has_lines, "it waits for the idle gang to be evicted")
            assert (await watched.until_state(uid, State.EVICTING)).stop_at is not None

    async def test_reading_the_ledger_again_resets_no_warning(self, database_url: str) -> None:
        async with reclaiming(database_url, "Always") as watched:
            uid = await one_idle(watched)
            await watched.until_line(uid, Code.IDLE_GPUS)
            assert watched.world.loop is not None
            watched.world.loop.leader_state.load(await watched.world.store.load())
            await watched.until_state(uid, State.BACKOFF)
            assert len(await watched.lines(uid, Code.IDLE_GPUS)) == 2

    async def test_a_gang_that_works_again_in_time_stays(self, database_url: str) -> None:
        async with reclaiming(database_url, "Always") as watched:
            uid = await one_idle(watched)
            await watched.until_line(uid, Code.IDLE_GPUS, 2)
            watched.idle = set()
            await watched.wait(3 * GRACE)
            watched.idle = {uid}
            lines = await watched.until_line(uid, Code.IDLE_GPUS, 3)
            assert lines[2].reason.details["warning"] == 1, "the warnings begin again"
            assert await watched.lines(uid, Code.IDLE_RECLAIMED) == []

    async def test_an_elastic_gang_stays_while_a_pod_that_was_added_to_it_works(
        self, database_url: str
    ) -> None:
        async with reclaiming(database_url, "Always") as watched:
            uid = watched.world.cluster.submit(elastic("train", 1, 2))
            added = index_uid(uid, 1)
            await watched.until_state(added, State.RUNNING)
            watched.idle = {uid}
            await watched.wait(2 * GRACE)
            assert (await watched.world.entry(uid)).state is State.RUNNING
            assert not await watched.lines(uid, Code.IDLE_GPUS)
            watched.idle = {uid, added}
            await watched.until_state(uid, State.BACKOFF)

    @pytest.mark.parametrize("how", ["unknown", "blind"])
    async def test_no_gang_is_evicted_while_its_use_is_unknown(
        self, database_url: str, how: str
    ) -> None:
        async with reclaiming(database_url, "Always") as watched:
            uid = await one_idle(watched)
            await watched.until_line(uid, Code.IDLE_GPUS, 2)
            setattr(watched, how, True)
            await watched.wait(2 * GRACE + PATIENCE)
            assert (await watched.until_state(uid, State.RUNNING)).attempt == 1
            assert await watched.lines(uid, Code.IDLE_RECLAIMED) == []

    @pytest.mark.timeout(600)
    async def test_a_new_leader_warns_again_with_a_full_grace_period_at_any_point_of_failure(
        self, postgres: TestPostgres
    ) -> None:
        async with fresh(postgres) as url, reclaiming(url, "Always") as watched:
            uid = await one_idle(watched)
            ran = watched.world.commits.seen
            await watched.until_state(uid, State.BACKOFF)
            rests = watched.world.commits.seen
        assert rests >= ran + 4, "two warnings, the eviction, and the deletion of the last pod"

        async def once(what: str, number: int, moment: Moment) -> None:
            async with fresh(postgres) as url, reclaiming(url, "Always") as watched:
                with dying(watched.world, what, number, moment):
                    uid = await one_idle(watched)
                    await watched.until_line(uid, Code.IDLE_RECLAIMED)
                    await watched.until_state(uid, State.BACKOFF)
                    watched.idle = set()
                    await watched.until_state(uid, State.RUNNING, attempt=2)
                (taken,) = await watched.lines(uid, Code.IDLE_RECLAIMED)
                warned = await watched.lines(uid, Code.IDLE_GPUS)
                own = [line.at for line in warned if line.epoch == taken.epoch]
                assert taken.at >= own[0] + GRACE, f"killed {moment.name} {what} {number}"

        steps = range(ran + 1, rests + 1)
        await several(once, [("commit", number, moment) for number in steps for moment in Moment])


class TestDryRun:
    async def test_it_reports_once_which_gang_would_be_evicted_and_evicts_none(
        self, database_url: str
    ) -> None:
        async with reclaiming(database_url, "DryRun", yieldsToEqualPriority=True) as watched:
            sleepy = await one_idle(watched)
            waits = watched.world.cluster.submit(gang("Job", "waits", 2))
            (line,) = await watched.until_line(sleepy, Code.WOULD_RECLAIM)
            await watched.wait(GRACE)
            assert len(await watched.lines(sleepy, Code.WOULD_RECLAIM)) == 1
            assert line.reason.details["preemptor"] == waits
            assert line.reason.details["lostGpuSeconds"] == RESTART_COST
            assert line.reason.details["gpus"] == 16
            assert "would be evicted for default/waits" in line.reason.message
            assert watched.counted("would_reclaim") == 1
            assert (await watched.until_state(sleepy, State.RUNNING)).attempt == 1
            await watched.until(
                lambda: "WouldReclaim" in watched.events(sleepy), "an Event on the job"
            )


class TestOnDemand:
    async def test_an_idle_gang_is_evicted_for_a_gang_of_equal_priority_and_runs_again(
        self, database_url: str
    ) -> None:
        async with reclaiming(database_url, "OnDemand", yieldsToEqualPriority=True) as watched:
            sleepy = await one_idle(watched)
            waits = watched.world.cluster.submit(gang("Job", "waits", 2))
            await watched.until_state(waits, State.RUNNING)
            (warned, *_) = await watched.lines(sleepy, Code.IDLE_GPUS)
            (taken,) = await watched.lines(sleepy, Code.PREEMPTED)
            assert taken.reason.details["why"] == "IdleReclaim"
            assert taken.at >= warned.at + GRACE
            assert watched.counted("on_demand") == 1
            watched.world.cluster.finish(waits)
            await watched.until_state(sleepy, State.RUNNING, attempt=2)

    async def test_no_gang_is_evicted_without_a_pending_gang(self, database_url: str) -> None:
        async with reclaiming(database_url, "OnDemand", yieldsToEqualPriority=True) as watched:
            sleepy = await one_idle(watched)
            await watched.wait(4 * GRACE)
            assert (await watched.until_state(sleepy, State.RUNNING)).attempt == 1
