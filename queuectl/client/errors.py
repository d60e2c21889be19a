"""The errors of the client.

ClientError
├── InvalidOption          an option, a token file or the kubeconfig is wrong
├── NoCredentials          the server requires a token, and the client can get none
├── TokenNotIssued         the plugin of the kubeconfig, or the cluster, issued no token
├── NoAnswer               no connection, or no complete answer in time
│   └── CertificateRefused the certificate of the server is not trusted, or is for another name
├── BadAnswer              an answer that is not from queuectl, or is larger than any that it sends
│   └── ProxyAnswer        a proxy answers, which does not reach queuectl
├── RequestRefused         the server answered with a problem
│   ├── Unauthenticated, NotPermitted, ObjectNotFound, ConflictingState, InvalidRequest
│   ├── ServerUnavailable  it can answer later
│   └── ServerFault        a defect of the server
├── WaitTimeout            a workload or a command is not in the state in time
└── WorkloadEnded          a workload has ended, so it does not reach the state
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuectl.domain.errors import QueuectlError, bounded

_TYPE_BASE: Final = "https://queuectl.dev/problems/"


class ClientError(QueuectlError):
    """Base of the errors of the client."""

    def __init__(self, message: str) -> None:
        super().__init__(bounded(message))


class InvalidOption(ClientError):
    """An option, a token file or the kubeconfig is wrong; the message names it."""


class NoCredentials(ClientError):
    """The server requires a token, and the client has none; the message names the ways to get one."""


class TokenNotIssued(ClientError):
    """The plugin of the kubeconfig, or the cluster, issued no token."""


class NoAnswer(ClientError):
    """No connection, or no complete answer in time. It is unknown whether the server handled the request."""


class CertificateRefused(NoAnswer):
    """The certificate of the server is not trusted, or is for another name. No request was sent."""


class BadAnswer(ClientError):
    """An answer that is not from queuectl, or that is beyond a limit of the client."""


class ProxyAnswer(BadAnswer):
    """502, 503 or 504 of a proxy, which does not reach queuectl. It is unknown whether the server handled the request."""


class WaitTimeout(ClientError):
    """The time of a wait is over."""


class WorkloadEnded(ClientError):
    """The workload has ended, so it does not reach the state."""


class RequestRefused(ClientError):
    """The server answered with a problem (docs/reference/problems.md).

    Attributes:
        status: of HTTP.
        type: the last part of the problem's URI, for example ``not-found``; empty = the answer has none.
        errors: the fields that are wrong, with reasons.
        members: all members of the problem, as ``kinds`` of ``ambiguous``.
        retry_after: seconds after which the server asks to send the request again; None = it does not ask.
    """

    def __init__(
        self, problem: Mapping[str, Any], status: int, retry_after: float | None = None
    ) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {status}"))
        self.status: Final = status
        self.type: Final = slug(problem)
        self.errors: Final = _mappings(problem.get("errors"))
        self.members: Final = dict(problem)
        self.retry_after: Final = retry_after

    @property
    def blockers(self) -> list[str]:
        """Why the server is not ready."""
        blockers = self.members.get("blockers")
        return [str(each) for each in blockers] if isinstance(blockers, list) else []


class Unauthenticated(RequestRefused):
    """The server accepts no token of the caller."""


class NotPermitted(RequestRefused):
    """The caller does not have the right."""


class ObjectNotFound(RequestRefused):
    """The object or the path does not exist."""


class ConflictingState(RequestRefused):
    """The object is in another state or at another version, or several have its name."""


class InvalidRequest(RequestRefused):
    """A parameter, a document or the request itself is invalid."""


class ServerUnavailable(RequestRefused):
    """The server cannot answer now, or the caller sends too many requests."""


class ServerFault(RequestRefused):
    """A defect of the server."""


def slug(problem: Mapping[str, Any]) -> str:
    """The last part of the URI of a queuectl problem; empty for others."""
    uri = problem.get("type")
    own = isinstance(uri, str) and uri.startswith(_TYPE_BASE)
    return str(uri).removeprefix(_TYPE_BASE) if own else ""


PROBLEMS: Final[Mapping[str, type[RequestRefused]]] = {
    "unauthenticated": Unauthenticated,
    "forbidden": NotPermitted,
    "foreign-origin": NotPermitted,
    "not-found": ObjectNotFound,
    "no-such-path": ObjectNotFound,
    "ambiguous": ConflictingState,
    "not-the-owner": ConflictingState,
    "not-in-this-state": ConflictingState,
    "precondition-failed": ConflictingState,
    "malformed-body": InvalidRequest,
    "method-not-allowed": InvalidRequest,
    "body-too-large": InvalidRequest,
    "unsupported-media-type": InvalidRequest,
    "misdirected-request": InvalidRequest,
    "invalid-document": InvalidRequest,
    "invalid-parameter": InvalidRequest,
    "request-id-reused": InvalidRequest,
    "precondition-required": InvalidRequest,
    "too-many-requests": ServerUnavailable,
    "store-unavailable": ServerUnavailable,
    "cluster-unavailable": ServerUnavailable,
    "issuer-unavailable": ServerUnavailable,
    "took-too-long": ServerUnavailable,
    "not-known-yet": ServerUnavailable,
    "not-ready": ServerUnavailable,
    "not-live": ServerUnavailable,
    "internal-error": ServerFault,
}
"""The error of each type of problem."""

_STATUSES: Final[Mapping[int, type[RequestRefused]]] = {
    401: Unauthenticated,
    403: NotPermitted,
    404: ObjectNotFound,
    409: ConflictingState,
    412: ConflictingState,
    429: ServerUnavailable,
    502: ServerUnavailable,
    503: ServerUnavailable,
    504: ServerUnavailable,
}


def refused(
    problem: Mapping[str, Any], status: int, retry_after: float | None = None
) -> RequestRefused:
    """The error of a problem. A type that a newer server adds counts by its status."""
    by_status = _STATUSES.get(status, InvalidRequest if status < 500 else ServerFault)
    return PROBLEMS.get(slug(problem), by_status)(problem, status, retry_after)


def _mappings(errors: Any) -> list[dict[str, Any]]:
    return [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
