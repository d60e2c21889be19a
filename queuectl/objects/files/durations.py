"""How long the gangs of files run. Files have no history, so nothing is learnt."""

from __future__ import annotations

from typing import Final

from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.queues import QueueConfig
from queuectl.domain.runs import Work
from queuectl.domain.workload import Duration
from queuectl.durations.estimator import Estimator
from queuectl.durations.expectations import Expectation, Stated, planned
from queuectl.objects.files.gangs import Gang

_NO_HISTORY: Final = Estimator()


def attempt(gang: Gang, queues: QueueConfig) -> Duration | None:
    """An attempt that starts now; None = unknown."""
    found = _expectation(gang, queues, gang.past_seconds)
    return found.attempt(gang.past_seconds) if found is not None else None


def end(gang: Gang, queues: QueueConfig, started: float, now: float) -> tuple[float | None, bool]:
    """When a running gang leaves, in unix seconds, and whether the controller ends it then."""
    began = started - gang.past_seconds
    found = _expectation(gang, queues, max(now - began, 0.0))
    if found is None:
        return None, False
    return began + found.seconds, found.source is RunTimeSource.LIMIT


def _expectation(gang: Gang, queues: QueueConfig, elapsed: float) -> Expectation | None:
    queue = queues.cluster_queue_of(gang.namespace, gang.queue)
    stated = gang.max_execution
    limit = queue.execution.limit(stated) if queue is not None else stated
    known = Stated(limit, gang.expected_duration)
    return planned(Work(), known, elapsed, queues.rules.duration_quantile, _NO_HISTORY)
