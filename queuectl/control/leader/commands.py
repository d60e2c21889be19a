"""Users' commands, which the leader executes: each is a change of its workload, or a result with the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from queuectl.domain.commands import DONE, Action, Answer, Command, objection, reserved_to_admins
from queuectl.domain.events import CommandReceived
from queuectl.domain.ledger import Entry, EntryChange
from queuectl.domain.rules import Rules
from queuectl.lifecycle.machine import handle
from queuectl.state.ledger import Ledger

NOTHING_NEW = "it was so already"
TOO_LATE = "the time it was for is over"
GONE = "there is no such workload any more"


def carry_out(
    commands: Iterable[Command],
    ledger: Ledger,
    observed: Iterable[EntryChange],
    now: float,
    rules: Rules,
    command_refusal: Callable[[Entry, Command], str | None],
) -> tuple[list[EntryChange], list[Answer]]:
    """Changes to commit with the observations, and the results of the commands.

    A workload changes once in a commit, and each change has its own line in the history. Thus a command for a workload that
    changes already, or a second command for the same workload, waits for the next commit.

    Args:
        commands: oldest first.
        ledger: as committed.
        observed: changes of the same commit.
        now: unix seconds.
        rules: for notice.
        command_refusal: why the queues do not allow a command; None if they do.
    """
    busy = {change.after.uid for change in observed}
    changes: list[EntryChange] = []
    answers: list[Answer] = []
    for command in commands:
        if command.uid in busy:
            continue
        busy.add(command.uid)
        entry = ledger.get(command.uid)
        if entry is None:
            answers.append(Answer(command.id, GONE))
            continue
        reserved = None if command.admin else reserved_to_admins(entry, command.action)
        why = (
            reserved
            or objection(entry, command.action)
            or _in_the_way(entry, command, now, command_refusal)
        )
        change = handle(entry, CommandReceived(command), now, rules) if why is None else None
        if change is not None:
            changes.append(replace(change, commanded=True))
        answers.append(Answer(command.id, DONE if change is not None else why or NOTHING_NEW))
    return changes, answers


def _in_the_way(
    entry: Entry,
    command: Command,
    now: float,
    command_refusal: Callable[[Entry, Command], str | None],
) -> str | None:
    """Conditions that only the leader knows: the current time, and the commands that the queues allow."""
    if command.action is Action.PRIORITY and command.until is not None and command.until <= now:
        return TOO_LATE
    return command_refusal(entry, command)
