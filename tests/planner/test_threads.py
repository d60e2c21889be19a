"""Preemption loops, starvation and stuck heads from reports of users of Kueue, simulated here: each must end well.

To end well means to keep the invariants of :mod:`tests.planner.invariants` and the assertions of each test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Placement, PodSetPlacement
from tests.planner.build import NOW, gang, podset
from tests.planner.histories import Simulation
from tests.planner.invariants import INVARIANTS
from tests.planner.queues import cohort, cq, group, quota_only, quotas
from tests.planner.story import Arrives, Ends, Event, History, QuotaIs, Scene, Step
from tests.planner.test_preempt_histories import history

LOWER, ANY = WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY
STRICT = QueueingStrategy.STRICT_FIFO
ALL = (cohort("all"),)
BOTH = (FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE, FairStrategy.LESS_THAN_INITIAL_SHARE)


def team(name: str, gpus: int, home: str | None = "all", **rest: Any) -> ClusterQueue:
    """A ClusterQueue that reclaims its own quota and evicts its own gangs of lower priority."""
    policies = {"within_cluster_queue": LOWER, "reclaim_within_cohort": ANY}
    return cq(name, gpus, home, **(policies | rest))


def ends_well(scene: Scene, *steps: Event | Step) -> History:
    """The history of the steps, one second apart, and a long quiet time after the last; checked against all invariants."""
    simulation = Simulation(scene)
    for step in (s if isinstance(s, Step) else Step(s) for s in steps):
        simulation.apply(step.event)
        simulation.wait(step.then)
    history = simulation.end()
    assert [complaint for invariant in INVARIANTS for complaint in invariant(history)] == []
    return history


def evictions(history: History) -> Counter[str]:
    """How often each gang was preempted."""
    return Counter(e.uid for e in history.preempted)


def start(history: History, uid: str) -> float:
    """Seconds from the beginning to its last start."""
    return [s.at for s in history.started if s.uid == uid][-1] - NOW


# Preemption loops.


def test_a_victim_does_not_take_its_capacity_back_while_another_is_slow_to_end() -> None:
    """P9, #13662: two must leave; the quick one is queued first, starts on its old nodes and is evicted again."""
    history = ends_well(
        Scene((team("a", 8), team("b", 0)), ALL),
        Arrives("b", 4, name="quick"),
        Arrives("b", 4, name="slow", drain=300.0),
        Arrives("a", 8, name="winner"),
    )
    assert evictions(history) == {"b-quick": 1, "b-slow": 1}
    assert start(history, "a-winner") == 302.0


def test_two_gangs_whose_victims_were_legal_only_in_one_order_do_not_evict_each_other() -> None:
    """P8, #14543: own and foreign gangs leave, some are put back, and the others' exits were not legal without them."""
    history = ends_well(
        Scene((team("a", 4, preempts_to_borrow=True), team("b", 2), team("c", 2)), ALL),
        Arrives("a", 3, priority=1),
        Arrives("b", 3, priority=1),
        Arrives("c", 2, priority=1),
        Arrives("a", 3, priority=5, name="winner"),
    )
    assert max(evictions(history).values(), default=0) <= 1
    assert "a-winner" in history.running()


@pytest.mark.parametrize("fair", [(), BOTH], ids=["classic", "fair"])
def test_guaranteed_gangs_evict_best_effort_ones_once(fair: tuple[FairStrategy, ...]) -> None:
    """#3779: the second guaranteed gang evicts a best-effort one, which is admitted again before it, endlessly."""
    cohorts = (cohort("root"), cohort("guaranteed", 6, "root"))
    queues = (team("sure", 0, "guaranteed"), team("x", 0, "root"), team("y", 0, "root"))
    history = ends_well(
        Scene(queues, cohorts, rules=Rules(fair_sharing=fair)),
        Arrives("x", 2, name="1"),
        Arrives("x", 2, name="2"),
        Arrives("y", 1, name="1"),
        Arrives("y", 1, name="2"),
        Arrives("sure", 1, priority=1, name="1"),
        Arrives("sure", 2, priority=1, name="2"),
    )
    assert {"sure-1", "sure-2"} <= history.running()
    assert max(Counter((e.preemptor, e.uid) for e in history.preempted).values()) == 1


def test_a_gang_that_borrows_does_not_lose_its_capacity_to_the_one_it_evicted() -> None:
    """#2821: preemption while borrowing; the older victim is ordered first among those that borrow and is evicted again."""
    queues = (team("a", 0), team("b", 2, preempts_to_borrow=True), cq("c", 2))
    history = ends_well(
        Scene(queues, ALL),
        Arrives("b", 2, priority=2, name="1"),
        Arrives("a", 2, name="low"),
        Arrives("b", 2, priority=2, name="2"),
    )
    assert history.running() == {"b-1", "b-2"}
    assert evictions(history) == {"a-low": 1}


# Evictions without effect.


def test_no_gang_is_evicted_for_one_that_requests_more_than_its_queue_can_ever_have() -> None:
    """#6947: a gang of 4 in a queue of 3 keeps evicting, and the gang of 3 behind it never starts."""
    history = ends_well(
        Scene((team("a", 3), team("b", 0)), ALL),
        Arrives("b", 1, name="borrower"),
        Arrives("a", 4, name="vast"),
        Arrives("a", 3, name="fits"),
    )
    assert history.running() == {"a-fits"}
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("b-borrower", "a-fits")]


def test_no_more_gangs_are_evicted_than_needed_when_the_queue_may_borrow() -> None:
    """#1974: one gang as large as the quota of the queue evicts all that run there."""
    history = ends_well(
        Scene((team("a", 4), cq("lender", 4)), ALL),
        *(Arrives("a", 1) for _ in range(6)),
        Arrives("a", 4, priority=1, name="winner"),
    )
    assert sum(evictions(history).values()) == 2
    assert "a-winner" in history.running()


def test_victims_free_one_node_and_not_a_part_of_each() -> None:
    """#5243: low gangs spread over all nodes leave; the pod of 4 GPUs is admitted and fits on no node."""
    history = ends_well(
        Scene((team("a", 8, None),), nodes=(4, 4)),
        *(Arrives("a", 1) for _ in range(8)),
        Arrives("a", 4, priority=1, name="winner"),
    )
    assert sum(evictions(history).values()) == 4
    assert "a-winner" in history.running()


def test_small_background_gangs_do_not_keep_a_gang_from_its_rack() -> None:
    """#9992: gap-filling gangs of lower priority count as use, so that the rack is never found."""
    history = ends_well(
        Scene((team("a", 16, None),), nodes=(4, 4, 4, 4)),
        *(Arrives("a", 1) for _ in range(16)),
        Arrives("a", 4, pods=2, priority=1, rack=True, name="winner"),
    )
    assert sum(evictions(history).values()) == 8
    assert "a-winner" in history.running()


def test_a_pod_without_gpus_is_evicted_when_it_holds_the_last_pod_slot_of_the_node() -> None:
    """P5, #10497: only gangs that use GPUs are candidates, though the node has no slot for another pod."""
    history = ends_well(
        Scene((team("a", 8, None),), nodes=(8,), slots=2),
        Arrives("a", 8, name="gpus"),
        Arrives("a", 0, name="none"),
        Arrives("a", 4, pods=2, priority=1, name="winner"),
    )
    assert evictions(history) == {"a-gpus": 1, "a-none": 1}
    assert history.running() == {"a-winner"}


def test_a_gang_of_two_podsets_evicts_an_equal_one_on_two_flavors() -> None:
    """#3909: master and workers are on different flavors; an equal job of higher priority gets "exceeds the quota"."""
    queue = replace(
        cq("q", within_cluster_queue=LOWER, cohort=None),
        groups=group(quotas(8, flavor="multi"), quotas(16, flavor="single")),
    )
    master, workers = podset("master", 1, gpu=8), podset("workers", 2, gpu=8)
    low, high = (
        gang(n, master, workers, queue="q", priority=p) for n, p in (("low", 0), ("high", 1))
    )
    placed = Placement(
        (
            PodSetPlacement("master", (), {GPU: "multi"}),
            PodSetPlacement("workers", (), {GPU: "single"}),
        )
    )
    first = quota_only(
        [queue], [Pending(high)], [Admitted(low, placed)], flavors=("multi", "single")
    )
    cycles = list(history(first))
    assert [p.victim for c in cycles for p in c.made.preempted] == ["low"]
    assert [a.uid for c in cycles for a in c.made.admitted] == ["high"]


@pytest.mark.parametrize("allowed", [False, True], ids=["not-allowed", "allowed"])
def test_a_rack_held_within_quota_is_cleared_only_where_the_queue_allows_it(allowed: bool) -> None:
    """P12, #12478: a lower gang within its own quota holds the only rack; its queue is never searched for victims."""
    queues = (team("a", 16, evicts_within_nominal=allowed), cq("b", 8))
    history = ends_well(
        Scene(queues, ALL, nodes=(8, 0, 8)),
        Arrives("b", 8, name="low"),
        Arrives("a", 8, pods=2, priority=5, rack=True, name="high"),
    )
    assert history.running() == ({"a-high"} if allowed else {"b-low"})
    assert evictions(history) == ({"b-low": 1} if allowed else {})


# Starvation and stuck heads.


def test_a_slow_victim_of_one_queue_keeps_no_other_queue_from_evicting() -> None:
    """#2596: one preemption at a time in a cohort, so that a long grace period stops all queues."""
    history = ends_well(
        Scene((team("a", 2), team("b", 2), team("c", 0)), ALL),
        Arrives("c", 2, name="slow", drain=500.0),
        Arrives("c", 2, name="quick", drain=1.0, priority=1),
        Arrives("a", 2, name="in"),
        Arrives("b", 2, name="in"),
    )
    assert evictions(history) == {"c-slow": 1, "c-quick": 1}
    assert sorted(start(history, uid) for uid in ("a-in", "b-in")) == [4.0, 502.0]


def test_the_first_flavor_has_the_quota_but_no_rack_so_the_second_is_taken() -> None:
    """P6, #13658: quota selects the first flavor, topology fails there hundreds of times, and the second stays idle."""
    queue = replace(
        cq("q", cohort=None), groups=group(quotas(8, flavor="one"), quotas(8, flavor="two"))
    )
    scene = Scene((queue,), nodes=(4, 4, 4, 0, 4), pools=("one", "one", "two", "two", "two"))
    simulation = Simulation(scene)
    uid = simulation.apply(Arrives("q", 4, pods=2, rack=True))
    history = simulation.end()
    assert history.running() == {uid}
    placed = history.entries[uid].placement
    assert placed is not None
    assert placed.podsets[0].flavors == {GPU: "two"}


def test_a_blocked_head_stops_only_gangs_that_need_the_same_flavor() -> None:
    """#8309: the head waits for one pool of GPUs; the idle other pool is closed to all behind it."""
    groups = group(quotas(8, flavor="old"), quotas(8, flavor="new"))
    queue = replace(cq("q", cohort=None, strategy=STRICT), groups=groups)
    simulation = Simulation(Scene((queue,), nodes=(8, 8), pools=("old", "new")))
    for name, pool in (("runs", "new"), ("head", "new"), ("other", "old"), ("same", "new")):
        simulation.apply(Arrives("q", 4 if name == "same" else 8, pool=pool, name=name))
    assert simulation.end().running() == {"q-runs", "q-other"}


def test_a_head_that_can_reclaim_its_own_quota_lends_it_in_the_meantime() -> None:
    """#4809: the head of a StrictFIFO queue waits for more than the free quota, which others must not borrow."""
    history = ends_well(
        Scene((team("sure", 2, strategy=STRICT), cq("other", 0)), ALL),
        Arrives("sure", 1, name="1"),
        Arrives("sure", 2, name="2"),
        Arrives("other", 1, name="1"),
        Step(Ends("sure-1"), 10.0),
    )
    assert start(history, "other-1") == 2.0
    assert history.running() == {"sure-2"}


def test_the_one_gang_that_fits_starts_behind_hundreds_that_do_not() -> None:
    """#9715: thousands are considered one by one, and the one that could start is never reached."""
    history = ends_well(
        Scene((cq("q", 2, None),)),
        *(Step(Arrives("q", 3 + n % 7), 0.0) for n in range(60)),
        Arrives("q", 1, name="fits"),
    )
    assert history.running() == {"q-fits"}


def test_a_pending_gang_has_a_reason_and_starts_the_moment_the_reason_ends() -> None:
    """#2391: work that fits is not admitted for hours, and has no status."""
    simulation = Simulation(Scene((cq("q", 2, None),)))
    simulation.apply(Arrives("q", 2, name="1"))
    uid = simulation.apply(Arrives("q", 2, name="2"))
    simulation.wait(3600.0)
    (refused,) = simulation.history.cycles[-1].made.pending
    assert (refused.uid, [r.code for r in refused.reasons]) == (uid, ["WaitingForQuota"])
    simulation.apply(QuotaIs("q", 4))
    assert start(simulation.end(), uid) == 3600.0
