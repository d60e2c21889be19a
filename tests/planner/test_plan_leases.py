"""Preemption in the walk, capacity leases, and the two views of what is free."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.plan import Plan
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, resources, world


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def started(made: Plan) -> dict[str, tuple[tuple[str, int], ...]]:
    return {a.uid: a.placement.podsets[0].nodes for a in made.admitted}


def codes(made: Plan) -> dict[str, Code]:
    return {r.uid: r.reasons[0].code for r in made.pending}


def whole(uid: str, nodes: int = 1, **kwargs):
    return gang(uid, podset(count=nodes, gpu=8), **kwargs)


def runs(uid: str, *names: str, leaving: bool = False, **kwargs) -> Admitted:
    workload = whole(uid, len(names), **kwargs)
    return holding(workload, dict.fromkeys(names, 1), leaving=leaving)


def leased(workload, *names: str, victims=("v",), until: float = NOW + 60, **kwargs) -> Pending:
    lease = CapacityLease(placed(workload, dict.fromkeys(names, 1)), victims, NOW - 60, until)
    return Pending(workload, lease, **kwargs)


HIGH = 10


# Preempting.


def test_a_blocked_gang_evicts_and_holds_a_lease() -> None:
    made = planned(world([node("a0", gpu=8)], [whole("g", priority=HIGH)], [runs("v", "a0")]))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("v", "g")]
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.WAITING_FOR_PREEMPTED
    assert refusal.lease is not None
    assert refusal.lease.victims == ("v",)
    assert (refusal.lease.created_at, refusal.lease.expires_at) == (NOW, NOW + 600)
    assert refusal.lease.placement.podsets[0].nodes == (("a0", 1),)


def test_kept_gangs_are_moved_before_anybody_is_evicted() -> None:
    """The first gang would take the only rack the second may use; moving it costs nothing."""
    nodes = [
        node("a0", "a", gpu=8, labels={"m": "x"}),
        node("b0", "b", gpu=8),
        node("b1", "b", gpu=8),
    ]
    gangs = [
        gang("any", podset(gpu=8), priority=20),
        gang("x", podset(gpu=8, select={"m": "x"}), priority=10),
    ]
    made = planned(world(nodes, gangs, [runs("v", "b1")]))
    assert started(made) == {"any": (("b0", 1),), "x": (("a0", 1),)}
    assert made.preempted == ()


def test_nobody_is_evicted_for_a_gang_that_would_not_fit_after_it() -> None:
    made = planned(world([node("a0", gpu=8)], [whole("g", 2, priority=HIGH)], [runs("v", "a0")]))
    assert made.preempted == ()
    assert codes(made) == {"g": Code.SHAPE_NEVER_FITS}


def test_two_blocked_gangs_never_count_on_the_same_victim() -> None:
    gangs = [whole(f"g{i}", queued_at=float(i), priority=HIGH) for i in range(3)]
    running = [runs("v0", "a0"), runs("v1", "a1")]
    made = planned(world([node("a0", gpu=8), node("a1", gpu=8)], gangs, running))
    assert sorted(p.victim for p in made.preempted) == ["v0", "v1"]
    assert codes(made) == {
        "g0": Code.WAITING_FOR_PREEMPTED,
        "g1": Code.WAITING_FOR_PREEMPTED,
        "g2": Code.TOPOLOGY_PLACEMENT_FAILED,
    }


def test_idle_capacity_a_lease_needs_is_not_given_to_later_gangs() -> None:
    """One node is idle, one is freed; the gang needs both, so the small one behind it must wait."""
    gangs = [whole("large", 2, priority=HIGH), whole("small", queued_at=5.0)]
    made = planned(world([node("a0", gpu=8), node("a1", gpu=8)], gangs, [runs("v", "a0")]))
    assert started(made) == {}
    assert [p.victim for p in made.preempted] == ["v"]
    assert codes(made)["small"] is Code.TOPOLOGY_PLACEMENT_FAILED


def test_what_a_victim_frees_beyond_the_lease_is_free_for_others_only_once_it_left() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    gangs = [whole("large", priority=HIGH), whole("small", queued_at=5.0)]
    first = planned(world(nodes, gangs, [runs("v", "a0", "a1")]))
    assert started(first) == {}
    assert [p.victim for p in first.preempted] == ["v"]
    entries = [
        Pending(workload, refusal.lease)
        for workload, refusal in zip(gangs, first.pending, strict=True)
    ]
    assert set(started(planned(world(nodes, entries)))) == {"large", "small"}


def test_a_strict_queue_preempts_for_its_head_alone() -> None:
    gangs = [
        whole("head", 2, queued_at=1.0, priority=HIGH),
        whole("next", queued_at=2.0, priority=HIGH),
    ]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    running = [runs("v", "a0"), runs("equal", "a1", priority=HIGH)]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    made = planned(world(nodes, gangs, running, strict))
    assert made.preempted == ()
    assert codes(made) == {
        "head": Code.TOPOLOGY_PLACEMENT_FAILED,
        "next": Code.WAITING_IN_ORDER,
    }
    made = planned(world(nodes, gangs, running))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("v", "next")]


def test_a_gang_for_whom_leaving_capacity_will_do_waits_for_it_and_evicts_nobody() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    running = [runs("going", "a0", leaving=True), runs("v", "a1")]
    made = planned(world(nodes, [whole("g", priority=HIGH)], running))
    assert made.preempted == ()
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert refusal.lease.victims == ()
    assert refusal.lease.placement.podsets[0].nodes == (("a0", 1),)


def test_quota_alone_may_ask_for_victims() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    made = planned(world(nodes, [whole("g", priority=HIGH)], [runs("v", "a0")], queue(gpu=8)))
    assert [p.victim for p in made.preempted] == ["v"]


# Holding a lease.


def test_a_lease_is_claimed_as_soon_as_all_of_it_is_free() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", priority=HIGH), "a1")
    waiting = planned(world(nodes, [entry], [runs("v", "a1", leaving=True)]))
    assert codes(waiting) == {"g": Code.WAITING_FOR_PREEMPTED}
    assert waiting.pending[0].lease == entry.lease
    assert waiting.preempted == ()
    assert started(planned(world(nodes, [entry]))) == {"g": (("a1", 1),)}


def test_leased_capacity_is_kept_from_gangs_before_and_after() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", queued_at=2.0), "a1", "a0", victims=("v",))
    entry = replace(entry, workload=whole("g", 2, queued_at=2.0))
    others = [whole("before", queued_at=1.0), whole("after", queued_at=3.0)]
    never = queue(within=WithinClusterQueue.NEVER)
    made = planned(world(nodes, [entry, *others], [runs("v", "a1", leaving=True)], never))
    assert started(made) == {}
    assert codes(made)["before"] is Code.TOPOLOGY_PLACEMENT_FAILED


def test_capacity_free_now_and_later_may_be_used_beside_a_lease() -> None:
    """The node holds 8 GPUs: 4 leave, 4 are idle; the lease needs 4 of them, the other 4 are free for anyone."""
    nodes = [node("a0", gpu=8)]
    leaving = holding(gang("v", podset(gpu=4)), {"a0": 1}, leaving=True)
    entry = leased(gang("g", podset(gpu=4), priority=HIGH), "a0")
    small = gang("small", podset(gpu=4))
    made = planned(world(nodes, [entry, small], [leaving]))
    assert started(made) == {"g": (("a0", 1),)}
    busy = holding(gang("r", podset(gpu=2)), {"a0": 1})
    tight = world(nodes, [entry, gang("small", podset(gpu=2))], [leaving, busy])
    assert started(planned(tight)) == {"small": (("a0", 1),)}


def test_an_expired_or_impossible_lease_is_planned_anew() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    for entry, where in (
        (leased(whole("g", priority=HIGH), "a1", until=NOW), "a0"),
        (leased(whole("g", priority=HIGH), "gone"), "a0"),
        (replace(leased(whole("g", priority=HIGH), "a0"), excluded=frozenset({"a0"})), "a1"),
    ):
        assert started(planned(world(nodes, [entry]))) == {"g": ((where, 1),)}
    lost = [node("a0", gpu=8), node("a1", gpu=8, ready=False)]
    entry = leased(whole("g", priority=HIGH), "a1")
    assert started(planned(world(lost, [entry]))) == {"g": (("a0", 1),)}


def test_a_lease_whose_capacity_was_taken_from_outside_is_planned_anew() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", priority=HIGH), "a1")
    made = planned(world(nodes, [entry], strangers={"a1": resources(gpu=1)}))
    assert started(made) == {"g": (("a0", 1),)}


def test_a_blocked_holder_gives_its_lease_up() -> None:
    nodes = [node("a0", gpu=8)]
    entry = replace(leased(whole("g"), "a0"), blocked=Reason(Code.HELD, "held"))
    made = planned(world(nodes, [entry, whole("other", queued_at=9.0)]))
    assert set(started(made)) == {"other"}
    assert made.pending[0].lease is None


def test_a_head_that_waits_takes_the_lease_of_one_behind_it_in_a_strict_queue() -> None:
    """Or else the leased gang would pass it."""
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, within=WithinClusterQueue.NEVER)
    head = whole("head", 2, priority=20)
    entry = leased(whole("g", priority=HIGH), "a1")
    made = planned(world(nodes, [head, entry], [], strict))
    assert codes(made) == {
        "head": Code.TOPOLOGY_PLACEMENT_FAILED,
        "g": Code.WAITING_IN_ORDER,
    }
    assert made.pending[1].lease is None
    assert set(started(planned(world(nodes, [head, whole("g", priority=HIGH)], [], strict)))) == {
        "head"
    }


def test_leases_hold_quota_too() -> None:
    nodes = [node(f"a{i}", gpu=8) for i in range(3)]
    entry = leased(whole("g", priority=HIGH), "a0")
    never = queue(gpu=16, within=WithinClusterQueue.NEVER)
    made = planned(world(nodes, [entry, whole("other", 2)], [runs("v", "a0", leaving=True)], never))
    assert codes(made)["other"] is Code.WAITING_FOR_QUOTA
