"""People's commands as the leader carries them out: one change and one answer each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.control.leader.commands import GONE, NOTHING_NEW, TOO_LATE, carry_out
from queuectl.domain.commands import DONE, Action, Command
from queuectl.domain.containment import Containment
from queuectl.domain.events import CommandReceived
from queuectl.domain.ledger import Entry, EntryChange, Intent, State
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import CapacityLease
from queuectl.domain.workload import Placement
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger

WAITS = Entry("u1", "Job", "a", "train", State.PENDING, version=3)
BY_BOB = Reason(Code.HELD, "held by bob")
MOVED = replace(WAITS, queue="old", queue_set="new", version=4)
HELD = replace(WAITS, state=State.HELD, parked=BY_BOB, reason=BY_BOB)


def command(number: int, action: Action, uid: str = "u1", **more: Any) -> Command:
    return Command(number, uid, action, "alice", f"r{number}", 1.0, **more)


def barred(entry: Entry, command: Command) -> str | None:
    """There is one queue to move to, and priorities up to 100 are allowed."""
    if command.action is Action.MOVE and command.queue != "open":
        return f"LocalQueue {command.queue} of {entry.namespace} does not exist"
    return "at most 100" if (command.priority or 0) > 100 else None


def carried(
    entry: Entry, *commands: Command, observed: tuple[EntryChange, ...] = ()
) -> tuple[list[State], dict[int, str]]:
    contained = Containment(lambda: 9.0)
    changes, answers = carry_out(
        commands, Ledger([entry]), observed, 9.0, Rules(), barred, contained
    )
    return [change.after.state for change in changes], {a.id: a.outcome for a in answers}


@pytest.mark.parametrize("action", [Action.HOLD, Action.DEACTIVATE])
def test_a_gang_that_does_not_queue_again_keeps_no_place_to_which_it_migrates(
    action: Action,
) -> None:
    lease = CapacityLease(Placement(()), (), 1.0, 600.0)
    leaves = replace(WAITS, state=State.EVICTING, intent=Intent.STOP, lease=lease)
    change = handle(leaves, CommandReceived(command(1, action)), 9.0)
    assert change is not None
    assert (change.after.state, change.after.lease) == (State.EVICTING, None)


@pytest.mark.parametrize(
    ("entry", "asked", "states", "outcome"),
    [
        pytest.param(WAITS, command(1, Action.HOLD), [State.HELD], DONE, id="done"),
        pytest.param(HELD, command(1, Action.HOLD), [], NOTHING_NEW, id="held already"),
        pytest.param(WAITS, command(1, Action.HOLD, "u2"), [], GONE, id="deleted in the meantime"),
        pytest.param(
            WAITS, command(1, Action.RELEASE), [], "a/train is Pending, not held", id="no longer makes sense"
        ),
        pytest.param(WAITS, command(1, Action.PRIORITY, priority=5, until=9.5), [State.PENDING], DONE, id="in time"),
        pytest.param(WAITS, command(1, Action.PRIORITY, priority=5, until=9.0), [], TOO_LATE, id="its time is over"),
        pytest.param(WAITS, command(1, Action.PRIORITY, priority=500), [], "at most 100", id="over the cap"),
        pytest.param(WAITS, command(1, Action.MOVE, queue="open"), [State.PENDING], DONE, id="moves"),
        pytest.param(
            WAITS, command(1, Action.MOVE, queue="lost"), [], "LocalQueue lost of a does not exist", id="no such queue"
        ),
        pytest.param(
            MOVED, command(1, Action.MOVE, queue="open"), [], "a/train is already moving to LocalQueue new",
            id="one move at a time",
        ),
    ],
)  # fmt: skip
def test_every_command_is_answered(
    entry: Entry, asked: Command, states: list[State], outcome: str
) -> None:
    assert carried(entry, asked) == (states, {1: outcome})


def test_a_second_command_for_the_same_workload_waits_for_the_next_commit() -> None:
    hold, release = command(1, Action.HOLD), command(2, Action.RELEASE)
    assert carried(WAITS, hold, release) == ([State.HELD], {1: DONE})


def test_a_command_waits_while_its_workload_changes_by_itself() -> None:
    seen = EntryChange(WAITS, replace(WAITS, version=4, gpus=8), 8.0)
    assert carried(WAITS, command(1, Action.HOLD), observed=(seen,)) == ([], {})
