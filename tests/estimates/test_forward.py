"""One draw with known run times: the start of each gang, by order, nodes, racks, quota, evictions and planned starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Duration, Growth, Workload
from queuectl.estimates.forward import Forward
from tests.estimates.build import scene, starts
from tests.planner.backfill_clock import line
from tests.planner.build import FLAVOR, NOW, gang, holding, node, placed, podset, queue, world

STRICT = queue(strategy=QueueingStrategy.STRICT_FIFO)
RACKS = [node(f"{rack}{i}", f"b/{rack}", gpu=4) for rack in "xy" for i in range(2)]


def job(uid: str, pods: int, at: float = 0.0, **more: Any) -> Workload:
    """Pods of 4 GPUs, one to a node."""
    asked = {key: more.pop(key) for key in ("required", "preferred") if key in more}
    return gang(uid, podset(count=pods, gpu=4, **asked), queued_at=at, **more)


def runs(uid: str, *nodes: str) -> Admitted:
    return holding(job(uid, len(nodes)), dict.fromkeys(nodes, 1))


FULL = [runs("a", "x0"), runs("b", "x1"), runs("c", "y0"), runs("d", "y1")]
ENDS = {"a": 100.0, "b": 200.0, "c": 150.0, "d": 400.0}


@pytest.mark.parametrize(
    ("pending", "strategy", "seconds", "expected"),
    [
        ([job("p", 1)], STRICT, {}, {"p": 100.0}),
        ([job("p", 2)], STRICT, {}, {"p": 150.0}),
        ([job("p", 2, required="rack")], STRICT, {}, {"p": 200.0}),  # a and b share a rack
        ([job("p", 5)], STRICT, {}, {}),  # it never fits
        ([job("p", 5), job("q", 1, 1.0)], STRICT, {}, {"q": 100.0}),
        ([job("p", 2), job("q", 1, 1.0)], STRICT, {}, {"p": 150.0, "q": 200.0}),
        ([job("p", 2), job("q", 1, 1.0)], queue(), {}, {"q": 100.0, "p": 200.0}),
        ([job("p", 1), job("q", 1, priority=5)], STRICT, {}, {"q": 100.0, "p": 150.0}),
        ([job("p", 1), job("q", 1, 1.0)], STRICT, {"p": 20.0}, {"p": 100.0, "q": 120.0}),
        ([job("p", 1), job("q", 4, 1.0)], STRICT, {"p": 20.0}, {"p": 100.0, "q": 400.0}),
        ([job("p", 1), job("q", 4, 1.0)], STRICT, {}, {"p": 100.0}),  # p never ends
    ],
)
def test_a_gang_starts_at_the_end_that_frees_what_it_asks_for(
    pending: Sequence[Workload],
    strategy: Any,
    seconds: Mapping[str, float],
    expected: Mapping[str, float],
) -> None:
    snapshot = world(RACKS, pending, FULL, strategy)
    assert starts(snapshot, ENDS | dict(seconds)) == expected


def test_nothing_starts_before_the_first_end() -> None:
    """The planner has decided what can start now."""
    free = world(RACKS, [job("p", 1)], FULL[:2])
    assert starts(free, ENDS) == {"p": 100.0}
    assert starts(world(RACKS, [job("p", 1)], []), {}) == {}


def pod_of(base: str, at: float = -1.0) -> Workload:
    """A pod that is added to an elastic gang."""
    return replace(job(f"{base}_1", 1, at), growth=Growth(base, 1))


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
def test_a_pod_that_waits_to_be_added_delays_no_gang(strategy: QueueingStrategy) -> None:
    """At 100, half of a node is free for the small gang, and at 200 the other half. The pod needs the whole node."""
    small = replace(gang("small", podset(gpu=2)), duration=Duration(1000.0, enforced=True))
    halves = [holding(gang(uid, podset(gpu=2)), {"x1": 1}) for uid in ("b", "half")]
    snapshot = world(
        RACKS, [pod_of("d"), small], [FULL[0], *halves, *FULL[2:]], queue(strategy=strategy)
    )
    ends = {"half": 100.0, "b": 200.0, "small": 1000.0, "d": 5000.0}
    assert starts(snapshot, ends) == {"small": 100.0, "d_1": 1100.0}


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
def test_an_added_pod_ends_with_its_gang(strategy: QueueingStrategy) -> None:
    """It is added at 150. The gang behind it starts on both nodes at the end of the elastic gang."""
    wide = replace(job("wide", 2), duration=Duration(50.0, enforced=True))
    ends = {"a": 300.0, "c": 150.0, "a_1": 5000.0, "wide": 50.0}
    snapshot = world(RACKS, [pod_of("a"), wide], FULL, queue(strategy=strategy))
    assert starts(snapshot, ends) == {"a_1": 150.0, "wide": 300.0}
    added = [FULL[0], holding(pod_of("a"), {"x1": 1}), *FULL[2:]]
    snapshot = world(RACKS, [wide], added, queue(strategy=strategy))
    assert starts(snapshot, ends | {"c": inf}) == {"wide": 300.0}


def test_no_pod_is_added_to_a_gang_that_has_ended() -> None:
    assert starts(world(RACKS, [pod_of("a")], FULL), {"a": 100.0, "b": 100.0}) == {}


def test_no_pod_is_added_behind_a_gang_that_waits() -> None:
    snapshot = world(RACKS, [job("wide", 2), pod_of("d", at=1.0)], FULL)
    assert starts(snapshot, ENDS | {"wide": 60.0}) == {"wide": 150.0, "d_1": 200.0}


def quota_of(gpus: int) -> Snapshot:
    return world(RACKS, [job("p", 2)], FULL[:2], queue(gpu=gpus))


@pytest.mark.parametrize(("gpus", "expected"), [(16, {"p": 100.0}), (8, {"p": 200.0}), (4, {})])
def test_quota_is_free_when_its_gangs_end(gpus: int, expected: Mapping[str, float]) -> None:
    assert starts(quota_of(gpus), ENDS) == expected


@pytest.mark.parametrize(
    ("borrowing", "expected"), [({}, {"p": 100.0}), ({GPU: 4}, {"p": 200.0}), ({GPU: 3}, {})]
)
def test_a_gang_borrows_what_the_cohort_does_not_use_up_to_the_limit(
    borrowing: Mapping[str, int], expected: Mapping[str, float]
) -> None:
    """Of 16 GPUs, the other queue has 4 until 100, and its own queue 4 until 200."""
    mine, other = (replace(queue(name, gpu=8), cohort="all") for name in ("main", "other"))
    (group,) = mine.groups
    quotas = replace(group.flavors[0], borrowing=borrowing)
    mine = replace(mine, groups=(replace(group, flavors=(quotas,)),))
    lent = holding(gang("a", podset(count=1, gpu=4), queue="other"), {"x0": 1})
    snapshot = world(RACKS, [job("p", 3)], [lent, FULL[1]], mine, other)
    assert starts(snapshot, ENDS) == expected


def test_a_gang_that_leaves_frees_its_places_at_once_and_queues_again_at_its_place() -> None:
    leaving = replace(FULL[0], leaving=True, returns=True)
    snapshot = world(RACKS, [job("p", 1, 1.0), job("q", 1, -1.0)], [leaving, *FULL[1:]], STRICT)
    assert starts(snapshot, ENDS) == {"q": 0.0, "a": 150.0, "p": 200.0}


def test_a_gang_with_a_reservation_is_before_the_others() -> None:
    leaving = replace(FULL[0], leaving=True)
    later = job("p", 1, 1.0)
    lease = CapacityLease(placed(later, {"x0": 1}, flavor=FLAVOR), ("a",), NOW, NOW + 600)
    pending = [Pending(job("q", 1)), Pending(later, lease=lease)]
    assert starts(world(RACKS, pending, [leaving, *FULL[1:]], STRICT), ENDS) == {
        "p": 0.0,
        "q": 150.0,
    }


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (40.0, {"q": 100.0, "p": 150.0}),  # it is over by the planned start
        (60.0, {"p": 150.0, "q": 200.0}),
        (None, {"p": 150.0, "q": 200.0}),
    ],
)
def test_with_backfill_a_later_gang_leaves_planned_starts_their_times(
    length: float | None, expected: Mapping[str, float]
) -> None:
    later = replace(job("q", 1, 1.0), duration=None if length is None else Duration(length))
    snapshot = world(RACKS, [job("p", 2), later], FULL, line())
    assert starts(snapshot, ENDS | {"q": length or 60.0, "p": 50.0}) == expected


def test_with_backfill_a_later_gang_uses_nodes_that_no_planned_start_needs() -> None:
    later = replace(job("q", 1, 1.0), duration=Duration(900.0))
    whole = job("p", 2, required="rack")  # the rack y, at 400
    ends = {"a": 100.0, "b": 900.0, "c": 200.0, "d": 400.0}
    found = starts(world(RACKS, [whole, later], FULL, line()), ends | {"q": 900.0, "p": 50.0})
    assert found == {"q": 100.0, "p": 400.0}


def test_a_draw_yields_to_plans_between_two_gangs_of_one_pass() -> None:
    """Each of the gangs has another shape, so one pass over all of them takes long."""
    calls: list[None] = []
    shapes = [(count, gpu) for gpu in (1, 2, 4) for count in range(1, 16 // gpu + 1)]
    pending = [gang(f"p{n}-{gpu}", podset(count=n, gpu=gpu)) for n, gpu in shapes]
    snapshot = world(RACKS, pending, FULL, queue())
    lengths = {one.uid: inf for one in pending} | dict.fromkeys("abcd", inf) | {"a": 100.0}
    Forward(scene(snapshot), lengths, lambda: calls.append(None)).run()
    assert len(calls) >= len(pending)
