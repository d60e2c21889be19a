"""The state of a cycle is freed when its answer is made. Its arrays have a row for each resource of all nodes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

import pytest

from queuectl.domain.snapshot import Snapshot
from queuectl.planner import plan
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.diagnosis import diagnose_those
from queuectl.planner.problem.problem import Problem
from tests.planner.generate_features import snapshot_of

LARGE: Final = (Problem, CycleState, AdmissionCycle)


def large() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, LARGE)}


def diagnosed(snapshot: Snapshot) -> object:
    uids = frozenset(pending.workload.uid for pending in snapshot.pending[:4])
    return [*diagnose_those(snapshot, uids)]


@pytest.mark.parametrize("answer", [plan, diagnosed])
@pytest.mark.parametrize("seed", range(900, 912))
def test_no_reference_cycle_keeps_the_state_of_a_cycle(
    seed: int, answer: Callable[[Snapshot], object]
) -> None:
    snapshot = snapshot_of(seed)
    gc.collect()
    before = large()
    gc.disable()
    try:
        answer(snapshot)
        assert large() <= before
    finally:
        gc.enable()
