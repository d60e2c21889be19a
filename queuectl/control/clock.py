"""The time that the controller goes by.

Deadlines in the ledger outlive processes and are read on other machines, so they are in the database's time. Within a process the
monotonic clock counts: whoever sets the machine's clock meanwhile, no deadline comes earlier or later for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class SteadyClock:
    """Unix seconds: as last set, and what the monotonic clock has counted since."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Starts with the machine's time."""
        self._monotonic = monotonic
        self._offset = time.time() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def set(self, now: float) -> None:
        """``now``: unix seconds."""
        self._offset = now - self._monotonic()
