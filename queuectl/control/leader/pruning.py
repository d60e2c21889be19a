"""Deletes expired rows, in small batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from queuectl.control.ports import Clock, Store
from queuectl.domain.durations import DAY
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.rules import Rules

log = structlog.get_logger()

_SECONDS: Final = 60.0  # between checks for expired rows
_AGAIN_SECONDS: Final = 1.0  # between batches of them


async def prune(store: Store, rules: Callable[[], Rules], clock: Clock, epoch: int) -> None:
    """Delete until cancelled, for one epoch of the leader.

    Raises:
        Fenced: another leader has taken over.
    """
    while True:
        try:
            deleted = await store.prune(rules().retention, clock(), epoch=epoch)
            oldest = clock() - rules().accounting.keep_days * DAY
            deleted += await store.usage.prune(oldest, epoch=epoch)
        except StoreUnavailable as error:
            log.info("old_rows_not_deleted", error=str(error))
            deleted = 0
        await asyncio.sleep(_AGAIN_SECONDS if deleted else _SECONDS)
