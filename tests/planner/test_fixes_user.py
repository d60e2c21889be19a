"""A gang whose user has reached the cap: the user's gangs are listed, and each suggested fix makes the planner start it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.diagnosis import (
    Diagnosis,
    FewerPods,
    Leave,
    Limit,
    RaiseUserCap,
    Remedy,
    SuggestedChange,
    SuggestedFix,
    apply_all,
)
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import QueueingStrategy, WithinClusterQueue
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.explain import diagnose, diagnose_those
from tests.planner.build import gang, holding, node, podset, queue, world
from tests.planner.relaxed import helped, starts

NODES = [node(f"n{i}", gpu=8) for i in range(4)]


def of(
    user: str, name: str, gpus: int, at: float = 0.0, pods: int = 1, priority: int = 0
) -> Workload:
    asked = podset(count=pods, gpu=gpus)
    return replace(gang(name, asked, queued_at=at, priority=priority), user=user)


def runs(
    user: str, name: str, gpus: int, on: str, *, at: float = 100.0, leaving: bool = False
) -> Admitted:
    return replace(holding(of(user, name, gpus), {on: 1}, leaving=leaving), started_at=at)


def capped(most: int, pending: list[Pending | Workload], running: list[Admitted]) -> Snapshot:
    main = replace(queue(), max_per_user=((GPU, most),))
    return world(NODES, pending, running, main)


def way(diagnosis: Diagnosis, remedy: Remedy) -> SuggestedFix:
    (found,) = [one for one in diagnosis.suggested_fixes if one.remedy is remedy]
    return found


def remedies(diagnosis: Diagnosis) -> list[Remedy]:
    return [one.remedy for one in diagnosis.suggested_fixes]


RUNNING = [runs("ann", "old", 6, "n0", at=100.0), runs("ann", "new", 2, "n1", at=200.0)]
OTHER_USER = runs("ben", "other", 8, "n2")


def test_the_running_gangs_of_the_user_are_listed_the_oldest_first() -> None:
    diagnosis = diagnose(capped(9, [of("ann", "a", 4)], [*RUNNING, OTHER_USER]), "a")
    (obstacle,) = diagnosis.conflict
    assert obstacle.limit is Limit.USER
    assert obstacle.message == (
        "user: ann may hold at most 9 nvidia.com/gpu in ClusterQueue main and holds 8; this gang requests 4;"
        " running gangs: team/old (6, since 1970-01-01T00:01:40Z), team/new (2, since 1970-01-01T00:03:20Z)"
    )
    assert obstacle.details["over"] == [{"resource": GPU, "most": 9, "held": 8, "needed": 4}]
    assert [one["workload"] for one in obstacle.details["gangs"]] == ["team/old", "team/new"]


def test_the_required_cap_is_exact() -> None:
    raised = way(diagnose(capped(9, [of("ann", "a", 4)], RUNNING), "a"), Remedy.RAISE_USER_CAP)
    assert raised.changes == (RaiseUserCap("main", GPU, 12),)
    assert raised.least
    assert raised.message == ("raise maxPerUser of ClusterQueue main to 12 nvidia.com/gpu (3 more)")
    assert (raised.details["maxPerUser"], raised.details["now"]) == ({GPU: 12}, {GPU: 9})


@pytest.mark.parametrize(
    ("most", "needs", "ending"),
    [
        pytest.param(9, 2, ("new",), id="the smallest that is enough"),
        pytest.param(9, 4, ("old",), id="as few as possible"),
        pytest.param(8, 8, ("old", "new"), id="all of them"),
    ],
)
def test_the_gangs_of_the_user_whose_end_lets_it_start_are_named(
    most: int, needs: int, ending: tuple[str, ...]
) -> None:
    diagnosis = diagnose(capped(most, [of("ann", "a", needs)], [*RUNNING, OTHER_USER]), "a")
    ended = way(diagnosis, Remedy.END_OTHERS)
    assert set(ended.changes[0].uids) == set(ending)  # type: ignore[attr-defined]
    assert ended.least


def test_it_waits_for_gangs_that_leave_anyway() -> None:
    leaving = replace(RUNNING[0], leaving=True)
    diagnosis = diagnose(capped(9, [of("ann", "a", 4)], [leaving, RUNNING[1]]), "a")
    waited = way(diagnosis, Remedy.WAIT)
    assert waited.changes == (Leave(("old",)),)
    assert waited.message == "wait until team/old has stopped"


def test_fewer_pods_are_offered_up_to_the_cap() -> None:
    diagnosis = diagnose(capped(11, [of("ann", "a", 1, pods=6)], RUNNING), "a")
    assert way(diagnosis, Remedy.FEWER_PODS).changes == (FewerPods("a", "w", 3),)


def test_only_a_higher_cap_helps_a_gang_larger_than_the_cap() -> None:
    diagnosis = diagnose(capped(3, [of("ann", "a", 4)], []), "a")
    assert remedies(diagnosis) == [Remedy.RAISE_USER_CAP]
    assert diagnosis.conflict[0].message == (
        "user: ann may hold at most 3 nvidia.com/gpu in ClusterQueue main and holds 0; this gang requests 4"
    )


def test_earlier_pending_gangs_of_the_user_are_counted() -> None:
    pending: list[Pending | Workload] = [of("ann", "a", 4, 1.0), of("ann", "b", 5, 2.0)]
    raised = way(diagnose(capped(8, pending, RUNNING), "b"), Remedy.RAISE_USER_CAP)
    assert raised.changes == (RaiseUserCap("main", GPU, 17),)
    assert not raised.least


@pytest.mark.parametrize(
    ("most", "own", "offered"), [(None, None, True), (0, None, False), (None, 5, False)]
)
def test_a_higher_priority_is_offered_only_if_the_gang_can_have_it(
    most: int | None, own: int | None, offered: bool
) -> None:
    """Not above ``maxPriority`` of the queue, and not while a spent Budget lowers each priority."""
    first, last = of("ben", "first", 8), of("ann", "last", 8, at=1.0)
    waiting: list[Pending | Workload] = [first, Pending(last, own_priority=own)]
    rule = replace(queue(), max_priority=most)
    snapshot = world(NODES[:1], waiting, [], rule)
    found = diagnose(snapshot, "last")
    assert found is not None
    assert (Remedy.RAISE_PRIORITY in remedies(found)) is offered


def test_without_capacity_no_higher_cap_is_offered() -> None:
    full = [runs("ben", f"r{i}", 8, f"n{i}") for i in range(4)]
    snapshot = capped(3, [of("ann", "a", 4)], full)
    assert remedies(diagnose(snapshot, "a")) == []


def test_a_reservation_with_evictions_counts_as_a_start() -> None:
    full = [runs("ben", f"r{i}", 8, f"n{i}") for i in range(4)]
    main = replace(queue(within=WithinClusterQueue.LOWER_PRIORITY), max_per_user=((GPU, 3),))
    snapshot = world(NODES, [of("ann", "a", 4, priority=5)], full, main)
    raised = way(diagnose(snapshot, "a"), Remedy.RAISE_USER_CAP)
    assert helped(apply_all(raised.changes, snapshot), "a")


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    users = st.sampled_from(["ann", "ann", "ben"])
    running = [
        runs(draw(users), f"r{i}", draw(st.integers(1, 8)), f"n{i}", leaving=draw(st.booleans()))
        for i in range(draw(st.integers(0, 4)))
    ]
    pending: list[Pending | Workload] = [
        of(draw(users), f"w{i}", draw(st.integers(1, 5)), float(i), draw(st.integers(1, 3)))
        for i in range(draw(st.integers(1, 4)))
    ]
    strategy = draw(st.sampled_from(list(QueueingStrategy)))
    main = queue(strategy=strategy, gpu=draw(st.sampled_from([12, 40])))
    main = replace(main, max_per_user=((GPU, draw(st.integers(0, 12))),))
    return world(NODES, pending, running, main)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_every_suggested_fix_makes_the_planner_start_the_gang_and_a_least_one_cannot_be_smaller(
    snapshot: Snapshot,
) -> None:
    blocked = {r.uid for r in plan(snapshot).pending if r.reasons[0].code is Code.MAX_PER_USER}
    for diagnosis in diagnose_those(snapshot, frozenset(blocked)):
        assert [obstacle.limit for obstacle in diagnosis.conflict] == [Limit.USER]
        for one in diagnosis.suggested_fixes:
            assert helped(apply_all(one.changes, snapshot), diagnosis.uid), one
            for less in smaller(one) if one.least else ():
                assert not starts(apply_all(less, snapshot), diagnosis.uid), (one, less)


def smaller(one: SuggestedFix) -> Iterator[list[SuggestedChange]]:
    for change in one.changes:
        match change:
            case RaiseUserCap():
                yield [replace(change, most=change.most - 1)]
            case FewerPods():
                yield [replace(change, count=change.count + 1)]
            case Leave():
                for uid in change.uids:
                    yield [replace(change, uids=tuple(u for u in change.uids if u != uid))]
