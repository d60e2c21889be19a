"""The database is restored from a backup while gangs run: complete gangs continue, and no attempt starts twice."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from sqlalchemy import make_url

from queuectl.domain.commands import Action
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, nodes, rig
from tests.control.test_recover import suspended
from tests.support.postgres import TestPostgres

AT_THE_BACKUP: Final = {
    "runs": State.RUNNING,
    "again": State.RUNNING,
    "released": State.HELD,
    "starts": State.RUNNING,
    "held-later": State.RUNNING,
    "leaves": State.EVICTING,
    "returned": State.EVICTING,
}
CONTINUE: Final = {"runs": 1, "again": 2, "released": 2, "returned": 2}
"""Attempts of the gangs that are complete at the restore. They continue."""
START_AGAIN: Final = {"held-later": 2, "leaves": 3}
"""Attempts of the others after the restore: each is higher than those that the cluster has seen."""


def has(attempt: int, entry: Entry) -> bool:
    return entry.attempt == attempt


async def before_the_backup(world: Rig, kind: str) -> dict[str, str]:
    uids = {name: world.cluster.submit(gang(kind, name, 2)) for name in AT_THE_BACKUP}
    for uid in uids.values():
        await world.until_state(uid, State.RUNNING)
    await world.ask(uids["released"], Action.HOLD)
    await world.until_state(uids["released"], State.HELD)
    world.cluster.controllers.hold_ends = True  # pods do not end
    for name in ("leaves", "returned"):
        await world.ask(uids[name], Action.REQUEUE)
        await world.until_state(uids[name], State.EVICTING)
        await world.until(partial(suspended, world, uids[name]), f"{name} is suspended")
    await world.stop()
    return uids


async def after_the_backup(world: Rig, uids: dict[str, str]) -> None:
    world.cluster.controllers.hold_ends = False
    for name in ("leaves", "returned"):
        await world.until_entry(uids[name], lambda e: e.attempt == 2, "second attempt")
        await world.until_state(uids[name], State.RUNNING)
    await world.ask(uids["released"], Action.RELEASE)
    await world.until_state(uids["released"], State.RUNNING)
    await world.ask(uids["again"], Action.REQUEUE)
    await world.until_entry(uids["again"], lambda e: e.attempt == 2, "second attempt")
    await world.until_state(uids["again"], State.RUNNING)
    for name in ("held-later", "leaves"):
        await world.ask(uids[name], Action.HOLD)
        await world.until_state(uids[name], State.HELD)
    await world.ask(uids["starts"], Action.REQUEUE)
    await world.until(lambda: suspended(world, uids["starts"]), "starts is suspended")
    await world.until(lambda: not suspended(world, uids["starts"]), "starts is resumed")
    await world.stop()


@pytest.mark.parametrize("kind", ALIKE)
async def test_complete_gangs_continue_and_no_attempt_starts_twice(
    database_url: str, postgres: TestPostgres, kind: str
) -> None:
    async with rig(database_url, 16) as world:
        uids = await before_the_backup(world, kind)
        cluster = world.cluster
    backup = await postgres.fresh(like=make_url(database_url).database or "")
    async with rig(database_url, 16, cluster=cluster) as world:
        await after_the_backup(world, uids)
        before = {name: {pod.uid for pod in live(cluster.pods_of(uids[name]))} for name in CONTINUE}
    # The controller can release pods until it has stopped. They get a node later.
    released = {pod.uid for pod in cluster.pods_of(uids["starts"]) if not pod.gated}
    async with rig(postgres.server.url(backup), 16, cluster=cluster) as world:
        for name, attempt in CONTINUE.items():
            uid = uids[name]
            await world.until_entry(uid, partial(has, attempt), f"{name}: attempt {attempt}")
            await world.until_state(uid, State.RUNNING)
        for name in (*START_AGAIN, "starts"):
            await world.until_state(uids[name], State.RUNNING)
        await world.at_rest()
        entries = {entry.name: entry for entry in (await world.store.load()).entries}
        attempts = {name: entry.attempt for name, entry in entries.items()}
        # It continues if all its pods were released before the restore.
        continued = {pod.uid for pod in live(cluster.pods_of(uids["starts"]))} <= released
        assert attempts == CONTINUE | START_AGAIN | {"starts": 2 if continued else 3}
        after = {name: {pod.uid for pod in live(cluster.pods_of(uids[name]))} for name in CONTINUE}
        assert after == before
        assert world.kills == 0
    await postgres.drop(backup)


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("returns", [False, True])
async def test_a_gang_that_was_repaired_after_the_backup_runs_on_and_holds_the_nodes_of_its_pods(
    database_url: str, postgres: TestPostgres, kind: str, *, returns: bool
) -> None:
    """``returns``: the lost node is there again, and free for another gang."""
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(gang(kind, "repaired", 2))
        await world.until_state(uid, State.RUNNING)
        await world.stop()
        cluster = world.cluster
    backup = await postgres.fresh(like=make_url(database_url).database or "")
    async with rig(database_url, 3, cluster=cluster) as world:
        lost = live(cluster.pods_of(uid))[0].node
        assert lost is not None
        cluster.delete_node(lost)
        await world.until(
            lambda: (
                len(pods := live(cluster.pods_of(uid))) == 2 and lost not in {p.node for p in pods}
            ),
            "it is repaired",
        )
        before = {pod.uid: pod.node for pod in live(cluster.pods_of(uid))}
        await world.stop()
    if returns:
        cluster.add_node(next(each for each in nodes(3) if each["metadata"]["name"] == lost))
    async with rig(postgres.server.url(backup), 3, cluster=cluster) as world:
        other = cluster.submit(gang(kind, "other", 1))
        answered = State.RUNNING if returns else State.PENDING
        await world.until_entry(
            other, lambda e: e.state is answered and e.reason.code is not Code.QUEUED, "answered"
        )
        entry = await world.entry(uid)
        assert (entry.state, entry.attempt) == (State.RUNNING, 1)
        assert {pod.uid: pod.node for pod in live(cluster.pods_of(uid))} == before
        assert entry.placement is not None
        assert {node for p in entry.placement.podsets for node, _ in p.nodes} == {*before.values()}
        await world.at_rest()
    await postgres.drop(backup)
