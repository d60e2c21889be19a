"""A running gang frees the capacity that it holds, not that of pods that it started without."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.queues import Defragment
from queuectl.domain.snapshot import Admitted
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import gang, holding, node, podset, queue, world


def _in_part(wanted: int, *nodes: str) -> Admitted:
    """A gang of ``wanted`` pods of 8 GPUs that runs with one pod on each of these nodes."""
    running = holding(
        gang("part", replace(podset("w", wanted, gpu=8), min_count=1)), dict.fromkeys(nodes, 1)
    )
    (placed,) = running.placement.podsets
    placement = replace(running.placement, podsets=(replace(placed, pods=len(nodes)),))
    return replace(running, placement=placement)


def test_a_gang_holds_the_gpus_of_the_pods_it_runs() -> None:
    running = _in_part(4, "n0", "n1", "n2")
    assert running.workload.gpus == 32
    assert running.gpus == 24


def test_a_gang_that_runs_in_part_is_preempted_for_the_gpus_that_it_holds() -> None:
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    snapshot = world(
        nodes, [gang("w0", podset("w", 2, gpu=8), priority=1)], [_in_part(4, "n0", "n1")]
    )
    decided = plan(snapshot)
    assert [v.cost.gpus for v in decided.preempted] == [16]
    assert not verify(snapshot, decided)


def test_a_gang_that_runs_in_part_is_moved_at_the_cost_of_the_gpus_that_it_holds() -> None:
    """It asks for three nodes and runs on one; r2-1 is free for it, and then a whole rack for the other."""
    nodes = [node(f"{rack}-{i}", rack, gpu=8) for rack in ("r1", "r2") for i in range(2)]
    moving = replace(queue(), defragment=Defragment.EXECUTE, defragment_budget=10**9)
    blocked = gang("w0", podset("w", 2, gpu=8, required="rack"))
    other_pods = {"r2-0": nodes[2].allocatable}
    snapshot = world(nodes, [blocked], [_in_part(3, "r1-0")], moving, other_pods=other_pods)
    decided = plan(snapshot)
    assert [m.cost.gpus for m in decided.moved] == [8]
    assert not verify(snapshot, decided)
