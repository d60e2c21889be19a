"""The database returns exactly the committed state, for any life cycle."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.db.ports import Commit
from queuectl.domain.ledger import REFUSED_WRITE, State, violations
from queuectl.domain.processes import LeaderFindings
from queuectl.domain.queries import WorkloadFilter
from queuectl.domain.reasons import Code
from tests.db.conformance import FOUND
from tests.db.histories import Lives
from tests.support.examples import examples
from tests.support.stores import PostgresStore

RUNS = count()
NODE = {"n1": "GPU 3: XID 79"}
CHOICES = st.tuples(st.integers(0, 4), st.integers(0, 23))


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(st.lists(CHOICES, min_size=1, max_size=6), min_size=1, max_size=14))
async def test_any_sequence_of_transitions_is_read_as_committed(
    store: PostgresStore, batches: list[list[tuple[int, int]]]
):
    # One database serves all examples: each has different uids.
    lives = Lives(f"run{next(RUNS)}")
    epoch = await store.take_over("test", 0)
    noted = 0
    for choices in batches:
        changes = lives.batch(choices)
        await store.commit(Commit(changes), epoch=epoch, cycle=1)
        lives.committed(changes)
        noted += sum(change.note is not None for change in changes)
    live = {uid: e for uid, e in lives.entries.items() if e.state is not State.FINISHED}
    loaded = {
        e.uid: e for e in (await store.load()).entries if e.uid.startswith(lives.prefix + "-")
    }
    assert loaded == live
    assert not [text for entry in loaded.values() for text in violations(entry)]
    for uid, entry in lives.entries.items():
        assert await store.get_workload(uid) == entry
    lines = [line for uid in lives.entries for line in await store.history(uid, limit=500)]
    assert len(lines) == noted


NEWER = f"""
UPDATE workloads SET reason_code = 'OfTheNextRelease', reason_message = 'its text', evicted_for = 'OfTheNextRelease',
  reason_details = '{{"{REFUSED_WRITE}": {{"write": "OfTheNextRelease", "before": ""}}}}',
  parked = '{{"code": "OfTheNextRelease", "message": "parked", "details": {{}}}}';
INSERT INTO history (uid, kind, namespace, name, at, epoch, cycle, attempt, event, to_state, code, message, details)
SELECT uid, kind, namespace, name, extract(epoch FROM now()), epoch, cycle, attempt, 'Defragmented', to_state,
  'OfTheNextRelease', '', details FROM history;
"""


async def test_codes_of_a_newer_release_are_read_and_shown(
    store: PostgresStore, database_url: str
) -> None:
    """After a roll back, and while a newer release leads."""
    lives = Lives("newer")
    changes = lives.batch([(0, 0)])
    epoch = await store.take_over("test", 0)
    await store.commit(Commit(changes), epoch=epoch, cycle=1)
    [uid] = [change.after.uid for change in changes]
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(NEWER)
    finally:
        await connection.close()
    loaded = await store.load()
    [entry] = loaded.entries
    assert (entry.reason.code, entry.evicted_for) == (Code.OF_NEWER_RELEASE, Code.OF_NEWER_RELEASE)
    assert entry.reason.message == "OfTheNextRelease: its text"
    assert entry.refused_write is None
    assert entry.parked is not None
    assert (entry.parked.code, entry.parked.message) == (
        Code.OF_NEWER_RELEASE,
        "OfTheNextRelease: parked",
    )
    assert await store.get_workload(uid) == entry
    assert (await store.list_workloads(WorkloadFilter())).entries
    line = (await store.history(uid))[-1]
    assert (line.reason.code, line.reason.message) == (Code.OF_NEWER_RELEASE, "OfTheNextRelease")
    assert [tally.code for tally in await store.tallies()] == [Code.OF_NEWER_RELEASE]
    assert [found.code for found in await store.unfinished()] == [Code.OF_NEWER_RELEASE]


@pytest.mark.parametrize(
    ("column", "written", "left"),
    [
        (
            "uses",
            """jsonb_set(uses, '{u1,state}', '"OfTheNextRelease"')""",
            LeaderFindings(FOUND.at, {}, FOUND.starts, NODE),
        ),
        ("expected_starts", "'[1]'", LeaderFindings(FOUND.at, FOUND.uses, unhealthy=NODE)),
        ("unhealthy", "'[1]'", FOUND),
    ],
)
async def test_results_of_a_newer_leader_that_cannot_be_read_are_left_out_and_the_others_are_read(
    store: PostgresStore, database_url: str, column: str, written: str, left: LeaderFindings
) -> None:
    epoch = await store.take_over("test", 0)
    await store.keep_findings(replace(FOUND, unhealthy=NODE), epoch=epoch)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(f"UPDATE findings SET {column} = {written}")
    finally:
        await connection.close()
    assert await store.findings(0.0) == left
