"""Queue counts: the real store and its double return the same, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from queuectl.db.engine import DatabaseSettings
from queuectl.domain.commands import Action
from queuectl.domain.ledger import State
from queuectl.domain.queries import QueueCounts, WaitingOrder, WorkloadFilter
from queuectl.domain.reasons import Code
from tests.api.conftest import commit
from tests.api.support import LIVES, asked, job, live_through
from tests.doubles.store import MemoryStore
from tests.support.stores import PostgresStore

AnyStore = MemoryStore | PostgresStore
OTHER = "team-b"


@pytest.fixture(params=["memory", "postgres"])
def location(request: pytest.FixtureRequest) -> str | None:
    """URL of a fresh database; None = in memory."""
    return request.getfixturevalue("database_url") if request.param == "postgres" else None


@pytest.fixture
async def counted(location: str | None) -> AsyncIterator[AnyStore]:
    """A workload in every state, and three more pending ones: two of another namespace, one of high priority."""
    made: AnyStore = MemoryStore()
    if location is not None:
        made = await PostgresStore.connect(DatabaseSettings(location))
    for number, (name, life) in enumerate(LIVES.items()):
        await commit(made, live_through(job(name, at=100.0 + number), *life))
    for name, at, priority in (("young", 900.0, 0), ("old", 1.0, 0), ("urgent", 950.0, 9)):
        await commit(made, live_through(job(name, at=at, namespace=OTHER), priority=priority))
    yield made
    await made.close()


async def test_a_count_includes_all_workloads_that_are_not_finished(counted: AnyStore):
    tallies = await counted.tallies()
    assert sum(tally.workloads for tally in tallies) == len(LIVES) - 1 + 3
    assert (
        QueueCounts(OTHER, "default", "team-a", State.PENDING, Code.QUEUED, 3, 96, 1.0) in tallies
    )
    assert State.FINISHED not in {tally.state for tally in tallies}


async def test_the_count_of_a_reason_equals_the_length_of_its_list(counted: AnyStore):
    sums: Counter[Code] = Counter()
    for tally in await counted.tallies():
        sums[tally.code] += tally.workloads
    assert len(sums) > 3
    for code, workloads in sums.items():
        live = frozenset(State) - {State.FINISHED}
        page = await counted.list_workloads(WorkloadFilter(states=live, code=code))
        assert len(page.entries) == workloads
        assert {entry.reason.code for entry in page.entries} == {code}


async def test_pending_workloads_are_listed_in_queue_order_or_by_age(counted: AnyStore):
    turns = [entry.name for entry in await counted.waiting("team-a", {OTHER})]
    ages = [entry.name for entry in await counted.waiting(None, {OTHER}, order=WaitingOrder.AGE)]
    assert turns == ["urgent", "old", "young"]
    assert ages == ["old", "young", "urgent"]


async def test_pending_workloads_are_listed_in_pages(counted: AnyStore):
    everybody = await counted.waiting("team-a")
    pages = [await counted.waiting("team-a", skip=skip, limit=2) for skip in range(0, 20, 2)]
    assert [entry for page in pages for entry in page] == list(everybody)
    assert {entry.state for entry in everybody} == {State.PENDING, State.RESERVED}
    assert await counted.waiting("team-a", queue="default") == everybody
    assert await counted.waiting("team-a", queue="nowhere") == ()
    assert await counted.waiting("nowhere") == ()
    assert await counted.waiting(None, frozenset()) == ()


async def test_evictions_are_listed_newest_first(counted: AnyStore):
    found = await counted.evictions()
    assert {line.to_state for line in found} == {State.EVICTING}
    assert {line.name for line in found} == {"evicting", "requeued", "backoff", "leaving"}
    ids = [line.id for line in found]
    assert ids == sorted(ids, reverse=True)
    assert [line.id for line in await counted.evictions(before=ids[1])] == ids[2:]
    assert await counted.evictions({OTHER}) == ()


async def test_a_gang_that_is_held_while_it_leaves_is_evicted_once(counted: AnyStore):
    life = (*LIVES["evicting"], asked(Action.HOLD), asked(Action.RELEASE))
    await commit(counted, live_through(job("held-later", at=2000.0), *life))
    assert [line.name for line in await counted.evictions()].count("held-later") == 1
