"""Actions on the pages: commands for a workload, stops of queues, and the next step of a user.

A page offers each command with the label of its button and what it does. It shows the commands of the last day with their results. The
leader executes a command a moment later, and the page reads the results at growing intervals, for about a minute. Without a leader, the
result appears when the page is next refreshed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson
from starlette.requests import Request

from queuectl.api.access import Guard
from queuectl.api.command_batches import BATCH_ACTIONS
from queuectl.db.ports import ApiStore
from queuectl.domain.commands import DONE, EVICTING, Action, Command, objection, reserved_to_admins
from queuectl.domain.identity import Right
from queuectl.domain.ledger import Entry, State
from queuectl.domain.queries import LONGEST_PAGE, DocumentKey
from queuectl.domain.queues import StopPolicy
from queuectl.domain.reasons import NEXT_STEPS, NO_ACTION, STOPPED_QUEUE, Code
from queuectl.objects.configuration.config_kinds import BY_KIND
from queuectl.web.words import calendar, counted

# ---- Commands that a page offers

_WORDS: Final = {
    Action.HOLD: ("Hold", "It is not admitted until a user releases it."),
    Action.RELEASE: ("Release", "It returns to its previous position in the queue."),
    Action.REQUEUE: (
        "Requeue",
        "It returns to its previous position in the queue, without back-off.",
    ),
    Action.PREEMPT: ("Preempt", "It is evicted so that the next gang can start, and queues again."),
    Action.DEACTIVATE: ("Deactivate", "It is not retried until a user activates it."),
    Action.ACTIVATE: (
        "Activate",
        "It queues again. Failed starts and past run time no longer count.",
    ),
    Action.PRIORITY: ("Set priority", "The value replaces the priority of its priority classes."),
    Action.MOVE: ("Move to another queue", "It keeps its queueing time."),
}
"""Reports of admission checks have no button: programs make them."""


@dataclass(frozen=True, slots=True)
class ActionButton:
    """A button.

    Attributes:
        follows: what the command does, in a sentence or two.
        evicts: the command stops running pods.
        objection: why the command is not available now; None when it is.
        attempt: the command is only for this attempt: a gang that starts while the dialog is open is not evicted. None for
            commands that evict no gang.
    """

    action: Action
    label: str
    follows: str
    evicts: bool
    objection: str | None
    attempt: int | None


def _label_of(action: Action) -> str:
    """The label of its button."""
    return _WORDS[action][0]


async def offers(guard: Guard, request: Request, entry: Entry) -> list[ActionButton]:
    """The commands that the caller may give for a workload. May raise ClusterUnavailable."""
    found = []
    for action in _WORDS:
        what = f"workloads/{action}"
        if await guard.may(request, Right("create", what, entry.namespace, entry.name)):
            forbidden = reserved_to_admins(entry, action)
            if forbidden is not None and await guard.may(request, Right("create", what)):
                forbidden = None
            found.append(_offer(entry, action, forbidden))
    return found


@dataclass(frozen=True, slots=True)
class BatchOffer:
    """A command for several workloads. ``follows``: what it does to each, in a sentence or two."""

    action: Action
    label: str
    follows: str


_MOST_NAMESPACES: Final = 16
"""Of the workloads of a page, those that are asked about for a caller whose rights are for single namespaces."""


async def batch_offers(
    guard: Guard, request: Request, entries: Iterable[Entry]
) -> list[BatchOffer]:
    """The commands that the caller may give for some of these workloads. May raise ClusterUnavailable."""
    frequent = Counter(entry.namespace for entry in entries).most_common(_MOST_NAMESPACES)

    async def namespaces() -> list[str]:
        return [namespace for namespace, _ in frequent]

    if not frequent:
        return []
    may = await asyncio.gather(
        *(guard.somewhere(request, "create", f"workloads/{a}", namespaces) for a in BATCH_ACTIONS)
    )
    return [
        BatchOffer(action, *_WORDS[action])
        for action, allowed in zip(BATCH_ACTIONS, may, strict=True)
        if allowed
    ]


def _offer(entry: Entry, action: Action, forbidden: str | None) -> ActionButton:
    label, follows = _WORDS[action]
    evicting = action in EVICTING
    evicts = evicting and entry.state.live
    if evicts:
        follows = f"Its {counted(entry.started_pods, 'pod')} are stopped. Work since the last checkpoint is lost. {follows}"
    attempt = entry.attempt if evicting else None
    return ActionButton(
        action, label, follows, evicts, forbidden or objection(entry, action), attempt
    )


# ---- Commands of the last day

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
        newest: id of the newest command; 0 without one.
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
            until = f" until {calendar(command.until)}" if command.until is not None else ""
            return f"Priority {command.priority}{until}"
        case Action.CHECK:
            return (
                f"Admission check {command.report.check}: {command.report.state}"
                if command.report
                else "Admission check"
            )
        case action:
            return _label_of(action)


# ---- Stops of queues


@dataclass(frozen=True, slots=True)
class QueueButton:
    """A button.

    Attributes:
        label: its text.
        follows: the effect, for the dialog that asks for confirmation.
        address: of the REST API, for a POST.
        body: the JSON to send there, without the reason.
        evicts: gangs that run are evicted: the dialog shows their cost.
    """

    label: str
    follows: str
    address: str
    body: str
    evicts: bool = False


async def queue_buttons(
    guard: Guard, request: Request, key: DocumentKey, policy: StopPolicy
) -> list[QueueButton]:
    """The buttons that change the stop policy of a queue. May raise ClusterUnavailable."""
    kind = BY_KIND[key.kind]
    path = kind.path(key.namespace, key.name)

    async def may(verb: str) -> bool:
        right = Right("create", f"{kind.plural}/{verb}", key.namespace, key.name)
        return await guard.may(request, right)

    def stop(label: str, follows: str, *, drain: bool) -> QueueButton:
        body = orjson.dumps({"drain": drain}).decode()
        return QueueButton(label, follows, f"{path}/stop", body, drain)

    buttons = []
    if policy is not StopPolicy.NONE and await may("resume"):
        follows = "Its gangs start again, in their old order."
        buttons.append(QueueButton("Resume", follows, f"{path}/resume", "{}"))
    if policy is not StopPolicy.HOLD_AND_DRAIN and await may("stop"):
        if policy is StopPolicy.NONE:
            follows = f"{STOPPED_QUEUE} Gangs that run continue."
            buttons.append(stop("Stop", follows, drain=False))
        follows = (
            f"{STOPPED_QUEUE} Gangs that run are evicted. They keep their place in the queue order."
        )
        buttons.append(stop("Stop and drain", follows, drain=True))
    return buttons


# ---- The next step of a user

_STATES: Final = {
    State.PENDING: f"{NO_ACTION} It queues again.",
    State.RESERVED: NEXT_STEPS[Code.WAITING_FOR_PREEMPTED],
    State.HELD: "Release it when it can start.",
    State.STARTING: f"{NO_ACTION} It runs when all its pods are ready.",
    State.RUNNING: "",
    State.EVICTING: f"{NO_ACTION} It queues again when its pods have ended.",
    State.BACKOFF: "Check the logs of its pods: they show why the start failed.",
    State.DEACTIVATED: "Fix the cause, then activate it.",
    State.FINISHED: "",
}


def next_step(state: State, code: Code) -> str:
    """A sentence; "" where no advice applies."""
    if code is Code.ADMISSION_GATED:
        return "Wait until the controller that set the admission gate removes it."
    if code is Code.DEPENDENCY:
        return f"{NO_ACTION} It queues when the jobs that it depends on have ended."
    if code is Code.DEPENDENCY_NEVER_SATISFIED:
        return "Run the other job again, or remove the annotation queuectl.dev/after."
    if code is Code.WAITING_FOR_CHECKS or (state is State.PENDING and code in NEXT_STEPS):
        return NEXT_STEPS[code]
    if code is Code.ADMISSION_CHECK and state is State.BACKOFF:
        return f"{NO_ACTION} It queues again, and its admission checks are asked again."
    if state is State.FINISHED and code is Code.FAILED:
        return "Check the logs of its pods."
    return _STATES[state]
