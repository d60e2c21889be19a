"""A gang that could evict borrowers waits first while this costs less than the eviction loses, and at most for its patience."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.reasons import Code
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.preempt.protections import next_plan_due
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, podset, world
from tests.planner.test_borrow_backoff import team

NODES = [node(f"n{i}", gpu=8) for i in range(4)]
MOST = 30.0


def asking(name: str, pods: int, queue: str = "a", priority: int = 0) -> Workload:
    return gang(name, podset(gpu=8, count=pods), queue=queue, priority=priority)


def borrower(ran: float, **options: Any) -> Admitted:
    """It holds all 32 GPUs, 16 of them borrowed."""
    priority = options.pop("priority", 0)
    held = holding(asking("borrower", 4, "b", priority), {n.name: 1 for n in NODES})
    return replace(held, started_at=NOW - ran, **options)


def contested(waited: float | None, held: Admitted, pods: int = 2, **options: Any) -> Snapshot:
    """Queue ``a`` owns half of the GPUs, and a gang of it wants them back."""
    wants = Pending(asking("g", pods), reclaim_since=None if waited is None else NOW - waited)
    return world(
        NODES, [wants], [held], team("a", 16, reclaim_patience=MOST, **options), team("b", 16)
    )


def decided(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


@pytest.mark.parametrize(
    ("waited", "held", "evicts"),
    [
        pytest.param(None, borrower(10.0), False, id="it waits from the plan on that could evict"),
        pytest.param(12.0, borrower(10.0), False, id="12 s of 16 GPUs are less than 10 s of 32"),
        pytest.param(20.0, borrower(10.0), True, id="20 s of 16 GPUs are as much as 10 s of 32"),
        pytest.param(29.9, borrower(3600.0), False, id="the longest wait is not over"),
        pytest.param(30.0, borrower(3600.0), True, id="the longest wait is over"),
        pytest.param(None, borrower(0.0), True, id="nothing is lost yet"),
        pytest.param(
            None, borrower(3600.0, utilization=0.0), True, id="what is idle loses nothing"
        ),
        pytest.param(
            None, borrower(3600.0, checkpoint_at=NOW), True, id="what is saved is not lost"
        ),
        pytest.param(None, borrower(3600.0, priority=-1), True, id="of lower priority: at once"),
        pytest.param(None, borrower(10.0, priority=1), False, id="of higher priority: like equals"),
    ],
)
def test_it_evicts_when_its_wait_has_cost_what_the_eviction_loses(
    waited: float | None, held: Admitted, evicts: bool
) -> None:
    made = decided(contested(waited, held))
    assert [p.victim for p in made.preempted] == (["borrower"] if evicts else [])
    (refusal,) = made.pending
    assert (refusal.lease is not None) is evicts
    assert (refusal.reasons[0].code is Code.WAITING_TO_RECLAIM) is not evicts


@pytest.mark.parametrize(("waited", "since"), [(None, NOW), (29.9, NOW - 29.9), (40.0, NOW - 40.0)])
def test_a_gang_that_is_not_searched_for_waits_like_one_that_is(
    waited: float | None, since: float
) -> None:
    first = Pending(replace(asking("first", 1), queued_at=-1.0), reclaim_since=None)
    snapshot = contested(waited, borrower(3600.0))
    (wants,) = snapshot.pending
    equal = replace(wants, workload=replace(wants.workload, uid="h"), reclaim_since=NOW - 50.0)
    snapshot = replace(snapshot, pending=(first, wants, equal), limits=SolverLimits(search_steps=1))
    refusals = {r.uid: r.reasons[0] for r in decided(snapshot).pending}
    for uid, began in (("g", since), ("h", NOW - 50.0)):
        assert refusals[uid].code is Code.PENDING_EVALUATION
        assert refusals[uid].details == {"since": began}


@pytest.mark.parametrize(
    ("waited", "ran", "ends_in", "evicts"),
    [
        pytest.param(None, 100.0, 20.0, False, id="its room is expected within the patience"),
        pytest.param(20.0, 10.0, 5.0, False, id="the rest of the wait costs less than the loss"),
        pytest.param(20.0, 10.0, None, True, id="an unknown end leaves no room"),
        pytest.param(20.0, 10.0, 15.0, True, id="an end after the patience leaves no room in time"),
        pytest.param(0.0, 5.0, 25.0, False, id="the wait until now costs less than the loss"),
        pytest.param(20.0, 2.0, 8.0, True, id="the rest of the wait costs more than the loss"),
        pytest.param(30.0, 100.0, 1.0, True, id="the patience is over"),
        pytest.param(5.0, 100.0, -3.0, False, id="an overrun counts as an end soon"),
    ],
)
def test_it_waits_for_gangs_that_end_soon(
    waited: float | None, ran: float, ends_in: float | None, evicts: bool
) -> None:
    ends_at = None if ends_in is None else NOW + ends_in
    made = decided(contested(waited, borrower(ran, ends_at=ends_at, end_enforced=True)))
    assert bool(made.preempted) is evicts
    (refusal,) = made.pending
    assert (refusal.reasons[0].code is Code.WAITING_TO_RECLAIM) is not evicts


def test_an_end_that_is_only_expected_does_not_prolong_the_wait() -> None:
    assert decided(contested(20.0, borrower(10.0, ends_at=NOW + 5.0))).preempted


def test_the_reason_states_when_ends_leave_room_and_a_plan_is_due_then() -> None:
    snapshot = contested(None, borrower(100.0, ends_at=NOW + 20.0, end_enforced=True))
    made = decided(snapshot)
    reason = made.pending[0].reasons[0]
    assert reason.details["roomAt"] == reason.details["until"] == NOW + 20.0
    assert "that end by 1970-01-12T13:47:00Z" in reason.message
    assert next_plan_due(snapshot, made) == NOW + 20.0


def test_the_first_of_several_ends_that_leave_enough_room_counts() -> None:
    held = [
        replace(
            holding(asking(f"h{i}", 1, "b"), {f"n{i}": 1}),
            started_at=NOW - 100.0,
            ends_at=NOW + 5.0 * (i + 1),
            end_enforced=True,
        )
        for i in range(4)
    ]
    queues = (team("a", 16, reclaim_patience=MOST), team("b", 16))
    wants = Pending(asking("g", 2), reclaim_since=None)
    made = decided(world(NODES, [wants], held, *queues))
    assert made.pending[0].reasons[0].details["roomAt"] == NOW + 10.0


def test_the_verifier_refuses_a_wait_that_is_longer_than_the_patience() -> None:
    waiting = decided(contested(29.0, borrower(3600.0)))
    for waited, rules in ((29.9, []), (30.0, [PlanRule.REASON])):
        snapshot = contested(waited, borrower(3600.0))
        assert [v.rule for v in verify(snapshot, waiting)] == rules


def test_a_cluster_queue_may_evict_at_once() -> None:
    snapshot = contested(None, borrower(3600.0))
    queues = {"a": replace(snapshot.config.cluster_queues["a"], reclaim_patience=0.0)}
    config = replace(snapshot.config, cluster_queues={**snapshot.config.cluster_queues, **queues})
    assert len(decided(replace(snapshot, config=config)).preempted) == 1


def test_the_wait_continues_from_plan_to_plan_and_a_plan_is_due_at_its_end() -> None:
    snapshot = contested(None, borrower(10.0))
    made = decided(snapshot)
    reason = made.pending[0].reasons[0]
    assert reason.details == {
        "since": NOW,
        "until": NOW + MOST,
        "lostGpuSeconds": 320,
        "victims": 1,
    }
    assert next_plan_due(snapshot, made) == NOW + MOST
    done = contested(30.0, borrower(40.0))
    assert next_plan_due(done, decided(done)) is None


def test_a_larger_gang_is_due_when_its_wait_exceeds_the_loss() -> None:
    small = replace(
        borrower(10.0),
        workload=asking("borrower", 3, "b"),
        placement=holding(asking("borrower", 3, "b"), {f"n{i}": 1 for i in range(3)}).placement,
    )
    snapshot = contested(None, small, pods=4)
    queues = {
        "a": team("a", 32, reclaim_patience=MOST),
        "b": team("b", 0),
    }
    config = replace(snapshot.config, cluster_queues={**snapshot.config.cluster_queues, **queues})
    snapshot = replace(snapshot, config=config)
    # 32 GPUs wait, 24 of the victim have run for 10 s and go on: 240 + 24 t = 32 t.
    assert next_plan_due(snapshot, decided(snapshot)) == NOW + 30.0


def test_meanwhile_smaller_gangs_of_its_queue_start_unless_the_order_is_strict() -> None:
    for strategy, starts in (
        (QueueingStrategy.BEST_EFFORT_FIFO, ["small"]),
        (QueueingStrategy.STRICT_FIFO, []),
    ):
        held = holding(asking("borrower", 3, "b"), {f"n{i}": 1 for i in range(3)})
        held = replace(held, started_at=NOW - 100.0)
        first = Pending(asking("g", 2), reclaim_since=None)
        small = replace(asking("small", 1), queued_at=5.0)
        queues = (team("a", 16, reclaim_patience=MOST, strategy=strategy), team("b", 16))
        made = decided(world(NODES, [first, small], [held], *queues))
        assert [a.uid for a in made.admitted] == starts
        assert made.pending[0].reasons[0].code is Code.WAITING_TO_RECLAIM


def test_fair_shares_are_reclaimed_after_the_same_wait() -> None:
    snapshot = contested(None, borrower(100.0))
    rules = replace(snapshot.config.rules, fair_sharing=tuple(FairStrategy))
    made = decided(replace(snapshot, config=replace(snapshot.config, rules=rules)))
    assert made.preempted == ()
    assert made.pending[0].reasons[0].code is Code.WAITING_TO_RECLAIM


def test_the_explanation_of_a_gang_that_waits_is_of_the_same_plan() -> None:
    snapshot = contested(None, borrower(100.0))
    assert diagnose(snapshot, "g", plan=decided(snapshot)) == diagnose(snapshot, "g")
