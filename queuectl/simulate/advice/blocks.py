"""The blocks of a trace, and random resamples of them: a block bootstrap.

Jobs of one day depend on each other: they wait for the same GPUs. For this reason, whole blocks are drawn, with replacement. All changes are compared on
the same resamples, so that the variation between days does not count as a difference between changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.estimates import DAY
from queuectl.simulate.simulation import Run
from queuectl.simulate.trace import TraceJob

Counts: TypeAlias = NDArray[np.int64]

RESAMPLES: Final = 1000
_LEAST: Final = 8  # blocks of a trace
_WEEK: Final = 7 * DAY


@dataclass(frozen=True, slots=True)
class Blocks:
    """Equal intervals from the first to the last submission. Times are in seconds."""

    begin: float
    end: float
    number: int

    @property
    def length(self) -> float:
        return (self.end - self.begin) / self.number

    @property
    def name(self) -> str:
        """The kind of the blocks, for people."""
        if self.length >= _WEEK:
            return "weeks"
        return "days" if self.length >= DAY else f"intervals of {self.length / 3600:.1f} hours"

    def of(self, runs: Sequence[Run]) -> Counts:
        """(J,): the block of the submission of each job."""
        times = np.array([run.job.submit for run in runs], dtype=np.float64)
        at = ((times - self.begin) / max(self.length, 1e-9)).astype(np.int64)
        found: Counts = np.clip(at, 0, self.number - 1)
        return found

    def resamples(self, seed: int, number: int = RESAMPLES) -> Counts:
        """(1 + R, B): how often each block is in each resample. The first row is the trace itself.

        The same seed gives the same numbers.
        """
        draw = np.random.default_rng(seed)
        chances = np.full(self.number, 1.0 / self.number)
        drawn = draw.multinomial(self.number, chances, size=number)
        return np.vstack([np.ones((1, self.number)), drawn]).astype(np.int64)


def blocks_of(jobs: Iterable[TraceJob]) -> Blocks:
    """Weeks or days if the trace has at least eight of them, otherwise an eighth of the trace."""
    times = [job.submit for job in jobs]
    begin, end = min(times, default=0.0), max(times, default=0.0)
    span = max(end - begin, 1.0)
    unit = next((unit for unit in (_WEEK, DAY) if span >= _LEAST * unit), span / _LEAST)
    return Blocks(begin, begin + span, max(_LEAST, int(span / unit)))
