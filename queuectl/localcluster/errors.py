"""The errors of this package. Each message is a sentence for a terminal."""

from __future__ import annotations


def cause(error: OSError) -> str:
    """The file and the cause of an error of the system, without its number."""
    if error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


class LocalClusterError(Exception):
    """A failure of the local control plane. The message has the cause, and where to find details."""


class UnknownClusterError(LocalClusterError):
    """No cluster has the name. The message has the names of the clusters."""


class BuildError(LocalClusterError):
    """A build step failed. The message names the step and its log."""


class ApiServerError(LocalClusterError):
    """The API server refused a request.

    Attributes:
        status: HTTP status code.
        reason: Kubernetes' machine-readable reason, such as `Forbidden`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class UnreachableError(LocalClusterError):
    """A server does not answer."""
