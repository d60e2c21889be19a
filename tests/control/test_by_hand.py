"""Commands of users for one gang, on a real Postgres: priorities that expire, preemption, moves to another queue."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.questions.preview import Previewer
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView
from queuectl.demo import scenario as m
from queuectl.domain.commands import DONE, EVICTING, MOST_WAITING, Action
from queuectl.domain.errors import TooManyCommands
from queuectl.domain.fleet import Fleet
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.what_if import DrainCost, Preview
from queuectl.planner.cache import PlannerCache
from tests.control.alike import ALIKE
from tests.control.rig import Rig, configuration, gang, live, rig
from tests.control.test_crash_matrix import survives
from tests.control.test_lifecycle import document_of, rules
from tests.support.postgres import TestPostgres

QUEUE = "queuectl.dev/queue-name"


async def messages(world: Rig, uid: str) -> list[str]:
    return [line.reason.message for line in await world.store.history(uid)]


async def one_waits(world: Rig) -> tuple[str, str]:
    """A gang of high priority that runs on two nodes, and one of low priority that waits for them."""
    first = world.cluster.submit(gang("Job", "first", 2, "high"))
    await world.until_state(first, State.RUNNING)
    low = world.cluster.submit(gang("Job", "low", 2))
    await world.until_state(low, State.PENDING)
    return first, low


async def answered(world: Rig, uid: str, action: Action, **more: Any) -> str:
    """Enqueue a command, and return its result."""
    kept = await world.ask(uid, action, **more)
    outcome: str | None = None

    async def settled() -> bool:
        nonlocal outcome
        command = await world.store.command(kept.id)
        assert command is not None
        outcome = command.outcome
        return outcome is not None

    await world.until(settled, f"{action} of {uid} is answered")
    assert outcome is not None
    return outcome


def previewer(world: Rig) -> Previewer:
    """The previewer of the leader."""

    async def look() -> ClusterView:
        assert world.loop is not None
        return ClusterView(world.loop.leader_state.snapshot(seek_room=False))

    return Previewer(look, PlannerThrottle(1.0), PlannerCache())


# -- a priority that expires


async def test_a_priority_with_a_time_limit_expires_without_another_event(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        _, low = await one_waits(world)
        until = time.time() + 1.5
        assert await answered(world, low, Action.PRIORITY, priority=90, until=until) == DONE
        boosted = await world.entry(low)
        assert (boosted.priority, boosted.priority_until) == (90, until)

        async def over() -> bool:
            return (await world.entry(low)).priority == 10

        await world.until(over, "its priority is that of its class again")
        after = await world.entry(low)
        assert (after.priority_set, after.priority_until) == (None, None)
        assert time.time() >= until
        assert "priority 90 expired; reset to that of its priority class" in await messages(
            world, low
        )


async def test_a_running_gang_is_preempted_after_its_priority_expires(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        until = time.time() + 2.0
        assert await answered(world, low, Action.PRIORITY, priority=200, until=until) == DONE
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.PENDING)
        assert len(live(world.cluster.pods_of(low))) == 2
        await world.until_state(high, State.RUNNING)
        assert (await world.entry(low)).evictions == 1


async def test_a_priority_that_expired_without_a_leader_is_reset_by_the_next_leader(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        until = time.time() + 1.0
        assert await answered(world, uid, Action.PRIORITY, priority=200, until=until) == DONE
    await asyncio.sleep(max(0.0, until - time.time()))
    async with rig(database_url, 2, cluster=world.cluster) as later:
        assert (await later.entry(uid)).priority == 200
        late = await answered(later, uid, Action.PRIORITY, priority=300, until=until)
        assert late == "the time it was for is over"

        async def over() -> bool:
            return (await later.entry(uid)).priority == 10

        await later.until(over, "the next leader ends it")


# -- preemption


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_preempted_by_hand_makes_room_for_the_head_of_the_queue(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        await world.until_state(second, State.PENDING)
        assert await answered(world, first, Action.PREEMPT, why="a demo at noon") == DONE
        await world.until_state(second, State.RUNNING)
        waits = await world.until_state(first, State.PENDING)
        assert (waits.evictions, len(waits.preempted_at)) == (1, 1)
        assert "preempted by alice: a demo at noon" in await messages(world, first)
        world.cluster.finish(second)
        again = await world.until_state(first, State.RUNNING)
        assert again.requeued_at is None, "the next eviction keeps its position in the queue"
        await world.until(
            lambda: any(
                e.uid == first and e.reason == "Preempted" and "by alice" in e.message
                for e in world.cluster.events
            ),
            "an Event reports it",
        )
        await world.at_rest()


async def test_a_process_without_this_gang_in_its_view_previews_nothing() -> None:
    async def blind() -> None:
        return None

    async def empty() -> ClusterView:
        return ClusterView(Snapshot(1.0, Fleet(()), QueueConfig()))

    runs = Entry("u1", "Job", "a", "train", State.RUNNING)
    for look in (blind, empty):
        assert (
            await Previewer(look, PlannerThrottle(1.0), PlannerCache()).preview(runs, Action.HOLD)
            is None
        )
    waits = replace(runs, state=State.PENDING)
    assert await Previewer(empty, PlannerThrottle(1.0), PlannerCache()).preview(
        waits, Action.HOLD
    ) == Preview(None, 0.0)


async def test_a_victim_gets_a_notice_first_if_the_rules_give_it_time(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"evictionGrace": "1h"}))
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        assert await answered(world, uid, Action.PREEMPT) == DONE
        leaving = await world.entry(uid)
        assert leaving.stop_at == leaving.since + 3600.0
        assert len(live(world.cluster.pods_of(uid))) == 2


async def test_a_preview_shows_the_lost_work_and_the_gangs_that_would_start_and_changes_nothing(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        before = await world.entry(first)
        second = world.cluster.submit(gang("Job", "second", 2))
        await world.until_state(second, State.PENDING)
        previews = previewer(world)
        found = {action: await previews.preview(before, action) for action in EVICTING}
        for action in (Action.HOLD, Action.DEACTIVATE, Action.PREEMPT):
            preview = found[action]
            assert preview is not None
            assert preview.cost is not None
            assert preview.cost.gpus == 16
            assert preview.cost.lost_work >= 60, "a restart at least"
            assert preview.starts == (second,), action
        back = found[Action.REQUEUE]
        assert back is not None
        assert back.starts == (first,), "it is the head of the queue again itself"
        waits = await world.entry(second)
        assert await previews.preview(waits, Action.HOLD) == Preview(None, 0.0)
        assert await world.entry(first) == before
        assert await world.store.commands() == ()


async def test_a_work_queue_with_a_success_does_not_start_again_after_an_eviction(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        document = gang("Job", "train", 3)
        document["spec"]["completionMode"] = "NonIndexed"
        del document["spec"]["completions"]
        uid = world.cluster.submit(document)
        running = await world.until_state(uid, State.RUNNING)
        shown = await previewer(world).preview(running, Action.REQUEUE)
        assert shown is not None
        assert shown.starts == (uid,)
        first, *_ = live(world.cluster.pods_of(uid))
        found = world.cluster.server.get("pods", "default", first.name)
        world.cluster.controllers.set_phase(found, "Succeeded")
        left = await world.until_entry(uid, lambda e: e.placement != running.placement, "2 pods")
        shown = await previewer(world).preview(left, Action.REQUEUE)
        assert shown is not None
        assert shown.starts == ()


async def test_the_gangs_that_a_preview_names_start(database_url: str) -> None:
    """The gangs in the preview are the gangs that start."""
    async with rig(database_url, 3) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        names = (("wide", 3, "low"), ("narrow", 2, "low"))
        others = [world.cluster.submit(gang("Job", *asked)) for asked in names]
        for uid in others:
            await world.until_state(uid, State.PENDING)
        shown = await previewer(world).preview(await world.entry(first), Action.PREEMPT)
        assert shown is not None
        expected = shown.starts
        assert expected
        assert await answered(world, first, Action.PREEMPT) == DONE
        for uid in expected:
            await world.until_state(uid, State.RUNNING)
        for uid in {first, *others} - set(expected):
            await world.until_state(uid, State.PENDING)


# -- a move to another queue


async def two_queues(world: Rig, gpus: int, other_gpus: int) -> None:
    """LocalQueue ``research`` of ``pool``, and LocalQueue ``spare`` of another ClusterQueue."""
    for document in configuration(gpus):
        await world.store.put_config(document)
    quota: dict[str, int | str] = {"nvidia.com/gpu": other_gpus, "cpu": "1k", "pods": 1000}
    await world.store.put_config(m.cluster_queue("reserve", "gpu", quota))
    await world.store.put_config(m.local_queue("default", "spare", "reserve"))


@pytest.mark.parametrize(
    "queue",
    [DocumentKey("ClusterQueue", "", "pool"), DocumentKey("LocalQueue", "default", "research")],
    ids=str,
)
async def test_a_drain_evicts_what_its_preview_shows(database_url: str, queue: DocumentKey) -> None:
    async with rig(database_url, 4) as world:
        runs = [world.cluster.submit(gang("Job", name, 2)) for name in ("first", "second")]
        for uid in runs:
            await world.until_state(uid, State.RUNNING)
        waits = world.cluster.submit(gang("Job", "third", 2))
        await world.until_state(waits, State.PENDING)
        shown = await previewer(world).drain_cost(queue)
        assert shown is not None
        assert (shown.gangs, shown.pods, shown.gpus) == (2, 4, 32)
        costs = await previewer(world).eviction_costs([*runs, waits, "unknown"])
        assert {uid: cost.gpus for uid, cost in costs.items()} == dict.fromkeys(runs, 16)
        assert sum(cost.lost_work for cost in costs.values()) >= shown.lost_work
        stored = await world.store.get_config(queue)
        assert stored is not None
        spec = {**stored.document["spec"], "stopPolicy": "HoldAndDrain"}
        await world.store.put_config({**stored.document, "spec": spec})
        for uid in runs:
            await world.until_state(uid, State.PENDING)
            assert live(world.cluster.pods_of(uid)) == []
        assert await previewer(world).drain_cost(queue) == DrainCost(0, 0, 0, 0)
        assert await previewer(world).eviction_costs(runs) == {}
        other = DocumentKey(queue.kind, queue.namespace, "another")
        assert await previewer(world).drain_cost(other) == DrainCost(0, 0, 0, 0)


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_pending_gang_is_moved_to_a_queue_with_quota_and_starts(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        await two_queues(world, 16, 16)
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        uid = world.cluster.submit(gang(kind, "second", 2))
        waits = await world.until_state(uid, State.PENDING)
        assert await answered(world, uid, Action.MOVE, queue="spare", why="it is free") == DONE
        runs = await world.until_state(uid, State.RUNNING)
        assert (runs.queue, runs.cluster_queue, runs.queue_set) == ("spare", "reserve", None)
        assert runs.queued_at == waits.queued_at
        assert (
            "moving from LocalQueue research to LocalQueue spare, by alice: it is free"
            in await messages(world, uid)
        )
        resource = "jobs" if kind == "Job" else "pytorchjobs"
        assert document_of(world, uid, resource)["metadata"]["labels"][QUEUE] == "spare"
        await world.at_rest()


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        ("nowhere", "LocalQueue nowhere does not exist in namespace default"),
        ("lost", "LocalQueue lost points to ClusterQueue gone, which does not exist"),
        (
            "shut",
            "spec.namespaceSelector of ClusterQueue private does not select namespace default",
        ),
    ],
)
async def test_a_move_to_a_queue_that_does_not_accept_the_gang_is_refused(
    database_url: str, queue: str, why: str
) -> None:
    async with rig(database_url, 2) as world:
        private = m.cluster_queue("private", "gpu", {"nvidia.com/gpu": 8})
        selector = {"matchLabels": {"team": "secret"}}
        private = {**private, "spec": {**private["spec"], "namespaceSelector": selector}}
        await world.store.put_config(private)
        await world.store.put_config(m.local_queue("default", "shut", "private"))
        await world.store.put_config(m.local_queue("default", "lost", "gone"))
        uid = world.cluster.submit(gang("Job", "huge", 3))
        await world.until_state(uid, State.PENDING)
        assert await answered(world, uid, Action.MOVE, queue=queue) == why
        assert (await world.entry(uid)).queue_set is None


async def test_a_priority_above_the_limit_of_the_queue_is_neither_set_nor_moved(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await two_queues(world, 8, 8)
        reserve = m.cluster_queue(
            "reserve", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000}
        )
        reserve["spec"]["policy"] = {"maxPriority": 100}
        await world.store.put_config(reserve)
        uid = world.cluster.submit(gang("Job", "huge", 3))
        await world.until_state(uid, State.PENDING)
        assert await answered(world, uid, Action.PRIORITY, priority=500) == DONE
        why = "ClusterQueue reserve allows at most priority 100 to be set (maxPriority), not 500"
        assert await answered(world, uid, Action.MOVE, queue="spare") == why
        assert await answered(world, uid, Action.PRIORITY, priority=100) == DONE
        assert await answered(world, uid, Action.MOVE, queue="spare") == DONE

        async def there() -> bool:
            return (await world.entry(uid)).cluster_queue == "reserve"

        await world.until(there, "it is in the other queue")
        refused = await answered(world, uid, Action.PRIORITY, priority=2**31 - 1)
        assert refused.endswith(f"not {2**31 - 1}")
        assert (await world.entry(uid)).priority == 100


async def test_a_priority_above_the_limit_of_another_cluster_queue_is_reset_when_the_local_queue_changes(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        await two_queues(world, 8, 8)
        capped = m.cluster_queue("capped", "gpu", {"nvidia.com/gpu": 8, "cpu": "1k", "pods": 1000})
        capped["spec"]["policy"] = {"maxPriority": 100}
        await world.store.put_config(capped)
        await world.store.put_config(m.priority_class("top", 1000))
        by_class, by_hand = gang("Job", "class", 3), gang("Job", "hand", 3)
        by_class["metadata"]["labels"]["queuectl.dev/priority-class"] = "top"
        uids = [world.cluster.submit(job) for job in (by_class, by_hand)]
        for uid in uids:
            await world.until_state(uid, State.PENDING)
        assert await answered(world, uids[1], Action.PRIORITY, priority=500) == DONE
        assert [(await world.entry(uid)).priority for uid in uids] == [1000, 500]
        before = (await world.entry(uids[0])).cluster_queue
        queue = (await world.entry(uids[0])).queue

        for leads_to, priorities in (("capped", [100, 100]), (before, [1000, 500])):
            await world.store.put_config(m.local_queue("default", queue, leads_to))

            async def settled(expected: list[int] = priorities) -> bool:
                return [(await world.entry(uid)).priority for uid in uids] == expected

            await world.until(settled, f"priorities as {leads_to} allows")


async def test_a_held_gang_is_moved_and_stays_held(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await two_queues(world, 16, 16)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        refused = await answered(world, uid, Action.MOVE, queue="spare")
        assert refused == "default/train is Running; hold it first and move it when it is Held"
        await world.ask(uid, Action.HOLD)
        await world.until_state(uid, State.HELD)
        assert await answered(world, uid, Action.MOVE, queue="spare") == DONE

        async def there() -> bool:
            return (await world.entry(uid)).queue == "spare"

        await world.until(there, "it is in the other queue")
        assert (await world.entry(uid)).state is State.HELD
        await world.ask(uid, Action.RELEASE)
        assert (await world.until_state(uid, State.RUNNING)).cluster_queue == "reserve"


async def test_a_reservation_of_a_gang_is_free_for_others_after_its_move(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await two_queues(world, 16, 0)
        await world.store.put_config(rules(queuectl={"evictionGrace": "1h"}))
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RESERVED)
        assert await answered(world, high, Action.MOVE, queue="spare") == DONE
        waits = await world.until_state(high, State.PENDING)
        assert waits.lease is None


# -- the controller is killed during the commands


async def story(world: Rig) -> None:
    """A gang without quota gets a higher priority for a time, is moved, starts in the other queue and ends."""
    await two_queues(world, 8, 16)
    uid = world.cluster.submit(gang("Job", "train", 2))
    waits = await world.until_state(uid, State.PENDING)
    boost = await world.ask(uid, Action.PRIORITY, 77, until=time.time() + 0.2)

    async def over() -> bool:
        """It was set and expired, or it came too late because the controller was down."""
        command = await world.store.command(boost.id)
        entry = await world.entry(uid)
        return command is not None and command.outcome is not None and entry.priority == 10

    await world.until(over, "its priority is over")
    await world.ask(uid, Action.MOVE, queue="spare")
    runs = await world.until_state(uid, State.RUNNING)
    assert (runs.cluster_queue, runs.attempt, runs.evictions) == ("reserve", 1, 0)
    assert (runs.priority, runs.queued_at) == (10, waits.queued_at)
    assert document_of(world, uid)["metadata"]["labels"][QUEUE] == "spare"
    world.cluster.finish(uid)
    await world.until_state(uid, State.FINISHED)
    assert await world.store.commands() == ()
    lines = await world.store.history(uid)
    assert sum(line.reason.code is Code.QUEUE_SET for line in lines) == 1
    await world.at_rest()


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_of_it_changes_no_outcome(postgres: TestPostgres) -> None:
    await survives(postgres, story)


async def test_the_commands_of_one_workload_do_not_delay_those_of_others(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        flooded = world.cluster.submit(gang("Job", "flooded", 1))
        other = world.cluster.submit(gang("Job", "other", 1))
        for uid in (flooded, other):
            await world.until_state(uid, State.RUNNING)
        await world.stop()
        for number in range(MOST_WAITING):
            await world.ask(flooded, Action.PRIORITY, number + 20)
        with pytest.raises(TooManyCommands):
            await world.ask(flooded, Action.PRIORITY, 7)
        await world.ask(other, Action.HOLD)
        world.running = True

        async def answered() -> bool:
            (asked,) = await world.store.commands_of(other)
            return asked.outcome == DONE

        await world.until(answered, "it is carried out")
        waiting = [one for one in await world.store.commands_of(flooded) if one.outcome is None]
        assert waiting


async def test_a_pending_gang_has_the_priority_of_its_class_after_a_reset(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        first, low = await one_waits(world)
        assert await answered(world, low, Action.PRIORITY, priority=90) == DONE
        assert (await world.entry(low)).priority == 90
        assert await answered(world, low, Action.PRIORITY) == DONE
        await world.until_entry(low, lambda e: e.priority == 10, "the priority of its class")
        world.cluster.finish(first)
        await world.until_state(low, State.RUNNING)
