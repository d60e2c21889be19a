"""Gangs are moved for another only where queues allow it, within budget, for one gang at a time, and the verifier agrees."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.diagnosis import Remedy, apply_all
from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Move, Plan
from queuectl.domain.queues import (
    ClusterQueue,
    Defragment,
    Protection,
    QueueingStrategy,
    StopPolicy,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, CapacityLease, MakeRoom, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.explain import diagnose
from queuectl.planner.preempt.cost import RESTART_COST, costs, sizes_of
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import FLAVOR, NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.generate_moves import scattered, shaped, tight
from tests.planner.oracle_moves import cheapest_moves, movable
from tests.support.examples import examples

PLENTY = 10**9
NODES = [node("n0", "r0", gpu=8), node("n1", "r0", gpu=8)]
SMALL = [gang(f"small{i}", podset(gpu=4)) for i in range(2)]
WHOLE = gang("whole", podset(gpu=8))


def moving(mode: Defragment = Defragment.EXECUTE, budget: int = PLENTY, **kw: Any) -> ClusterQueue:
    return replace(queue(**kw), defragment=mode, defragment_budget=budget)


def half_full(*queues: ClusterQueue, **of_first: Any) -> Snapshot:
    """Two nodes with one small gang on each: 8 GPUs are free, no node is."""
    first = replace(holding(SMALL[0], {"n0": 1}, started_at=NOW - 100), **of_first)
    second = holding(SMALL[1], {"n1": 1}, started_at=NOW - 1000)
    return world(NODES, [WHOLE], [first, second], *(queues or (moving(),)))


def planned(snapshot: Snapshot) -> Plan:
    answer = plan(snapshot)
    assert verify(snapshot, answer) == ()
    return answer


def moved(answer: Plan) -> dict[str, list[str]]:
    return {m.uid: [name for p in m.placement.podsets for name, _ in p.nodes] for m in answer.moved}


def test_the_gang_that_loses_least_moves_at_once_to_its_new_placement() -> None:
    answer = planned(half_full())
    assert moved(answer) == {"small0": ["n1"]}
    (move,) = answer.moved
    assert move.beneficiary == "whole"
    assert move.cost.lost_work == 400 + RESTART_COST
    (refusal,) = answer.pending
    assert refusal.reasons[0].code is Code.WAITING_FOR_PREEMPTED
    assert refusal.lease is not None
    assert refusal.lease.placement == placed(WHOLE, {"n0": 1})
    assert refusal.lease.victims == ("small0",)


def test_a_gang_that_is_held_for_admission_checks_stays_and_the_other_moves() -> None:
    held = half_full(held=True, restartable=False)
    assert moved(planned(held)) == {"small1": ["n0"]}


def test_gangs_that_no_move_helps_do_not_end_the_moves_for_others() -> None:
    """One search is for a few kinds of gangs. The later ones differ from search to search."""
    ahead = [gang(f"wide{n}", podset(count=2, gpu=8 - n), queued_at=float(n)) for n in range(4)]
    snapshot = half_full()
    whole = replace(WHOLE, queued_at=99.0)
    snapshot = replace(snapshot, pending=tuple(map(Pending, [*ahead, whole])))
    searches = [planned(replace(snapshot, now=NOW + 30.0 * n)) for n in range(20)]
    helped = [answer.moved[0].beneficiary for answer in searches if answer.moved]
    assert set(helped) == {"whole"}
    assert len(helped) >= 5


def test_a_move_is_not_a_preemption_and_ignores_priorities() -> None:
    important = replace(SMALL[0], priority=1000)
    snapshot = half_full(workload=important)
    assert moved(planned(snapshot)) == {"small0": ["n1"]}


@pytest.mark.parametrize("mode", [Defragment.OFF, Defragment.PLAN])
def test_no_gang_moves_where_the_queue_does_not_allow_it(mode: Defragment) -> None:
    answer = planned(half_full(moving(mode)))
    assert answer.moved == ()
    (refusal,) = answer.pending
    assert refusal.reasons[0].code is Code.TOPOLOGY_PLACEMENT_FAILED


@pytest.mark.parametrize("mode", list(Defragment))
def test_moves_are_a_suggested_fix_that_works_once_the_queue_allows_them(mode: Defragment) -> None:
    snapshot = half_full(moving(mode, budget=0))
    ways = [
        w for w in diagnose(snapshot, "whole").suggested_fixes if w.remedy is Remedy.MOVE_OTHERS
    ]
    assert bool(ways) == (mode is not Defragment.OFF)
    for way in ways:
        assert way.least
        assert "(460 GPU-seconds of lost work): team/small0" in way.message
        assert way.details["gangs"][0]["nodes"] == ["n1"]
        assert [a.uid for a in planned(apply_all(way.changes, snapshot)).admitted] == ["whole"]


def test_suggested_moves_work_on_any_cluster() -> None:
    suggested = 0
    for seed in range(40):
        snapshot = willing(tight(seed), 0)
        for way in diagnose(snapshot, "w0").suggested_fixes:
            if way.remedy is Remedy.MOVE_OTHERS:
                suggested += 1
                admitted = planned(apply_all(way.changes, snapshot)).admitted
                assert [a.uid for a in admitted] == ["w0"], seed
    assert suggested >= 5


def test_a_cycle_without_defragmentation_moves_no_gang() -> None:
    snapshot = half_full()
    resting = planned(replace(snapshot, seek_room=False))
    assert (resting.moved, resting.stats["rooms_sought"]) == ((), 0)
    assert planned(snapshot).stats["rooms_sought"] == 1


@pytest.mark.parametrize(
    ("budget", "spent", "moving_gangs"),
    [
        (460, 0, {"small0"}),
        (459, 0, set()),
        (1000, 540, {"small0"}),
        (1000, 541, set()),
    ],
)
def test_moves_stay_within_what_a_queue_allows_a_day(
    budget: int, spent: int, moving_gangs: set[str]
) -> None:
    snapshot = replace(half_full(moving(budget=budget)), moved_work={"main": spent})
    assert moved(planned(snapshot)).keys() == moving_gangs


@pytest.mark.parametrize(
    ("policy", "of_first"),
    [
        (Protection(min_runtime=500), {}),
        (Protection(cooldown=3600), {"evictions": (NOW - 600,)}),
        (Protection(max_evictions_per_day=1), {"evictions": (NOW - 80_000,)}),
        (Protection(), {"workload": replace(SMALL[0], preemptible=False)}),
    ],
    ids=["started a moment ago", "moved recently", "moved today", "not preemptible"],
)
def test_a_protected_gang_stays_and_the_other_moves(
    policy: Protection, of_first: dict[str, Any]
) -> None:
    snapshot = half_full(replace(moving(), protection=policy), **of_first)
    assert moved(planned(snapshot)) == {"small1": ["n0"]}


def test_gangs_of_another_queue_move_only_if_that_queue_allows_it() -> None:
    other = replace(SMALL[0], queue="other")
    willing, unwilling = moving(name="other"), queue("other")
    home = queue()
    assert moved(planned(half_full(home, willing, workload=other))).keys() == {"small0"}
    assert moved(planned(half_full(home, unwilling, workload=other))) == {}


@pytest.mark.parametrize(
    ("theirs", "of_first"),
    [
        (replace(moving(name="other"), stop_policy=StopPolicy.HOLD), {}),
        (replace(moving(name="other"), namespace_selector=None), {}),
        (moving(name="other"), {"restartable": False}),
        (moving(name="other", gpu=3), {}),
    ],
    ids=["its queue is stopped", "its namespace is out", "its job is refused", "over its quota"],
)
def test_a_gang_that_could_not_start_again_is_not_moved(
    theirs: ClusterQueue, of_first: dict[str, Any]
) -> None:
    other = replace(SMALL[0], queue="other")
    snapshot = half_full(moving(), theirs, workload=other, **of_first)
    assert moved(planned(snapshot)).keys() == {"small1"}


def beside_a_strict_queue(queued_at: float) -> Snapshot:
    """The gang that would move is in a StrictFIFO queue, in which another one has been pending since then."""
    other = replace(SMALL[0], queue="other")
    theirs = moving(name="other", strategy=QueueingStrategy.STRICT_FIFO)
    waits = gang("waits", podset(gpu=8, count=9), queue="other", queued_at=queued_at)
    more = [node(f"x{i}", "r9", gpu=8) for i in range(9)]
    fillers = [gang(f"f{i}", podset(gpu=7), preemptible=False) for i in range(9)]
    snapshot = half_full(moving(), theirs, workload=other)
    return replace(
        snapshot,
        fleet=Fleet((*snapshot.fleet.nodes, *more)),
        admitted=(
            *snapshot.admitted,
            *(holding(f, {f"x{i}": 1}) for i, f in enumerate(fillers)),
        ),
        pending=(*snapshot.pending, Pending(waits)),
    )


def test_a_gang_that_would_queue_behind_another_in_strict_order_is_not_moved() -> None:
    """The pending gang ahead of it could use its new placement, and would be entitled to it."""
    behind, ahead = beside_a_strict_queue(-1.0), beside_a_strict_queue(1.0)
    assert moved(planned(ahead)).keys() == {"small0"}
    assert moved(planned(behind)).keys() == {"small1"}
    assert PlanRule.MOVE in rules(behind, planned(ahead))


def test_no_suggested_fix_moves_a_gang_behind_another_in_strict_order() -> None:
    for queued_at, mover in ((1.0, "team/small0"), (-1.0, "team/small1")):
        ways = diagnose(beside_a_strict_queue(queued_at), "whole").suggested_fixes
        (fix,) = (w for w in ways if w.remedy is Remedy.MOVE_OTHERS)
        assert [moved["workload"] for moved in fix.details["gangs"]] == [mover]


def test_no_gang_moves_when_less_is_free_in_all_than_is_requested() -> None:
    snapshot = half_full()
    filled = gang("filler", podset(gpu=1))
    snapshot = replace(snapshot, admitted=(*snapshot.admitted, holding(filled, {"n1": 1})))
    assert planned(snapshot).moved == ()


def test_moves_do_not_help_a_gang_that_lacks_quota() -> None:
    assert planned(half_full(moving(gpu=15))).moved == ()


def test_gangs_move_for_one_gang_at_a_time() -> None:
    """While one gang waits for capacity that moves free for it, no gang moves for another."""
    snapshot = half_full()
    lease = CapacityLease(placed(gang("one", podset(gpu=1)), {"n0": 1}), (), NOW, NOW + 60)
    waiting = Pending(gang("one", podset(gpu=1)), lease)
    busy = holding(gang("going", podset(gpu=4)), {"n0": 1}, leaving=True)
    snapshot = replace(
        snapshot, pending=(*snapshot.pending, waiting), admitted=(*snapshot.admitted, busy)
    )
    assert planned(snapshot).moved == ()


def test_gangs_move_only_for_the_first_of_several_blocked_gangs() -> None:
    nodes = [*NODES, node("n2", "r0", gpu=8), node("n3", "r0", gpu=8)]
    tenants = [holding(gang(f"t{i}", podset(gpu=4)), {f"n{i}": 1}) for i in range(4)]
    pending = [gang(f"w{i}", podset(gpu=8), queued_at=float(i)) for i in range(2)]
    answer = planned(world(nodes, pending, tenants, moving()))
    assert {m.beneficiary for m in answer.moved} == {"w0"}
    assert [r.uid for r in answer.pending if r.lease is not None] == ["w0"]


def test_one_gang_moves_so_that_another_can_move() -> None:
    """The gang of 6 can move only to the node that a gang of 2 leaves first."""
    nodes = [*NODES, node("n2", "r1", gpu=2)]
    six = gang("six", podset(gpu=6, required="rack"))
    two, stays = gang("two", podset(gpu=2)), gang("stays", podset(gpu=2), preemptible=False)
    tenants = [holding(six, {"n0": 1}), holding(two, {"n1": 1}), holding(stays, {"n1": 1})]
    answer = planned(world(nodes, [WHOLE], tenants, moving()))
    assert moved(answer) == {"six": ["n1"], "two": ["n2"]}


# Defragmentation on request of an administrator.


def test_an_administrators_request_ignores_the_policies_of_queues() -> None:
    snapshot = replace(half_full(queue()), make_room=MakeRoom())
    assert moved(planned(snapshot)) == {"small0": ["n1"]}


def test_a_request_frees_capacity_for_a_named_gang() -> None:
    later = gang("later", podset(gpu=8), queued_at=5.0)
    snapshot = half_full(queue())
    snapshot = replace(
        snapshot, pending=(*snapshot.pending, Pending(later)), make_room=MakeRoom("later")
    )
    assert {m.beneficiary for m in planned(snapshot).moved} == {"later"}


def test_a_request_can_be_for_gangs_without_quota() -> None:
    free = [replace(w, queue=None) for w in (*SMALL, WHOLE)]
    tenants = [holding(w, {f"n{i}": 1}, flavor=None) for i, w in enumerate(free[:2])]
    snapshot = world(NODES, [free[2]], tenants)
    assert planned(snapshot).moved == ()
    assert len(planned(replace(snapshot, make_room=MakeRoom())).moved) == 1


# The cycles after: the new placement of each moved gang is kept.


def on_the_move(answer: Plan, snapshot: Snapshot) -> list[Admitted]:
    """The running gangs as the next snapshot shows them: moved ones are leaving, their new placements are held."""
    places = {m.uid: m.placement for m in answer.moved}
    return [
        replace(
            a,
            leaving=True,
            returns=True,
            lease=CapacityLease(places[a.workload.uid], (), NOW, NOW + 600),
        )
        if a.workload.uid in places
        else a
        for a in snapshot.admitted
    ]


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
def test_the_new_placement_is_kept_while_its_gang_leaves(strategy: QueueingStrategy) -> None:
    first = half_full(moving(strategy=strategy))
    answer = planned(first)
    (refusal,) = answer.pending
    other = gang("thief", podset(gpu=1), queued_at=9.0)
    second = replace(
        first,
        admitted=tuple(on_the_move(answer, first)),
        pending=(Pending(WHOLE, refusal.lease), Pending(other)),
    )
    later = planned(second)
    assert later.returning == ("small0",)
    assert later.admitted == ()
    assert later.moved == ()
    waiting = {r.uid: r for r in later.pending}
    assert waiting["whole"].lease == refusal.lease


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
def test_both_start_once_the_old_placement_is_free(strategy: QueueingStrategy) -> None:
    first = half_full(moving(strategy=strategy))
    answer = planned(first)
    (refusal,) = answer.pending
    (mover,) = [a for a in on_the_move(answer, first) if a.leaving]
    second = replace(
        first,
        admitted=tuple(a for a in first.admitted if a.workload.uid != "small0"),
        pending=(Pending(WHOLE, refusal.lease), Pending(mover.workload, mover.lease)),
    )
    later = planned(second)
    where = {a.uid: a.placement for a in later.admitted}
    assert where == {"whole": placed(WHOLE, {"n0": 1}), "small0": placed(SMALL[0], {"n1": 1})}


def test_a_placement_whose_node_was_deleted_is_not_kept() -> None:
    first = half_full()
    gone = replace(
        first,
        fleet=replace(first.fleet, nodes=(NODES[0],)),
        admitted=tuple(a for a in on_the_move(planned(first), first) if a.leaving),
        pending=(),
    )
    assert planned(gone).returning == ()


def test_no_gang_moves_to_a_node_that_it_avoids() -> None:
    free = half_full()
    avoiding = half_full(excluded=frozenset({"n1"}))
    assert moved(planned(avoiding)) == {"small1": ["n0"]}
    assert PlanRule.ELIGIBLE in rules(avoiding, planned(free))


def test_a_placement_on_a_node_that_its_gang_avoids_is_not_kept() -> None:
    first = half_full()
    leaving = [
        replace(gang, excluded=frozenset({"n1"}))
        for gang in on_the_move(planned(first), first)
        if gang.leaving
    ]
    assert planned(replace(first, admitted=tuple(leaving), pending=())).returning == ()


# The verifier.


def rules(snapshot: Snapshot, answer: Plan) -> set[PlanRule]:
    return {v.rule for v in verify(snapshot, answer)}


def with_move(answer: Plan, **changes: Any) -> Plan:
    (move,) = answer.moved
    return replace(answer, moved=(replace(move, **changes),))


def test_the_verifier_rejects_each_wrong_move() -> None:
    snapshot = half_full()
    answer = planned(snapshot)
    (move,) = answer.moved
    full = placed(SMALL[0], {"n0": 1})
    assert PlanRule.CAPACITY in rules(snapshot, with_move(answer, placement=full))
    nowhere = replace(move.placement, podsets=(replace(move.placement.podsets[0], nodes=()),))
    assert PlanRule.WHOLE in rules(snapshot, with_move(answer, placement=nowhere))
    unpaid = replace(move.placement.podsets[0], flavors={})
    elsewhere = replace(move.placement, podsets=(unpaid,))
    assert PlanRule.MOVE in rules(snapshot, with_move(answer, placement=elsewhere))
    for changes in (
        {"uid": "small1"},
        {"uid": "nobody"},
        {"beneficiary": "small1"},
        {"cost": replace(move.cost, gpus=Fraction(5))},
    ):
        assert PlanRule.MOVE in rules(snapshot, with_move(answer, **changes)), changes
    assert PlanRule.MOVE in rules(snapshot, replace(answer, moved=(move, move)))
    assert PlanRule.CAPACITY in rules(snapshot, replace(answer, moved=()))
    assert PlanRule.MOVE in rules(snapshot, replace(answer, returning=("small1",)))


@pytest.mark.parametrize(
    "unlike",
    [
        half_full(moving(Defragment.PLAN)),
        half_full(moving(budget=459)),
        replace(half_full(moving(budget=460)), moved_work={"main": 1}),
        half_full(workload=replace(SMALL[0], preemptible=False)),
        half_full(replace(moving(), protection=Protection(min_runtime=500))),
        half_full(leaving=True),
        half_full(restartable=False),
        half_full(replace(moving(), stop_policy=StopPolicy.HOLD)),
    ],
    ids=[
        *("not allowed", "too dear", "spent already", "not preemptible", "protected", "leaving"),
        *("job refused", "queue stopped"),
    ],
)
def test_the_verifier_checks_which_gangs_can_be_moved(unlike: Snapshot) -> None:
    assert PlanRule.MOVE in rules(unlike, planned(half_full()))


# All features at once, against brute force.


def willing(snapshot: Snapshot, budget: int) -> Snapshot:
    (main,) = snapshot.config.cluster_queues.values()
    ready = replace(main, defragment=Defragment.EXECUTE, defragment_budget=budget)
    config = replace(snapshot.config, cluster_queues={"main": ready})
    return replace(snapshot, config=config)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 2**32).flatmap(lambda n: st.sampled_from([tight(n), scattered(n), shaped(n)])),
    st.sampled_from([PLENTY, PLENTY, 500, 150]),
)
def test_every_plan_with_moves_verifies_and_keeps_the_budget(
    snapshot: Snapshot, budget: int
) -> None:
    snapshot = willing(snapshot, budget)
    answer = planned(snapshot)
    assert plan(snapshot) == answer
    assert sum(m.cost.lost_work for m in answer.moved) <= budget


@pytest.mark.parametrize("budget", [PLENTY, 150, 70])
def test_the_cheapest_moves_within_a_budget_are_found(budget: int) -> None:
    helped = 0
    for seed in range(60):
        snapshot = willing(tight(seed), budget)
        answer = planned(snapshot)
        if not answer.admitted:
            helped += bool(answer.moved)
            assert _total(answer.moved) == _cheapest(snapshot, budget), seed
    assert helped >= 5


def _total(moves: tuple[Move, ...]) -> tuple[int, int] | None:
    return (sum(m.cost.lost_work for m in moves), len(moves)) if moves else None


def _cheapest(snapshot: Snapshot, budget: int) -> tuple[int, int] | None:
    (entry,) = snapshot.pending
    flavors = tuple(dict.fromkeys(p.shape.requests, FLAVOR) for p in entry.workload.podsets)
    priced = costs(movable(snapshot), snapshot.now, sizes_of(snapshot))
    best = cheapest_moves(snapshot, entry, priced, flavors, budget)
    return best[:2] if best is not None else None
