"""Protections of a queue: which gangs they protect, until when, and that no protected gang is ever a victim."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Cost, Plan, Preemption
from queuectl.domain.queues import ClusterQueue, Protection
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner import plan
from queuectl.planner.preempt.protections import protected_until
from queuectl.planner.verify import PlanRule, verify
from tests.planner import generate
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.plans import lease, rules, waits
from tests.support.examples import examples

HOUR, DAY = 3600.0, 86_400.0
WANTED = gang("wanted", podset(gpu=8), priority=5, queued_at=5.0)


def running(*, preemptible: bool = True, **kw: Any) -> Admitted:
    evictions, held = kw.pop("evictions", ()), kw.pop("held", False)
    low = holding(gang("low", podset(gpu=8), preemptible=preemptible), {"a0": 1}, **kw)
    return replace(low, evictions=evictions, held=held)


def under(protection: Protection) -> ClusterQueue:
    return replace(queue(), protection=protection)


CASES = [
    pytest.param(Protection(), {"started_at": NOW}, None, id="no protection"),
    pytest.param(Protection(min_runtime=HOUR), {"started_at": NOW - HOUR}, None, id="ran enough"),
    pytest.param(
        Protection(min_runtime=HOUR), {"started_at": NOW - 60}, NOW - 60 + HOUR, id="just started"
    ),
    pytest.param(
        Protection(min_runtime=HOUR),
        {"started_at": NOW + 60},
        NOW + HOUR,
        id="a clock ahead of ours",
    ),
    pytest.param(
        Protection(min_runtime=HOUR),
        {"started_at": NOW - 60, "held": True},
        None,
        id="held for admission checks",
    ),
    pytest.param(Protection(cooldown=HOUR), {"started_at": 0.0}, None, id="never evicted"),
    pytest.param(
        Protection(cooldown=HOUR),
        {"evictions": (NOW - 2 * HOUR, NOW - 60)},
        NOW - 60 + HOUR,
        id="evicted a minute ago",
    ),
    pytest.param(
        Protection(cooldown=HOUR), {"evictions": (NOW - HOUR,)}, None, id="the cool-down is over"
    ),
    pytest.param(
        Protection(max_evictions_per_day=2), {"evictions": (NOW - HOUR,)}, None, id="one of two"
    ),
    pytest.param(
        Protection(max_evictions_per_day=2),
        {"evictions": (NOW - 3 * HOUR, NOW - 2 * HOUR, NOW - HOUR)},
        NOW - 2 * HOUR + DAY,
        id="three of two: free when two of them are a day old",
    ),
    pytest.param(
        Protection(max_evictions_per_day=1), {"evictions": (NOW - DAY,)}, None, id="a day ago"
    ),
    pytest.param(Protection(max_evictions_per_day=0), {"started_at": 0.0}, inf, id="never at all"),
    pytest.param(Protection(), {"preemptible": False}, inf, id="not preemptible"),
    pytest.param(
        Protection(min_runtime=HOUR, cooldown=2 * HOUR),
        {"started_at": NOW - 60, "evictions": (NOW - 120,)},
        NOW - 120 + 2 * HOUR,
        id="the longest counts",
    ),
]


@pytest.mark.parametrize(("protection", "state", "until"), CASES)
def test_the_end_of_a_protection_is_known(
    protection: Protection, state: dict[str, Any], until: float | None
) -> None:
    assert protected_until(running(**state), under(protection), NOW) == until


@pytest.mark.parametrize(("protection", "state", "until"), CASES)
def test_planner_and_verifier_agree_on_the_protected_gangs(
    protection: Protection, state: dict[str, Any], until: float | None
) -> None:
    """Kueue has neither protection: it evicts workloads repeatedly, however young they are."""
    victim = running(**state)
    snapshot = world([node("a0", gpu=8)], [WANTED], [victim], under(protection))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [p.victim for p in made.preempted] == ([] if until is not None else ["low"])
    forced = Plan(
        preempted=(Preemption("low", "wanted", Cost(0, 60, Fraction(8))),),
        pending=(waits(WANTED, lease(placed(WANTED, {"a0": 1}), "low")),),
    )
    assert rules(snapshot, forced) == ({PlanRule.VICTIM} if until is not None else set())


def test_a_protected_gang_makes_the_search_find_the_next_best() -> None:
    young = holding(gang("young", podset(gpu=8)), {"a0": 1}, started_at=NOW - 60)
    old = holding(gang("old", podset(gpu=8), priority=3), {"b0": 1}, started_at=0.0)
    nodes = [node("a0", "a", gpu=8), node("b0", "b", gpu=8)]
    free = plan(world(nodes, [WANTED], [young, old]))
    shielded = plan(world(nodes, [WANTED], [young, old], under(Protection(min_runtime=HOUR))))
    assert [p.victim for p in free.preempted] == ["young"]
    assert [p.victim for p in shielded.preempted] == ["old"]


def test_a_gang_blocked_only_by_protected_gangs_stays_pending() -> None:
    young = running(started_at=NOW - 60)
    made = plan(world([node("a0", gpu=8)], [WANTED], [young], under(Protection(min_runtime=HOUR))))
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.TOPOLOGY_PLACEMENT_FAILED
    assert refusal.lease is None


PROTECTIONS = st.builds(
    Protection,
    min_runtime=st.sampled_from([0.0, 50.0, 500.0]),
    max_evictions_per_day=st.sampled_from([None, 0, 1, 2]),
    cooldown=st.sampled_from([0.0, 50.0, 500.0]),
)
TIMES = st.lists(st.sampled_from([NOW - DAY, NOW - 400, NOW - 40, NOW]), max_size=3)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(generate.contested(), PROTECTIONS, st.lists(TIMES, min_size=8, max_size=8))
def test_no_plan_evicts_a_gang_that_the_queue_protects(
    snapshot: Snapshot, protection: Protection, evicted: list[list[float]]
) -> None:
    config = snapshot.config
    queues = {n: replace(q, protection=protection) for n, q in config.cluster_queues.items()}
    admitted = tuple(
        replace(a, evictions=tuple(sorted(evicted[i % len(evicted)])))
        for i, a in enumerate(snapshot.admitted)
    )
    shielded = replace(snapshot, config=replace(config, cluster_queues=queues), admitted=admitted)
    made = plan(shielded)
    assert verify(shielded, made) == ()
    at = {a.workload.uid: a for a in admitted}
    for preemption in made.preempted:
        victim = at[preemption.victim]
        main = shielded.config.cluster_queue_of("team", victim.workload.queue)
        assert main is not None
        assert protected_until(victim, main, snapshot.now) is None
