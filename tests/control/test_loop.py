"""The loop on a real Postgres: gangs queue, start with all pods, preempt, are repaired, and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from queuectl.control.leader.planning import NOTHING_TO_PLAN
from queuectl.demo import scenario as m
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Limit, Remedy
from queuectl.domain.ledger import State
from queuectl.domain.quantity import GPU
from queuectl.domain.reasons import Code
from queuectl.objects import keys
from tests.control.alike import ALIKE
from tests.control.rig import Rig, configuration, gang, live, nodes, rig
from tests.support.postgres import TestPostgres

KINDS = ("Job", "PyTorchJob")


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_starts_with_all_pods_runs_and_ends(database_url: str, kind: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang(kind, "train", 3))
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 1
        assert len(live(world.cluster.pods_of(uid))) == 3
        world.cluster.finish(uid)
        done = await world.until_state(uid, State.FINISHED)
        assert done.reason.code is Code.SUCCEEDED
        await world.at_rest()


@pytest.mark.parametrize("kind", ALIKE)
async def test_admission_costs_one_write_and_one_per_pod(database_url: str, kind: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang(kind, "train", 4))
        await world.until_state(uid, State.RUNNING)
        written = Counter(
            w.resource for w in world.cluster.writes if w.resource == "Pod" or "spec" in w.patch
        )
        assert written == {kind: 1, "Pod": 4}


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_preempted_gang_ends_with_all_pods_keeps_its_position_and_runs_again(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang(kind, "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        waiting = await world.entry(low)
        assert waiting.evictions == 1
        world.cluster.finish(high)
        await world.until_state(high, State.FINISHED)
        again = await world.until_state(low, State.RUNNING)
        assert again.attempt == 2
        await world.at_rest()


async def test_the_freed_nodes_are_held_for_the_preemptor_while_victims_drain(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        world.cluster.controllers.hold_ends = True
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RESERVED)
        other = world.cluster.submit(gang("Job", "thief", 1))
        entry = await world.until_state(other, State.PENDING)
        world.cluster.controllers.hold_ends = False
        await world.until_state(high, State.RUNNING)
        entry = await world.until_state(other, State.PENDING)
        assert entry.attempt == 0


def never_end(world: Rig, uid: str) -> None:
    """The pods of a running gang stay Terminating when they are stopped."""
    nodes_of = (pod.node for pod in live(world.cluster.pods_of(uid)))
    world.cluster.controllers.slow_nodes = frozenset(node for node in nodes_of if node)


async def test_a_gang_that_lacks_quota_alone_waits_for_no_gang_on_nodes_that_it_does_not_need(
    database_url: str,
) -> None:
    async with rig(database_url, 6) as world:
        covered: dict[str, int | str] = {
            "nvidia.com/gpu": 64,
            "cpu": "1k",
            "pods": 1000,
            "memory": "1Pi",
        }
        other = [
            m.cluster_queue("other", "gpu", covered),
            m.local_queue("default", "others", "other"),
        ]
        for document in (*other, *configuration(16)):
            await world.store.put_config(document)
        slow_gang = gang("Job", "slow", 2)
        slow_gang["metadata"]["labels"][keys.QUEUE_LABEL] = "others"
        slow = world.cluster.submit(slow_gang)
        await world.until_state(slow, State.RUNNING)
        never_end(world, slow)
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        await world.ask(slow, Action.HOLD)
        await world.until_state(slow, State.EVICTING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        await world.until_state(slow, State.EVICTING)


async def test_a_preempted_gang_queues_before_a_later_one_if_its_preemptor_is_deleted(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        world.cluster.controllers.hold_ends = True
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(low, State.EVICTING)
        world.cluster.delete_job(high)
        await world.until_state(high, State.FINISHED)
        later = world.cluster.submit(gang("Job", "later", 2))
        await world.until_entry(
            later, lambda e: e.reason.code is Code.WAITING_FOR_QUOTA, "it waits for quota"
        )
        world.cluster.controllers.hold_ends = False
        assert (await world.until_state(low, State.RUNNING)).attempt == 2
        assert (await world.until_state(later, State.PENDING)).attempt == 0


async def test_a_gang_starts_on_nodes_that_become_free_while_it_waits_for_an_evicted_gang(
    database_url: str,
) -> None:
    async with rig(database_url, 4) as world:
        low = world.cluster.submit(gang("Job", "low", 2))
        await world.until_state(low, State.RUNNING)
        never_end(world, low)
        equal = world.cluster.submit(gang("Job", "equal", 2, "high"))
        await world.until_state(equal, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RESERVED)
        world.cluster.finish(equal)
        await world.until_state(high, State.RUNNING)
        await world.until_state(low, State.EVICTING)


async def test_a_gang_that_never_fits_has_a_reason_and_delays_no_other(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        rack = "topology.queuectl.dev/rack"
        big = gang("Job", "big", 5)
        big["spec"]["template"]["metadata"]["annotations"][
            "queuectl.dev/podset-required-topology"
        ] = rack
        uid = world.cluster.submit(big)
        small = world.cluster.submit(gang("Job", "small", 2))
        await world.until_state(small, State.RUNNING)

        async def has_reason() -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and entry.reason.code is Code.EXCEEDS_MAX_QUOTA

        await world.until(has_reason, "the reason is in the ledger")
        await world.until(
            lambda: any(e.uid == uid and e.kind == "Warning" for e in world.cluster.events),
            "a warning is on the object",
        )


async def test_only_a_pending_gang_has_an_explanation(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang("Job", "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang("Job", "second", 2))

        async def has_reason() -> bool:
            entry = await world.store.get_workload(second)
            return entry is not None and entry.reason.code is Code.WAITING_FOR_QUOTA

        await world.until(has_reason, "the reason is in the ledger")
        assert world.loop is not None
        found, again, other = await asyncio.gather(
            world.loop.diagnose(second), world.loop.diagnose(second), world.loop.diagnose(first)
        )
        assert found is not None
        assert found is again  # solved once
        assert other is None
        assert {o.limit for o in found.conflict} >= {Limit.RUNNING}
        assert Remedy.END_OTHERS in {way.remedy for way in found.suggested_fixes}


@pytest.mark.parametrize(
    ("kind", "fate"),
    # A failed pod of a PyTorchJob fails the job: a failure that the operator reports is final.
    [("Job", "fails"), ("Job", "is deleted"), ("PyTorchJob", "is deleted")],
)
async def test_a_lost_pod_is_replaced_in_its_slot(database_url: str, kind: str, fate: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang(kind, "train", 3))
        await world.until_state(uid, State.RUNNING)
        before = {p.name: p.node for p in live(world.cluster.pods_of(uid))}
        name = sorted(before)[1]
        if fate == "fails":
            world.cluster.fail_pod(name)
        else:
            world.cluster.server.delete("pods", world.cluster.server.get("pods", "default", name))
        world.cluster.step()
        await world.until(lambda: len(live(world.cluster.pods_of(uid))) == 3, "all three run again")
        after = Counter(p.node for p in live(world.cluster.pods_of(uid)))
        assert after == Counter(before.values())


async def test_a_lost_node_moves_only_its_pods(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", "train", 3))
        await world.until_state(uid, State.RUNNING)
        lost = next(p for p in live(world.cluster.pods_of(uid)))
        stayed = {p.uid for p in live(world.cluster.pods_of(uid))} - {lost.uid}
        assert lost.node is not None
        world.cluster.delete_node(lost.node)
        await world.until(
            lambda: (
                len(live(world.cluster.pods_of(uid))) == 3
                and lost.node not in {p.node for p in live(world.cluster.pods_of(uid))}
            ),
            "the lost pod runs elsewhere",
        )
        assert stayed <= {p.uid for p in live(world.cluster.pods_of(uid))}
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 1


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_gang_that_is_still_starting_moves_its_pods_off_a_lost_node(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 5) as world:
        world.cluster.controllers.hold_starts = True
        uid = world.cluster.submit(gang(kind, "train", 3))
        await world.until_state(uid, State.STARTING)
        await world.until(lambda: len(live(world.cluster.pods_of(uid))) == 3, "all pods are bound")
        lost = live(world.cluster.pods_of(uid))[0].node
        assert lost is not None
        world.cluster.delete_node(lost)
        other = world.cluster.submit(gang(kind, "other", 1))
        await world.until(
            lambda: (
                len(pods := live(world.cluster.pods_of(uid))) == 3
                and lost not in {pod.node for pod in pods}
            ),
            "its pods are bound to other nodes",
        )
        assert (await world.until_state(uid, State.STARTING)).attempt == 1
        world.cluster.controllers.hold_starts = False
        for each in (uid, other):
            await world.until_state(each, State.RUNNING)
        await world.at_rest()


async def test_a_lost_node_is_replaced_by_preemption_while_the_other_pods_run_on(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        high = world.cluster.submit(gang("Job", "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        low = world.cluster.submit(gang("Job", "low", 1))
        await world.until_state(low, State.RUNNING)
        lost, stays = live(world.cluster.pods_of(high))
        (victim,) = live(world.cluster.pods_of(low))
        assert lost.node is not None
        world.cluster.delete_node(lost.node)
        await world.until(
            lambda: (
                {p.node for p in live(world.cluster.pods_of(high))} == {stays.node, victim.node}
            ),
            "the lost pod runs where the victim ran",
        )
        assert stays.uid in {p.uid for p in live(world.cluster.pods_of(high))}
        entry = await world.until_state(high, State.RUNNING)
        assert (entry.attempt, entry.evictions) == (1, 0)
        waits = await world.until_state(low, State.PENDING)
        assert len(waits.preempted_at) == 1


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_deleted_job_is_forgotten_and_its_nodes_are_free(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        first = world.cluster.submit(gang(kind, "first", 2))
        await world.until_state(first, State.RUNNING)
        second = world.cluster.submit(gang(kind, "second", 2))
        await world.until_state(second, State.PENDING)
        world.cluster.delete_job(first)
        gone = await world.until_state(first, State.FINISHED)
        assert gone.reason.code is Code.DELETED
        await world.until_state(second, State.RUNNING)


async def test_a_burst_is_admitted_together(database_url: str) -> None:
    async with rig(database_url, 16) as world:
        uids = [world.cluster.submit(gang(KINDS[i % 2], f"rush-{i}", 2)) for i in range(8)]
        for uid in uids:
            await world.until_state(uid, State.RUNNING)
        await world.at_rest()


@pytest.mark.parametrize("kind", ALIKE)
async def test_after_a_loss_of_the_database_running_gangs_run_on_and_count(
    postgres: TestPostgres, kind: str
) -> None:
    first, second = await postgres.fresh(), await postgres.fresh()
    async with rig(postgres.server.url(first), 2) as world:
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        pods = {p.uid for p in live(world.cluster.pods_of(uid))}
        await world.stop()
        async with rig(postgres.server.url(second), 2, cluster=world.cluster) as recovered:
            late = recovered.cluster.submit(gang(kind, "late", 2))
            entry = await recovered.until_state(uid, State.RUNNING)
            assert entry.reason.code is Code.ADOPTED
            await recovered.until_state(late, State.PENDING)
            assert {p.uid for p in live(recovered.cluster.pods_of(uid))} == pods
            recovered.cluster.finish(uid)
            await recovered.until_state(late, State.RUNNING)


def shrinkable(name: str, pods: int, least: int, priority: str = "low") -> dict[str, Any]:
    document = dict(gang("Job", name, pods, priority))
    document["metadata"].setdefault("annotations", {})
    document["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] = str(least)
    return document


async def test_a_job_starts_with_the_pods_that_fit_and_requests_all_again_after_a_preemption(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        part = world.cluster.submit(shrinkable("part", 4, 2))
        started = await world.until_state(part, State.RUNNING)
        assert started.placement is not None
        assert started.placement.podsets[0].pods == 3
        text = "all 3 pods are ready; it requested 4 pods and started with fewer"
        assert started.reason.message == text
        assert len(live(world.cluster.pods_of(part))) == 3
        assert parallelism(world, part) == 3
        high = world.cluster.submit(gang("Job", "high", 3, "high"))
        await world.until_state(high, State.RUNNING)
        assert parallelism(world, part) == 4
        world.cluster.add_node(nodes(4)[3])
        for document in configuration(32):
            await world.store.put_config(document)

        def known() -> bool:
            """Before the gang starts again: otherwise it starts with the pods that fit the old quota."""
            assert world.loop is not None
            snapshot = world.loop.leader_state.snapshot(seek_room=False)
            (flavor,) = snapshot.config.cluster_queues["pool"].groups[0].flavors
            return len(snapshot.fleet.nodes) == 4 and flavor.nominal[GPU] == 32

        await world.until(known, "the node and the quota are known")
        world.cluster.finish(high)
        again = await world.until_state(part, State.RUNNING)
        assert again.attempt == 2
        assert len(live(world.cluster.pods_of(part))) == 4
        world.cluster.finish(part)
        await world.until_state(part, State.FINISHED)
        await world.at_rest()


async def test_a_restart_keeps_the_lower_count_of_a_job_that_started_with_fewer_pods(
    database_url: str,
) -> None:
    async with rig(database_url, 3) as world:
        part = world.cluster.submit(shrinkable("part", 4, 2))
        await world.until_state(part, State.RUNNING)
        world.commits.at = world.commits.seen + 1
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.PENDING)
        assert world.kills == 1
        world.cluster.finish(part)
        await world.until(
            lambda: len(live(world.cluster.pods_of(part))) == 1, "the fourth completion runs"
        )
        world.cluster.finish(part)
        ended = await world.until_state(part, State.FINISHED)
        assert ended.attempt == 1
        await world.until_state(other, State.RUNNING)
        await world.at_rest()


def parallelism(world: Rig, uid: str) -> int:
    (document,) = (d for d in world.cluster.server.all("jobs") if d["metadata"]["uid"] == uid)
    count: int = document["spec"]["parallelism"]
    return count


async def test_no_cycle_runs_while_nothing_changes(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.control.leader.planning.RETRY_SECONDS", 0.02)
    async with rig(database_url, 2) as world:
        await world.until_state(world.cluster.submit(gang("Job", "runs", 2)), State.RUNNING)
        waits = world.cluster.submit(gang("Job", "waits", 2))
        await world.until_entry(waits, lambda e: e.reason.code is Code.WAITING_FOR_QUOTA, "waits")
        await world.at_rest()
        assert world.loop is not None
        before = world.loop._writer.cycle
        await asyncio.sleep(0.2)
        assert world.loop._writer.cycle == before


async def test_a_cycle_that_finds_nothing_to_plan_counts_as_work(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one then follows after a pause, as after a plan."""
    async with rig(database_url, 2) as world:
        await world.until_state(world.cluster.submit(gang("Job", "runs", 2)), State.RUNNING)
        await world.at_rest()
        loop, worked = world.loop, list[float]()
        assert loop is not None
        monkeypatch.setattr(loop, "_rest", worked.append)
        loop._wakeup.plan()
        await world.until(lambda: worked and loop._summary == NOTHING_TO_PLAN, "no plan is made")
        assert worked[0] > 0


async def test_a_lost_node_is_replaced_while_another_node_of_the_gang_is_not_ready(
    database_url: str,
) -> None:
    """The pod on the node that is not ready keeps its slot."""
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang("Job", "train", 3))
        await world.until_state(uid, State.RUNNING)
        silent, lost, _ = (pod.node or "" for pod in live(world.cluster.pods_of(uid)))
        world.cluster.set_ready(silent, ready=False)
        world.cluster.delete_node(lost)

        async def moved() -> bool:
            entry = await world.entry(uid)
            assert entry.placement is not None
            used = {name for podset in entry.placement.podsets for name, _ in podset.nodes}
            return lost not in used and silent in used

        await world.until(moved, "the pod of the deleted node has another slot")
