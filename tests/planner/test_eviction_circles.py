"""Evictions that could repeat endlessly: a victim of a borrower does not return and evict the borrower again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuectl.domain.queues import (
    BORROW_BACKOFF_MOST,
    ClusterQueue,
    Protection,
    ReclaimWithinCohort,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.planner import plan
from queuectl.planner.preempt.cost import RESTART_COST
from queuectl.planner.verify import verify
from queuectl.planner.verify.plan_index import PlanRule
from tests.planner.build import NOW
from tests.planner.histories import Simulation, simulate
from tests.planner.invariants import INVARIANTS
from tests.planner.queues import cohort, cq, gpus, quota_only, quotas, running
from tests.planner.story import Arrives, Ends, History, Scene, Step, Story

ANY, LOWER = ReclaimWithinCohort.ANY, ReclaimWithinCohort.LOWER_PRIORITY
WITHIN = WithinClusterQueue.LOWER_PRIORITY
FINAL = FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE
INITIAL = FairStrategy.LESS_THAN_INITIAL_SHARE
PROTECTIONS = pytest.mark.parametrize(
    "protection",
    [Protection(cooldown=0.0), Protection(cooldown=1800.0)],
    ids=["unprotected", "cool-down"],
)


def happens(
    queues: tuple[ClusterQueue, ...], *arrivals: Arrives, strategies: tuple[FairStrategy, ...] = ()
) -> History:
    steps = tuple(Step(arrival, 0.0) for arrival in arrivals)
    return simulate(Story(Scene(queues, (cohort("all"),), rules=Rules(strategies)), steps))


def complaints(history: History) -> set[str]:
    return {invariant.__name__ for invariant in INVARIANTS if list(invariant(history))}


@PROTECTIONS
def test_no_gang_is_evicted_for_a_borrower_from_which_lower_gangs_of_its_queue_would_reclaim(
    protection: Protection,
) -> None:
    """b-0 could leave for a-1, then evict b-2 and b-3 in its queue, and these, within b's quota, a-1."""
    queues = (
        cq("a", 2, reclaim_within_cohort=ANY, preempts_to_borrow=True),
        cq("b", 4, reclaim_within_cohort=ANY, within_cluster_queue=WITHIN, protection=protection),
    )
    history = happens(
        queues,
        Arrives("b", pods=3, priority=1),
        Arrives("a", 3, priority=2),
        Arrives("b"),
        Arrives("b"),
    )
    assert complaints(history) == set()
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("a-1", "b-2")]
    assert history.running() == {"b-0", "b-2", "b-3"}


@PROTECTIONS
@pytest.mark.parametrize("lending", [2, None])
@pytest.mark.parametrize("weight", [0, 500])
@pytest.mark.parametrize("strategies", [(INITIAL,), (FINAL, INITIAL)], ids=["initial", "both"])
def test_no_gang_is_evicted_by_an_initial_share_that_is_larger_only_before_its_exit(
    strategies: tuple[FairStrategy, ...], weight: int, lending: int | None, protection: Protection
) -> None:
    queues = (
        cq("a", 2, reclaim_within_cohort=ANY),
        cq(
            "b",
            quotas(4, lending=lending),
            reclaim_within_cohort=ANY,
            within_cluster_queue=WITHIN,
            weight=weight,
            protection=protection,
        ),
    )
    history = happens(
        queues,
        Arrives("b", pods=3, priority=3),
        Arrives("a", 3),
        Arrives("b"),
        Arrives("b"),
        strategies=strategies,
    )
    assert complaints(history) == set()
    assert len(history.preempted) <= 1


def small_and_large(reclaim: ReclaimWithinCohort) -> History:
    return happens(
        (cq("a", 4, reclaim_within_cohort=ANY), cq("b", 1, reclaim_within_cohort=reclaim)),
        Arrives("b", 1, name="small"),
        Arrives("b", 4, name="large"),
        Arrives("a", 5, name="all"),
        strategies=(FINAL, INITIAL),
    )


def test_a_small_gang_that_is_within_its_quota_without_the_large_one_is_not_evicted_with_it() -> (
    None
):
    history = small_and_large(ANY)
    assert complaints(history) == set()
    assert history.running() == {"b-small", "b-large"}


def test_where_it_may_reclaim_nothing_both_are_evicted() -> None:
    history = small_and_large(LOWER)
    assert complaints(history) == set()
    assert history.running() == {"a-all"}


def test_a_gang_that_would_return_does_not_protect_one_that_would_not() -> None:
    """b-high costs less and could take a-all's capacity again, for it reclaims from lower ones; b-low is equal but for that."""
    queues = (
        cq("a", 2, reclaim_within_cohort=ANY, victim_order=(VictimKey.LOST_WORK,)),
        cq("b", 1, reclaim_within_cohort=LOWER, within_cluster_queue=WITHIN),
        cq("bank", 3),
    )
    steps = (
        Step(Arrives("b", 2, name="low"), 1000.0),
        Step(Arrives("b", 2, name="high", priority=2), 10.0),
        Step(Arrives("a", 4, name="all", priority=1), 10.0),
    )
    history = simulate(Story(Scene(queues, (cohort("all"),), rules=Rules((INITIAL,))), steps))
    assert complaints(history) == set()
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("b-low", "a-all")]
    assert history.running() == {"b-high", "a-all"}


def test_a_third_queue_that_reclaims_from_higher_gangs_does_not_close_a_circle() -> None:
    """a-all could evict b's two; b-small would evict c-low, which then has the smaller share and evicts a-all in turn."""
    queues = (
        cq("a", 4, reclaim_within_cohort=LOWER),
        cq("b", 1, reclaim_within_cohort=LOWER),
        cq("c", 0, reclaim_within_cohort=ANY, weight=2000),
        cq("bank", 1),
    )
    history = happens(
        queues,
        Arrives("b", 1, name="small", priority=1),
        Arrives("b", 4, name="large", priority=1),
        Arrives("c", 1, name="low"),
        Arrives("a", 5, name="all", priority=4),
        strategies=(FINAL, INITIAL),
    )
    assert complaints(history) == set()
    assert history.preempted == []


# The verifier rejects the same in plans from elsewhere: here one made for a queue that must not reclaim.


def borrower(reclaim: ReclaimWithinCohort) -> Snapshot:
    """A borrower evicts b's large gang, to which the small one yields."""
    queues = (
        cq("a", 0, reclaim_within_cohort=ANY, preempts_to_borrow=True),
        cq("b", 3, reclaim_within_cohort=reclaim, within_cluster_queue=WITHIN),
        cq("bank", 1),
    )
    runs = [running("large", 3, "b", priority=1), running("small", 1, "b")]
    return quota_only(queues, [gpus("in", 2, "a", priority=2)], runs, cohorts=[cohort("all")])


def sharer(reclaim: ReclaimWithinCohort) -> Snapshot:
    """A gang evicts, by its initial share, for quota that b's small gang would reclaim within b's own."""
    queues = (
        cq("a", 4, reclaim_within_cohort=ANY),
        cq("b", 1, reclaim_within_cohort=reclaim),
    )
    runs = [running("small", 1, "b"), running("large", 4, "b")]
    rules = Rules((FINAL, INITIAL))
    return quota_only(queues, [gpus("in", 5, "a")], runs, cohorts=[cohort("all")], rules=rules)


@pytest.mark.parametrize(
    ("snapshots", "evicted", "why"),
    [
        (borrower, {"large"}, "['large'] could come back within their own"),
        (sharer, {"small", "large"}, "['small'] would come back with a smaller share"),
    ],
    ids=["classic", "shares"],
)
def test_a_plan_that_evicts_a_gang_that_would_return_is_rejected(
    snapshots: Callable[[ReclaimWithinCohort], Snapshot], evicted: set[str], why: str
) -> None:
    made = plan(snapshots(LOWER))
    assert {p.victim for p in made.preempted} == evicted
    assert verify(snapshots(LOWER), made) == ()
    found = [v.message for v in verify(snapshots(ANY), made) if v.rule is PlanRule.VICTIM]
    assert [text for text in found if why in text]


def test_a_victim_of_another_preemptor_yields_to_no_gang() -> None:
    """c's own gang evicts small first; without small, large borrows as before when it returns, so the borrower can evict it."""
    queues = (
        cq("a", 0, reclaim_within_cohort=ANY, preempts_to_borrow=True),
        cq("b", 2, reclaim_within_cohort=ANY, within_cluster_queue=WITHIN),
        cq("c", 1, reclaim_within_cohort=ANY),
        cq("bank", 1),
    )
    runs = [running("large", 3, "b", priority=1), running("small", 1, "b")]
    waits = [gpus("own", 1, "c", priority=5), gpus("in", 2, "a", priority=2)]
    snapshot = quota_only(queues, waits, runs, cohorts=[cohort("all")])
    made = plan(snapshot)
    assert {(p.victim, p.preemptor) for p in made.preempted} == {("small", "own"), ("large", "in")}
    assert verify(snapshot, made) == ()


def test_a_gang_that_starts_in_the_same_plan_already_counts_as_yielding() -> None:
    """small claims its lease first; b is over its quota then, but large would return, as small yields to it."""
    snapshot = borrower(ANY)
    (small,) = [a for a in snapshot.admitted if a.workload.uid == "small"]
    lease = CapacityLease(small.placement, ("gone",), NOW - 60, NOW + 60)
    snapshot = replace(
        snapshot,
        admitted=tuple(a for a in snapshot.admitted if a.workload.uid != "small"),
        pending=(Pending(small.workload, lease), *snapshot.pending),
    )
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [a.uid for a in made.admitted] == ["small"]
    assert made.preempted == ()


RECLAIMS_FOR: Final = 300.0  # seconds
RESTART: Final = RESTART_COST / 8  # the same, of the 8 GPUs of the borrower


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.tuples(st.floats(2.0, 60.0), st.floats(2.0, 60.0)), min_size=1, max_size=4),
    st.sampled_from((0.0, 30.0)),
)
@example([(2.0, 2.0)], 0.0)
def test_a_borrower_is_not_started_and_reclaimed_in_a_loop_however_often_owners_come(
    rounds: list[tuple[float, float]], patience: float
) -> None:
    """An owner that needs all GPUs comes again and again.

    Each reclaim of the borrower keeps it from borrowing for longer than one before it with the same loss. So n reclaims take at least
    1 + 2 + ... + (n - 1) times as long as a restart.
    """
    owner = cq("a", 8, "all", reclaim_within_cohort=ANY, reclaim_patience=patience)
    simulation = Simulation(Scene((owner, cq("b", 0, "all")), (cohort("all"),)))
    began = simulation.now
    simulation.apply(Arrives("b", 8, name="borrower"))
    for absent, runs in cycle(rounds):
        if simulation.now > began + RECLAIMS_FOR:
            break
        simulation.wait(absent)
        uid = simulation.apply(Arrives("a", 8))
        simulation.wait(patience + runs)
        simulation.apply(Ends(uid))
    reclaims = [e for e in simulation.history.preempted if e.uid == "b-borrower"]
    starts = [s.at for s in simulation.history.started if s.uid == "b-borrower"]
    for number, (evicted, start) in enumerate(zip(reclaims, starts[1:], strict=False)):
        lost = evicted.at - evicted.ran_since + RESTART
        assert start - evicted.at >= min(BORROW_BACKOFF_MOST, (1 + number) * lost) - 1.0
    assert RESTART * sum(range(len(reclaims))) <= simulation.now - began
