"""A plan ends at once after a stop request, in any phase."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import SolverLimits
from queuectl.planner import StopSignal, plan
from queuectl.planner.capacity.node_counts import TentativeAdmission
from queuectl.planner.placement.feasible import Arrangement, arrange
from queuectl.planner.solver import Model, Solver, Status
from tests.planner import cases
from tests.planner.test_model import TIGHT


def hard_model() -> Model:
    """A market split: five knapsack equations over fifty bits, minutes of search for any solver."""
    rng = random.Random(1)
    model = Model()
    bits = [model.var(0, 1) for _ in range(50)]
    for _ in range(5):
        weights = [rng.randrange(100) for _ in bits]
        model.equal(bits, weights, sum(weights) // 2)
    return model


def test_stop_ends_a_running_solve() -> None:
    stop = StopSignal()
    stopped = Solver(SolverLimits(deterministic_time=1e6, wall_seconds=60.0), stop)
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(stopped.solve(hard_model())))
    thread.start()
    while stopped.stop._running is None and thread.is_alive():
        time.sleep(0.001)
    time.sleep(0.05)
    stop.stop()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert outcomes[0].status is Status.UNKNOWN
    assert stopped.cut
    assert stopped.calls == 1


def test_a_stopped_plan_starts_no_gang_and_reports_the_stop() -> None:
    stop = StopSignal()
    stop.stop()
    made = plan(TIGHT.snapshot, stop)
    assert made.cut
    assert made.admitted == ()
    assert made.pending[0].reasons[0].code is Code.PENDING_EVALUATION
    assert made.stats["solves"] == 0


def test_a_plan_makes_no_further_model_after_a_stop_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = next(c for c in cases.BATCH if c.name == "best fit blocks the third").snapshot
    asked: list[int] = []
    stop = StopSignal()

    def counted(movable: Sequence[TentativeAdmission], *rest: Any) -> Arrangement:
        asked.append(len(movable))
        stop.stop()
        return arrange(movable, *rest)

    monkeypatch.setattr("queuectl.planner.placement.feasible.arrange", counted)
    assert plan(snapshot, stop).cut
    assert len(asked) == 1
