"""The commands for a workload of the last day, with their results.

The leader executes a command a moment later. A page reads the results at growing intervals, for about a minute. Without a
leader, the result appears when the page is next refreshed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queuectl.db.ports import ApiStore
from queuectl.domain.commands import DONE, Action, Command
from queuectl.domain.queries import LONGEST_PAGE
from queuectl.web.actions import label_of
from queuectl.web.words import moment

_SHOWN: Final = 3
_MAX_READS: Final = 12
_FIRST_MS: Final = 400
_LONGEST_MS: Final = 10_000
_GROWTH: Final = 1.6


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command.

    Attributes:
        state: ``requested``, ``done`` or ``refused``.
        answer: why it was refused; empty otherwise.
    """

    label: str
    command: Command
    state: str
    answer: str


@dataclass(frozen=True, slots=True)
class RecentCommands:
    """The commands that are shown, the newest first.

    Attributes:
        newest: id of the newest command; 0 where there is none.
        next_read: number of the next read; None = all commands have results, or the page has read often enough.
    """

    lines: tuple[CommandLine, ...]
    newest: int
    next_read: int | None

    @property
    def milliseconds(self) -> int:
        """Time until the next read."""
        return min(_LONGEST_MS, int(_FIRST_MS * _GROWTH ** (self.next_read or 0)))

    @property
    def answered(self) -> bool:
        """Whether all commands have results."""
        return all(line.state != "requested" for line in self.lines)


async def asked_of(store: ApiStore, uid: str, newest: int = 0, reads: int = 0) -> RecentCommands:
    """The latest commands for a workload.

    Args:
        store: the source.
        uid: of the workload.
        newest: id of the newest command that the page knows.
        reads: how often the page has read the results since it knows that command.
    """
    lines = tuple(_command_line(command) for command in await _latest(store, uid))
    known = lines[0].command.id if lines else 0
    next_read = reads + 1 if known == newest else 1
    asked = RecentCommands(lines, known, next_read)
    return (
        asked
        if next_read <= _MAX_READS and not asked.answered
        else RecentCommands(lines, known, None)
    )


async def _latest(store: ApiStore, uid: str) -> tuple[Command, ...]:
    found: tuple[Command, ...] = ()
    after = 0
    while page := await store.commands_of(uid, after, LONGEST_PAGE):
        found = (*found, *page)[-_SHOWN:]
        after = page[-1].id
        if len(page) < LONGEST_PAGE:
            break
    return found[::-1]


def _command_line(command: Command) -> CommandLine:
    match command.outcome:
        case None:
            return CommandLine(_label(command), command, "requested", "")
        case outcome if outcome == DONE:
            return CommandLine(_label(command), command, "done", "")
        case outcome:
            return CommandLine(_label(command), command, "refused", outcome)


def _label(command: Command) -> str:
    match command.action:
        case Action.MOVE:
            return f"Move to LocalQueue {command.queue}"
        case Action.PRIORITY if command.priority is None:
            return "Priority from its priority classes"
        case Action.PRIORITY:
            until = f" until {moment(command.until)}" if command.until is not None else ""
            return f"Priority {command.priority}{until}"
        case Action.CHECK:
            return (
                f"Admission check {command.report.check}: {command.report.state}"
                if command.report
                else "Admission check"
            )
        case action:
            return label_of(action)
