"""Quota along the cohort tree: borrowing, lending, own quotas of cohorts, and queue order. All as in Kueue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.fleet import Fleet
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet, PodShape, Workload
from queuectl.planner import plan
from queuectl.planner.quota import QuotaUse, build_pools, use_of
from queuectl.planner.verify import PlanRule, verify
from queuectl.planner.verify.cohorts import CohortMember, excesses, members_of
from tests.planner.build import NOW, gang
from tests.planner.documents import (
    TOPOLOGY,
    cluster_queue,
    cohort,
    flavor,
    nodes,
    planned,
    quota,
    workload,
)

IDLE = [TOPOLOGY, flavor(topology=True), *nodes("r", 6)]


# Cases whose best answer is known.


def test_a_borrowing_limit_holds_and_the_lender_keeps_the_rest() -> None:
    """Space for all; a may borrow 8 and b lends at most 8: the second gang of a would need 16 borrowed."""
    made = planned(
        IDLE,
        cluster_queue("a", quota(16, borrowing=8), "all"),
        cluster_queue("b", quota(16, lending=8), "all"),
        workload("a1", "a", 3, gpu=8, at=1),
        workload("a2", "a", 1, gpu=8, at=2),
        workload("b1", "b", 1, gpu=8, at=3),
    )
    assert made.started == ["a1", "b1"]
    assert made.waiting == {"a2": "WaitingForQuota"}
    assert made.reason("a2")["message"] == (
        "8 more nvidia.com/gpu of flavor default are needed in ClusterQueue a: 8 requested,"
        " 0 of nominal quota 16 unused, nothing left to borrow in cohort all (borrowing limit 8)"
    )


def test_a_lending_limit_refuses_although_nodes_are_idle() -> None:
    """a may borrow without a limit, but b lends only 4: three nodes need 8 borrowed."""
    made = planned(
        IDLE,
        cluster_queue("a", 16, "all"),
        cluster_queue("b", quota(16, lending=4), "all"),
        workload("a1", "a", 3, gpu=8, at=1),
        workload("a2", "a", 2, gpu=8, at=2),
    )
    assert made.started == ["a2"]
    assert made.waiting == {"a1": "ExceedsMaxQuota"}
    reason = made.reason("a1")
    assert reason["message"] == (
        "24 nvidia.com/gpu of flavor default are needed, 4 more than ClusterQueue a can ever use:"
        " nominal quota 16, at most 4 borrowed from cohort all"
    )
    assert reason["details"]["quota"] == [
        {
            "flavor": "default",
            "resource": "nvidia.com/gpu",
            "needs": 24,
            "nominal": 16,
            "cohort": "all",
            "left": 20,
            "used": 0,
            "most": 20,
        }
    ]


# Limits of a queue, in one table: the tree, the use, and the largest gang that still starts in queue a.

BOTTOM = (
    cluster_queue("a", 4, "left"),
    cluster_queue("b", 4, "left"),
    cluster_queue("c", 4, "right"),
)
TREES: dict[str, tuple[list[Any], dict[str, int], int]] = {
    "alone": ([cluster_queue("a", 4)], {}, 4),
    "a cohort that only queues name": ([cluster_queue("a", 4, "x"), cluster_queue("b", 3, "x")], {}, 7),
    "what the lender uses is not there": ([cluster_queue("a", 4, "x"), cluster_queue("b", 3, "x")], {"b": 2}, 5),
    "borrowing nothing": ([cluster_queue("a", quota(4, 0), "x"), cluster_queue("b", 3, "x")], {}, 4),
    "lending nothing": ([cluster_queue("a", 4, "x"), cluster_queue("b", quota(3, lending=0), "x")], {}, 4),
    "what is not lent is used first": (
        [cluster_queue("a", 4, "x"), cluster_queue("b", quota(3, lending=1), "x")], {"b": 2}, 5),
    "its own quota was borrowed by another": ([cluster_queue("a", 4, "x"), cluster_queue("b", 3, "x")], {"b": 6}, 1),
    "quota that it does not lend cannot be borrowed": (
        [cluster_queue("a", quota(4, lending=1), "x"), cluster_queue("b", 3, "x")], {"b": 4}, 3),
    "a cohort's own quota": ([cohort("x", gpu=2), cluster_queue("a", 4, "x")], {}, 6),
    "up the tree and down again": ([cohort("left", "top"), cohort("right", "top"), *BOTTOM], {}, 12),
    "two trees": ([cohort("left", "top"), cohort("right", "other"), *BOTTOM], {}, 8),
    "the whole tree's use counts": ([cohort("left", "top"), cohort("right", "top"), *BOTTOM], {"b": 3, "c": 3}, 6),
    "a cohort borrows no more than its limit": (
        [cohort("left", "top", quota(0, borrowing=1)), cohort("right", "top"), *BOTTOM], {}, 9),
    "a cohort lends no more than its limit": (
        [cohort("left", "top"), cohort("right", "top", quota(0, lending=3)), *BOTTOM], {}, 11),
    "what a cohort keeps is its members'": (
        [cohort("left", "top", quota(0, lending=2)), cohort("right", "top"), *BOTTOM], {"c": 6}, 6),
    "an undeclared cohort above": ([cohort("left", "top"), *BOTTOM], {}, 8),
    "limits of the top limit nothing": (
        [cohort("x"), cluster_queue("a", 4, "x"), cluster_queue("b", 0, "x")], {}, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_as_much_as_the_tree_allows_starts_and_no_more(name: str) -> None:
    tree, used, most = TREES[name]
    running = [workload(f"in-{q}", q, n, flavor="default") for q, n in used.items()]
    for count in (most, most + 1):
        made = planned(flavor(), *tree, *running, workload("new", "a", count))
        assert made.started == (["new"] if count == most else []), f"{count} pods"


# The same numbers from two sides: the planner's free quota, and the use that the verifier accepts.

ROW = ("f", "gpu")
amount = st.integers(0, 4)
limit = st.none() | amount


@st.composite
def trees(draw: st.DrawFn) -> QueueConfig:
    def own() -> tuple[ResourceGroup, ...]:
        borrowing, lending = draw(limit), draw(limit)
        quotas = FlavorQuotas(
            "f",
            {"gpu": draw(amount)},
            {} if borrowing is None else {"gpu": borrowing},
            {} if lending is None else {"gpu": lending},
        )
        return (ResourceGroup(("gpu",), (quotas,)),) if draw(st.booleans()) else ()

    names = [f"c{i}" for i in range(draw(st.integers(0, 4)))]
    cohorts = {
        name: Cohort(name, draw(st.none() | st.sampled_from(names[:i])) if i else None, own())
        for i, name in enumerate(names)
    }
    queues = {}
    for i in range(draw(st.integers(1, 4))):
        parent = draw(st.none() | st.sampled_from(names)) if names else None
        queues[f"q{i}"] = ClusterQueue(f"q{i}", own(), cohort=parent)
    return QueueConfig(cluster_queues=queues, cohorts=cohorts)


def allowed(config: QueueConfig, used: dict[str, int]) -> bool:
    rows = {(name, *ROW): n for name, n in used.items()}
    return not list(excesses(members_of(config), {}, rows, rows))


def filled(config: QueueConfig, wanted: list[tuple[int, int]]) -> tuple[dict[str, int], QuotaUse]:
    """Queues take quota one after the other, as far as the limits allow."""
    used = dict.fromkeys(config.cluster_queues, 0)
    use = use_of(build_pools(config), {})
    for which, n in wanted:
        name = sorted(used)[which % len(used)]
        if allowed(config, {**used, name: used[name] + n}):
            used[name] += n
            use.add((name, *ROW), n)
    return used, use


wishes = st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 5)), max_size=8)


@given(config=trees(), wanted=wishes)
def test_the_free_quota_is_exactly_what_can_be_used(
    config: QueueConfig, wanted: list[tuple[int, int]]
) -> None:
    used, use = filled(config, [(which, abs(n)) for which, n in wanted])
    for name in used:
        left = use.left(name, ROW)
        assert left >= 0
        assert allowed(config, {**used, name: used[name] + left})
        assert not allowed(config, {**used, name: used[name] + left + 1})
    empty = use_of(build_pools(config), {})
    for name, pool in build_pools(config).items():
        assert empty.left(name, ROW) == pool.most(ROW) == members_of(config)[name].most(*ROW)


@given(config=trees(), wanted=wishes)
def test_charging_and_releasing_equals_a_fresh_count(
    config: QueueConfig, wanted: list[tuple[int, int]]
) -> None:
    """Even where more is used than allowed, as after a quota was lowered."""
    total = dict.fromkeys(sorted(config.cluster_queues), 0)
    use = use_of(build_pools(config), {})
    for which, n in wanted:
        name = list(total)[which % len(total)]
        change = max(n, -total[name])
        total[name] += change
        use.add((name, *ROW), change)
    fresh = use_of(build_pools(config), {(name, *ROW): n for name, n in total.items()})
    assert {n: use.left(n, ROW) for n in total} == {n: fresh.left(n, ROW) for n in total}


@given(config=trees(), wanted=wishes, gone=st.integers(1, 5))
def test_each_unit_that_a_queue_gives_back_is_one_more_that_it_can_use(
    config: QueueConfig, wanted: list[tuple[int, int]], gone: int
) -> None:
    """The use that must leave a queue for a gang to fit is thus the difference, whatever the limits between."""
    _, use = filled(config, [(which, abs(n)) for which, n in wanted])
    name = min(config.cluster_queues)
    left = use.left(name, ROW)
    use.add((name, *ROW), gone)
    assert use.left(name, ROW) == left - gone
    use.add((name, *ROW), -gone)
    assert use.left(name, ROW) == left


# Order of the queues.


def two(a: str = "a", b: str = "b") -> list[dict[str, Any]]:
    return [flavor(), *cluster_queue(a, 4, "all"), *cluster_queue(b, 4, "all")]


def test_a_gang_that_does_not_borrow_is_before_one_that_borrows() -> None:
    """The gang of a is of higher priority and older, but would take quota that b's gang is entitled to."""
    made = planned(
        two(), workload("borrows", "a", 6, priority=9, at=1), workload("own", "b", 4, at=2)
    )
    assert made.started == ["own"]


def test_without_borrowing_priority_decides_among_queues() -> None:
    both = [cohort("all", gpu=2), flavor()]
    queues = [*cluster_queue("a", 0, "all"), *cluster_queue("b", 0, "all")]
    made = planned(
        both, queues, workload("low", "a", 2, at=1), workload("high", "b", 2, priority=1)
    )
    assert made.started == ["high"]


def test_a_gang_that_borrows_from_a_nearer_cohort_is_first() -> None:
    """``near`` finds what it borrows in its own cohort, ``far`` only at the top, where both draw from the same."""
    made = planned(
        flavor(),
        cohort("mine", "top", quota(1, lending=1)),
        cohort("top", gpu=1),
        cluster_queue("near", 0, "mine"),
        cluster_queue("far", 0, "top"),
        workload("far", "far", 2, priority=9, at=1),
        workload("near", "near", 1, at=2),
    )
    assert made.started == ["near"]


def test_a_queue_that_borrows_is_ordered_again_after_each_gang() -> None:
    """a's first gang is within its quota; its second would borrow, so b's gang is between them, though later in time."""
    made = planned(
        two(),
        workload("a1", "a", 4, at=1),
        workload("a2", "a", 1, at=2),
        workload("b1", "b", 4, at=3),
    )
    assert made.started == ["a1", "b1"]


def test_inside_a_queue_no_gang_is_passed_for_borrowing() -> None:
    """The first of a strict queue borrows; the second would not, but is later in the queue."""
    queues = [
        *cluster_queue("a", 4, "all", queueingStrategy="StrictFIFO"),
        *cluster_queue("b", 4, "all"),
    ]
    made = planned(flavor(), queues, workload("a1", "a", 9, at=1), workload("a2", "a", 4, at=2))
    assert made.started == ["a2"], "a1 is larger than both quotas together: it never starts"
    made = planned(
        flavor(),
        queues,
        workload("b0", "b", 4, flavor="default"),
        workload("a1", "a", 6, at=1),
        workload("a2", "a", 4, at=2),
    )
    assert made.started == []
    assert made.waiting == {"a1": "WaitingForQuota", "a2": "WaitingInOrder"}


def height(member: CohortMember) -> int:
    return 1 + max((height(m) for m in member.below), default=0) if not member.queue else 0


def borrows(config: QueueConfig, used: dict[str, int], name: str, n: int) -> int:
    """By definition: the height of the lowest pool that it does not overdraw; the root if it overdraws all."""
    use = {(q, *ROW): amount for q, amount in used.items()}
    use[name, *ROW] = use.get((name, *ROW), 0) + n
    *above, top = members_of(config)[name].up()
    for member in above:
        if member.uses(use, *ROW) <= member.quota(*ROW):
            return height(member)
    return height(top)


def by_definition(config: QueueConfig, gangs: list[Workload]) -> list[str]:
    """The gangs that start: the first head is chosen again after each one, and starts if the whole tree allows it."""
    lines: dict[str, list[Workload]] = {}
    for g in sorted(gangs, key=lambda g: (-g.priority, g.queued_at, g.uid)):
        lines.setdefault(str(g.queue), []).append(g)
    used = dict.fromkeys(config.cluster_queues, 0)
    started = []
    while lines:
        heads = {name: line[0] for name, line in lines.items()}
        ways = {name: borrows(config, used, name, head.pods) for name, head in heads.items()}
        for name, head in heads.items():
            full = not allowed(config, {**used, name: used[name] + head.pods})
            if full and head.pods <= (members_of(config)[name].stated("nominal", *ROW) or 0):
                ways[name] = (
                    0  # it could start by preemption without borrowing, so it is not behind borrowers
                )
        name = min(heads, key=lambda n: (ways[n], -heads[n].priority, heads[n].queued_at, n))
        head = lines[name].pop(0)
        if not lines[name]:
            del lines[name]
        if allowed(config, {**used, name: used[name] + head.pods}):
            used[name] += head.pods
            started.append(head.uid)
    return started


@given(
    config=trees(),
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 1)), max_size=6),
)
def test_the_gangs_that_start_are_those_of_the_definition(
    config: QueueConfig, asked: list[tuple[int, int, int]]
) -> None:
    config = replace(
        config,
        cluster_queues={
            name: replace(queue, namespace_selector=LabelSelector())
            for name, queue in config.cluster_queues.items()
        },
        local_queues={("team", n): LocalQueue("team", n, n) for n in config.cluster_queues},
        flavors={"f": ResourceFlavor("f")},
    )
    names = sorted(config.cluster_queues)
    shape = PodShape(Resources({"gpu": 1}))
    gangs = [
        gang(
            f"g{i}",
            PodSet("w", count, shape),
            queue=names[which % len(names)],
            priority=priority,
            queued_at=float(i),
        )
        for i, (which, count, priority) in enumerate(asked)
    ]
    covered = [g for g in gangs if config.cluster_queues[str(g.queue)].groups]
    seen = Snapshot(NOW, Fleet(()), config, tuple(map(Pending, gangs)), namespaces={"team": {}})
    made = plan(seen)
    assert verify(seen, made) == ()
    assert sorted(a.uid for a in made.admitted) == sorted(by_definition(config, covered))


@pytest.mark.parametrize(
    ("strategy", "starts"), [("StrictFIFO", []), ("BestEffortFIFO", ["borrower"])]
)
def test_the_pending_head_of_a_strict_queue_keeps_its_own_quota_from_borrowers(
    strategy: str, starts: list[str]
) -> None:
    """As in Kueue: the head needs all 4 of its queue's quota, of which 2 are lent; the other 2 are not lent as well."""
    made = planned(
        flavor(),
        cluster_queue("a", 4, "all", queueingStrategy=strategy),
        cluster_queue("b", 2, "all"),
        workload("lent", "b", 4, flavor="default"),
        workload("head", "a", 4, priority=1, at=1),
        workload("borrower", "b", 2, at=2),
    )
    assert made.started == starts


# Preemption and leases alongside borrowing.


def test_a_victim_of_the_own_queue_frees_what_was_borrowed_as_well() -> None:
    """Low-priority gangs of a fill its quota and borrow all of b's; a's high gang reclaims its own part of that."""
    made = planned(
        flavor(),
        cluster_queue("a", 4, "all", preemption={"withinClusterQueue": "LowerPriority"}),
        cluster_queue("b", 4, "all"),
        *(workload(f"low{i}", "a", 4, flavor="default", at=i) for i in range(2)),
        workload("high", "a", 4, priority=1, at=9),
    )
    assert made.waiting == {"high": "WaitingForPreemptedWorkloads"}
    assert len(made.victims) == 1


def test_a_gang_that_needs_more_than_nominal_may_not_preempt_for_quota() -> None:
    """As in Kueue without borrowWithinCohort: it waits for quota that it would borrow."""
    made = planned(
        flavor(),
        cluster_queue("a", 4, "all", preemption={"withinClusterQueue": "LowerPriority"}),
        cluster_queue("b", 4, "all"),
        workload("low", "a", 6, flavor="default"),
        workload("high", "a", 6, priority=1, at=9),
    )
    assert made.waiting == {"high": "WaitingForQuota"}
    assert made.victims == []


def test_a_lender_that_was_borrowed_from_gets_that_reason() -> None:
    made = planned(
        two(), workload("borrower", "a", 7, flavor="default"), workload("owner", "b", 4, at=1)
    )
    assert made.reason("owner")["message"] == (
        "3 more nvidia.com/gpu of flavor default are needed in ClusterQueue b: 4 requested,"
        " 4 of nominal quota 4 unused, but other queues of cohort all have borrowed 3 of it"
    )


def test_a_lender_to_another_branch_of_its_cohort_tree_gets_the_name_of_the_whole_tree() -> None:
    made = planned(
        [flavor(), cohort("left", "top"), cohort("right", "top")],
        [*cluster_queue("a", 4, "left"), *cluster_queue("c", 4, "right")],
        workload("borrower", "c", 7, flavor="default"),
        workload("owner", "a", 4, at=1),
    )
    assert made.reason("owner")["message"].endswith(
        "but other queues of cohort top have borrowed 3 of it"
    )


def test_the_reason_of_a_queue_that_uses_its_own_quota_does_not_state_that_others_borrow_it() -> (
    None
):
    """More runs than the cohort has."""
    made = planned(
        two(),
        workload("borrower", "a", 8, flavor="default"),
        workload("own", "b", 4, flavor="default"),
        workload("more", "b", 4, at=1),
    )
    assert made.reason("more")["message"].endswith(
        "0 of nominal quota 4 unused, nothing left to borrow in cohort all"
    )


# The verifier.


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        (quota(4), quota(4), True),
        (quota(4, borrowing=3), quota(4), False),
        (quota(4), quota(4, lending=3), False),
        (quota(3), quota(4), False),
    ],
    ids=["fits", "beyond the borrowing limit", "beyond the lending limit", "beyond the cohort"],
)
def test_the_verifier_rejects_what_the_tree_does_not_allow(
    a: dict[str, Any], b: dict[str, Any], fits: bool
) -> None:
    gang = workload("g", "a", 8)
    made = planned(flavor(), cluster_queue("a", 4, "all"), cluster_queue("b", 4, "all"), gang)
    tighter = planned(flavor(), cluster_queue("a", a, "all"), cluster_queue("b", b, "all"), gang)
    found = {v.rule for v in verify(tighter.snapshot, Plan(admitted=made.plan.admitted))}
    assert found == (set() if fits else {PlanRule.QUOTA})


def test_an_excess_from_outside_is_accepted_but_must_not_grow() -> None:
    """b was over its quota before. A gang of its cohort that does not add to the excess passes, one that adds to it does not."""
    over = workload("over", "b", 6, flavor="default")
    tree = [
        cohort("all"),
        *cluster_queue("a", quota(2, lending=0), "all"),
        *cluster_queue("b", 4, "all"),
    ]
    made = planned(flavor(), cluster_queue("a", 2), cluster_queue("b", 4), workload("g", "a", 2))
    seen = planned(flavor(), *tree, over, workload("g", "a", 2))
    assert verify(seen.snapshot, Plan(admitted=made.plan.admitted)) == ()
    larger = planned(flavor(), cluster_queue("a", 3), cluster_queue("b", 4), workload("g", "a", 3))
    seen = planned(flavor(), *tree, over, workload("g", "a", 3))
    found = verify(seen.snapshot, Plan(admitted=larger.plan.admitted))
    assert {v.subject for v in found} == {"all"}
