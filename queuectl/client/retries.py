"""When a request is sent again. No I/O."""

from __future__ import annotations

from typing import Final

from queuectl.client.errors import (
    CertificateRefused,
    ClientError,
    NoAnswer,
    ProxyAnswer,
    RequestRefused,
)

RETRIES: Final = 3
FIRST_PAUSE: Final = 0.5  # seconds, doubled for each further one
LONGEST_PAUSE: Final = 30.0
"""Seconds. A server that asks to wait longer gets no further request: the caller knows better what to do in the meantime."""
_TRANSIENT: Final = (502, 504)  # of a proxy without its server


def passes(error: ClientError) -> bool:
    """Whether the error can end by itself: the connection failed, a proxy does not reach the server, or the server asks to wait."""
    if isinstance(error, RequestRefused):
        asks = error.retry_after is not None and error.status in (429, 503)
        return asks or error.status in _TRANSIENT
    return isinstance(error, NoAnswer | ProxyAnswer) and not isinstance(error, CertificateRefused)


class Attempts:
    """The attempts of one request."""

    def __init__(self, retries: int, *, repeatable: bool) -> None:
        """``repeatable``: a read, or a write with an idempotency key: the second one has no further effect."""
        self._left = retries if repeatable else 0
        self._pause = FIRST_PAUSE

    def pause(self, error: ClientError) -> float | None:
        """Seconds until the next attempt after this error; None = no further attempt."""
        seconds = self._wanted(error)
        if seconds is None or self._left <= 0:
            return None
        self._left -= 1
        self._pause *= 2
        return seconds

    def _wanted(self, error: ClientError) -> float | None:
        if not passes(error):
            return None
        if isinstance(error, RequestRefused) and error.retry_after is not None:
            return error.retry_after if error.retry_after <= LONGEST_PAUSE else None
        return self._jittered()

    def _jittered(self) -> float:
        import random  # it takes longer to import than the rest of the module

        return self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load only
