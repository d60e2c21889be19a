"""The objectives of advice: figures of an outcome that can be computed again for a part of the trace.

The trace is divided into blocks of equal length. A resample has the figures of a trace in which each block occurs as often as it
was drawn. A job is in the block of its submission.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.domain.errors import BadInput
from queuectl.simulate.advice.blocks import Blocks
from queuectl.simulate.outcomes import PolicyOutcome, series_between
from queuectl.simulate.simulation import Run

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]

_HOUR: Final = 3600.0


class Objective(StrEnum):
    """A figure that matters. All but the allocation and the fairness are better if they are smaller."""

    MEAN_WAIT = "mean-wait"
    P99_WAIT = "p99-wait"
    MULTI_NODE_WAIT = "multi-node-wait"
    ALLOCATION = "allocation"
    FAIRNESS = "fairness"
    LOST_HOURS = "lost-hours"

    @property
    def larger_is_better(self) -> bool:
        return self in (Objective.ALLOCATION, Objective.FAIRNESS)


class Evaluation:
    """The figures of one outcome, for each resample of its blocks."""

    def __init__(
        self,
        outcome: PolicyOutcome,
        blocks: Blocks,
        drawn: Counts,
        counted: Container[int] | None = None,
    ) -> None:
        """Blocks, resamples and counted jobs are the same for all outcomes that are compared.

        Args:
            outcome: the outcome.
            blocks: of the trace.
            drawn: (R, B): how often each block is in each resample.
            counted: ranks of the jobs whose waits, fairness and lost work count; None = all.
        """
        self._outcome = outcome
        self._blocks = blocks
        self._runs = [run for run in outcome.runs if counted is None or run.job.rank in counted]
        self._finished = [run for run in self._runs if run.finished_at is not None]
        self._figures = {objective: self._computed(objective, drawn) for objective in Objective}

    def figures(self, objective: Objective) -> Floats:
        """(R,): the figure in each resample; nan without jobs."""
        return self._figures[objective]

    def _computed(self, objective: Objective, drawn: Counts) -> Floats:
        match objective:
            case Objective.MEAN_WAIT:
                return self._mean_wait(self._finished, drawn)
            case Objective.MULTI_NODE_WAIT:
                return self._mean_wait([r for r in self._finished if r.job.pods > 1], drawn)
            case Objective.P99_WAIT:
                return self._p99(drawn)
            case Objective.ALLOCATION:
                return self._allocation(drawn)
            case Objective.FAIRNESS:
                return self._fairness(drawn)
            case Objective.LOST_HOURS:
                lost = self._sums(self._runs, [run.lost for run in self._runs])
                return _by(drawn, lost) / _HOUR

    def _mean_wait(self, runs: Sequence[Run], drawn: Counts) -> Floats:
        waits = _by(drawn, self._sums(runs, [run.waited for run in runs]))
        return _ratio(waits, _by(drawn, self._sums(runs, [1.0] * len(runs))))

    def _p99(self, drawn: Counts) -> Floats:
        """By nearest rank."""
        if not self._finished:
            return np.full(len(drawn), np.nan)
        waits = np.array([run.waited for run in self._finished])
        order = np.argsort(waits, kind="stable")
        waits, at = waits[order], self._blocks.of(self._finished)[order]
        figures = np.full(len(drawn), np.nan)
        for number, times in enumerate(drawn):
            ranks = np.cumsum(times[at])
            if ranks[-1]:
                rank = max(1, -(-99 * int(ranks[-1]) // 100))
                figures[number] = waits[np.searchsorted(ranks, rank)]
        return figures

    def _allocation(self, drawn: Counts) -> Floats:
        """Of all GPUs until the last submission: after it, the cluster only becomes empty."""
        blocks, samples = self._blocks, self._outcome.samples
        held = series_between(samples, lambda s: s.held, blocks.begin, blocks.end, blocks.number)
        gpus = max(self._outcome.gpus, 1)
        return _ratio(_by(drawn, np.array(held)), gpus * drawn.sum(axis=1).astype(float))

    def _fairness(self, drawn: Counts) -> Floats:
        """Jain's index of the queues, as in the other figures."""
        shares = []
        for queue in self._outcome.by_queue:
            runs = [run for run in self._finished if run.job.queue == queue]
            ran = _by(drawn, self._sums(runs, [run.ran for run in runs]))
            shares.append(_ratio(ran, _by(drawn, self._sums(runs, [r.completion for r in runs]))))
        if not shares:
            return np.full(len(drawn), np.nan)
        listed = np.array(shares)
        known = np.isfinite(listed)
        listed = np.where(known, listed, 0.0)
        squares = known.sum(axis=0) * (listed**2).sum(axis=0)
        return _ratio(listed.sum(axis=0) ** 2, squares)

    def _sums(self, runs: Sequence[Run], amounts: Sequence[float]) -> Floats:
        """(B,): by block."""
        sums: Floats = np.bincount(
            self._blocks.of(runs), np.array(amounts, dtype=np.float64), self._blocks.number
        ).astype(np.float64)
        return sums


def improvement(objective: Objective, before: Floats, after: Floats) -> Floats:
    """-1 to 1: the difference as a fraction of the larger of the two values; positive = better."""
    better = after - before if objective.larger_is_better else before - after
    largest = np.maximum(np.abs(before), np.abs(after))
    return np.where(largest > 0, better / np.where(largest > 0, largest, 1.0), 0.0)


def read_objectives(texts: Sequence[str]) -> dict[Objective, float]:
    """Objectives with weights from texts such as ``mean-wait`` or ``lost-hours=0.5``. The weights add up to 1.

    Raises:
        BadInput: a text is not one.
    """
    weights: dict[Objective, float] = {}
    for text in texts or [Objective.MEAN_WAIT.value]:
        name, equals, number = text.partition("=")
        if name not in {objective.value for objective in Objective}:
            raise BadInput(f"--objective: {name!r} is not one of {', '.join(Objective)}")
        try:
            weight = float(number) if equals else 1.0
        except ValueError:
            weight = 0.0
        if not 0 < weight < float("inf"):
            raise BadInput(f"--objective {name}: the weight {number!r} is not greater than 0")
        if Objective(name) in weights:
            raise BadInput(f"--objective {name}: is given twice")
        weights[Objective(name)] = weight
    total = sum(weights.values())
    return {objective: weight / total for objective, weight in weights.items()}


def _by(drawn: Counts, sums: Floats) -> Floats:
    weighted: Floats = drawn @ sums
    return weighted


def _ratio(above: Floats, below: Floats) -> Floats:
    ratio: Floats = np.where(below != 0, above / np.where(below != 0, below, 1.0), np.nan)
    return ratio
