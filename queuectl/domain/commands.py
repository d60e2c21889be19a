"""Commands of users for one workload: rows that the API writes and the leader consumes, so that only the leader changes state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queuectl.domain.checks import CheckReport
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.domain.words import format_time


class Action(StrEnum):
    """Commands; the value is the word of the REST path and of the command line."""

    HOLD = "hold"  # wait, evicted first if it runs, until released
    RELEASE = "release"
    # End its back-off, and permit the nodes that kube-scheduler refused; a gang that runs is evicted and queues again.
    REQUEUE = "requeue"
    PREEMPT = "preempt"  # evicted for the next gang: it queues behind those of its priority
    DEACTIVATE = "deactivate"  # as hold, but until it is activated
    ACTIVATE = "activate"
    PRIORITY = "priority"  # instead of what its classes say; None = as they say again
    MOVE = "move"  # to another LocalQueue of its namespace
    CHECK = "check"  # the state of one of its admission checks


EVICTING: Final = frozenset({Action.HOLD, Action.REQUEUE, Action.PREEMPT, Action.DEACTIVATE})
"""Commands that evict a running gang."""

DONE: Final = "done"
"""The outcome of a command that changed something; each other outcome is the cause why it did not."""

FAILED: Final = "an internal error of queuectl (error {error}); nothing was changed"
"""The outcome of a command with which an unexpected error happened."""

MOST_WAITING: Final = 32
"""Commands of one workload that can wait: each plan carries out one of them."""


class CommandState(StrEnum):
    """How far a command has come."""

    WAITING = "Waiting"  # for the process that leads
    DONE = "Done"
    REFUSED = "Refused"  # the outcome is the cause


@dataclass(frozen=True, slots=True)
class Command:
    """One request.

    Attributes:
        id: rises in the order in which they are carried out.
        uid: of the workload.
        by: the user, as authenticated or as given on the command line.
        request_id: chosen by who asked; the same again is the same command.
        at: unix seconds of the request; the store assigns it.
        priority: only of a PRIORITY; None takes an earlier one back.
        until: only of a PRIORITY: unix seconds at which it ends; None = when it is taken back.
        queue: only of a MOVE: the LocalQueue it moves to.
        why: the note of the user for the history; can be empty.
        outcome: what became of it; None = it waits for the leader.
        admin: the user has this right for the workloads of all namespaces.
        report: only of a CHECK.
    """

    id: int
    uid: str
    action: Action
    by: str
    request_id: str
    at: float
    priority: int | None = None
    until: float | None = None
    queue: str | None = None
    why: str = ""
    outcome: str | None = None
    admin: bool = False
    report: CheckReport | None = None

    @property
    def state(self) -> CommandState:
        """How far it has come."""
        if self.outcome is None:
            return CommandState.WAITING
        return CommandState.DONE if self.outcome == DONE else CommandState.REFUSED

    @property
    def attribution(self) -> str:
        """The user and the note, as the history shows them."""
        return f"by {self.by}: {self.why}" if self.why else f"by {self.by}"

    @property
    def content(self) -> tuple[object, ...]:
        """The content of the command, without its user and time."""
        return (self.uid, self.action, self.priority, self.until, self.queue, self.report)


@dataclass(frozen=True, slots=True)
class CommandFilter:
    """Each field that is set must match; no ``states`` means all of them.

    Attributes:
        namespaces: any of these is the workload's. A workload whose row was deleted is in none.
        workload: ``namespace/name``; commands for all that had this name.
        by: the user.
        states: any of these.
        before: commands older than that of this id.
    """

    namespaces: frozenset[str] | None = None
    workload: str | None = None
    by: str | None = None
    states: frozenset[CommandState] = frozenset()
    before: int | None = None

    def matches(self, command: Command, ref: str | None) -> bool:
        """Whether the command is selected. ``ref``: its workload's name, None when the workload is no longer known."""
        namespace = ref.partition("/")[0] if ref is not None else None
        return (
            (self.namespaces is None or namespace in self.namespaces)
            and self.workload in (None, ref)
            and self.by in (None, command.by)
            and (not self.states or command.state in self.states)
            and (self.before is None or command.id < self.before)
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a command, in a few words.

    Attributes:
        id: of the command.
        outcome: :data:`DONE`, or why nothing has changed.
        uid: of the workload that changes with it in the same commit; empty = none does.
    """

    id: int
    outcome: str
    uid: str = ""


BY_ADMIN: Final = "byAdmin"
"""In the details of the reason for which a workload is held or deactivated: only an administrator can undo that."""


def reserved_to_admins(entry: Entry, action: Action) -> str | None:
    """Why only an admin may do this to a workload, or None when others are also allowed to."""
    if entry.parked is None or not entry.parked.details.get(BY_ADMIN):
        return None
    if action not in (Action.RELEASE, Action.ACTIVATE, Action.DEACTIVATE):
        return None
    word = "held" if entry.parked.code is Code.HELD else "deactivated"
    need = f"create workloads/{action} in all namespaces"
    return f"an administrator has {word} {entry.ref}; to {action} it you need permission to {need}"


def other_attempt(entry: Entry, attempt: int | None) -> str | None:
    """Why a command for this attempt does not apply, or None when it does. None as the attempt is each of them."""
    return None if attempt in (None, entry.attempt) else f"{entry.ref} has started in the meantime"


LOWEST_PRIORITY, HIGHEST_PRIORITY = -(1 << 31), (1 << 31) - 1
"""Limits of the priority of a pod in Kubernetes, which is an int32."""


def objection(entry: Entry, action: Action) -> str | None:
    """Why an action does not apply to a workload in its current state, or None when it does."""
    held = entry.parked is not None and entry.parked.code is Code.HELD
    given_up = entry.parked is not None and not held
    state = f"{entry.ref} is {entry.state}"
    if entry.state is State.FINISHED:
        return state
    match action:
        case Action.HOLD:
            return f"{entry.ref} is deactivated; activate it first" if given_up else None
        case Action.RELEASE:
            return None if held else f"{state}, not held"
        case Action.REQUEUE:
            failed = entry.state is State.PENDING and (bool(entry.excluded) or entry.failures > 0)
            may = failed or entry.state is State.BACKOFF or entry.state.live
            which = "runs, is in back-off, or failed to start"
            return None if may else f"{state}; only a gang that {which} can be requeued"
        case Action.PREEMPT:
            return None if entry.state.live else f"{state}; only a running gang can be preempted"
        case Action.MOVE if not entry.state.waiting:
            return f"{state}; hold it first and move it when it is Held"
        case Action.MOVE:
            on_its_way = entry.queue_set
            return (
                f"{entry.ref} is already moving to LocalQueue {on_its_way}" if on_its_way else None
            )
        case Action.CHECK:
            needs = bool(entry.checks.statuses) and entry.state is not State.EVICTING
            return None if needs else f"{state}; it waits for no admission check now"
        case Action.ACTIVATE:
            return None if given_up else f"{state}, not deactivated"
        case Action.DEACTIVATE | Action.PRIORITY:
            return None


def change_of(entry: Entry, command: Command) -> str:
    """The change that an action which is permitted would make, in words. Its effect on other gangs is the decision of later plans."""
    runs = entry.state.live
    match command.action:
        case Action.PRIORITY if command.priority is None:
            return f"the priority {entry.priority} becomes that of its classes"
        case Action.PRIORITY:
            end = f" until {format_time(command.until)}" if command.until is not None else ""
            same = (
                "is already" if entry.priority == command.priority else f"{entry.priority} becomes"
            )
            return f"the priority {same} {command.priority}{end}"
        case Action.MOVE:
            return f"it moves from LocalQueue {entry.queue} to LocalQueue {command.queue}"
        case Action.CHECK:
            report = command.report
            assert report is not None
            status = entry.checks.of(report.check)
            before = status.state if status is not None else "unknown"
            return f"the check {report.check} changes from {before} to {report.state}"
        case Action.RELEASE:
            return "the hold ends, and it queues again"
        case Action.ACTIVATE:
            return "it queues again, and its failed starts and its used time start at zero"
        case Action.HOLD:
            return f"it is {'evicted and then ' if runs else ''}held until it is released"
        case Action.DEACTIVATE:
            return f"it is {'evicted and then ' if runs else ''}deactivated until it is activated"
        case Action.REQUEUE if entry.state is State.PENDING:
            return "it can use the nodes again that kube-scheduler refused"
        case Action.REQUEUE if not runs:
            return "its back-off ends, and it queues again"
        case Action.REQUEUE | Action.PREEMPT:
            return "it is evicted, and queues again"
