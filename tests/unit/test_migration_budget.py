"""The cost of moves in the last day, per ClusterQueue."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.estimates import DAY
from queuectl.domain.ledger import Entry, EntryChange, MigrationCost, Note, State
from queuectl.domain.reasons import Code, Reason
from queuectl.state.pastuse import MigrationBudget

ENTRY = Entry("u1", "Job", "team", "train", State.RUNNING)


def eviction(at: float, code: Code, queue: str = "gpus", lost: int = 100) -> EntryChange:
    details = {"clusterQueue": queue, "lostGpuSeconds": lost}
    note = Note(str(code), State.RUNNING, State.EVICTING, Reason(code, "", details))
    return EntryChange(ENTRY, replace(ENTRY, state=State.EVICTING), at, note)


def test_moves_are_summed_per_queue_and_other_evictions_are_not() -> None:
    spending = MigrationBudget([MigrationCost(10.0, "gpus", 5)])
    spending.note(
        [
            eviction(20.0, Code.DEFRAGMENTED),
            eviction(20.0, Code.DEFRAGMENTED, "others", 7),
            eviction(20.0, Code.PREEMPTED),
            EntryChange(ENTRY, ENTRY, 20.0),
        ]
    )
    assert spending.by_queue(30.0) == {"gpus": 105, "others": 7}


def test_what_is_a_day_old_counts_no_more() -> None:
    spending = MigrationBudget([MigrationCost(10.0, "gpus", 5), MigrationCost(20.0, "gpus", 6)])
    assert spending.by_queue(9.0 + DAY) == {"gpus": 11}
    assert spending.by_queue(10.0 + DAY) == {"gpus": 6}
    assert spending.by_queue(20.0 + DAY) == {}
