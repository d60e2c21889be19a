"""The exceptions that cross packages.

QueuectlError
├── BadInput                   what a user wrote is wrong; the message names document and field
├── TookTooLong                a question to the planner was canceled; nothing was changed
├── SourceUnavailable          the source of GPU utilization gave no answer that can be used
├── IssuerUnavailable          the OpenID Connect issuer gave no answer that can be used
├── LeadershipLost             the lease has expired, or another process holds it
├── StoreError
│   ├── StoreUnavailable       no answer, or the outcome is unknown: reload before planning again
│   │   └── DatabaseLoginRefused  the server refuses the role, or its password
│   ├── Fenced                 another leader has taken over: stop at once
│   ├── StaleSnapshot          rows changed since the snapshot: reload before planning again
│   │   └── StaleConfiguration the configuration did: drop the plan, read the configuration, plan again
│   ├── Conflict               a configuration document is not at the version named (If-Match)
│   ├── UnreadableConfiguration  a stored configuration document is invalid; the message names document and field
│   └── NotFound               no such configuration document
└── ClusterError
    ├── ClusterUnavailable     no answer, or 5xx: the write may or may not have happened
    │   └── ClusterBusy        401 or 429: the API server did not handle the request; try again later
    ├── WriteConflict          409: the object changed; read again
    ├── ObjectGone             404 or another uid
    └── WriteRefused           any other 4xx, or a PodDisruptionBudget: this write had no effect, and will have none as it is
"""

from __future__ import annotations

from typing import Final

MOST_REFUSAL: Final = 1_000
"""Characters of the message of a refusal. It quotes text of a user, which can be of any length."""
LONGEST_WAIT: Final = 60.0
"""Seconds; the API server, or a proxy before it, cannot make a client wait longer."""


def bounded(message: str) -> str:
    """The message of a refusal; of a longer one, the beginning, which names the field, and the end, which names the rule."""
    if len(message) <= MOST_REFUSAL:
        return message
    half = (MOST_REFUSAL - 1) // 2
    return f"{message[:half]}…{message[-half:]}"


class QueuectlError(Exception):
    """Base of all errors this project raises on purpose."""


class BadInput(QueuectlError):
    """An error in a document of the user; the message names document and field, and has at most ``MOST_REFUSAL`` characters."""

    def __init__(self, message: str = "") -> None:
        super().__init__(bounded(message))


class TookTooLong(QueuectlError):
    """A question to the planner was canceled before it was answered."""


class SourceUnavailable(QueuectlError):
    """The source of GPU utilization gave no usable answer; the message states why."""


class IssuerUnavailable(QueuectlError):
    """The OpenID Connect issuer gave no answer that can be used; the message states why."""


class LeadershipLost(QueuectlError):
    """The Lease was not renewed in time, or another process holds it."""


class StoreError(QueuectlError):
    """The database did not do what was asked."""


class StoreUnavailable(StoreError):
    """No answer from the database; whether the transaction happened is unknown."""


class DatabaseLoginRefused(StoreUnavailable):
    """The database server refuses the role, or its password. A rotated password can take effect later."""


class UnusableSchema(StoreError):
    """This release cannot use the schema of the database."""


class Fenced(StoreError):
    """Another leader has taken over; nothing was written."""


class StaleSnapshot(StoreError):
    """Rows changed since the snapshot; nothing was written."""


class StaleConfiguration(StaleSnapshot):
    """Only the configuration is known to have changed since the snapshot; nothing was written."""


class Conflict(StoreError):
    """A configuration document is not at the version the caller named; nothing was written.

    ``version`` is the one it is at, 0 when it does not exist.
    """

    def __init__(self, message: str, version: int = 0) -> None:
        super().__init__(message)
        self.version = version


class TooManyCommands(StoreError):
    """The number of commands of one workload that wait is at its limit."""


class UnreadableConfiguration(StoreError):
    """A stored configuration document is invalid: another release wrote it, or it was changed in the database."""


class NotFound(StoreError):
    """The configuration document does not exist."""


class ClusterError(QueuectlError):
    """The API server did not do what was asked."""


class ClusterUnavailable(ClusterError):
    """No usable answer; the write may or may not have happened.

    Attributes:
        retry_after: seconds, if the server sent it.
        version: of the object on which the write was conditioned, if another write of the same action has changed it before.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else min(retry_after, LONGEST_WAIT)
        self.version: int | None = None


class ClusterBusy(ClusterUnavailable):
    """401 or 429: the API server did not handle the request, so it had no effect."""


class TooManyReviews(ClusterUnavailable):
    """The API server is not asked: this caller has used up the access reviews of the moment. ``retry_after`` is set."""


class WriteConflict(ClusterError):
    """409: the object changed since it was read."""


class ObjectGone(ClusterError):
    """404, or the name now belongs to another object."""


class WriteRefused(ClusterError):
    """The server refuses this write (400, 403, 413, 422, a PodDisruptionBudget, ...). It had no effect."""


NEVER_CONTAINED: Final = (
    LeadershipLost,
    Fenced,
    StaleSnapshot,
    StoreUnavailable,
    UnusableSchema,
)
"""Errors that concern the whole process, and no unit of its input (:mod:`queuectl.domain.containment`)."""
