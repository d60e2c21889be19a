"""A light stream of small gangs that continues while controllers and the API server are away, and gangs one after the other."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

from tests.bench.scale.gangs import NORMAL, Gang
from tests.bench.scale.stage import RowCutError, ScaleStage

_RUN_SECONDS: Final = 5.0


def small_gang(name: str, team: str) -> Gang:
    """Two pods of one GPU, which run for five seconds."""
    return Gang(name, team, 2, 1, seconds=_RUN_SECONDS, priority=NORMAL)


class Stream:
    """Submits a gang at a rate, in a thread, until the block ends. A refused or unanswered submission is repeated.

    Attributes:
        gangs: those that were accepted, oldest first.
    """

    def __init__(self, stage: ScaleStage, name: str, per_second: float) -> None:
        """``name``: first part of the names of the gangs."""
        self._stage = stage
        self._name = name
        self._pause = 1.0 / per_second
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self.gangs: list[Gang] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Submit no more gangs."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        # The owner of the row about reclaim has no gangs, so that its quota stays lent.
        teams = self._stage.fleet.teams()[:-1]
        number = 0
        while not self._ended.is_set():
            gang = small_gang(f"{self._name}-{number:05}", teams[number % len(teams)])
            if self._stage.accepted(gang, self._ended.is_set):
                self.gangs.append(gang)
            number += 1
            self._ended.wait(self._pause)


def waits(stage: ScaleStage, name: str, team: str, number: int) -> list[float]:
    """Seconds from the submission of a small gang to all its pods bound, for several, one after the other.

    Raises:
        RowCutError: the time of the row is over.
    """
    seconds: list[float] = []
    for index in range(number):
        gang = small_gang(f"{name}-{index:03}", team)
        stage.submit([gang])
        try:
            stage.wait_bound([gang])
        except RowCutError as error:
            raise RowCutError(f"{name}: {len(seconds)} of {number} gangs bound") from error
        seconds.append(wait_of(stage, gang) or 0.0)
    return seconds


def wait_of(stage: ScaleStage, gang: Gang) -> float | None:
    """Seconds from the submission of a gang to its last bound pod; None if not all are bound."""
    whole = stage.timeline.whole(gang.key, gang.pods)
    submitted = stage.timeline.submitted.get(gang.key)
    return None if whole is None or submitted is None else whole - submitted


def pause_until(at: float) -> None:
    """Sleep until a time in unix seconds."""
    time.sleep(max(0.0, at - time.time()))
