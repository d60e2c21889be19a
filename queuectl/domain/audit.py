"""The audit log: one line for every request that wants to change something, refused or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from queuectl.domain.commands import Action

LEADER: Final = "queuectl leader"
"""The caller of the configuration that a leader writes by itself."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One request.

    A line is written before the request does anything and completed by its outcome. Whatever took effect has one; where
    ``status`` is None the process ended, or lost the database, in between: it may or may not have taken effect.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds; of a request, the store assigns it.
        request_id: as answered in ``X-Request-Id`` and written in logs.
        caller: user name.
        groups: of the caller.
        method: POST, PUT, PATCH or DELETE.
        path: of the request.
        operation: what it was, as the description of the API calls it; empty for what is not an operation.
        status: HTTP status of the answer.
        detail: why it was refused, or what it changed.
    """

    id: int
    at: float
    request_id: str
    caller: str
    groups: tuple[str, ...]
    method: str
    path: str
    operation: str = ""
    status: int | None = None
    detail: str = ""

    @classmethod
    def of_leader(cls, at: float, method: str, path: str, kind: str, detail: str) -> AuditLine:
        """A configuration object that a leader writes or deletes by itself, as the request of a person would."""
        operation = f"{method.lower()}{kind}"
        return cls(0, at, "", LEADER, (), method, path, operation, 200, detail)


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request; see :class:`AuditLine`."""

    operation: str
    status: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Each field that is set must match.

    Attributes:
        caller: user name.
        path: beginning of it.
        since: unix seconds.
        before: lines older than that of this id.
    """

    caller: str | None = None
    path: str | None = None
    since: float | None = None
    before: int | None = None

    def matches(self, line: AuditLine) -> bool:
        """Whether the line is asked for."""
        return (
            self.caller in (None, line.caller)
            and line.path.startswith(self.path or "")
            and (self.since is None or line.at >= self.since)
            and (self.before is None or line.id < self.before)
        )


# ---- The words of a line

_COMMANDS: Final = {
    Action.HOLD: "hold {}",
    Action.RELEASE: "release {}",
    Action.REQUEUE: "requeue {}",
    Action.PREEMPT: "preempt {}",
    Action.DEACTIVATE: "deactivate {}",
    Action.ACTIVATE: "activate {}",
    Action.PRIORITY: "set the priority of {}",
    Action.MOVE: "move {} to another queue",
    Action.CHECK: "report an admission check of {}",
}
_CHANGES: Final = {
    "put": "apply {}",
    "patch": "change {}",
    "delete": "delete {}",
    "stop": "stop {}",
    "resume": "resume {}",
}
"""Of a configuration object: the operation is the verb with the kind behind it."""
_TOP_UP: Final = "topUpBudget"
_POD_LOG: Final = "readPodLog"
_WITHOUT_OBJECT: Final = {
    "confirmDeletion": "confirm the deletion of configuration objects",
    "createSubscription": "subscribe to events",
}
_BY_UID: Final = "Workload"
_BY_NAME: Final = "NamedWorkload"
_SEVERAL: Final = "Workloads"
_CHANGE: Final = re.compile(f"({'|'.join(_CHANGES)})([A-Z][A-Za-z]*)")
_ACCEPTED: Final = 202  # a command, which the leader executes later
_REFUSED: Final = 400
_FAILED: Final = 500


@dataclass(frozen=True, slots=True)
class AuditWords:
    """A request in words: ``move team-a/train to another queue``.

    Attributes:
        before, after: the words around the object.
        target: the object, such as ``team-a/train`` or ``ClusterQueue team-a``; empty if the operation has none.
    """

    before: str
    target: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.target}{self.after}"


def _said(words: str, target: str) -> AuditWords:
    before, _, after = words.partition("{}")
    return AuditWords(before, target, after)


def uid_of(operation: str, path: str) -> str | None:
    """The uid of the workload that a request names by its uid; None for all others."""
    parts = _names(path)
    if operation == _POD_LOG:  # …/workloads/UID/pods/POD/logs
        return parts[-4] if len(parts) > 3 else None
    action = operation.removesuffix(_BY_UID)
    return parts[-2] if action in set(Action) and len(parts) > 1 else None


def words_of(operation: str, method: str, path: str, names: Mapping[str, str]) -> AuditWords:
    """A request in words.

    Args:
        operation: as in :class:`AuditLine`.
        method: of HTTP.
        path: of the request.
        names: ``namespace/name`` of workloads by uid. A workload that is not among them keeps its uid.
    """
    parts = _names(path)
    if (uid := uid_of(operation, path)) is not None:
        if operation == _POD_LOG:
            return AuditWords("read a log of ", names.get(uid, uid))
        return _said(_COMMANDS[Action(operation.removesuffix(_BY_UID))], names.get(uid, uid))
    action = operation.removesuffix(_BY_NAME)
    if action in set(Action) and len(parts) > 3:
        return _said(_COMMANDS[Action(action)], f"{parts[-4]}/{parts[-2]}")
    action = operation.removesuffix(_SEVERAL)
    if action in set(Action):
        return AuditWords(str(_said(_COMMANDS[Action(action)], "several workloads")))
    if operation == _TOP_UP and len(parts) > 1:
        return AuditWords("top up ", f"Budget {parts[-2]}")
    if operation in _WITHOUT_OBJECT:
        return AuditWords(_WITHOUT_OBJECT[operation])
    if operation == "testReceiver" and len(parts) > 1:
        return AuditWords("send a test event to ", f"receiver {parts[-2]}")
    if operation == "deleteSubscription" and parts:
        return AuditWords("delete ", f"subscription {parts[-1]}")
    if (change := _CHANGE.fullmatch(operation)) is not None and parts:
        verb, kind = change.groups()
        named = parts[:-1] if verb in ("stop", "resume") else parts
        return _said(_CHANGES[verb], f"{kind} {_object(named)}")
    return AuditWords(f"{method} {path}")


def _names(path: str) -> list[str]:
    """The parts of a path, without its query."""
    return [unquote(part) for part in path.partition("?")[0].split("/") if part]


def _object(parts: list[str]) -> str:
    """The name of a configuration object at the end of a path of REST, or of the page of its configuration."""
    # …/namespaces/NAMESPACE/localqueues/NAME
    namespaced = len(parts) > 3 and "namespaces" in parts[-4:-3]
    on_page = len(parts) > 2 and parts[-3] == "localqueues"  # …/localqueues/NAMESPACE/NAME
    if namespaced:
        return f"{parts[-3]}/{parts[-1]}"
    return "/".join(parts[-2:]) if on_page else parts[-1] if parts else ""


def result_of(status: int | None, detail: str) -> str:
    """The result of a request in words: ``done``, ``accepted``, ``refused: …``, ``failed: …``, or that it is not known."""
    if status is None:
        return "not known: the server or the database stopped during the request"
    if status < _REFUSED:
        word = "accepted" if status == _ACCEPTED else "done"
    else:
        word = "refused" if status < _FAILED else "failed"
    return f"{word}: {detail}" if detail else word
