"""The gangs of a group that a cycle has not decided: which is next, in queue order or the shortest first."""

from __future__ import annotations

from random import Random

import pytest

from queuectl.domain.plan import Refusal
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.cycle.heads import UndecidedGangs
from queuectl.planner.order.pending_gangs import length_of, pending_gangs
from queuectl.planner.order.queue_order import QueueOrder
from tests.planner.backfill_clock import job, line
from tests.planner.build import NOW, node, world


def group(draw: Random) -> tuple[Snapshot, UndecidedGangs]:
    """Twelve equal gangs that differ in length, priority and age."""
    jobs = [
        job(
            f"g{number}",
            1,
            draw.choice((1.0, 10.0, 10.0, 60.0)),
            queued_at=NOW - draw.randrange(100),
            priority=draw.choice((0, 0, 5)),
        )
        for number in range(12)
    ]
    snapshot = world([node("n", gpu=1)], jobs, [], line())
    ((gangs,),) = pending_gangs(snapshot, PlannerCache()).by_queue.values()
    return snapshot, UndecidedGangs(gangs, range(len(gangs.gangs)))


def uids(position: UndecidedGangs) -> list[str]:
    """Of all that are left, in the order in which they are considered."""
    found = []
    while len(position):
        found.append(position.first.workload.uid)
        position.pass_first()
    return found


def ordered(snapshot: Snapshot, *, shortest: bool) -> list[Pending]:
    order = QueueOrder(snapshot)
    queue = snapshot.queue_of(snapshot.pending[0].workload)
    order.shortest |= {queue.name} if shortest and queue is not None else set()
    return sorted(snapshot.pending, key=lambda gang: order.within(gang.workload, queue))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shortest", [False, True])
def test_gangs_come_in_the_order_of_their_ranks(seed: int, shortest: bool) -> None:
    snapshot, position = group(Random(seed))
    if shortest:
        position.sort(snapshot.now)
    expected = ordered(snapshot, shortest=shortest)
    assert uids(position) == [gang.workload.uid for gang in expected]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shortest", [False, True])
def test_longer_gangs_are_taken_out_and_the_others_keep_their_order(
    seed: int, shortest: bool
) -> None:
    snapshot, position = group(Random(seed))
    if shortest:
        position.sort(snapshot.now)
    expected = ordered(snapshot, shortest=shortest)
    longer = position.take_like_first(10.0)
    for part, long in ((longer, True), (position, False)):
        mine = [g.workload.uid for g in expected if (length_of(g.workload) >= 10.0) is long]
        refused = part.refuse(Refusal("first", (Reason(Code.WOULD_DELAY, "why"),)))
        assert sorted(refused) == sorted(mine)
        assert all(refusal.uid == uid for uid, refusal in refused.items())
        assert uids(part) == mine
