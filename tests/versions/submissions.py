"""Users that submit jobs during an event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from queuectl.localcluster.client import wait_until

USERS: Final = 8
_PAUSE_SECONDS: Final = 0.05
_SECONDS: Final = 60.0


@dataclass
class Submissions:
    """The jobs that the users have submitted.

    Attributes:
        accepted: their number.
        refused: the reason for each.
    """

    accepted: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """All jobs."""
        return self.accepted + len(self.refused)


@contextmanager
def submitting(refusal: Callable[[], str | None]) -> Iterator[Submissions]:
    """Users submit jobs, each one job after the other. Several have been submitted before the event and after it.

    Args:
        refusal: submits a job, and returns the reason if it is refused.
    """
    found, over = Submissions(), threading.Event()

    def submit() -> None:
        while not over.wait(_PAUSE_SECONDS):
            if why := refusal():
                found.refused.append(why)
            else:
                found.accepted += 1

    def more() -> None:
        before = found.count
        wait_until(lambda: found.count > before + 5 * USERS, "more jobs", _SECONDS)

    with ThreadPoolExecutor(USERS) as pool:
        users = [pool.submit(submit) for _ in range(USERS)]
        try:
            more()
            yield found
            more()
        finally:
            over.set()
    for user in users:
        user.result()
