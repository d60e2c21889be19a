"""The clock of the controller.

Deadlines in the ledger outlive processes, and other machines read them, so they are in the time of the database. Within a process, the
monotonic clock counts: a change of the machine's clock does not move a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Unix seconds: the last set time plus the time on the monotonic clock since then."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Starts with the machine's time."""
        self._monotonic = monotonic
        self._offset = time.time() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def set(self, now: float) -> None:
        """``now``: unix seconds."""
        self._offset = now - self._monotonic()
