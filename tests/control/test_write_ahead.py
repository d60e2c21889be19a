"""The next plan is made while observed facts are still being written. It is committed only after they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queuectl.db.ports import Commit
from queuectl.domain.errors import StaleSnapshot, StoreUnavailable
from queuectl.domain.ledger import Loaded, State
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from tests.control.rig import PATIENT, Rig, gang, rig


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


async def test_the_ledger_is_read_again_at_once_after_the_first_failed_commit_and_after_a_pause_from_then_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(f"queuectl.control.leader.loop.{pause}", PATIENT)
    async with rig(database_url, 2) as world:
        await one_runs(world)
        happened: list[str] = []
        load = world.store.load

        async def refuse(new: Commit, **place: int) -> None:
            happened.append("commit")
            raise StoreUnavailable("not this time")

        async def noted() -> Loaded:
            happened.append("load")
            return await load()

        monkeypatch.setattr(world.store, "commit", refuse)
        monkeypatch.setattr(world.store, "load", noted)
        world.cluster.submit(gang("Job", "second", 1))
        await world.until(lambda: happened.count("commit") == 2, "it is observed again")
        for _ in range(50):
            world.cluster.step()
            await asyncio.sleep(0.002)
        assert happened == ["commit", "load", "commit"]


async def test_the_leader_rests_after_a_plan_that_is_not_committed_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(database_url, 2) as world:
        world.settings = world.settings.model_copy(update={"planning_share": 1e-9})
        commit = world.store.commit
        refused: list[Commit] = []

        async def refuse_plans(new: Commit, **place: int) -> None:
            if new.revision is not None:
                refused.append(new)
                raise StoreUnavailable("not this time")
            await commit(new, **place)

        monkeypatch.setattr(world.store, "commit", refuse_plans)
        world.cluster.submit(gang("Job", "first", 1))
        await world.until(lambda: refused, "a plan")
        for _ in range(50):
            world.cluster.step()
            await asyncio.sleep(0.002)
        assert len(refused) == 1
