"""The lines that one workload adds to the history: a loop adds few, and no line of another workload is left out for it."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.ledger import UNLISTED, Entry, EntryChange, Note, State
from queuectl.domain.reasons import Code, Reason
from queuectl.state.ledger import AT_ONCE, SECONDS, HistoryLimit

ENTRY = Entry("u", "Job", "a", "train", State.PENDING)


def change(
    at: float, to: State = State.EVICTING, *, uid: str = "u", code: Code = Code.RESUMED_OUTSIDE
) -> EntryChange:
    """A change from Pending to this state."""
    before = replace(ENTRY, uid=uid)
    reason = Reason(code, "resumed")
    return EntryChange(
        before, replace(before, state=to), at, Note(str(code), State.PENDING, to, reason)
    )


def lines(limit: HistoryLimit, *changes: EntryChange) -> list[Note]:
    found = [one.line for one in limit.limited(changes)]
    return [line for line in found if line is not None]


def exhausted(at: float = 0.0) -> HistoryLimit:
    limit = HistoryLimit()
    assert len(lines(limit, *[change(at)] * AT_ONCE)) == AT_ONCE
    return limit


def test_a_loop_adds_its_first_lines_and_then_one_in_each_period() -> None:
    limit = HistoryLimit()
    each_second = [change(float(second)) for second in range(int(100 * SECONDS))]
    found = lines(limit, *each_second)
    assert AT_ONCE <= len(found) <= AT_ONCE + 101
    left_out = sum(line.reason.details.get(UNLISTED, 0) for line in found)
    assert len(each_second) - SECONDS <= len(found) + left_out <= len(each_second)


def test_the_next_line_has_the_number_of_those_that_are_left_out() -> None:
    limit = exhausted()
    assert lines(limit, change(1.0), change(2.0)) == []
    (line,) = lines(limit, change(SECONDS))
    assert line.reason.message == "resumed; 2 earlier changes not listed"
    assert line.reason.details == {UNLISTED: 2}
    (line,) = lines(limit, change(2 * SECONDS))
    assert line.reason == Reason(Code.RESUMED_OUTSIDE, "resumed")


def test_each_workload_has_its_own_lines() -> None:
    assert len(lines(exhausted(), change(1.0), change(1.0, uid="v"))) == 1


def test_new_reasons_of_a_pending_gang_do_not_use_up_the_line_of_its_start() -> None:
    limit = HistoryLimit()
    remarks = [change(0.0, State.PENDING, code=Code.WAITING_FOR_QUOTA)] * (AT_ONCE + 1)
    assert len(lines(limit, *remarks)) == AT_ONCE
    assert len(lines(limit, change(1.0, State.STARTING, code=Code.ADMITTED))) == 1


def test_the_first_line_the_last_one_what_users_did_and_the_cost_of_a_move_are_always_written() -> (
    None
):
    limit = exhausted()
    first = replace(change(1.0), before=None)
    moved = change(1.0, code=Code.DEFRAGMENTED)
    asked = replace(change(1.0), commanded=True)
    assert len(lines(limit, first, moved, asked, change(1.0))) == 3
    (last,) = lines(limit, change(1.0, State.FINISHED, code=Code.SUCCEEDED))
    assert last.reason.details == {UNLISTED: 1}
    assert len(lines(limit, change(1.0))) == 1, "nothing is kept of a workload that has ended"


def test_what_users_do_takes_no_lines_from_later_changes() -> None:
    limit = exhausted()
    lines(limit, *[replace(change(1.0), commanded=True)] * 100)
    assert len(lines(limit, change(1.0 + SECONDS))) == 1


def test_the_change_of_a_line_that_is_left_out_is_not() -> None:
    (found,) = exhausted().limited([change(1.0)])
    assert (found.after.state, found.note is not None, found.line) == (State.EVICTING, True, None)
