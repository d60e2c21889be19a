"""Of more shapes than a plan can consider, each is considered in a known number of plans, and a LocalQueue with few of them in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Placement
from queuectl.state.pending_window import LEAST, PendingWindow
from tests.planner import build


def gang(name: str, queue: str, cpu: int, at: float = 0.0, priority: int = 0) -> Pending:
    shape = build.podset("w", 2, gpu=8, cpu=cpu)
    return Pending(build.gang(name, shape, queue=queue, queued_at=at, priority=priority))


def world(pending: Sequence[Pending], *, strict: bool = False) -> Snapshot:
    strategy = QueueingStrategy.STRICT_FIFO if strict else QueueingStrategy.BEST_EFFORT_FIFO
    names = sorted({p.workload.queue or "" for p in pending})
    return build.world([], pending, (), *(build.queue(name, strategy=strategy) for name in names))


def flood(count: int, queue: str = "busy") -> list[Pending]:
    """Gangs of different shapes, the oldest first."""
    return [gang(f"{queue}{n:05}", queue, 1000 + n, at=float(n)) for n in range(count)]


def names(snapshot: Snapshot) -> list[str]:
    return [p.workload.uid for p in snapshot.pending]


def test_few_shapes_are_all_considered_however_many_gangs_have_them() -> None:
    snapshot = world([gang(f"g{n}", "main", n % 10, at=float(n)) for n in range(500)])
    window = PendingWindow(shapes=64)
    assert window.applied(snapshot) is snapshot
    assert not window.partial


def test_a_local_queue_with_few_shapes_is_considered_whole_in_each_plan() -> None:
    few = flood(5, "quiet")
    snapshot = world([*flood(1000), *few])
    window = PendingWindow(shapes=64)
    for _ in range(40):
        kept = set(names(window.applied(snapshot)))
        assert {p.workload.uid for p in few} <= kept
        assert len(kept) <= 64 + 5
        assert window.partial


def test_the_head_of_each_queue_is_considered_in_each_plan() -> None:
    snapshot = world([*flood(1000), gang("urgent", "busy", 5, at=9999.0, priority=10)])
    window = PendingWindow(shapes=64)
    for _ in range(10):
        kept = names(window.applied(snapshot))
        assert "urgent" in kept
        assert {f"busy{n:05}" for n in range(31)} <= set(kept)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.integers(32, 128),
    st.lists(st.integers(0, 40), max_size=60),
)
def test_each_shape_is_considered_within_the_stated_number_of_plans(
    sizes: list[int], shapes: int, arrivals: list[int]
) -> None:
    """Even while gangs are created and deleted."""
    gangs = [one for n, size in enumerate(sizes) for one in flood(size, f"q{n}")]
    window = PendingWindow(shapes=shapes)
    skipped = dict.fromkeys((g.workload.uid for g in gangs), 0)
    part = max(LEAST, shapes // len(sizes))
    limit = 4 * (max(sizes) + len(arrivals) * 40) // part + 2
    for number, more in enumerate([*arrivals, *([0] * (limit + 1))]):
        gangs += [gang(f"new{number}-{n}", "q0", 10**6 + number * 50 + n, 1e6) for n in range(more)]
        kept = set(names(window.applied(world(gangs))))
        for uid in skipped:
            skipped[uid] = 0 if uid in kept else skipped[uid] + 1
    assert max(skipped.values()) <= limit


def test_a_strict_queue_considers_a_prefix_of_its_order() -> None:
    gangs = flood(1000)
    kept = names(PendingWindow(shapes=64).applied(world(gangs, strict=True)))
    assert kept == [f"busy{n:05}" for n in range(64)]


LEASE = CapacityLease(Placement(()), (), 0.0, 1e9)


@pytest.mark.parametrize(
    "changes", [{"lease": LEASE}, {"blocked": Reason(Code.MISCONFIGURED, "no queue")}]
)
def test_a_gang_that_keeps_a_place_or_costs_no_search_is_in_each_plan(
    changes: dict[str, object],
) -> None:
    gangs = flood(1000)
    gangs[700] = replace(gangs[700], **changes)  # type: ignore[arg-type]
    window = PendingWindow(shapes=64)
    for _ in range(20):
        assert "busy00700" in names(window.applied(world(gangs)))


def test_a_gang_that_a_user_asks_for_is_considered() -> None:
    window = PendingWindow(shapes=64)
    window.pin("busy00999")
    for _ in range(20):
        assert "busy00999" in names(window.applied(world(flood(1000))))
