"""An unexpected error about one workload sets that workload aside: others start in the meantime, and it starts when the error ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from queuectl.cluster import stream
from queuectl.cluster.stream import LEVELS
from queuectl.control.checked_plan import checked_plan
from queuectl.control.leader.actuator import Actuator
from queuectl.control.leader.leader_state import LeaderState
from queuectl.db.commands import add
from queuectl.db.ports import Commit
from queuectl.db.tables import commands
from queuectl.demo import scenario as m
from queuectl.demo.scenario import PodSetManifest
from queuectl.domain.commands import DONE, Action, Command
from queuectl.domain.containment import Boundary, Containment
from queuectl.domain.errors import StoreError
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import State
from queuectl.domain.reasons import WAITS_FOR_ROOM, Code
from queuectl.domain.records import Upserted
from queuectl.lifecycle import observations
from queuectl.mig.reconfigurer import MigReconfigurer
from queuectl.objects.kinds.groups import PodGroup
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.verify import PlanRule, PlanViolation, verify
from queuectl.state.blocking_reasons import BlockingReasons
from queuectl.state.mirror import Mirror
from queuectl.state.pending_window import PendingWindow
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_admission_checks import RETRY, held, report, with_checks
from tests.control.test_pod_groups import group_entry, pod
from tests.doubles.cluster import FakeCluster
from tests.support.stores import PostgresStore

pytestmark = pytest.mark.sets_aside

POISON = "poison"


class Poison:
    """An error that concerns the workloads of one name until it is repaired."""

    def __init__(self) -> None:
        self.repaired = False
        self.raised = 0

    def check(self, name: str, error: type[Exception] = RuntimeError) -> None:
        if name.startswith(POISON) and not self.repaired:
            self.raised += 1
            raise error(f"{name} cannot be handled")

    def before(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, name: Callable[..., str]
    ) -> None:
        """Raise before a call whose arguments have the name."""
        real = getattr(owner, method)

        def poisoned(*args: Any, **keywords: Any) -> Any:
            self.check(name(*args, **keywords))
            return real(*args, **keywords)

        monkeypatch.setattr(owner, method, poisoned)


Install = Callable[[Poison, pytest.MonkeyPatch], None]


def _object(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    real = stream.decoded

    def decoded(decode: Any, document: Any, levels: int) -> Any:
        if b'"kind":"Job"' in bytes(document) and f'"name":"{POISON}"'.encode() in bytes(document):
            poison.check(POISON if levels == LEVELS and decode is not stream._object else "")
        return real(decode, document, levels)

    monkeypatch.setattr("queuectl.cluster.stream.decoded", decoded)


def _record(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records from before cause no error."""
    kept = 0

    def name(mirror: Mirror, job: JobRecord, old: JobRecord | None) -> str:
        nonlocal kept
        if poison.repaired:
            kept = max(kept, job.version)
        return job.name if job.version > kept else ""

    poison.before(monkeypatch, Mirror, "_keep_job", name)


def _observation(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    poison.before(monkeypatch, observations.Observer, "_described", lambda _, job, config: job.name)


def _snapshot(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    poison.before(monkeypatch, BlockingReasons, "of", lambda _, entry, *rest: entry.name)


def _gang(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    poison.before(monkeypatch, AdmissionCycle, "consider", lambda _, pending: pending.workload.name)


def _verifier(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(snapshot: Any, plan: Any, *given: Any) -> tuple[PlanViolation, ...]:
        names = {p.workload.uid: p.workload.name for p in snapshot.pending}
        bad = [a.uid for a in plan.admitted if names.get(a.uid, "").startswith(POISON)]
        if poison.repaired or not bad:
            return verify(snapshot, plan, *given)
        poison.raised += 1
        return (PlanViolation(PlanRule.CAPACITY, "a node", "is over"),)

    monkeypatch.setattr("queuectl.control.checked_plan.verify", refuses)


def _commit(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PostgresStore.commit

    async def commit(self: PostgresStore, commit: Commit, **place: int) -> None:
        for change in commit.changes:
            poison.check(change.after.name, StoreError)
        await real(self, commit, **place)

    monkeypatch.setattr(PostgresStore, "commit", commit)


def _write(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(state: LeaderState, uid: str) -> str:
        entry = state.entry(uid)
        return entry.name if entry is not None else ""

    poison.before(monkeypatch, LeaderState, "outstanding_writes", name)


def _group(poison: Poison, monkeypatch: pytest.MonkeyPatch) -> None:
    def name(group: PodGroup, *, in_ledger: bool) -> str:
        return next((pod.name for pod in group.pods), "")

    poison.before(monkeypatch, PodGroup, "assemble", name)


POISONS: dict[Boundary | str, Install] = {
    Boundary.OBJECT: _object,
    Boundary.RECORD: _record,
    Boundary.OBSERVATION: _observation,
    Boundary.SNAPSHOT: _snapshot,
    Boundary.GANG: _gang,
    "refused plan": _verifier,
    Boundary.COMMIT: _commit,
    Boundary.WRITE: _write,
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-offs of milliseconds."""
    monkeypatch.setattr("queuectl.domain.containment.FIRST_SECONDS", 0.05)
    monkeypatch.setattr("queuectl.domain.containment.LONGEST_SECONDS", 0.2)
    monkeypatch.setattr("queuectl.control.leader.schedule.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("queuectl.control.leader.planning.RETRY_SECONDS", 0.05)


def touch(world: Rig) -> None:
    """Change the object, which changes no request. An object is decoded again when it changes."""
    touched = {"metadata": {"labels": {"example.com/touched": str(time.time())}}}
    world.cluster.user_patch("Job", "default", POISON, touched)


def contained(world: Rig) -> Containment:
    assert world.loop is not None
    return world.loop._containment


@pytest.mark.parametrize("where", POISONS)
@pytest.mark.usefixtures("soon")
async def test_a_workload_that_cannot_be_handled_stops_no_other(
    where: Boundary | str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    POISONS[where](poison, monkeypatch)
    async with rig(database_url, 4) as world:
        bad = world.cluster.submit(gang("Job", POISON, 2))
        good = world.cluster.submit(gang("Job", "good", 2))
        await world.until_state(good, State.RUNNING)
        tries = 0 if where in (Boundary.OBJECT, Boundary.RECORD) else 1
        await world.until(lambda: poison.raised > tries, "it is tried again")
        boundary = Boundary.GANG if where == "refused plan" else where
        if boundary is not Boundary.OBJECT:  # the double of the API server has its own record
            set_aside = {one.boundary for one in contained(world)}
            assert set_aside == {boundary}
        poison.repaired = True
        touch(world)
        await world.until_state(bad, State.RUNNING)
        await world.until(lambda: contained(world).empty, "nothing is set aside")
        await world.at_rest()


@pytest.mark.parametrize("group", ["", POISON], ids=["a single pod", "a group"])
@pytest.mark.usefixtures("soon")
async def test_pods_of_which_no_record_can_be_made_stop_no_other(
    group: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    _group(poison, monkeypatch)
    async with rig(database_url, 4) as world:
        world.cluster.submit_pod(pod("runs", gpus=1))
        await group_entry(world, "runs", State.RUNNING)
        world.cluster.submit_pod(pod(f"{POISON}-1", group, 1, gpus=1))
        good = world.cluster.submit(gang("Job", "good", 2))
        await world.until_state(good, State.RUNNING)
        world.cluster.submit_pod(pod("later", gpus=1))
        await group_entry(world, "later", State.RUNNING)
        assert poison.raised > 0
        assert {one.boundary for one in contained(world)} == {Boundary.RECORD}
        await group_entry(world, "runs", State.RUNNING)
        poison.repaired = True
        await world.until(lambda: contained(world).due({Boundary.RECORD}), "it is tried again")
        world.cluster.submit_pod(pod("last", gpus=1))
        await group_entry(world, group or f"{POISON}-1", State.RUNNING)
        await world.until(lambda: contained(world).empty, "nothing is set aside")
        await world.at_rest()


@pytest.mark.parametrize("where", [Boundary.SNAPSHOT, Boundary.GANG, "refused plan"])
@pytest.mark.usefixtures("soon")
async def test_a_pending_gang_that_is_set_aside_has_the_reason_and_blocks_no_other_of_its_queue(
    where: Boundary | str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    POISONS[where](poison, monkeypatch)
    async with rig(database_url, 4) as world:
        for document in configuration(32, strategy="StrictFIFO"):
            await world.store.put_config(document)
        bad = world.cluster.submit(gang("Job", POISON, 2))
        waits = await world.until_entry(
            bad, lambda e: e.reason.code is Code.INTERNAL_ERROR, "it is set aside"
        )
        assert (waits.state, waits.lease) == (State.PENDING, None)
        assert "error" in waits.reason.details
        behind = world.cluster.submit(gang("Job", "behind", 2))
        await world.until_state(behind, State.RUNNING)
        await world.until(
            lambda: any(e.reason == "InternalError" for e in world.cluster.events), "an Event"
        )


@pytest.mark.parametrize("where", [Boundary.RECORD, Boundary.OBSERVATION, Boundary.SNAPSHOT])
@pytest.mark.usefixtures("soon")
async def test_a_running_gang_that_is_set_aside_keeps_its_nodes(
    where: Boundary | str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    poison.repaired = True
    POISONS[where](poison, monkeypatch)
    async with rig(database_url, 2) as world:
        bad = world.cluster.submit(gang("Job", POISON, 2))
        await world.until_state(bad, State.RUNNING)
        poison.repaired = False
        touch(world)
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_entry(other, lambda e: e.reason.code in WAITS_FOR_ROOM, "no node is free")
        poison.repaired = True
        world.cluster.finish(bad)
        await world.until_state(other, State.RUNNING)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("where", [Boundary.OBJECT, Boundary.RECORD])
async def test_a_running_gang_whose_job_becomes_unreadable_can_be_held(
    where: Boundary, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are free when its pods have ended, although its job is still unreadable."""
    poison = Poison()
    poison.repaired = True
    POISONS[where](poison, monkeypatch)
    async with rig(database_url, 2) as world:
        bad = world.cluster.submit(gang("Job", POISON, 2))
        await world.until_state(bad, State.RUNNING)
        poison.repaired = False
        touch(world)
        await world.until(lambda: poison.raised > 0, "it cannot be read")
        await world.ask(bad, Action.HOLD)
        await world.until_state(bad, State.HELD)
        other = world.cluster.submit(gang("Job", "other", 2))
        await world.until_state(other, State.RUNNING)


@pytest.mark.usefixtures("soon")
async def test_a_running_gang_with_which_each_plan_fails_stops_no_other_cohort(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other cohorts start gangs one after the other, and its own continues when the error ends."""
    poison = Poison()
    poison.repaired = True

    def plan(given: Any, *rest: Any) -> Any:
        for running in given.admitted:
            poison.check(running.workload.name)
        return checked_plan(given, *rest)

    monkeypatch.setattr("queuectl.control.leader.planning.checked_plan", plan)
    async with rig(database_url, 8) as world:
        for name in ("other", "third"):
            quota: dict[str, int | str] = {
                "nvidia.com/gpu": 32,
                "cpu": "1k",
                "pods": 1000,
                "memory": "1Pi",
            }
            await world.store.put_config(m.cluster_queue(name, "gpu", quota))
            await world.store.put_config(m.local_queue("default", name, name))
        bad = world.cluster.submit(gang("Job", POISON, 1))
        await world.until_state(bad, State.RUNNING)
        poison.repaired = False
        waits = world.cluster.submit(gang("Job", "waits", 1))
        for number in range(2):
            for name in ("other", "third"):
                shape = PodSetManifest(count=1, gpus=8)
                job = m.job(f"{name}-{number}", "default", name, shape, priority_class="low")
                await world.until_state(world.cluster.submit(job), State.RUNNING)
        await world.until_entry(
            waits, lambda e: e.reason.code is Code.PENDING_EVALUATION, "it is not planned"
        )
        assert {(one.boundary, one.key) for one in contained(world)} == {
            (Boundary.TASK, "planning")
        }
        poison.repaired = True
        await world.until_state(waits, State.RUNNING)
        await world.until(lambda: contained(world).empty, "nothing is set aside")


@pytest.mark.usefixtures("soon")
async def test_a_new_leader_does_not_take_an_unreadable_job_for_deleted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    poison.repaired = True
    _object(poison, monkeypatch)
    async with rig(database_url, 2) as world:
        bad = world.cluster.submit(gang("Job", POISON, 2))
        await world.until_state(bad, State.RUNNING)
        await world.stop()
        poison.repaired, world._task, world.running = False, None, True
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_entry(other, lambda e: e.reason.code in WAITS_FOR_ROOM, "no node is free")
        entry = await world.entry(bad)
        assert entry.state is State.RUNNING


@pytest.mark.usefixtures("soon")
async def test_a_task_that_fails_starts_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    real = Actuator.run

    async def run(self: Actuator) -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise KeyError("once more")
        await real(self)

    monkeypatch.setattr(Actuator, "run", run)
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        assert runs == 3


async def test_a_cycle_that_fails_while_observations_are_being_written_starts_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.control.leader.loop.FIRST_PAUSE", 0.01)
    poison = Poison()
    poison.repaired = True
    poison.before(monkeypatch, PendingWindow, "applied", lambda *_, **__: POISON)
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 1))
        await world.until_state(first, State.RUNNING)
        poison.repaired = False
        second = world.cluster.submit(gang("Job", "second", 1))
        await world.until(lambda: poison.raised > 0, "a cycle fails")
        poison.repaired = True
        await world.until_state(second, State.RUNNING)


async def both_run(world: Rig) -> tuple[str, str]:
    """A gang with the name of the poison and another one, which run."""
    bad = world.cluster.submit(gang("Job", POISON, 1))
    good = world.cluster.submit(gang("Job", "good", 1))
    for uid in (bad, good):
        await world.until_state(uid, State.RUNNING)
    return bad, good


async def test_a_command_that_cannot_be_carried_out_stops_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them raises an error, and a newer release has stored the other."""
    poison = Poison()
    poison.before(monkeypatch, LeaderState, "command_refusal", lambda _, entry, *rest: entry.name)
    async with rig(database_url, 2) as world:
        bad, good = await both_run(world)
        async with world.store.connections.transaction("of a newer release") as connection:
            newer = await add(connection, Command(0, good, Action.HOLD, "alice", "newer", 1.0))
            await connection.execute(
                update(commands).where(commands.c.id == newer.id).values(action="teleport")
            )
        failed = await world.ask(bad, Action.HOLD)
        await world.ask(good, Action.HOLD)
        await world.until_state(good, State.HELD)
        answered = await world.store.command(failed.id)
        assert answered is not None
        assert answered.outcome is not None
        assert answered.outcome.startswith("an internal error of queuectl")
        later = world.cluster.submit(gang("Job", "later", 1))
        await world.until_state(later, State.RUNNING)


@pytest.mark.usefixtures("soon")
async def test_a_command_whose_change_the_database_cannot_store_is_not_done(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = Poison()
    poison.repaired = True
    _commit(poison, monkeypatch)
    async with rig(database_url, 2) as world:
        bad, good = await both_run(world)
        poison.repaired = False
        failed = await world.ask(bad, Action.HOLD)
        done = await world.ask(good, Action.HOLD)
        await world.until_state(good, State.HELD)

        async def outcomes() -> list[str]:
            found = [await world.store.command(one.id) for one in (failed, done)]
            return [one.outcome or "" for one in found if one is not None]

        async def answered() -> bool:
            return all(await outcomes())

        await world.until(answered, "both commands have a result")
        first, second = await outcomes()
        assert first.startswith("an internal error of queuectl")
        assert second == DONE
        entry = await world.entry(bad)
        assert entry.state is State.RUNNING


@pytest.mark.usefixtures("soon")
async def test_a_check_that_fails_loses_no_timer_of_a_gang(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of one object's times fails in each tick, and the back-off of a gang ends."""
    poison = Poison()
    poison.before(monkeypatch, MigReconfigurer, "due", lambda *_: POISON)
    async with rig(database_url, 2) as world:
        await with_checks(world, "budget")
        late = await held(world)
        answer = await report(world, late, "budget", RETRY, message="later", requeue_after=1.0)
        assert answer == DONE
        await world.until_state(late, State.BACKOFF)
        await world.until_entry(late, lambda e: e.awaits_checks, "it waits again")
        assert poison.raised


def test_a_record_that_cannot_be_kept_leaves_the_copy_as_if_it_never_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison = Poison()
    _record(poison, monkeypatch)
    with_poison, without = Mirror({"jobs": "Job"}), Mirror({"jobs": "Job"})
    cluster = FakeCluster()
    good, bad = (cluster.job(cluster.submit(gang("Job", n, 1))) for n in ("good", POISON))
    with_poison.apply([Upserted(good), Upserted(bad)])
    without.apply([Upserted(good)])
    assert with_poison.jobs == without.jobs
    assert with_poison.generation == 1


@pytest.mark.usefixtures("soon")
async def test_workloads_have_events_after_a_record_could_not_be_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the cluster is then built again."""
    poison = Poison()
    _record(poison, monkeypatch)
    async with rig(database_url, 6) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        world.cluster.submit(gang("Job", POISON, 2))
        await world.until(lambda: poison.raised > 0, "the copy is built again")
        later = world.cluster.submit(gang("Job", "later", 2))
        await world.until_state(later, State.RUNNING)
        await world.until(
            lambda: any(event.uid == later for event in world.cluster.events), "an Event"
        )
