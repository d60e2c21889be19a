"""``maxPending`` of a LocalQueue in the loop, on a real Postgres with the API server double."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.commands import Action
from queuectl.domain.ledger import State
from queuectl.domain.reasons import WAITS_FOR_ROOM, Code
from queuectl.domain.what_if import WhatIf
from queuectl.objects import keys
from queuectl.state.blocking_reasons import BlockingReasons
from tests.control.rig import Rig, configuration, gang, rig
from tests.control.test_admission_checks import check
from tests.control.test_lifecycle import rules, until_reason
from tests.control.test_what_if import asked


def local_queue(most: int) -> dict[str, Any]:
    (found,) = (d for d in configuration(32) if d["kind"] == "LocalQueue")
    return {**found, "spec": {**found["spec"], "policy": {"maxPending": most}}}


async def limit(world: Rig, most: int) -> None:
    await world.store.put_config(local_queue(most))


async def submit(world: Rig, *names: str, count: int = 2) -> list[str]:
    """Each after the one before is in the ledger, so that their order is certain."""
    found = []
    for name in names:
        found.append(world.cluster.submit(gang("Job", name, count)))
        await world.until_state(found[-1], State.PENDING)
    return found


async def filled(world: Rig) -> str:
    """A gang that uses the whole cluster of two nodes."""
    uid = world.cluster.submit(gang("Job", "tenant", 2))
    await world.until_state(uid, State.RUNNING)
    return uid


async def test_the_next_oldest_gang_is_considered_when_one_before_it_is_held_for_checks(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        tenant = await filled(world)
        await world.store.put_config(check("budget"))
        (queue,) = (d for d in configuration(16) if d["kind"] == "ClusterQueue")
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "budget"}]}
        await world.store.put_config(queue)
        first, second = await submit(world, "a", "b", count=1)
        await until_reason(world, second, State.PENDING, Code.TOO_MANY_PENDING)
        world.cluster.finish(tenant)
        for uid in (first, second):
            await world.until_entry(uid, lambda entry: entry.awaits_checks, "it is held")


async def test_the_next_oldest_gang_is_considered_when_one_before_it_starts(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        tenant = await filled(world)
        first, second, third = await submit(world, "a", "b", "c")
        await until_reason(world, first, State.PENDING, Code.WAITING_FOR_QUOTA)
        waits = await until_reason(world, second, State.PENDING, Code.TOO_MANY_PENDING)
        await until_reason(world, third, State.PENDING, Code.TOO_MANY_PENDING)
        assert waits.reason.message.endswith("the oldest 1 are considered (maxPending)")
        world.cluster.finish(tenant)
        await world.until_state(first, State.RUNNING)
        entered = await world.until_entry(
            second, lambda entry: entry.reason.code in WAITS_FOR_ROOM, "it is considered"
        )
        assert entered.queued_at == waits.queued_at
        await until_reason(world, third, State.PENDING, Code.TOO_MANY_PENDING)


async def test_gangs_that_all_fit_start_one_plan_after_another(database_url: str) -> None:
    async with rig(database_url, 8) as world:
        await limit(world, 1)
        tenant = world.cluster.submit(gang("Job", "tenant", 8))
        await world.until_state(tenant, State.RUNNING)
        waiting = await submit(world, "a", "b", "c", "d")
        world.cluster.finish(tenant)
        for uid in waiting:
            await world.until_state(uid, State.RUNNING)


async def test_a_gang_enters_when_an_older_one_is_deleted_or_held(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        await filled(world)
        first, second, third = await submit(world, "a", "b", "c")
        await until_reason(world, second, State.PENDING, Code.TOO_MANY_PENDING)
        await world.ask(first, Action.HOLD)
        await until_reason(world, second, State.PENDING, Code.WAITING_FOR_QUOTA)
        world.cluster.delete_job(second)
        await until_reason(world, third, State.PENDING, Code.WAITING_FOR_QUOTA)
        await world.ask(first, Action.RELEASE)
        await until_reason(world, first, State.PENDING, Code.WAITING_FOR_QUOTA)
        await until_reason(world, third, State.PENDING, Code.TOO_MANY_PENDING)


async def test_a_larger_limit_of_the_configuration_lets_it_enter(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"maxPending": 1}))
        await filled(world)
        _, second = await submit(world, "a", "b")
        await until_reason(world, second, State.PENDING, Code.TOO_MANY_PENDING)
        await world.store.put_config(rules(queuectl={"maxPending": 2}))
        await until_reason(world, second, State.PENDING, Code.WAITING_FOR_QUOTA)


async def test_jobs_that_wait_for_a_newer_job_do_not_keep_it_beyond_the_limit(
    database_url: str,
) -> None:
    """The older jobs name it before it exists."""
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        after = {"annotations": {keys.PREFIX + keys.AFTER: "Job/newest"}}
        older = []
        for name in ("a", "b"):
            document = dict(gang("Job", name, 2))
            document["metadata"] = {**document["metadata"], **after}
            older.append(world.cluster.submit(document))
            await until_reason(world, older[-1], State.HELD, Code.DEPENDENCY)
        newest = world.cluster.submit(gang("Job", "newest", 2))
        await world.until_state(newest, State.RUNNING)
        world.cluster.finish(newest)
        await world.until_state(older[0], State.RUNNING)


@pytest.mark.sets_aside
async def test_a_gang_that_no_snapshot_contains_counts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BlockingReasons.of

    def broken(self: BlockingReasons, entry: Any, *rest: Any) -> Any:
        if entry.name == "poison":
            raise RuntimeError("it cannot be handled")
        return real(self, entry, *rest)

    monkeypatch.setattr(BlockingReasons, "of", broken)
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        await filled(world)
        (poison,) = await submit(world, "poison")
        await until_reason(world, poison, State.PENDING, Code.INTERNAL_ERROR)
        (second,) = await submit(world, "b")
        waits = await until_reason(world, second, State.PENDING, Code.TOO_MANY_PENDING)
        assert waits.reason.details["pending"] == 2
        entry = await world.entry(poison)
        assert entry.reason.code is Code.INTERNAL_ERROR


async def test_a_question_has_the_answer_of_the_leader(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await limit(world, 1)
        await filled(world)
        await submit(world, "a")
        trial = await asked(world, WhatIf(submit=[gang("PyTorchJob", "b", 2)]))
        (new,) = trial.submitted
        (refusal,) = (r for r in trial.plan.pending if r.uid == new)
        assert refusal.reasons[0].code is Code.TOO_MANY_PENDING
        more = await asked(
            world,
            WhatIf(
                submit=[gang("PyTorchJob", "b", 2)],
                config=[local_queue(2)],
            ),
        )
        (refusal,) = (r for r in more.plan.pending if r.uid in more.submitted)
        assert refusal.reasons[0].code is Code.WAITING_FOR_QUOTA
