"""A refuted gang is searched again only after a relevant change, and plans are the same for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Plan
from queuectl.domain.queues import Protection, QueueingStrategy, WithinClusterQueue
from queuectl.domain.reasons import Code
from queuectl.domain.reservations import AdvanceReservation, Occurrence, ReservedCapacity
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.search.flavor_choice import FlavorChooser
from tests.planner.build import NOW, gang, holding, node, podset, queue, resources, world
from tests.planner.generate_features import Sizes, snapshot_of
from tests.planner.queues import cq, gpus, quota_only, running
from tests.support.examples import examples


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Uids of the gangs that were searched for, in order."""
    uids: list[str] = []
    choose = FlavorChooser.choose

    def counted(self: FlavorChooser, pending: Pending, *rest: Any) -> Any:
        uids.append(pending.workload.uid)
        return choose(self, pending, *rest)

    monkeypatch.setattr(FlavorChooser, "choose", counted)
    return uids


def two_trees(**rest: Any) -> Snapshot:
    """Two cohorts, each full, and in each a pending gang."""
    return quota_only(
        [cq("a", 4, "x", **rest), cq("b", 4, "y", **rest)],
        [gpus("in-a", 2, "a"), gpus("in-b", 2, "b")],
        [running("has-a", 3, "a", started_at=0.0), running("has-b", 3, "b", started_at=0.0)],
    )


def again(searched: list[str], first: Snapshot, then: Snapshot) -> list[str]:
    """The gangs that the second of two plans searches for."""
    cache = PlannerCache()
    plan(first, cache=cache)
    searched.clear()
    plan(then, cache=cache)
    return sorted(searched)


def without(snapshot: Snapshot, uid: str) -> tuple[Admitted, ...]:
    return tuple(g for g in snapshot.admitted if g.workload.uid != uid)


def arrives(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, pending=(*snapshot.pending, Pending(gpus("new", 3, "a", 5.0))))


def leaves(snapshot: Snapshot) -> Snapshot:
    gang = replace(snapshot.admitted[0], leaving=True)
    return replace(snapshot, admitted=(gang, *snapshot.admitted[1:]))


@pytest.mark.parametrize(
    ("change", "affected"),
    [
        pytest.param(lambda s: replace(s, now=s.now + 9), [], id="nothing"),
        pytest.param(arrives, ["new"], id="a gang of another kind arrives"),
        pytest.param(lambda s: replace(s, pending=s.pending[:1]), [], id="a gang is deleted"),
        pytest.param(
            lambda s: replace(s, admitted=without(s, "has-a")), ["in-a"], id="one in its tree ends"
        ),
        pytest.param(leaves, ["in-a"], id="one in its tree leaves"),
        pytest.param(
            lambda s: replace(s, admitted=(*s.admitted, running("more", 1, "b"))),
            ["in-b"],
            id="one in its tree starts",
        ),
        pytest.param(
            lambda s: replace(s, config=replace(s.config)), ["in-a", "in-b"], id="configuration"
        ),
    ],
)
def test_only_gangs_affected_by_a_change_are_searched_again(
    searched: list[str], change: Callable[[Snapshot], Snapshot], affected: list[str]
) -> None:
    first = two_trees()
    assert again(searched, first, change(first)) == affected


def test_a_start_of_this_plan_affects_gangs_of_its_tree(searched: list[str]) -> None:
    """The gang ahead takes the remaining capacity; a proof from before its arrival is no longer the full reason."""
    first = two_trees()
    ahead = Pending(gpus("ahead", 1, "a", -1.0))
    assert again(searched, first, replace(first, pending=(ahead, *first.pending))) == [
        "ahead",
        "in-a",
    ]


def test_the_end_of_a_protection_affects_all_gangs(searched: list[str]) -> None:
    rules = {
        "within_cluster_queue": WithinClusterQueue.LOWER_PRIORITY,
        "protection": Protection(min_runtime=100.0),
    }
    first = two_trees(**rules)
    first = replace(first, now=50.0)
    assert again(searched, first, replace(first, now=99.0)) == []
    assert again(searched, first, replace(first, now=100.0)) == ["in-a", "in-b"]


def of_priority(priority: int) -> Callable[[Snapshot], Snapshot]:
    """The pending gang in a is of this priority now."""

    def change(snapshot: Snapshot) -> Snapshot:
        old, *rest = snapshot.pending
        workload = replace(old.workload, priority=priority)
        return replace(snapshot, pending=(replace(old, workload=workload), *rest))

    return change


@pytest.mark.parametrize("preempts", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(of_priority(1), id="its own is raised"),
        pytest.param(
            lambda s: replace(s, pending=(*s.pending, Pending(gpus("more", 2, "a", 5.0, 1)))),
            id="one like it comes that has a higher one",
        ),
    ],
)
def test_priority_matters_where_a_queue_preempts(
    searched: list[str], change: Callable[[Snapshot], Snapshot], preempts: bool
) -> None:
    within = WithinClusterQueue.LOWER_PRIORITY if preempts else WithinClusterQueue.NEVER
    first = two_trees(within_cluster_queue=within)
    assert bool(again(searched, first, change(first))) == preempts
    assert bool(plan(change(first)).preempted) == preempts


def test_a_gang_that_needs_nodes_is_affected_by_any_gang_that_holds_some(
    searched: list[str],
) -> None:
    running_gangs = [
        holding(gang("one", podset(gpu=1), queue="b"), {"n1": 1}),
        holding(gang("two", podset(gpu=1), queue="b"), {"n2": 1}),
    ]
    waits = gang("waits", podset(gpu=4), queue="a")
    nodes = [node("n1", gpu=4), node("n2", gpu=4)]
    first = world(nodes, [waits], running_gangs, queue("a"), queue("b"))
    assert again(searched, first, replace(first, now=first.now + 1)) == []
    assert again(searched, first, replace(first, admitted=without(first, "two"))) == ["waits"]


def of_two_tenants(pending: Workload) -> Snapshot:
    """Two ClusterQueues on the same nodes: that of a has a gang which uses all its quota, and that of b has quota for two gangs."""
    running_gang = holding(gang("has-a", podset(gpu=4), queue="a"), {"n1": 1})
    nodes = [node("n1", gpu=4), node("n2", gpu=4)]
    return world(nodes, [pending], [running_gang], queue("a", gpu=4), queue("b", gpu=8))


def test_a_gang_that_lacks_quota_is_not_affected_by_gangs_of_other_trees(
    searched: list[str],
) -> None:
    first = of_two_tenants(gang("waits", podset(gpu=2), queue="a"))
    other = holding(gang("other", podset(gpu=4), queue="b"), {"n2": 1})
    assert again(searched, first, replace(first, admitted=(*first.admitted, other))) == []
    assert again(searched, first, replace(first, admitted=(other,))) == ["waits"]


def test_a_gang_that_lacks_quota_is_not_affected_by_a_start_of_another_tree(
    searched: list[str],
) -> None:
    """Neither where it starts in the plan that is made, nor where it started in the plan before."""
    ahead = gang("ahead", podset(gpu=4), queue="b", priority=1)
    first = of_two_tenants(gang("waits", podset(gpu=2), queue="a"))
    then = replace(first, pending=(Pending(ahead), *first.pending))
    assert again(searched, first, then) == ["ahead"]
    assert again(searched, then, after(then, plan(then))) == []


# Plans do not depend on the plans before them.

QUEUES = {"a": "x", "b": "x", "c": "y"}
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(sorted(QUEUES)), st.integers(1, 4), st.integers(0, 2))),
        st.sets(st.integers(0, 5)),
        st.booleans(),
        st.dictionaries(st.integers(0, 5), st.integers(0, 2), max_size=2),
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=examples(200), deadline=None)
@given(steps=STEPS, preempts=st.booleans(), nodes=st.integers(0, 3))
def test_plans_are_the_same_as_with_an_empty_cache(
    steps: list[tuple[list[tuple[str, int, int]], set[int], bool, dict[int, int]]],
    preempts: bool,
    nodes: int,
) -> None:
    within = WithinClusterQueue.LOWER_PRIORITY if preempts else WithinClusterQueue.NEVER
    quota = 8 if nodes else 4  # then nodes or quota can be short
    queues = [cq(name, quota, tree, within_cluster_queue=within) for name, tree in QUEUES.items()]
    snapshot = quota_only(queues, [])
    if nodes:
        fleet = [node(f"n{number}", gpu=4) for number in range(nodes)]
        snapshot = replace(world(fleet, [], [], *queues), namespaces=snapshot.namespaces)
    cache = PlannerCache()
    for number, (arriving, ending, committed, raised) in enumerate(steps):
        pending = [
            replace(p, workload=replace(p.workload, priority=raised[i])) if i in raised else p
            for i, p in enumerate(snapshot.pending)
        ]
        for place, (name, amount, priority) in enumerate(arriving):
            uid = f"g{number}-{place}"
            pending.append(Pending(gpus(uid, amount, name, float(number), priority)))
        admitted = tuple(g for i, g in enumerate(snapshot.admitted) if i not in ending)
        snapshot = replace(
            snapshot, now=snapshot.now + 1, pending=tuple(pending), admitted=admitted
        )
        made = plan(snapshot, cache=cache)
        assert made == plan(snapshot)
        if committed:
            snapshot = after(snapshot, made)


def test_the_longest_run_before_a_reservation_counts_from_the_time_of_the_plan() -> None:
    talk = AdvanceReservation(
        "talk",
        NOW + 1000,
        NOW + 5000,
        cluster_queue="other",
        capacity=ReservedCapacity(1, resources(gpu=8, pods=1)),
    )
    waits = gang("waits", podset(gpu=4))
    snapshot = world([node("n1", gpu=8)], [waits], [], queue("main"), queue("other"))
    snapshot = replace(snapshot, reservations=(Occurrence(talk, talk.begins, talk.ends),))
    cache = PlannerCache()
    for passed in (0, 300, 900):
        (refusal,) = plan(replace(snapshot, now=NOW + passed), cache=cache).pending
        assert refusal.reasons[0].code is Code.RESERVATION_AHEAD
        assert refusal.reasons[0].details["mostSeconds"] == 1000 - passed


@pytest.mark.seeds
def test_plans_are_the_same_as_with_an_empty_cache_when_only_time_has_passed() -> None:
    for seed in range(examples(100)):
        snapshot, cache = _keeping_refutations(seed), PlannerCache()
        for passed in (0.0, 1.0, 100.0, 900.0):
            later = replace(snapshot, now=snapshot.now + passed)
            assert plan(later, cache=cache) == plan(later), (seed, passed)


def _keeping_refutations(seed: int) -> Snapshot:
    """A snapshot of all features but those with which a plan keeps no refutation."""
    snapshot = snapshot_of(seed, Sizes(nodes=(3, 7), running=(2, 14), pending=(3, 10)))
    queues = {
        name: replace(queue, strategy=QueueingStrategy.BEST_EFFORT_FIFO, time_slice=None)
        for name, queue in snapshot.config.cluster_queues.items()
    }
    return replace(
        snapshot,
        config=replace(snapshot.config, cluster_queues=queues),
        admitted=tuple(running for running in snapshot.admitted if not running.lost),
    )


def after(snapshot: Snapshot, made: Plan) -> Snapshot:
    """Gangs that start hold their placements, evicted gangs are removed."""
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    started = {a.uid: Admitted(waiting[a.uid], a.placement) for a in made.admitted}
    gone = {p.victim for p in made.preempted}
    return replace(
        snapshot,
        pending=tuple(p for p in snapshot.pending if p.workload.uid not in started),
        admitted=(
            *(g for g in snapshot.admitted if g.workload.uid not in gone),
            *started.values(),
        ),
    )
