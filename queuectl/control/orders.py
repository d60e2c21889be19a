"""People's commands, carried out by the leader: each becomes a change of its workload, or an answer why it does not."""

from __future__ import annotations

from collections.abc import Iterable

from queuectl.domain.commands import Answer, Command, objection
from queuectl.domain.ledger import Change
from queuectl.domain.machine import Asked, handle
from queuectl.domain.rules import Rules
from queuectl.state.ledger import Ledger

DONE = "done"
NOTHING_NEW = "it was so already"
GONE = "there is no such workload any more"


def carry_out(
    commands: Iterable[Command],
    ledger: Ledger,
    observed: Iterable[Change],
    now: float,
    rules: Rules,
) -> tuple[list[Change], list[Answer]]:
    """Changes to commit beside what was observed, and the answers that go with them.

    A workload changes once in a commit and each change has a line of its own in the history, so a command for one that
    is about to change, or a second one for the same workload, is left for the next time.

    Args:
        commands: oldest first.
        ledger: as committed.
        observed: changes of the same commit.
        now: unix seconds.
        rules: for notice.
    """
    busy = {change.after.uid for change in observed}
    changes: list[Change] = []
    answers: list[Answer] = []
    for command in commands:
        if command.uid in busy:
            continue
        busy.add(command.uid)
        entry = ledger.get(command.uid)
        if entry is None:
            answers.append(Answer(command.id, GONE))
            continue
        change = handle(entry, Asked(command), now, rules)
        if change is not None:
            changes.append(change)
        why = objection(entry, command.action) or NOTHING_NEW
        answers.append(Answer(command.id, DONE if change is not None else why))
    return changes, answers
