"""The state of a plan is freed when the plan is made. Its arrays have a row for each resource of all nodes."""

from __future__ import annotations

import gc
from typing import Final

import pytest

from queuectl.planner import plan
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.problem.problem import Problem
from tests.planner.generate_features import snapshot_of

LARGE: Final = (Problem, CycleState, AdmissionCycle)


def large() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, LARGE)}


@pytest.mark.parametrize("seed", range(900, 912))
def test_no_reference_cycle_keeps_the_state_of_a_plan(seed: int) -> None:
    snapshot = snapshot_of(seed)
    gc.collect()
    before = large()
    gc.disable()
    try:
        plan(snapshot)
        assert large() <= before
    finally:
        gc.enable()
