"""The errors this package raises on purpose; each message is a sentence fit for a terminal."""

from __future__ import annotations


class LocalClusterError(Exception):
    """Something about the local control plane went wrong; the message says what, and what to look at."""


class BuildError(LocalClusterError):
    """A build step failed; the message names the step and its log."""


class RequestError(LocalClusterError):
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
