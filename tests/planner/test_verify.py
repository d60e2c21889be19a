"""The verifier accepts a correct plan and names the rule that each wrong one breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.fleet import Effect, Taint, Toleration
from queuectl.domain.plan import Admission, Cost, Eviction, Plan, Preemption, Refusal
from queuectl.domain.queues import (
    QueueingStrategy,
    ResourceFlavor,
    StopPolicy,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.domain.workload import Growth, Workload
from queuectl.planner.verify import PlanRule, order, verify
from queuectl.planner.verify.order import place
from queuectl.planner.verify.plan_index import PlanIndex
from tests.planner.build import (
    NOW,
    gang,
    holding,
    node,
    placed,
    podset,
    queue,
    resources,
    without_quota,
    world,
)
from tests.planner.plans import NODES, REASON, lease, rules, start, waits

PAIR = gang("pair", podset(count=2, gpu=8, required="rack"))


def test_a_correct_plan_passes() -> None:
    assert verify(world(NODES, [PAIR]), start(PAIR, {"a0": 1, "a1": 1})) == ()


@pytest.mark.parametrize(
    ("where", "rule"),
    [
        ({"a0": 1}, PlanRule.WHOLE),
        ({"a0": 1, "a1": 1, "b0": 1}, PlanRule.WHOLE),
        ({"a0": 3, "a1": -1}, PlanRule.WHOLE),
        ({"a0": 1, "b0": 1}, PlanRule.TOPOLOGY),
        ({"a0": 2}, PlanRule.CAPACITY),
        ({"a0": 1, "nowhere": 1}, PlanRule.ELIGIBLE),
    ],
)
def test_a_wrong_placement_is_rejected(where: dict[str, int], rule: PlanRule) -> None:
    assert rule in rules(world(NODES, [PAIR]), start(PAIR, where))


def test_podsets_must_be_the_gangs_own() -> None:
    other = gang("pair", podset("x", count=2, gpu=8))
    assert rules(world(NODES, [PAIR]), start(other, {"a0": 1, "a1": 1})) == {PlanRule.WHOLE}


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(pending=(waits(PAIR), waits(PAIR))),
        replace(start(PAIR, {"a0": 1, "a1": 1}), pending=(waits(PAIR),)),
        Plan(pending=(waits(PAIR), Refusal("stranger", REASON))),
        Plan(pending=(waits(PAIR),), evicted=(Eviction("stranger", Code.NODE_FAILURES, "gone"),)),
    ],
)
def test_each_pending_gang_appears_exactly_once_and_no_other_gang(plan: Plan) -> None:
    assert PlanRule.PARTITION in rules(world(NODES, [PAIR]), plan)


def test_every_refusal_has_a_reason() -> None:
    assert rules(world(NODES, [PAIR]), Plan(pending=(Refusal("pair", ()),))) == {PlanRule.REASON}


TAINT = Taint("dedicated", Effect.NO_SCHEDULE, "team")


@pytest.mark.parametrize(
    ("changed", "wanted", "eligible"),
    [
        ({"taints": [TAINT]}, {}, False),
        ({"taints": [TAINT]}, {"tolerations": [Toleration("dedicated", "Exists")]}, True),
        ({"ready": False}, {}, False),
        ({"labels": {"model": "h100"}}, {"select": {"model": "h200"}}, False),
        ({"labels": {"model": "h200"}}, {"select": {"model": "h200"}}, True),
        ({"labels": {"rack": ""}}, {}, True),
    ],
)
def test_ineligible_nodes_are_rejected(
    changed: dict[str, Any], wanted: dict[str, Any], eligible: bool
) -> None:
    one = gang("one", podset(gpu=8, **wanted))
    found = rules(world([node("a0", gpu=8, **changed)], [one]), start(one, {"a0": 1}))
    assert found == (set() if eligible else {PlanRule.ELIGIBLE})


def test_a_node_outside_the_flavors_topology_is_invisible() -> None:
    one = gang("one", podset(gpu=8))
    bare = replace(node("a0", gpu=8), labels={"rack": "r"})
    assert rules(world([bare], [one]), start(one, {"a0": 1})) == {PlanRule.ELIGIBLE}


def test_an_excluded_node_is_not_tried_again() -> None:
    one = gang("one", podset(gpu=8))
    entry = Pending(one, excluded=frozenset({"a0"}))
    assert rules(world(NODES, [entry]), start(one, {"a0": 1})) == {PlanRule.ELIGIBLE}


@pytest.mark.parametrize(
    ("asks", "selects", "rule"),
    [
        ("fast", {}, None),
        ("slow", {}, PlanRule.ELIGIBLE),
        ("slow", {"model": "h100"}, PlanRule.FLAVOR),
    ],
)
def test_flavors_bind_nodes_and_selectors(
    asks: str, selects: dict[str, str], rule: PlanRule | None
) -> None:
    flavors = [
        ResourceFlavor("fast", (("model", "h100"),), topology="gpus"),
        ResourceFlavor("slow", (("model", "a100"),), topology="gpus"),
    ]
    one = gang("one", podset(gpu=8, select=selects))
    nodes = [node("a0", gpu=8, labels={"model": "h100"})]
    main = queue(flavors=("fast", "slow"))
    snapshot = world(nodes, [one], (), main, flavors=flavors)
    found = rules(snapshot, start(one, {"a0": 1}, flavor=asks))
    assert (rule in found) if rule else not found


def test_flavor_taints_must_be_tolerated_and_flavor_tolerations_count() -> None:
    one = gang("one", podset(gpu=8))
    nodes = [node("a0", gpu=8, taints=[TAINT])]
    shut = ResourceFlavor("default", (), (TAINT,), (), "gpus")
    opened = replace(shut, tolerations=(Toleration("dedicated", "Exists"),))
    plan = start(one, {"a0": 1})
    assert PlanRule.FLAVOR in rules(world(nodes, [one], flavors=[shut]), plan)
    assert not rules(world(nodes, [one], flavors=[opened]), plan)


def test_one_flavor_per_resource_group_and_every_resource_covered() -> None:
    one = gang("one", podset(gpu=8, cpu=1, widgets=1))
    snapshot = world([node("a0", gpu=8, cpu=1, widgets=1)], [one])
    assert rules(snapshot, start(one, {"a0": 1}, flavor=None)) == {PlanRule.FLAVOR}
    assert PlanRule.FLAVOR in rules(snapshot, start(one, {"a0": 1}))  # no queue covers widgets


def test_a_gang_without_a_queue_has_no_quota_and_no_flavor() -> None:
    one = without_quota(gang("one", podset(count=2, gpu=8, required="rack")))
    snapshot = world(NODES, [one], (), queue(gpu=0))
    assert not rules(snapshot, start(one, {"a0": 1, "a1": 1}, flavor=None))
    assert rules(snapshot, start(one, {"a0": 1, "b1": 1}, flavor=None)) == {PlanRule.TOPOLOGY}


def test_same_rack_name_in_two_blocks_is_two_domains() -> None:
    nodes = [node("x", "b1/r", gpu=8), node("y", "b2/r", gpu=8)]
    assert rules(world(nodes, [PAIR]), start(PAIR, {"x": 1, "y": 1})) == {PlanRule.TOPOLOGY}


def test_podsets_of_a_group_share_the_domain() -> None:
    one = gang(
        "one",
        podset("x", 1, gpu=8, required="rack", group="g"),
        podset("y", 1, gpu=8, required="rack", group="g"),
    )
    assert not rules(world(NODES, [one]), start(one, {"a0": 1}, {"a1": 1}))
    assert rules(world(NODES, [one]), start(one, {"a0": 1}, {"b1": 1})) == {PlanRule.TOPOLOGY}


def test_a_quota_only_flavor_is_charged_and_not_placed() -> None:
    flat = [ResourceFlavor("default")]
    one = gang("one", podset(count=2, gpu=8))
    assert not rules(world(NODES, [one], (), queue(gpu=16), flavors=flat), start(one, {}))
    assert rules(world(NODES, [one], (), queue(gpu=15), flavors=flat), start(one, {})) == {
        PlanRule.QUOTA
    }


# -- the two views

BUSY = holding(gang("busy", podset(gpu=8)), {"a0": 1})
ONE = gang("one", podset(gpu=8))


@pytest.mark.parametrize(
    "snapshot",
    [
        world(NODES, [ONE], [BUSY]),
        world(NODES, [ONE], [replace(BUSY, leaving=True)]),
        world(NODES, [ONE], other_pods={"a0": resources(gpu=1)}),
        world([node("a0", gpu=8, pods=0)], [ONE]),
    ],
    ids=["admitted", "leaving", "stranger", "pods"],
)
def test_capacity_in_use_now_cannot_be_given(snapshot: Snapshot) -> None:
    assert rules(snapshot, start(ONE, {"a0": 1})) == {PlanRule.CAPACITY}


def test_an_excess_from_outside_elsewhere_does_not_reject_the_plan() -> None:
    snapshot = world(NODES, [ONE], [BUSY], other_pods={"a0": resources(gpu=8)})
    assert not rules(snapshot, start(ONE, {"a1": 1}))


def test_two_gangs_that_fit_alone_do_not_fit_together() -> None:
    two = gang("two", podset(gpu=4))
    plan = Plan(
        admitted=(
            Admission("one", placed(ONE, {"a0": 1})),
            Admission("two", placed(two, {"a0": 1})),
        )
    )
    assert rules(world(NODES, [ONE, two]), plan) == {PlanRule.CAPACITY}


def test_a_lease_keeps_its_nodes_from_others_but_can_wait_for_leaving_gangs() -> None:
    leaving = replace(BUSY, leaving=True)
    late = gang("late", podset(gpu=8))
    held = Pending(ONE, lease(placed(ONE, {"a0": 1}), "busy"))
    keeps = waits(ONE, held.lease)
    snapshot = world(NODES, [held, late], [leaving])
    plan = replace(start(late, {"b0": 1}), pending=(keeps,))
    assert not rules(snapshot, plan)
    gone = world(NODES, [held, late])
    taken = replace(start(late, {"a0": 1}), pending=(keeps,))
    assert rules(gone, taken) == {PlanRule.CAPACITY, PlanRule.LEASE}


def test_quota_counts_leaving_gangs_now_and_leases_after() -> None:
    main = queue(gpu=8)
    assert rules(world(NODES, [ONE], [BUSY], main), start(ONE, {"a1": 1})) == {PlanRule.QUOTA}
    leaving = replace(BUSY, leaving=True)
    assert rules(world(NODES, [ONE], [leaving], main), start(ONE, {"a1": 1})) == {PlanRule.QUOTA}
    waiting = gang("waiting", podset(gpu=8))
    keeps = waits(waiting, lease(placed(waiting, {"b0": 1})))
    plan = replace(start(ONE, {"a1": 1}), pending=(keeps,))
    assert rules(world(NODES, [ONE, waiting], (), main), plan) == {PlanRule.QUOTA, PlanRule.LEASE}
    held = Plan(pending=(keeps, waits(ONE)))
    assert not rules(world(NODES, [ONE, waiting], [leaving], main), held)


@pytest.mark.parametrize(
    ("holds", "names", "broken"),
    [
        (4, (), True),  # the capacity that it needs is free already
        (4, ("slow",), False),  # it waits for the slow one in any case
        (6, ("slow",), False),  # 2 of the GPUs that it needs are free already, and stay free
        (
            6,
            (),
            False,
        ),  # unmanaged pods or a smaller node block it: it must wait until every gang has left
    ],
)
def test_capacity_that_the_victims_of_a_lease_have_left_is_reserved(
    holds: int, names: tuple[str, ...], broken: bool
) -> None:
    """The node holds 8 GPUs, of which a slow gang still has 4."""
    slow = holding(gang("slow", podset(gpu=4)), {"a0": 1}, leaving=True)
    first, small = gang("first", podset(gpu=holds)), gang("small", podset(gpu=2))
    keeps = waits(first, lease(placed(first, {"a0": 1}), *names))
    plan = replace(start(small, {"a0": 1}), pending=(keeps,))
    snapshot = world(NODES, [Pending(first, keeps.lease), small], [slow])
    later_too_full = {PlanRule.CAPACITY} if holds + 2 > 8 else set()
    assert rules(snapshot, plan) - later_too_full == ({PlanRule.LEASE} if broken else set())


def test_quota_that_the_victims_of_a_lease_have_left_is_reserved() -> None:
    """Quota is 12: a slow gang that is leaving still has 4 of it, the lease needs 6, others may use 2."""
    slow = holding(gang("slow", podset(gpu=4)), {"a1": 1}, leaving=True)
    first = gang("first", podset(gpu=6))
    keeps = waits(first, lease(placed(first, {"a0": 1})))
    for size, broken in ((2, False), (3, True)):
        small = gang("small", podset(gpu=size))
        plan = replace(start(small, {"b0": 1}), pending=(keeps,))
        snapshot = world(NODES, [Pending(first, keeps.lease), small], [slow], queue(gpu=12))
        assert rules(snapshot, plan) == ({PlanRule.LEASE} if broken else set())


def test_a_holder_takes_nothing_that_is_kept_for_another_lease() -> None:
    """The same for a holder that waits for its own victim."""
    slow = holding(gang("slow", podset(gpu=4)), {"a0": 1}, leaving=True)
    early, late = (
        gang(name, podset(gpu=4), queued_at=at) for name, at in (("early", 1.0), ("late", 2.0))
    )
    theirs = {w.uid: lease(placed(w, {"a0": 1}), *v) for w, v in ((early, ("slow",)), (late, ()))}
    snapshot = world(NODES, [Pending(w, theirs[w.uid]) for w in (early, late)], [slow])
    for first, other, broken in ((early, late, {PlanRule.LEASE}), (late, early, set())):
        plan = replace(start(first, {"a0": 1}), pending=(waits(other, theirs[other.uid]),))
        assert rules(snapshot, plan) == broken


def test_a_lease_that_has_ended_holds_nothing() -> None:
    ended = CapacityLease(placed(ONE, {"a0": 1}), (), NOW - 600, NOW)
    plan = Plan(pending=(waits(ONE, ended),))
    assert rules(world(NODES, [ONE]), plan) == {PlanRule.LEASE}


# -- gangs that may start


@pytest.mark.parametrize(
    "entry_and_queue",
    [
        (Pending(ONE, blocked=Reason(Code.HELD)), queue()),
        (Pending(ONE), replace(queue(), stop_policy=StopPolicy.HOLD)),
        (Pending(ONE), replace(queue(), namespace_selector=None)),
        (Pending(replace(ONE, queue="unknown")), queue()),
    ],
    ids=["blocked", "stopped", "namespace", "unknown"],
)
def test_inadmissible_gangs_do_not_start(entry_and_queue) -> None:
    entry, main = entry_and_queue
    snapshot = world(NODES, [entry], (), main)
    assert PlanRule.INADMISSIBLE in rules(snapshot, start(ONE, {"a0": 1}))


HEAD = gang("head", podset(count=3, gpu=8, required="rack"), queued_at=1.0)
NEXT = gang("next", podset(gpu=8), queued_at=2.0)


@pytest.mark.parametrize(
    ("strategy", "code", "violated"),
    [
        (QueueingStrategy.STRICT_FIFO, Code.TOPOLOGY_PLACEMENT_FAILED, True),
        (QueueingStrategy.BEST_EFFORT_FIFO, Code.TOPOLOGY_PLACEMENT_FAILED, False),
        (QueueingStrategy.STRICT_FIFO, Code.SHAPE_NEVER_FITS, False),
    ],
)
def test_no_gang_passes_the_head_of_a_strict_queue(
    strategy: QueueingStrategy, code: Code, violated: bool
) -> None:
    snapshot = world(NODES, [HEAD, NEXT], (), queue(strategy=strategy))
    plan = replace(start(NEXT, {"a0": 1}), pending=(Refusal("head", (Reason(code, "no"),)),))
    assert (PlanRule.ORDER in rules(snapshot, plan)) is violated


def test_a_blocked_gang_holds_no_place_in_a_strict_queue() -> None:
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    held = Pending(HEAD, blocked=Reason(Code.HELD, "by user"))
    plan = replace(start(NEXT, {"a0": 1}), pending=(waits(HEAD),))
    assert not rules(world(NODES, [held, NEXT], (), strict), plan)


def test_the_strict_head_is_not_passed_on_a_flavor_it_cannot_use() -> None:
    flavors = [
        ResourceFlavor("fast", (("model", "h100"),), topology="gpus"),
        ResourceFlavor("slow", (("model", "a100"),), topology="gpus"),
    ]
    nodes = [
        node("a0", gpu=8, labels={"model": "h100"}),
        node("b0", gpu=8, labels={"model": "a100"}),
    ]
    head = gang("head", podset(count=2, gpu=8, select={"model": "h100"}), queued_at=1.0)
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, flavors=("fast", "slow"))
    snapshot = world(nodes, [head, NEXT], (), strict, flavors=flavors)
    beside = replace(start(NEXT, {"b0": 1}, flavor="slow"), pending=(waits(head),))
    assert not rules(snapshot, beside)
    before = replace(start(NEXT, {"a0": 1}, flavor="fast"), pending=(waits(head),))
    assert rules(snapshot, before) == {PlanRule.ORDER}


def test_preemption_for_a_later_gang_passes_the_strict_head_too() -> None:
    victim = holding(gang("victim", podset(gpu=8), priority=-1), {"a0": 1})
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    snapshot = world(NODES, [HEAD, NEXT], [victim], strict)
    plan = Plan(
        preempted=(Preemption("victim", "next", Cost(-1, 1, Fraction(8))),),
        pending=(waits(HEAD), waits(NEXT, lease(placed(NEXT, {"a0": 1}), "victim"))),
    )
    assert rules(snapshot, plan) == {PlanRule.ORDER}


def test_a_violation_names_the_node_and_the_excess() -> None:
    found = verify(world(NODES, [ONE], [BUSY]), start(ONE, {"a0": 1}))
    assert str(found[0]) == "Capacity a0: nvidia.com/gpu: asks 8, free 0 now"


def test_podsets_of_a_group_hold_back_only_flavors_they_can_share() -> None:
    """Half of the head may use a100, but the whole group must be of one flavor, and the other half cannot."""
    flavors = [ResourceFlavor(m, (("model", m),), topology="gpus") for m in ("h100", "a100")]
    nodes = [
        node("a0", gpu=1, labels={"model": "h100"}),
        node("b0", gpu=8, labels={"model": "a100"}),
    ]
    head = gang(
        "head",
        podset("x", 1, gpu=8, required="rack", group="g"),
        podset("y", 1, gpu=8, required="rack", group="g", select={"model": "h100"}),
        queued_at=1.0,
    )
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, flavors=("h100", "a100"))
    snapshot = world(nodes, [head, NEXT], (), strict, flavors=flavors)
    beside = replace(start(NEXT, {"b0": 1}, flavor="a100"), pending=(waits(head),))
    assert not rules(snapshot, beside)
    before = replace(start(NEXT, {"a0": 1}, flavor="h100"), pending=(waits(head),))
    assert PlanRule.ORDER in rules(snapshot, before)


def _small(number: int) -> Workload:
    return gang(f"s{number}", podset(gpu=1), queued_at=50.0)


def _grown(number: int) -> Workload:
    return replace(_small(number), growth=Growth("base", number))


@pytest.mark.parametrize("starts", [_small, _grown])
def test_the_order_is_checked_in_time_proportional_to_the_number_of_gangs(
    starts: Callable[[int], Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gangs of one user wait, and others start, or pods are added to an elastic gang, in the same plan."""
    compared = 0

    def counted(workload: Workload) -> tuple[int, float, str]:
        nonlocal compared
        compared += 1
        return place(workload)

    monkeypatch.setattr(order, "place", counted)
    calls = []
    for size in (20, 40):
        waiting = [gang(f"w{n}", podset(gpu=16), queued_at=float(n)) for n in range(size)]
        waiting += [gang(f"l{n}", podset(gpu=16), queued_at=99.0) for n in range(size)]
        others = [starts(number) for number in range(size)]
        snapshot = world([node("n", gpu=8)], [*waiting, *others])
        admitted = tuple(Admission(each.uid, placed(each, {"n": 1})) for each in others)
        plan = Plan(admitted=admitted, pending=tuple(map(waits, waiting)))
        compared = 0
        list(order.check_order(PlanIndex(snapshot, plan)))
        calls.append(compared)
    assert calls[1] < 3 * calls[0]
