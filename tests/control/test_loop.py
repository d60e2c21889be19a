"""The loop on a real Postgres: gangs queue, start whole, preempt, are repaired, and end."""

from __future__ import annotations

from collections import Counter

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import gang, live, rig
from tests.support.postgres import TestPostgres

KINDS = ("Job", "PyTorchJob")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gang_starts_whole_runs_and_ends(database_url: str, kind: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang(kind, "train", 3))
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.attempt == 1
        assert len(live(world.cluster.pods_of(uid))) == 3
        world.cluster.finish(uid)
        done = await world.until_state(uid, State.FINISHED)
        assert done.reason.code is Code.SUCCEEDED
        await world.at_rest()


@pytest.mark.parametrize("kind", KINDS)
async def test_admission_costs_one_write_and_one_per_pod(database_url: str, kind: str) -> None:
    async with rig(database_url, 4) as world:
        uid = world.cluster.submit(gang(kind, "train", 4))
        await world.until_state(uid, State.RUNNING)
        written = Counter(
            w.resource for w in world.cluster.writes if w.resource == "Pod" or "spec" in w.patch
        )
        assert written == {kind: 1, "Pod": 4}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_preempted_gang_leaves_whole_keeps_its_place_and_runs_again(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        low = world.cluster.submit(gang(kind, "low", 2))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang(kind, "high", 2, "high"))
        await world.until_state(high, State.RUNNING)
        waiting = await world.store.get_workload(low)
        assert waiting is not None
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
        thief = world.cluster.submit(gang("Job", "thief", 1))
        entry = await world.until_state(thief, State.PENDING)
        world.cluster.controllers.hold_ends = False
        await world.until_state(high, State.RUNNING)
        entry = await world.until_state(thief, State.PENDING)
        assert entry.attempt == 0


async def test_a_gang_that_never_fits_says_why_and_disturbs_nobody(database_url: str) -> None:
    async with rig(database_url, 4) as world:
        rack = "topology.queuectl.dev/rack"
        big = gang("Job", "big", 5)
        big["spec"]["template"]["metadata"]["annotations"][
            "queuectl.dev/podset-required-topology"
        ] = rack
        uid = world.cluster.submit(big)
        small = world.cluster.submit(gang("Job", "small", 2))
        await world.until_state(small, State.RUNNING)

        async def told() -> bool:
            entry = await world.store.get_workload(uid)
            return entry is not None and entry.reason.code is Code.EXCEEDS_MAX_QUOTA

        await world.until(told, "the reason is in the ledger")
        await world.until(
            lambda: any(e.uid == uid and e.kind == "Warning" for e in world.cluster.events),
            "a warning is on the object",
        )


@pytest.mark.parametrize(
    ("kind", "fate"),
    # A failed pod of a PyTorchJob fails the job: what the operator calls failed is final.
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


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deleted_job_is_forgotten_and_its_place_given_away(
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


async def test_a_rush_is_admitted_together(database_url: str) -> None:
    async with rig(database_url, 16) as world:
        uids = [world.cluster.submit(gang(KINDS[i % 2], f"rush-{i}", 2)) for i in range(8)]
        for uid in uids:
            await world.until_state(uid, State.RUNNING)
        await world.at_rest()


@pytest.mark.parametrize("kind", KINDS)
async def test_after_the_database_is_lost_running_gangs_run_on_and_are_counted(
    postgres: TestPostgres, kind: str
) -> None:
    first, second = await postgres.fresh(), await postgres.fresh()
    async with rig(postgres.server.url(first), 2) as world:
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        pods = {p.uid for p in live(world.cluster.pods_of(uid))}
        await world.stop()
        async with rig(postgres.server.url(second), 2, cluster=world.cluster) as heir:
            late = heir.cluster.submit(gang(kind, "late", 2))
            entry = await heir.until_state(uid, State.RUNNING)
            assert entry.reason.code is Code.ADOPTED
            await heir.until_state(late, State.PENDING)
            assert {p.uid for p in live(heir.cluster.pods_of(uid))} == pods
            heir.cluster.finish(uid)
            await heir.until_state(late, State.RUNNING)
