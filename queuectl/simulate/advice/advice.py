"""Simulates the trace under each change, and ranks the changes by the objectives, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document
from queuectl.simulate.advice.blocks import Blocks, blocks_of
from queuectl.simulate.advice.changes import Body, Change, Kind, changed_objects, combined
from queuectl.simulate.advice.objectives import Evaluation, Floats, Objective, improvement
from queuectl.simulate.outcomes import PolicyOutcome
from queuectl.simulate.setting import Setting

PERCENT: Final = 90
"""The part of resamples in an interval."""

_TAILS: Final = ((100 - PERCENT) / 2, (100 + PERCENT) / 2)
_PRESENT: Final = Change((), "as configured")

MakeSetting = Callable[[Sequence[Document], Change], Setting]
"""The setting of documents, with the jobs of a change. Can raise BadInput."""
Run = Callable[[Setting, str], PolicyOutcome]
"""Simulates a setting; the text is the name of the change."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of the whole trace, and the interval of the resamples; None without jobs."""

    figure: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The result of one change.

    Attributes:
        change: what changes.
        figures: by objective.
        differences: to the current configuration, by objective.
        score: weighted improvement, -1 to 1.
        objects: the ClusterQueues that change, as they would be.
        lost: jobs that fit now and would never fit.
        gained: jobs that would fit and do not fit now. Their waits do not count, because there is nothing to compare them with.
    """

    change: Change
    figures: Mapping[Objective, Interval]
    differences: Mapping[Objective, Interval]
    score: Interval
    objects: Sequence[Body]
    lost: int
    gained: int

    @property
    def better(self) -> bool:
        """Whether it improves the score in nearly all resamples, and all jobs still fit."""
        return not self.lost and self.score.low is not None and self.score.low > 0


@dataclass(frozen=True, slots=True)
class Advice:
    """The result of all changes.

    Attributes:
        weights: of the objectives.
        blocks: of the trace, which were drawn.
        present: the figures of the configuration as it is.
        ranked: the changes, best first.
        refused: name of each change that cannot be simulated, and the reason.
    """

    weights: Mapping[Objective, float]
    blocks: Blocks
    present: Mapping[Objective, Interval]
    ranked: Sequence[Ranked]
    refused: Sequence[tuple[str, str]]

    @property
    def recommended(self) -> Ranked | None:
        """The best of the changes that are better than the current configuration, or None."""
        return next((one for one in self.ranked if one.better), None)

    @property
    def uncertain(self) -> Sequence[Ranked]:
        """Changes with a higher score than the recommended one that can be worse than the current configuration."""
        best = self.recommended
        above = self.ranked[: self.ranked.index(best)] if best is not None else self.ranked
        return [one for one in above if not one.lost and (one.score.figure or 0.0) > 0]


class Adviser:
    """Searches for a better configuration for one input."""

    def __init__(
        self,
        documents: Sequence[Document],
        make: MakeSetting,
        run: Run,
        weights: Mapping[Objective, float],
        seed: int,
    ) -> None:
        """Simulate the current configuration.

        Args:
            documents: nodes and configuration.
            make: reads documents.
            run: simulates.
            weights: of the objectives; they add up to 1.
            seed: of the resamples.
        """
        self._documents = documents
        self._make = make
        self._run = run
        self._weights = weights
        self.setting = make(documents, _PRESENT)
        self._blocks = blocks_of(self.setting.jobs)
        self._drawn = self._blocks.resamples(seed)
        outcome = run(self.setting, _PRESENT.name)
        self._fit = frozenset(run.job.rank for run in outcome.runs)
        self._present = self._evaluated(outcome)
        self._refused: list[tuple[str, str]] = []

    def advise(self, changes: Sequence[Change]) -> Advice:
        """Simulate each change, then the best ones of several kinds together."""
        ranked = [found for change in changes if (found := self._ranked(change)) is not None]
        best = _best_of_each_kind(_ordered(ranked))
        if len(best) > 1 and (found := self._ranked(combined(best))) is not None:
            ranked.append(found)
        figures = {o: _interval(self._present.figures(o)) for o in Objective}
        return Advice(self._weights, self._blocks, figures, _ordered(ranked), self._refused)

    def _ranked(self, change: Change) -> Ranked | None:
        documents = change.documents(self._documents)
        try:
            setting = self._make(documents, change)
            if _is_same(setting, self.setting):
                return None  # the change states what the input means already
            outcome = self._run(setting, change.name)
        except BadInput as error:
            self._refused.append((change.name, str(error)))
            return None
        after, fit = self._evaluated(outcome), {run.job.rank for run in outcome.runs}
        return Ranked(
            change,
            {o: _interval(after.figures(o)) for o in Objective},
            {o: _interval(after.figures(o) - self._present.figures(o)) for o in Objective},
            self._score(after),
            changed_objects(self._documents, documents),
            len(self._fit - fit),
            len(fit - self._fit),
        )

    def _evaluated(self, outcome: PolicyOutcome) -> Evaluation:
        return Evaluation(outcome, self._blocks, self._drawn, self._fit)

    def _score(self, after: Evaluation) -> Interval:
        total = np.zeros(len(self._drawn))
        for objective, weight in self._weights.items():
            better = improvement(
                objective, self._present.figures(objective), after.figures(objective)
            )
            total += weight * np.where(np.isfinite(better), better, 0.0)
        return _interval(total)


def _is_same(changed: Setting, present: Setting) -> bool:
    """Whether a change has no effect: changes are of ClusterQueues, Cohorts and jobs."""
    before, after = present.config, changed.config
    queues = (after.cluster_queues, after.cohorts) == (before.cluster_queues, before.cohorts)
    return queues and changed.jobs == present.jobs


def _interval(figures: Floats) -> Interval:
    """``figures``: of the whole trace, then of each resample."""
    known = figures[1:][np.isfinite(figures[1:])]
    if not np.isfinite(figures[0]) or not known.size:
        return Interval(None, None, None)
    low, high = np.percentile(known, _TAILS)
    return Interval(float(figures[0]), float(low), float(high))


def _ordered(ranked: Sequence[Ranked]) -> list[Ranked]:
    """Changes under which all jobs still fit are first, then the score counts."""
    return sorted(ranked, key=lambda one: (one.lost > 0, -(one.score.figure or 0.0)))


def _best_of_each_kind(ranked: Sequence[Ranked]) -> list[Change]:
    best: dict[tuple[Kind, ...], Change] = {}
    for one in ranked:
        if one.better:
            best.setdefault(one.change.kinds, one.change)
    return list(best.values())
