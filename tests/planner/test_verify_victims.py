"""The verifier's rules for evictions, leases for them, and repairs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.domain.plan import Admission, Cost, Eviction, Plan, Preemption
from queuectl.domain.queues import (
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted
from queuectl.planner.verify import PlanRule
from tests.planner.build import (
    gang,
    holding,
    node,
    placed,
    podset,
    queue,
    resources,
    world,
)
from tests.planner.plans import NODES, lease, rules, waits

ONE = gang("one", podset(gpu=8))


WANTED = gang("wanted", podset(gpu=8), priority=5, queued_at=5.0)


def evicting(victim: Admitted, within: WithinClusterQueue = WithinClusterQueue.LOWER_PRIORITY):
    """A snapshot and a plan in which ``wanted`` takes the victim's node."""
    uid = victim.workload.uid
    nodes = [node("a0", gpu=8)]
    snapshot = world(nodes, [WANTED], [victim], queue(within=within), queue("other", within=within))
    cost = Cost(victim.workload.priority, 60, Fraction(8))
    plan = Plan(
        preempted=(Preemption(uid, "wanted", cost),),
        pending=(waits(WANTED, lease(placed(WANTED, {"a0": 1}), uid)),),
    )
    return snapshot, plan


def victim(**kw: Any) -> Admitted:
    leaving = kw.pop("leaving", False)
    return holding(gang("victim", podset(gpu=8), **kw), {"a0": 1}, leaving=leaving)


NEWER = WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
LOWER = WithinClusterQueue.LOWER_PRIORITY


@pytest.mark.parametrize(
    ("taken", "within", "legal"),
    [
        (victim(priority=4), LOWER, True),
        (victim(priority=5, queued_at=9.0), LOWER, False),
        (victim(priority=5, queued_at=9.0), NEWER, True),
        (victim(priority=5, queued_at=5.0), NEWER, False),
        (victim(priority=6), NEWER, False),
        (victim(priority=4), WithinClusterQueue.NEVER, False),
        (victim(priority=4, preemptible=False), LOWER, False),
        (victim(priority=4, queue="other"), LOWER, False),
        (victim(priority=4, leaving=True), LOWER, False),
    ],
)
def test_victims_are_legal_by_the_queues_policy(
    taken: Admitted, within: WithinClusterQueue, legal: bool
) -> None:
    assert rules(*evicting(taken, within)) == (set() if legal else {PlanRule.VICTIM})


def test_no_gang_is_evicted_without_a_lease_that_names_it() -> None:
    snapshot, plan = evicting(victim(priority=4))
    assert PlanRule.VICTIM in rules(snapshot, replace(plan, pending=(waits(WANTED),)))
    unnamed = waits(WANTED, lease(placed(WANTED, {"a0": 1})))
    assert rules(snapshot, replace(plan, pending=(unnamed,))) == {PlanRule.VICTIM}


def test_no_gang_is_evicted_for_one_that_may_not_start() -> None:
    snapshot, plan = evicting(victim(priority=4))
    held = replace(snapshot.pending[0], blocked=Reason(Code.HELD, "held"))
    assert rules(replace(snapshot, pending=(held,)), plan) == {PlanRule.VICTIM}


def test_an_eviction_that_frees_too_little_is_an_excess_later() -> None:
    snapshot, plan = evicting(victim(priority=4))
    crowded = replace(snapshot, other_pods={"a0": resources(gpu=1)})
    assert rules(crowded, plan) == {PlanRule.CAPACITY}


def test_a_victim_belongs_to_one_preemptor_and_has_one_outcome() -> None:
    snapshot, plan = evicting(victim(priority=4))
    twice = replace(plan, preempted=plan.preempted * 2)
    assert rules(snapshot, twice) == {PlanRule.VICTIM}
    also = replace(plan, evicted=(Eviction("victim", Code.NODE_FAILURES, "node lost"),))
    assert rules(snapshot, also) == {PlanRule.VICTIM}


def test_the_stated_cost_is_the_cost_of_the_victims() -> None:
    snapshot, plan = evicting(victim(priority=4))
    wrong = replace(plan.preempted[0], cost=Cost(0, 60, Fraction(8)))
    assert rules(snapshot, replace(plan, preempted=(wrong,))) == {PlanRule.VICTIM}


# -- repair

BROKEN = holding(
    gang("broken", podset(count=2, gpu=8, required="rack")),
    {"a0": 1, "gone": 1},
    lost=(("w", "gone", 1),),
)


@pytest.mark.parametrize(
    ("where", "rule"),
    [
        ({"a0": 1, "a1": 1}, None),
        ({"a0": 1, "b0": 1}, PlanRule.TOPOLOGY),
        ({"a1": 1, "a0": 1}, None),
        ({"b0": 1, "b1": 1}, PlanRule.REPAIR),
        ({"a0": 1}, PlanRule.WHOLE),
        ({"a0": 1, "gone": 1}, PlanRule.ELIGIBLE),
    ],
)
def test_a_repair_keeps_healthy_slots_and_the_domain(
    where: dict[str, Any], rule: PlanRule | None
) -> None:
    snapshot = world(NODES, (), [BROKEN])
    plan = Plan(admitted=(Admission("broken", placed(BROKEN.workload, where), repaired=True),))
    found = rules(snapshot, plan)
    assert (rule in found) if rule else not found


def test_a_repair_takes_no_capacity_twice_and_none_of_others() -> None:
    snapshot = world(NODES, [ONE], [BROKEN])
    fixed = Admission("broken", placed(BROKEN.workload, {"a0": 1, "a1": 1}), repaired=True)
    both = Plan(admitted=(fixed, Admission("one", placed(ONE, {"b0": 1}))))
    assert not rules(snapshot, both)
    clash = Plan(admitted=(fixed, Admission("one", placed(ONE, {"a1": 1}))))
    assert rules(snapshot, clash) == {PlanRule.CAPACITY}


def test_only_a_gang_that_lost_slots_is_repaired() -> None:
    whole = replace(BROKEN, lost=())
    snapshot = world(NODES, (), [whole])
    plan = Plan(
        admitted=(Admission("broken", placed(whole.workload, {"a0": 1, "a1": 1}), repaired=True),)
    )
    assert PlanRule.REPAIR in rules(snapshot, plan)
