"""Plans that a simulation leaves out would have changed nothing."""

from __future__ import annotations

from random import Random

import pytest

from queuectl.domain.snapshot import Snapshot
from queuectl.simulate import planned
from queuectl.simulate.leader import BlockedSubmissions
from queuectl.simulate.parts import Part, parts
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order, PlacementRule
from tests.simulate.cases import outcome, setting, trace, waits


def crowded(seed: int, **options: object) -> Setting:
    """Jobs of two queues that arrive faster than they can run."""
    draw = Random(seed)
    shapes = [(1, 1), (1, 2), (1, 8), (2, 8), (3, 8)]
    rows = []
    for _ in range(24):
        pods, gpus = draw.choices(shapes, (6, 2, 3, 2, 1))[0]
        at, length, priority = draw.randrange(40), draw.randrange(1, 60), draw.choice((0, 0, 5))
        rows.append(f"{at},{length},{pods},{gpus},{draw.choice('ab')},{priority},10")
    jobs = trace(*rows, more="priority,checkpoint_s")
    return setting({"a": 3, "b": 3}, jobs, **options)  # type: ignore[arg-type]


RECLAIM = {
    "cohort": "all",
    "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
}


@pytest.mark.parametrize("order", [Order.STRICT_FIFO, Order.BEST_EFFORT_FIFO, Order.SJF])
@pytest.mark.parametrize("options", [{}, RECLAIM], ids=["alone", "cohort"])
def test_a_submission_that_is_not_planned_would_not_have_started(
    order: Order, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = crowded(3, **options)
    quick = outcome(given, PlacementRule.PLANNER, order)
    left_out = []

    def never(self: BlockedSubmissions, *args: object) -> bool:
        left_out.append(add(self, *args))  # type: ignore[arg-type]
        return False

    add = BlockedSubmissions.add
    monkeypatch.setattr(BlockedSubmissions, "add", never)
    assert waits(outcome(given, PlacementRule.PLANNER, order)) == waits(quick)
    assert any(left_out)


def test_independent_queues_are_planned_as_if_they_were_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = crowded(3)
    apart = outcome(given, PlacementRule.PLANNER, Order.BEST_EFFORT_FIFO)

    def whole(snapshot: Snapshot, _: object) -> list[Part]:
        return [Part(frozenset(snapshot.config.cluster_queues), snapshot)]

    monkeypatch.setattr(planned, "parts", whole)
    assert waits(outcome(given, PlacementRule.PLANNER, Order.BEST_EFFORT_FIFO)) == waits(apart)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [{"a"}, {"b"}, {"c"}]),
        ({"everywhere": "b"}, [{"a", "b", "c"}]),
        ({"cohort": "all"}, [{"a", "b", "c"}]),
    ],
)
def test_queues_with_a_common_node_or_cohort_are_in_one_part(
    options: dict[str, object], expected: list[set[str]]
) -> None:
    given = setting({"a": 1, "b": 1, "c": 2}, trace("0,1,1,1,a"), **options)  # type: ignore[arg-type]
    found = parts(given.snapshot)
    assert [set(part.queues) for part in found] == expected
    assert sum(len(part.snapshot.fleet.nodes) for part in found) == 4
