"""A gang that was evicted for others does not borrow again before a back-off ends; it can use the quota of its own queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queuectl.domain.plan import Admission, Plan
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Duration, Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose, diagnose_those
from queuectl.planner.preempt.protections import next_change
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.histories import Simulation
from tests.planner.queues import cohort, cq
from tests.planner.story import Arrives, Ends, Scene

NODES = [node(f"n{i}", gpu=8) for i in range(4)]
LATER = NOW + 90
AT = "1970-01-12T13:48:10Z"  # LATER


def team(name: str, gpus: int, **options: Any) -> ClusterQueue:
    made = replace(queue(name, gpu=gpus), cohort="all", reclaim_patience=0.0)
    return replace(made, reclaim_within_cohort=ReclaimWithinCohort.ANY, **options)


def asking(name: str, pods: int, at: float = 0.0, queue: str = "a") -> Workload:
    return gang(name, podset(gpu=8, count=pods), queued_at=at, queue=queue)


def shared(
    *pending: Pending | Workload, running: tuple[Admitted, ...] = (), own: int = 16, **options: Any
) -> Snapshot:
    """Queue ``a`` owns 16 of the 32 GPUs and ``b`` the rest."""
    return world(NODES, pending, running, team("a", own, **options), team("b", 32 - own))


def decided(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def started(snapshot: Snapshot) -> list[str]:
    return sorted(a.uid for a in decided(snapshot).admitted)


HOLDS = holding(asking("holds", 1), {"n0": 1})


@pytest.mark.parametrize(
    ("pods", "running", "until", "starts"),
    [
        pytest.param(2, (), LATER, True, id="within nominal quota it starts"),
        pytest.param(3, (), LATER, False, id="it does not borrow"),
        pytest.param(2, (HOLDS,), LATER, False, id="nor alongside what runs in its queue"),
        pytest.param(1, (HOLDS,), LATER, True, id="what is left of nominal quota is free for it"),
        pytest.param(3, (), NOW, True, id="once the back-off is over it borrows"),
        pytest.param(4, (), NOW - 1, True, id="though it is larger than the nominal quota"),
        pytest.param(4, (), None, True, id="one that was not evicted borrows at once"),
    ],
)
def test_the_back_off_bars_borrowing_only(
    pods: int, running: tuple[Admitted, ...], until: float | None, starts: bool
) -> None:
    snapshot = shared(Pending(asking("g", pods), borrows_at=until), running=running)
    assert started(snapshot) == (["g"] if starts else [])


def test_without_a_cohort_there_is_nothing_to_borrow_and_the_reason_names_quota_alone() -> None:
    alone = world(NODES, [Pending(asking("g", 3), borrows_at=LATER)], [], queue("a", gpu=16))
    assert decided(alone).pending[0].reasons[0].code is Code.EXCEEDS_MAX_QUOTA


def test_the_reason_and_the_explanation_state_when_it_may_borrow() -> None:
    snapshot = shared(Pending(asking("g", 3), borrows_at=LATER))
    made = decided(snapshot)
    (reason,) = made.pending[0].reasons
    assert reason.code is Code.WAITING_FOR_QUOTA
    assert f"no borrowing before {AT} because it was evicted" in reason.message
    assert reason.details["quota"][0]["borrowsAt"] == AT
    (obstacle,) = diagnose(snapshot, "g", None, made).conflict
    assert f"no borrowing before {AT}" in obstacle.message
    assert obstacle.details["borrowsAt"] == AT


def test_a_suggested_fix_for_an_equal_gang_that_may_borrow_does_not_depend_on_it() -> None:
    """Without borrowing, two gangs of its queue have to end; with it, one."""
    running = [holding(asking(f"h{i}", 1), {f"n{i}": 1}) for i in range(3)]
    running.append(holding(asking("other", 1, queue="b"), {"n3": 1}))
    evicted = Pending(asking("g", 1, 1.0), borrows_at=LATER)
    snapshot = shared(evicted, asking("k", 1, 2.0), running=tuple(running))
    ended = {
        diagnosis.uid: [
            len(w.details["gangs"]) for w in diagnosis.suggested_fixes if "end" in w.message
        ]
        for diagnosis in diagnose_those(snapshot, frozenset("gk"))
    }
    assert ended == {"g": [2], "k": [1]}


def test_later_gangs_of_its_queue_pass_it_as_they_pass_one_without_quota() -> None:
    first, later = asking("first", 3, 1.0), asking("later", 3, 2.0)
    assert started(shared(Pending(first, borrows_at=LATER), later)) == ["later"]
    strict = shared(Pending(first, borrows_at=LATER), later, strategy=QueueingStrategy.STRICT_FIFO)
    assert started(strict) == []


@pytest.mark.parametrize(("seconds", "starts"), [(30.0, ["later"]), (600.0, [])])
def test_a_later_gang_leaves_it_the_nominal_quota_of_its_planned_start(
    seconds: float, starts: list[str]
) -> None:
    holds = replace(HOLDS, ends_at=NOW + 60, end_enforced=True)
    waits = replace(asking("first", 2, 1.0), duration=Duration(600.0, enforced=True))
    later = replace(asking("later", 1, 2.0), duration=Duration(seconds, enforced=True))
    snapshot = shared(
        Pending(waits, borrows_at=LATER),
        later,
        running=(holds,),
        strategy=QueueingStrategy.BACKFILL,
        backfill=Backfill(1, BackfillOrder.QUEUE, 0.0),
    )
    made = decided(snapshot)
    assert [a.uid for a in made.admitted] == starts
    assert [(p.uid, p.start.at) for p in made.planned] == [("first", NOW + 60)]


def test_it_keeps_its_place_before_equal_gangs() -> None:
    first, later = asking("first", 2, 1.0), asking("later", 2, 2.0)
    snapshot = shared(Pending(first, borrows_at=LATER), Pending(later, borrows_at=LATER + 1))
    assert started(snapshot) == ["first"]


def test_it_takes_back_what_its_queue_lent() -> None:
    borrower = holding(asking("borrower", 4, queue="b"), {n.name: 1 for n in NODES})
    made = decided(shared(Pending(asking("g", 2), borrows_at=LATER), running=(borrower,)))
    assert [p.victim for p in made.preempted] == ["borrower"]
    made = decided(shared(Pending(asking("g", 3), borrows_at=LATER), running=(borrower,)))
    assert made.preempted == ()


def test_a_plan_is_due_when_the_first_back_off_ends() -> None:
    both = [Pending(asking(n, 3), borrows_at=at) for n, at in (("g", LATER), ("h", LATER + 1))]
    assert next_change(shared(*both)) == LATER
    assert next_change(replace(shared(*both), now=LATER)) == LATER + 1
    assert next_change(replace(shared(*both), now=LATER + 1)) is None


def test_a_gang_refuted_for_it_is_searched_again_when_its_back_off_ends() -> None:
    snapshot = shared(Pending(asking("g", 3), borrows_at=LATER))
    assert started(snapshot) == []
    assert started(replace(snapshot, now=LATER - 1)) == []
    assert started(replace(snapshot, now=LATER)) == ["g"]


def test_the_verifier_computes_the_back_off_by_itself() -> None:
    early = asking("g", 3)
    where = placed(early, {"n0": 1, "n1": 1, "n2": 1})
    for until, rules in ((None, []), (NOW, []), (LATER, [PlanRule.QUOTA])):
        snapshot = shared(Pending(early, borrows_at=until))
        forged = replace(plan(snapshot), admitted=(Admission("g", where),), pending=())
        assert [v.rule for v in verify(snapshot, forged)] == rules


@pytest.mark.parametrize(
    ("lost", "evicted", "waits"),
    [(30.0, 0, 30.0), (30.0, 1, 60.0), (30.0, 4, 150.0), (300.0, 4, 600.0), (0.0, 9, 0.0)],
)
def test_its_back_off_grows_with_its_lost_work_and_its_earlier_evictions(
    lost: float, evicted: int, waits: float
) -> None:
    assert team("b", 0).pause_before_borrowing(lost, evicted) == waits


@pytest.mark.parametrize(
    ("most", "waits"), [(600.0, 37.5), (20.0, 20.0), (0.0, 0.0)], ids=["grows", "capped", "off"]
)
def test_its_back_off_is_its_loss_with_the_restart_counted_from_its_eviction(
    most: float, waits: float
) -> None:
    """It runs for 30 s on 8 borrowed GPUs; the owner reclaims them, and ends 10 s later. A restart costs 7.5 s of 8 GPUs."""
    owner = cq("a", 8, "all", reclaim_within_cohort=ReclaimWithinCohort.ANY)
    borrower = cq("b", 0, "all", borrow_backoff=most)
    simulation = Simulation(Scene((owner, borrower), (cohort("all"),)))
    for step, then in ((Arrives("b", 8, name="1"), 30.0), (Arrives("a", 8, name="1"), 10.0)):
        simulation.apply(step)
        simulation.wait(then)
    simulation.apply(Ends("a-1"))
    simulation.wait(300.0)
    history = simulation.end()
    (evicted,) = history.preempted
    starts = [s.at for s in history.started if s.uid == "b-1"]
    earliest = evicted.at + waits
    owner_done = next(s.at for s in history.started if s.uid == "a-1") + 10.0
    # It takes a few seconds until pods have left.
    assert max(earliest, owner_done - 5.0) <= starts[1] <= max(earliest, owner_done) + 5.0
