"""The changes that a replica keeps for its watches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import LiveWorkloads
from queuectl.visibility.changes import ChangeLog, JobChange, changes_between
from queuectl.visibility.rows import LastKnown
from tests.doubles.store import MemoryStore

ONE = Entry("u1", "Job", "team-a", "one", State.PENDING)
TWO = Entry("u2", "Job", "team-a", "two", State.PENDING)


def test_changes_are_what_differs_between_two_reads() -> None:
    started = replace(ONE, state=State.STARTING, version=1)
    assert list(changes_between({"u1": ONE}, {"u1": ONE}, 7)) == []
    assert list(changes_between({"u1": ONE}, {"u1": started, "u2": TWO}, 7)) == [
        JobChange(7, ONE, started),
        JobChange(7, None, TWO),
    ]
    [gone] = changes_between({"u1": ONE}, {}, 7)
    assert (gone.after, gone.last) == (None, ONE)


def test_a_job_that_was_created_again_ends_before_it_begins() -> None:
    """Both have the same name: a client that keeps objects by name would otherwise forget the new one."""
    again = replace(ONE, uid="u3")
    assert list(changes_between({"u1": ONE}, {"u3": again}, 7)) == [
        JobChange(7, ONE, None),
        JobChange(7, None, again),
    ]


async def test_a_job_that_is_created_again_while_the_earlier_one_ends_is_one_object() -> None:
    again = replace(ONE, uid="u3", queued_at=5.0)
    reads = [(ONE,), (ONE, again), (again,)]

    class Reads(MemoryStore):
        async def live_workloads(self, before: Collection[Entry]) -> LiveWorkloads:
            return LiveWorkloads(reads.pop(0), 1000.0 - len(reads))

    now = 0.0
    rows = LastKnown(Reads(), lambda: now)
    while reads:
        now += 10.0
        await rows.recent()
    assert rows.log is not None
    changes = rows.log.read(0, 10)
    assert changes is not None
    assert [(one.before, one.after) for one in changes] == [(ONE, None), (None, again)]


def test_a_watch_begins_a_little_before_its_version_and_never_before_what_is_known() -> None:
    log = ChangeLog(10_000)
    log.add([JobChange(version, None, ONE) for version in (11_000, 12_000, 12_000, 13_000)])
    assert [log.begin(version) for version in (9_999, 10_000, 11_499, 12_600, 20_000)] == [
        *(None, 0, 0, 3, 4)
    ]
    assert [log.after(version) for version in (10_999, 11_000, 12_000, 13_000)] == [0, 1, 3, 4]


def test_the_oldest_changes_are_forgotten_and_a_slow_reader_learns_it() -> None:
    log = ChangeLog(0, window=10)
    for version in range(1, 26):
        log.add([JobChange(version, None, ONE)])
    assert log.end == 25
    assert log.read(0, 5) is None
    first = log.begin(25)
    assert first is not None
    kept = log.read(first, 100)
    assert kept is not None
    assert kept[-1].version == 25
    assert log.begin(1) is None
    assert log.read(25, 5) == []
