"""The oracle itself, on the clusters with a known answer."""

from __future__ import annotations

from fractions import Fraction

import pytest

from queuectl.domain.plan import Cost
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.snapshot import CapacityLease, Pending
from queuectl.planner.preempt.cost import costs, sizes_of
from tests.planner import cases
from tests.planner.build import gang, holding, node, placed, podset, queue, world
from tests.planner.oracle import least_victims, legal_victims, starts


@pytest.mark.parametrize("case", cases.BATCH, ids=lambda c: c.name)
def test_the_greatest_admitted_set_in_queue_order_is_found(case: cases.Batch) -> None:
    assert tuple(starts(case.snapshot).values()) == case.starts


@pytest.mark.parametrize("order", [cases.DEFAULT, cases.COUNT_FIRST], ids=["lost", "count"])
@pytest.mark.parametrize("case", cases.PREEMPT, ids=lambda c: c.name)
def test_the_least_victims_are_found_by_enumeration(case: cases.Preempt, order) -> None:
    snapshot = case.snapshot(order)
    entry = snapshot.pending[0]
    priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
    found = least_victims(snapshot, entry, priced)
    assert (found[1] if found else None) == case.victims[order]


def test_a_strict_queue_stops_at_the_first_gang_that_cannot_start_yet() -> None:
    gangs = [
        gang("large", podset(count=2, gpu=8), queued_at=1.0),
        gang("small", podset(count=1, gpu=8), queued_at=2.0),
    ]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    busy = [holding(gang("busy", podset(gpu=8)), {"a0": 1})]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    assert starts(world(nodes, gangs, busy)) == {"large": False, "small": True}
    assert starts(world(nodes, gangs, busy, strict)) == {"large": False, "small": False}


def test_a_gang_that_never_fits_does_not_stop_a_strict_queue() -> None:
    gangs = [
        gang("large", podset(count=3, gpu=8), queued_at=1.0),
        gang("small", podset(count=1, gpu=8), queued_at=2.0),
    ]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    assert starts(world(nodes, gangs, (), strict)) == {"large": False, "small": True}


def test_leaving_gangs_hold_now_and_leases_hold_after() -> None:
    victim = gang("victim", podset(gpu=8))
    waiting = gang("waiting", podset(gpu=8), priority=1)
    lease = CapacityLease(placed(waiting, {"a0": 1}), ("victim",), 0.0, 2_000_000.0)
    late = gang("late", podset(gpu=4), queued_at=5.0)
    snapshot = world(
        [node("a0", gpu=8)],
        [Pending(waiting, lease), late],
        [holding(victim, {"a0": 1}, leaving=True)],
    )
    assert starts(snapshot) == {"waiting": False, "late": False}


def test_quota_refuses_a_gang_that_nodes_would_hold() -> None:
    gangs = [gang("a", podset(gpu=8), queued_at=1.0), gang("b", podset(gpu=8), queued_at=2.0)]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    assert starts(world(nodes, gangs, (), queue(gpu=8))) == {"a": True, "b": False}


def test_a_preferred_level_evicts_no_gang() -> None:
    """Only without the expensive one would it have its own rack; without the cheap one it uses two."""
    nodes = [node(f"{r}{i}", r, gpu=8) for r in "ab" for i in range(2)]
    dear = holding(gang("dear", podset(count=1, gpu=8)), {"a0": 1}, started_at=0.0)
    cheap = holding(gang("cheap", podset(count=1, gpu=8)), {"b0": 1})
    other = holding(gang("other", podset(count=1, gpu=8), priority=9), {"b1": 1})
    wanted = Pending(gang("w", podset(count=2, gpu=8, preferred="rack"), priority=5))
    snapshot = world(nodes, [wanted], [dear, cheap, other])
    priced = {"dear": Cost(0, 900, Fraction(8)), "cheap": Cost(0, 1, Fraction(8))}
    found = least_victims(snapshot, wanted, priced)
    assert found is not None
    assert found[1] == {"cheap"}


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        (WithinClusterQueue.NEVER, set()),
        (WithinClusterQueue.LOWER_PRIORITY, {"low"}),
        (WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY, {"low", "newer"}),
    ],
)
def test_legality_follows_the_policy(within: WithinClusterQueue, expected: set[str]) -> None:
    def running(uid: str, **kw):
        return holding(gang(uid, podset(gpu=1), **kw), {"a0": 1})

    admitted = [
        running("low", priority=1),
        running("newer", priority=5, queued_at=9.0),
        running("older", priority=5, queued_at=1.0),
        running("high", priority=6),
        running("shielded", priority=1, preemptible=False),
        running("foreign", priority=1, queue="other"),
    ]
    wanted = gang("w", podset(gpu=8), priority=5, queued_at=5.0)
    queues = (queue(within=within), queue("other", within=within))
    snapshot = world([node("a0", gpu=8)], [wanted], admitted, *queues)
    assert {a.workload.uid for a in legal_victims(snapshot, wanted)} == expected
