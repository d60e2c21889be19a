"""The loss of an eviction: GPU-seconds of work since the last checkpoint, and a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import PodSet
from queuectl.planner.preempt.cost import RESTART_COST, costs, sizes_of
from tests.planner.build import NOW, gang, holding, podset, world

TIMES = st.one_of(st.none(), st.floats(0, NOW * 2))


def running(uid: str = "x", gpu: int = 4, **kw) -> Admitted:
    return holding(gang(uid, podset(count=2, gpu=gpu), priority=3), {"n": 2}, **kw)


def lost(gang_there: Admitted, *others: Admitted) -> int:
    priced = costs([gang_there, *others], NOW, sizes_of(world([])))
    return priced[gang_there.workload.uid].lost_work - RESTART_COST


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        ({"started_at": NOW - 100}, 100),
        ({"started_at": NOW - 100, "checkpoint_at": NOW - 40}, 40),
        ({"started_at": NOW - 100, "checkpoint_at": NOW - 400}, 100),  # of an earlier attempt
        (
            {"started_at": NOW - 100, "checkpoint_at": NOW + 400},
            0,
        ),  # a clock ahead of the controller's
        ({"started_at": NOW + 5}, 0),
        ({"started_at": NOW - 100, "utilization": 0.25}, 25),
        ({"started_at": NOW - 100, "utilization": 0.0}, 0),
        ({"started_at": NOW - 100, "utilization": 7.0}, 100),
        ({"started_at": NOW - 100, "utilization": None}, 100),  # unknown is not idle
    ],
)
def test_the_loss_is_gpus_times_seconds_since_the_checkpoint_times_utilization(
    state: dict[str, Any], seconds: int
) -> None:
    assert lost(running(**state)) == 8 * seconds


def test_undeclared_checkpoints_count_as_the_median_of_the_declared() -> None:
    silent = running("silent", started_at=NOW - 1000)
    declared = [running(f"d{i}", checkpoint_at=NOW - age) for i, age in enumerate((10, 50, 90))]
    assert lost(silent, *declared) == 8 * 50
    young = running("young", started_at=NOW - 20)
    assert lost(young, *declared) == 8 * 20


def test_an_idle_gang_still_costs_a_restart() -> None:
    held = running(utilization=0.0, started_at=0.0)
    (cost,) = costs([held], NOW, sizes_of(world([]))).values()
    assert (cost.priority, cost.lost_work, int(cost.gpus)) == (3, RESTART_COST, 8)
    assert RESTART_COST > 0


@pytest.mark.parametrize("pods", [podset(count=2, gpu=4), podset(count=2, cpu=64)])
def test_a_gang_that_is_held_for_admission_checks_costs_a_restart_only(pods: PodSet) -> None:
    waits = holding(gang("x", pods), {"n": 2}, started_at=NOW - 18_000)
    assert lost(waits) > 0
    assert lost(replace(waits, held=True)) == 0


@given(TIMES, st.one_of(st.none(), st.floats(0, 1)), st.floats(0, NOW))
def test_missing_data_never_makes_a_gang_cheaper(
    checkpoint: float | None, utilization: float | None, started: float
) -> None:
    known = running(started_at=started, checkpoint_at=checkpoint, utilization=utilization)
    silent = running(started_at=started)
    assert 0 <= lost(known) <= lost(silent)
