"""Jobs that depend on others (``queuectl.dev/after``), on a real Postgres."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.gates import ENDLESS
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, rig
from tests.control.test_arrays import array, finish, indexes
from tests.control.work import ANY_WORK, Work, kind_parameter


def after(name: str, annotation: str, kind: str = "Job") -> dict[str, Any]:
    document = dict(gang(kind, name, 2))
    document["metadata"].setdefault("annotations", {})["queuectl.dev/after"] = annotation
    return document


async def until_held(world: Rig, uid: str, code: Code, message: str) -> Entry:
    def so(entry: Entry) -> bool:
        reason = entry.reason
        return (entry.state, reason.code) == (State.HELD, code) and message in reason.message

    return await world.until_entry(uid, so, f"it is held: {code}: {message}")


def fail(world: Rig, uid: str) -> None:
    job = world.cluster.job(uid)
    for one in world.cluster.pods_of(uid):
        world.cluster.fail_pod(one.name, job.namespace)


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_job_starts_after_the_one_that_it_depends_on_succeeded(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        prep = world.cluster.submit(gang(kind, "prep", 2))
        late = world.cluster.submit(after("late", f"{kind.lower()}/prep"))
        await world.until_state(prep, State.RUNNING)
        await until_held(world, late, Code.DEPENDENCY, f"held until {kind.lower()}/prep succeeds")
        world.cluster.finish(prep)
        await world.until_state(late, State.RUNNING)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(
            kind_parameter(kind, "Job")
            for kind in ANY_WORK
            if kind != "Job" and kind.lower() not in ENDLESS
        ),
        *(kind_parameter("Job", kind) for kind in ANY_WORK),
    ],
)
async def test_work_of_any_kind_can_be_named_and_can_wait(
    database_url: str, first: str, second: str
) -> None:
    async with rig(database_url, 4) as world:
        prep = Work(world, first, "prep")
        late = Work(world, second, "late", prep.reference)
        await prep.until(State.RUNNING)
        await late.until(State.HELD, Code.DEPENDENCY, f"held until {prep.reference} succeeds")
        assert all(one.gated for one in late.pods())
        prep.succeed()
        await late.until(State.RUNNING)


@pytest.mark.parametrize("kind", ["Job", "array", "PodGroup"])
@pytest.mark.parametrize("length", [2, 3])
async def test_a_cycle_starts_nothing_and_each_job_of_it_shows_it(
    database_url: str, kind: str, length: int
) -> None:
    """The API server refuses only a job that names itself: an admission policy reads one object."""
    async with rig(database_url, 2 * length) as world:
        named = "Job" if kind == "array" else kind
        names = [f"{named}/w{number}" for number in range(length)]
        ring = [Work(world, kind, f"w{number}", names[number - 1]) for number in range(length)]
        never = Code.DEPENDENCY_NEVER_SATISFIED
        for number, one in enumerate(ring):
            ring_of = [names[(number - step) % length] for step in range(length + 1)]
            first, *others = ring_of
            waits = f"{first} waits for {', which waits for '.join(others)}"
            cycle = f"held until {names[number - 1]} succeeds (a cycle: {waits})"
            await one.until(State.HELD, never, cycle)
        assert all(record.gated for record in world.cluster.all_pods())


async def test_an_array_that_has_begun_needs_its_predecessor_no_more(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        prep = Work(world, "Job", "prep")
        await prep.until(State.RUNNING)
        sweep = array("sweep", 4, 2)
        sweep["metadata"]["annotations"]["queuectl.dev/after"] = "Job/prep"
        uid = world.cluster.submit(sweep)
        prep.succeed()
        first, second, third, last = indexes(uid, 4)
        await world.until_state(second, State.RUNNING)
        world.cluster.delete_job(prep.uid)
        for number, one in ((first, third), (second, last)):
            finish(world, number)
            await world.until_state(one, State.RUNNING)


async def test_a_group_without_pods_is_still_held_by_a_new_leader(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        late = Work(world, "PodGroup", "late", "Job/prep")
        await late.until(State.HELD, Code.DEPENDENCY, "no such job")
        for record in late.pods():
            world.cluster.delete_pod_of_user(record.name)
        await world.restart()
        other = Work(world, "Job", "other")
        await other.until(State.RUNNING)
        assert all(entry.gates or entry.state is State.FINISHED for entry in await late.entries())


async def test_a_job_of_which_the_predecessor_failed_is_held_until_that_runs_again(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        fragile = dict(gang("Job", "prep", 2))
        fragile["spec"]["backoffLimit"] = 0
        prep = world.cluster.submit(fragile)
        late = world.cluster.submit(after("late", "Job/prep"))
        cleanup = world.cluster.submit(after("cleanup", "Job/prep:failed"))
        report = world.cluster.submit(after("report", "Job/prep:any"))
        await world.until_state(prep, State.RUNNING)
        fail(world, prep)
        for uid in (cleanup, report):
            await world.until_state(uid, State.RUNNING)
            world.cluster.finish(uid)
        never = Code.DEPENDENCY_NEVER_SATISFIED
        await until_held(world, late, never, "held until Job/prep succeeds (it failed)")
        world.cluster.delete_job(prep)
        await until_held(world, late, Code.DEPENDENCY, "no such job")
        again = world.cluster.submit(gang("Job", "prep", 2))
        await world.until_state(again, State.RUNNING)
        world.cluster.finish(again)
        await world.until_state(late, State.RUNNING)


async def test_jobs_can_be_submitted_before_those_that_they_depend_on(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        late = world.cluster.submit(after("late", "Job/prep, Job/data:any"))
        await until_held(world, late, Code.DEPENDENCY, "Job/prep succeeds (no such job")
        for name in ("data", "prep"):
            uid = world.cluster.submit(gang("Job", name, 2))
            await world.until_state(uid, State.RUNNING)
            world.cluster.finish(uid)
        await world.until_state(late, State.RUNNING)


async def test_a_satisfied_dependency_is_kept_when_the_leader_and_the_object_change(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        late = world.cluster.submit(after("late", "Job/prep,Job/data"))
        prep = world.cluster.submit(gang("Job", "prep", 2))
        await world.until_state(prep, State.RUNNING)
        world.cluster.finish(prep)
        await world.until_entry(late, lambda entry: len(entry.gates) == 1, "one job is left")
        world.cluster.delete_job(prep)
        await world.restart()
        data = world.cluster.submit(gang("Job", "data", 2))
        await world.until_state(data, State.RUNNING)
        world.cluster.finish(data)
        await world.until_state(late, State.RUNNING)


async def test_jobs_that_wait_for_each_other_show_that_until_one_is_edited(
    database_url: str,
) -> None:
    async with rig(database_url, 6) as world:
        names = {"a": "b", "b": "c", "c": "a"}
        uids = {name: world.cluster.submit(after(name, f"Job/{o}")) for name, o in names.items()}
        never = Code.DEPENDENCY_NEVER_SATISFIED
        for name, uid in uids.items():
            cycle = f"held until Job/{names[name]} succeeds (a cycle: Job/{name} waits for "
            await until_held(world, uid, never, cycle)
        gone = {"metadata": {"annotations": {"queuectl.dev/after": None}}}
        world.cluster.user_patch("Job", "default", "c", gone)
        await world.until_state(uids["c"], State.RUNNING)
        for name in ("a", "b"):
            await until_held(world, uids[name], Code.DEPENDENCY, f"Job/{names[name]} succeeds")
        for name in ("c", "b", "a"):
            await world.until_state(uids[name], State.RUNNING)
            world.cluster.finish(uids[name])
