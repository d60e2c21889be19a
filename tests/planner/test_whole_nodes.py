"""Whole free nodes are kept for a planned start on several nodes, while only learned run times say when others leave them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.domain.plan import Admission
from queuectl.domain.quantity import Resources
from queuectl.domain.reasons import Code
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.workload import Duration, Placement, PodSetPlacement, Workload
from queuectl.planner import plan
from queuectl.planner.verify import PlanRule, verify
from tests.planner.backfill_clock import job, line
from tests.planner.build import node, world
from tests.planner.test_advance import reserved
from tests.planner.test_backfill import promises, running, starts

NODES = (*(node(f"n{number}", gpu=2) for number in range(4)), node("large", gpu=4))


def lasting(made: Workload, longest: float | None) -> Workload:
    """A gang whose end is expected; ``longest``: of earlier gangs like it."""
    return replace(made, duration=Duration(10.0, longest=longest))


SMALL = job("small", 1, 10, queued_at=1)
WHOLE = job("whole", 1, 10, queued_at=1, gpu=2)
PAIR = job("pair", 2, 10, queued_at=1, gpu=2)


@pytest.mark.parametrize("daemons", [False, True])
@pytest.mark.parametrize(
    ("later", "used", "wide", "started"),
    [
        pytest.param(lasting(WHOLE, 30.0), 2, True, False, id="it can leave too late"),
        pytest.param(lasting(WHOLE, 25.0), 2, True, True, id="it leaves early by far"),
        pytest.param(lasting(WHOLE, None), 2, True, True, id="its user expects the end"),
        pytest.param(WHOLE, 2, True, True, id="it has a limit"),
        pytest.param(lasting(PAIR, 30.0), 2, True, True, id="it needs several nodes itself"),
        pytest.param(lasting(SMALL, 30.0), 1, True, True, id="a node is in use already"),
        pytest.param(lasting(SMALL, 30.0), 2, True, False, id="all free nodes are whole"),
        pytest.param(lasting(WHOLE, 30.0), 2, False, True, id="the planned start is on one node"),
    ],
)
def test_a_gang_with_a_learned_end_leaves_whole_nodes_to_a_planned_start_on_several(
    later: Workload, used: int, wide: bool, started: bool, daemons: bool
) -> None:
    """Three of five nodes are in use for 100 s: two of them by gangs that leave one of their GPUs free, or none.

    With daemons, each node has a pod without devices, and the plan counts the pods next to a Reservation: a node with a daemon is whole.
    """
    busy = [
        running(job(f"busy{name}", 1, None, gpu=gpus), name, ends=100.0)
        for name, gpus in (("n0", used), ("n1", used), ("large", 4))
    ]
    first = job("first", 4, 500, gpu=2) if wide else job("first", 1, 500, gpu=4)
    snapshot = world(NODES, [first, later], busy, line())
    if daemons:
        pods = {each.name: Resources({"pods": 1, "cpu": 100}) for each in NODES}
        later_on = reserved(nodes=("large",), starts=100_000.0)
        snapshot = replace(snapshot, other_pods=pods, reservations=(later_on,))
    made = plan(snapshot)
    assert not verify(snapshot, made)
    assert (starts(made) == [later.uid]) is started
    assert promises(made) == {"first": 100.0}
    if not started:
        (reason,) = (r.reasons[0] for r in made.pending if r.uid == later.uid)
        assert reason.code is Code.WOULD_DELAY
        assert reason.details["behind"] == "team/first"


@pytest.mark.parametrize("rules", [Rules(), Rules(usage_fairness=UsageFairness())])
@pytest.mark.parametrize(
    ("later", "wide", "node", "refused"),
    [
        pytest.param(lasting(WHOLE, 30.0), True, "n2", True, id="it can leave too late"),
        pytest.param(lasting(SMALL, 30.0), True, "n2", True, id="a part of the node is enough"),
        pytest.param(lasting(SMALL, 30.0), True, "n0", False, id="the node is in use"),
        pytest.param(lasting(WHOLE, 25.0), True, "n2", False, id="it leaves early by far"),
        pytest.param(WHOLE, True, "n2", False, id="it has a limit"),
        pytest.param(lasting(WHOLE, 30.0), False, "n2", False, id="the planned start is on one node"),
    ],
)  # fmt: skip
def test_the_check_refuses_a_start_on_a_whole_node_before_a_planned_start_on_several(
    later: Workload, wide: bool, node: str, refused: bool, rules: Rules
) -> None:
    """The plan has no start of the later gang; the test adds it. Past use does not count in the queue, whatever the rules say."""
    busy = [
        running(job(f"busy{name}", 1, None, gpu=gpus), name, ends=100.0)
        for name, gpus in (("n0", 1), ("n1", 1), ("n3", 2), ("large", 4))
    ]
    first = job("first", 4, 500, gpu=2) if wide else job("first", 1, 500, gpu=4)
    snapshot = world(NODES, [first, later], busy, line())
    made = plan(world(NODES, [first], busy, line()))
    asked = later.podsets[0]
    placed = Placement((PodSetPlacement(asked.name, ((node, 1),), dict.fromkeys(asked.shape.requests, "a")),))  # fmt: skip
    changed = replace(made, admitted=(Admission(later.uid, placed),))
    snapshot = replace(snapshot, config=replace(snapshot.config, rules=rules))
    violations = verify(snapshot, changed)
    found = [
        v.message for v in violations if (v.rule, v.subject) == (PlanRule.PLANNED_START, later.uid)
    ]
    assert found == (
        [f"takes the whole free node {node} before first has started"] if refused else []
    )
