"""Whether the database answers, for all who ask at the same time in one process."""

from __future__ import annotations

import asyncio
from typing import Final

from queuectl.db.ports import ApiStore
from queuectl.domain.errors import StoreUnavailable

_FRESH_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 1.5


class DatabaseCheck:
    """A check that is at most a second old. It waits for the database for at most 1.5 seconds."""

    def __init__(self, store: ApiStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._answers = False

    async def answers(self) -> bool:
        """Whether the database answers."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() - self._checked_at >= _FRESH_SECONDS:
                try:
                    async with asyncio.timeout(_ANSWER_SECONDS):
                        await self._store.newest_line()
                except (StoreUnavailable, TimeoutError):
                    self._answers = False
                else:
                    self._answers = True
                self._checked_at = clock()
            return self._answers
