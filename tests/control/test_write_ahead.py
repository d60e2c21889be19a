"""The next plan is made while observed facts are still being written. It is committed only after they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuectl.db.ports import Commit
from queuectl.domain.errors import StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import State
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from tests.control.rig import Rig, gang, rig


async def one_runs(world: Rig) -> None:
    """Submit a gang and wait until it runs: afterwards no query for commands precedes each commit."""
    first = world.cluster.submit(gang("Job", "first", 1))
    await world.until_state(first, State.RUNNING)
    await world.at_rest()


async def test_a_plan_waits_for_the_facts_it_was_made_from(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 2) as world:
        await one_runs(world)
        happened: list[str] = []
        written = asyncio.Event()
        commit = world.store.commit

        async def slowly(new: Commit, **place: int) -> None:
            facts = new.revision is None
            happened.append("facts" if facts else "plan")
            if facts:
                await written.wait()
                happened.append("written")
            await commit(new, **place)

        def noted(snapshot: Snapshot, *rest: Any) -> Plan:
            happened.append("planned")
            return plan(snapshot, *rest)

        monkeypatch.setattr(world.store, "commit", slowly)
        monkeypatch.setattr("queuectl.control.checked_plan.plan", noted)
        sent = world.patches.seen
        uid = world.cluster.submit(gang("Job", "second", 1))
        await world.until(lambda: "planned" in happened, "a plan")
        await asyncio.sleep(0.1)
        assert sorted(happened) == ["facts", "planned"]
        assert world.patches.seen == sent
        written.set()
        await world.until_state(uid, State.RUNNING)
        assert happened[2:4] == ["written", "plan"]


@pytest.mark.parametrize("error", [StaleSnapshot, StoreUnavailable])
async def test_facts_that_were_not_written_are_observed_again_and_their_plan_is_dropped(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async with rig(database_url, 2) as world:
        await one_runs(world)
        commit = world.store.commit
        commits: list[tuple[bool, set[str]]] = []

        async def failing(new: Commit, **place: int) -> None:
            commits.append((new.revision is None, {change.after.uid for change in new.changes}))
            if len(commits) == 1:
                raise error("not this time")
            await commit(new, **place)

        monkeypatch.setattr(world.store, "commit", failing)
        uid = world.cluster.submit(gang("Job", "second", 1))
        await world.until_state(uid, State.RUNNING)
        assert commits[0] == (True, {uid})
        assert commits[1] == (True, {uid}), "the facts before the plan"
        await world.at_rest()
