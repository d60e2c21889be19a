"""Periodic tasks that continue after an unexpected error: a run that fails is reported, and the task starts again after a back-off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from queuectl.domain.backoff import doubling
from queuectl.domain.containment import Boundary, Containment

Job = Callable[[], Awaitable[None]]

FIRST_PAUSE: Final = 1.0
"""Seconds before the second start. The pause doubles with each failure, up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE: Final = 300.0
STEADY_SECONDS: Final = 600.0
"""A task that has run for so long has recovered: its failures are forgotten."""


async def supervised(name: str, job: Job, containment: Containment) -> None:
    """Run a task until it ends or is canceled, and start it again after each error that concerns only this task.

    Raises:
        Exception: an error that is never contained.
    """
    now, failures = asyncio.get_running_loop().time, 0
    while True:
        began = now()
        try:
            await job()
        except Exception as error:  # noqa: BLE001 - contained
            containment.failed(Boundary.TASK, name, error)
            failures = 1 if now() - began > STEADY_SECONDS else failures + 1
            await asyncio.sleep(doubling(FIRST_PAUSE, LONGEST_PAUSE, failures))
        else:
            containment.passed(Boundary.TASK, name)
            return
