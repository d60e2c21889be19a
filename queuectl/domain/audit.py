"""The audit log: one line for every request that wants to change something, refused or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEADER: Final = "queuectl leader"
"""The caller of the configuration that a leader writes by itself."""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One request.

    A line is written before the request does anything and completed by its outcome. Whatever took effect has one; where
    ``status`` is None the process ended, or lost the database, in between: it may or may not have taken effect.

    Attributes:
        id: rises with time; 0 = not written yet.
        at: unix seconds.
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
