"""Invariants of queueing over random histories: arrivals, slow evictions, lost nodes, changed quotas, stopped queues.

``QUEUECTL_HISTORIES=<number>`` simulates that many; without it a few. tests/conftest.py selects them.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    IdleReclaim,
    Protection,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules, UsageFairness
from tests.planner import invariants
from tests.planner.build import NOW
from tests.planner.generate_histories import stories
from tests.planner.histories import simulate
from tests.planner.invariants import INVARIANTS
from tests.planner.queues import cohort, cq, quotas
from tests.planner.story import (
    USER,
    Arrives,
    Ends,
    History,
    Idles,
    QuotaIs,
    Scene,
    Started,
    Step,
    Story,
)
from tests.support.examples import examples

HISTORIES = settings(
    max_examples=int(os.environ.get("QUEUECTL_HISTORIES", examples(60))),
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
LOWER, ANY = WithinClusterQueue.LOWER_PRIORITY, ReclaimWithinCohort.ANY


@HISTORIES
@given(story=stories())
def test_every_history_keeps_the_invariants(story: Story) -> None:
    """The simulation also asserts: every plan verifies, every ledger entry is consistent, and cycles reach a fixed point."""
    history = simulate(story)
    broken = {
        invariant.__name__: found for invariant in INVARIANTS if (found := list(invariant(history)))
    }
    assert not broken, f"{broken}\n{history.story()}"


# Defects that the histories found, each in its smallest form.


def test_a_victim_leaves_when_its_protection_ends_without_another_event() -> None:
    queue = cq("a", 1, None, within_cluster_queue=LOWER, protection=Protection(min_runtime=600.0))
    steps = (Step(Arrives("a", 1, name="low")), Step(Arrives("a", 1, priority=1, name="high")))
    assert simulate(Story(Scene((queue,)), steps)).running() == {"a-high"}


def test_capacity_freed_by_two_victims_is_kept_although_a_third_leaves_much_later() -> None:
    """After a second b-in starts: a-0 does not take its capacity back in the meantime, as b-in would then have to wait for c-slow."""
    queues = (
        cq("a", 4),
        cq("b", 4, reclaim_within_cohort=ReclaimWithinCohort.LOWER_PRIORITY),
        cq("c", 4, within_cluster_queue=LOWER),
    )
    steps = (
        Step(Arrives("a", 1, name="0"), 0.0),
        Step(Arrives("a", 1, drain=1.0, name="1")),
        Step(Arrives("c", 2, pods=2, drain=900.0, name="slow"), 0.0),
        Step(QuotaIs("a", 0), 0.0),
        Step(Arrives("b", 2, pods=2, priority=1, name="in"), 0.0),
        Step(Arrives("c", 1, priority=1, name="in")),
    )
    history = simulate(Story(Scene(queues, (cohort("all"),)), steps))
    began = {s.uid: s.at - NOW for s in history.started}
    assert began["b-in"] <= 2.0


def test_use_of_others_beyond_their_quota_counts_against_quota_that_is_not_lent() -> None:
    """As in Kueue, which adds a cohort's negative remainder to the quota that a queue keeps: the gang waits until the use ends."""
    queues = (cq("a", 4), cq("b", quotas(2, lending=0)))
    steps = (
        Step(Arrives("a", 4, name="1")),
        Step(QuotaIs("a", 0)),
        Step(Arrives("b", 2, name="1")),
    )
    history = simulate(Story(Scene(queues, (cohort("all"),)), steps))
    assert history.running() == {"a-1"}


def test_a_notice_longer_than_a_lease_does_not_cost_the_preemptor_its_capacity() -> None:
    """The higher gang arrives when the lower one is leaving already, and can only wait: the capacity is reserved for another."""
    queue = cq("a", 2, None, within_cluster_queue=LOWER)
    steps = (
        Step(Arrives("a", 2, name="low")),
        Step(Arrives("a", 2, priority=1, name="top"), 0.0),
        Step(Arrives("a", 2, priority=2, name="higher")),
    )
    history = simulate(Story(Scene((queue,), rules=Rules(eviction_grace=1800.0)), steps))
    began = {s.uid: s.at for s in reversed(history.started)}
    first = history.preempted[0]
    assert (first.uid, first.preemptor) == ("a-low", "a-top")
    assert began["a-top"] == first.at + 1800.0


def test_an_idle_gang_of_a_strict_queue_is_not_evicted_for_one_that_then_waits_behind_it() -> None:
    rule = IdleReclaim(ReclaimMode.ON_DEMAND, grace=60.0, cooldown=0.0, to_equal=True)
    queue = replace(cq("a", 1), strategy=QueueingStrategy.STRICT_FIFO, idle_reclaim=rule)
    steps = (
        Step(Arrives("a", 1, name="old")),
        Step(Idles()),
        Step(Arrives("a", 1, name="new"), 2000.0),
    )
    assert complaints(simulate(Story(Scene((queue,)), steps))) == set()


def test_an_idle_gang_is_evicted_for_a_higher_one_once_its_grace_is_over() -> None:
    queue = replace(cq("a", 1), idle_reclaim=IdleReclaim(ReclaimMode.ON_DEMAND, grace=60.0))
    steps = (
        Step(Arrives("a", 1, name="old")),
        Step(Idles()),
        Step(Arrives("a", 1, priority=1, name="new"), 2000.0),
    )
    history = simulate(Story(Scene((queue,)), steps))
    assert complaints(history) == set()
    (gone,) = history.idle_ones
    assert (gone.uid, gone.preemptor, gone.at) == ("a-old", "a-new", NOW + 61.0)
    history.outside = [o for o in history.outside if not isinstance(o.event, Idles)]
    assert complaints(history) == {"only_idle_gangs_are_evicted_for_idleness"}


def test_a_lease_ends_for_one_that_comes_before_it_in_a_strict_queue_and_starts_on_it_at_once() -> (
    None
):
    """Only a second cycle found that it fits, and nothing triggered one."""
    strict = QueueingStrategy.STRICT_FIFO
    queue = cq("a", 4, None, strategy=strict, within_cluster_queue=LOWER)
    steps = (
        Step(Arrives("a", 3, drain=900.0, name="low")),
        Step(Arrives("a", 4, priority=1, name="mid"), 10.0),
        Step(Arrives("a", 1, priority=2, name="high")),
    )
    history = simulate(Story(Scene((queue,)), steps))
    assert complaints(history) == set()
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("a-low", "a-mid")]
    assert [s.at - NOW for s in history.started if s.uid == "a-high"] == [11.0]


def test_an_evicted_idle_gang_starts_again_before_gangs_that_wait_for_others_in_its_strict_queue() -> (
    None
):
    """b-old is evicted for a-new, and both would fit without b-next's reservation of the capacity that c-slow frees."""
    rule = IdleReclaim(ReclaimMode.ON_DEMAND, grace=60.0, cooldown=0.0, to_equal=True)
    teams = (
        cq("a", 3),
        cq("b", 2, reclaim_within_cohort=ANY, strategy=QueueingStrategy.STRICT_FIFO),
        cq("c", quotas(5, borrowing=0)),
    )
    queues = tuple(replace(team, idle_reclaim=rule) for team in teams)
    steps = (
        Step(Arrives("a", 2, name="runs"), 0.0),
        Step(Arrives("b", 2, name="old"), 0.0),
        Step(Arrives("c", 2, name="runs"), 0.0),
        Step(Arrives("c", 3, drain=900.0, name="slow"), 0.0),
        Step(Idles("b-old"), 0.0),
        Step(Idles("c-slow"), 0.0),
        Step(Arrives("c", 2, name="next"), 70.0),
        Step(Arrives("b", 3, name="next"), 0.0),
        Step(Arrives("a", 1, name="new")),
    )
    history = simulate(Story(Scene(queues, (cohort("all", 1),)), steps))
    assert complaints(history) == set()
    gone = [(e.uid, e.preemptor, e.at - NOW) for e in history.preempted]
    assert gone == [("c-slow", "c-next", 60.0), ("b-old", "a-new", 70.0)]
    began = {s.uid: s.at - NOW for s in history.started}
    assert began["a-new"] == began["b-old"] == 70.0


def test_a_gang_of_unknown_length_waits_behind_an_earlier_one_of_its_backfill_queue() -> None:
    """Users are known, and their past use does not count in the queue."""
    queue = replace(cq("a", 2), strategy=QueueingStrategy.BACKFILL)
    steps = (Step(Arrives("a", 1)), Step(Arrives("a", 2)), Step(Arrives("a", 1)))
    rules = Rules(usage_fairness=UsageFairness(user_label=USER))
    history = simulate(Story(Scene((queue,), rules=rules), steps))
    assert history.running() == {"a-0"}
    assert complaints(history) == set()


def test_a_smaller_gang_starts_before_one_that_needs_the_quota_kept_for_a_strict_queue() -> None:
    """A head of a StrictFIFO queue keeps the unused quota of its queue. b-5 would borrow it, and b-3 does not."""
    lower = ReclaimWithinCohort.LOWER_PRIORITY
    strict = QueueingStrategy.STRICT_FIFO
    teams = (
        cq("a", quotas(1, lending=1), "top", strategy=strict, reclaim_within_cohort=lower),
        cq("b", quotas(2, lending=0), "top", reclaim_within_cohort=lower),
    )
    steps = (
        Step(Arrives("a", 2, drain=900.0), 0.0),
        Step(Arrives("b", pods=2, priority=1, drain=60.0)),
        Step(Arrives("b", priority=1, drain=900.0), 700.0),
        Step(Arrives("b", priority=1), 0.0),
        Step(Arrives("a", 3), 30.0),
        Step(Arrives("b", 2, priority=2)),
        Step(Ends(which=0), 30.0),
    )
    rules = Rules(fair_sharing=(FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE, FairStrategy.LESS_THAN_INITIAL_SHARE))  # fmt: skip
    history = simulate(Story(Scene(teams, (cohort("top", 2),), rules=rules), steps))
    assert history.running() & {"b-3", "b-5"} == {"b-3"}
    assert complaints(history) == set()


def test_an_elastic_job_loses_its_highest_rank_and_grows_again() -> None:
    queue = cq("a", quotas(4), "all", within_cluster_queue=LOWER)
    steps = (
        Step(Arrives("a", pods=4, least=2, name="train"), 60.0),
        Step(Arrives("a", priority=3, name="high"), 60.0),
        Step(Ends("a-high"), 60.0),
    )
    history = simulate(Story(Scene((queue,), (cohort("all"),)), steps))
    assert complaints(history) == set()
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("a-train.003", "a-high")]
    ranks = ["a-train", "a-train.002", "a-train.003"]
    assert [s.uid for s in history.started] == [*ranks, "a-high", "a-train.003"]
    assert history.running() == {*ranks}


# Tests of the invariants themselves: each detects a history that was tampered with.


def eviction(strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO) -> History:
    """b-low runs on quota of b and a; a-top reclaims the quota of a."""
    rules = {"strategy": strategy, "within_cluster_queue": LOWER, "reclaim_within_cohort": ANY}
    a, b = (cq(name, 2, **rules) for name in "ab")
    steps = [Step(Arrives("b", 3, name="low", drain=5.0)), Step(Arrives("a", 2, name="top"), 50.0)]
    return simulate(Story(Scene((a, b), (cohort("all"),)), tuple(steps)))


def complaints(history: History) -> set[str]:
    return {invariant.__name__ for invariant in INVARIANTS if list(invariant(history))}


def test_an_untouched_history_keeps_all_invariants() -> None:
    history = eviction()
    assert [(e.uid, e.preemptor) for e in history.preempted] == [("b-low", "a-top")]
    assert complaints(history) == set()


def test_a_preemptor_that_never_starts_is_detected() -> None:
    history = eviction()
    history.started = [s for s in history.started if s.uid != "a-top"]
    assert complaints(history) == {"no_preemption_without_a_start"}


def test_a_preemptor_that_starts_too_late_is_detected() -> None:
    history = eviction()
    late = Started(NOW + 10_000.0, "a-top")
    history.started = [late if s.uid == "a-top" else s for s in history.started]
    assert complaints(history) == {"no_preemption_without_a_start"}


def test_two_gangs_that_evict_each_other_are_detected() -> None:
    history = eviction()
    (first,) = history.preempted
    history.evicted.append(replace(first, uid=first.preemptor, preemptor="b-third"))
    history.evicted.append(replace(first, uid="b-third", preemptor=first.uid))
    assert "no_victim_evicts_its_preemptor" in {
        invariant.__name__
        for invariant in (invariants.no_victim_evicts_its_preemptor,)
        if list(invariant(history))
    }


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        (Protection(max_evictions_per_day=2), (10.0, 20.0, 86_000.0)),
        (Protection(cooldown=100.0), (10.0, 20.0)),
        (Protection(min_runtime=30.0), (20.0,)),
    ],
    ids=["day", "cool-down", "runtime"],
)
def test_a_broken_protection_is_detected(policy: Protection, times: tuple[float, ...]) -> None:
    history = eviction()
    (first,) = history.preempted
    history.evicted = [replace(first, at=NOW + at, ran_since=NOW) for at in times]
    assert not list(invariants.protections_hold(history))
    queues = tuple(replace(q, protection=policy) for q in history.scene.queues)
    history.scene = replace(history.scene, queues=queues)
    assert list(invariants.protections_hold(history))


def test_an_eviction_from_a_queue_within_its_own_quota_is_detected() -> None:
    history = eviction()
    (cycle,) = [c for c in history.cycles if c.made.preempted]
    config = cycle.snapshot.config
    generous = replace(config.cluster_queues["b"], groups=cq("b", 3).groups)
    config = replace(config, cluster_queues={**config.cluster_queues, "b": generous})
    history.cycles = [replace(cycle, snapshot=replace(cycle.snapshot, config=config))]
    assert list(invariants.own_quota_is_kept(history))


@pytest.mark.parametrize("strategy", QueueingStrategy)
def test_a_passed_gang_is_detected(strategy: QueueingStrategy) -> None:
    """The plan of two gangs of one queue, with the wrong one started."""
    queue = replace(cq("a", 2), strategy=strategy)
    steps = [Step(Arrives("a", 1, name="first"), 0.0), Step(Arrives("a", 2, name="second"), 0.0)]
    history = simulate(Story(Scene((queue,)), tuple(steps)))
    (cycle,) = [c for c in history.cycles if c.made.admitted]
    snapshot = history.last
    assert snapshot is not None
    waiting = replace(snapshot, admitted=(), pending=(cycle.snapshot.pending + snapshot.pending))
    (start,) = cycle.made.admitted
    wrong = replace(
        cycle.made,
        admitted=(replace(start, uid="a-second"),),
        pending=(invariants._not_now("a-first"),),
    )
    history.cycles = [replace(cycle, snapshot=waiting, made=wrong)]
    assert list(invariants.no_gang_is_passed(history))


@pytest.mark.parametrize("strategy", QueueingStrategy)
def test_a_pending_gang_that_could_run_is_detected(strategy: QueueingStrategy) -> None:
    history = eviction(strategy)
    assert history.last is not None
    idle = tuple(a for a in history.last.admitted if a.workload.uid != "a-top")
    history.last = replace(history.last, admitted=idle)
    assert list(invariants.no_work_is_left(history))


def test_use_beyond_the_quota_is_detected() -> None:
    history = eviction()
    cycle = next(c for c in history.cycles if c.made.admitted)
    config = cycle.snapshot.config
    poor = {n: replace(q, groups=cq(n, quotas(1)).groups) for n, q in config.cluster_queues.items()}
    config = replace(config, cluster_queues=poor)
    history.cycles = [replace(cycle, snapshot=replace(cycle.snapshot, config=config))]
    assert list(invariants.whole_and_never_over(history))


def test_a_user_over_the_cap_is_detected() -> None:
    rules = Rules(usage_fairness=UsageFairness(user_label=USER))
    queue = replace(cq("a", 4), max_per_user=((GPU, 2),))
    steps = tuple(Step(Arrives("a", 2, user="ann", name=name)) for name in ("first", "second"))
    history = simulate(Story(Scene((queue,), rules=rules), steps))
    assert history.running() == {"a-first"}
    assert complaints(history) == set()
    tight = replace(queue, max_per_user=((GPU, 1),))
    cycle = next(c for c in history.cycles if c.made.admitted)
    config = replace(cycle.snapshot.config, cluster_queues={"a": tight})
    history.cycles = [replace(cycle, snapshot=replace(cycle.snapshot, config=config))]
    assert list(invariants.no_user_exceeds_the_cap(history))
