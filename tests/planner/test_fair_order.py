"""Order of the queues: fair shares, past use, the window, and agreement of decisions by class with decisions by gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    LocalQueue,
    QueueingStrategy,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.rules import FairStrategy, Rules, UsageFairness
from queuectl.domain.snapshot import CapacityLease, PastUse, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import Duration, Placement, PodSetPlacement, Workload
from queuectl.planner import plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.order.pending_gangs import ClassKey, class_key
from queuectl.planner.order.queue_order import lines_of
from queuectl.planner.plan_cycle import begin, one_by_one
from queuectl.planner.problem.problem import survey
from queuectl.planner.quota import QuotaNode, share_of
from queuectl.planner.search.gang_classes import GangClass, GangClasses
from queuectl.planner.verify import verify
from tests.planner.build import FLAVOR
from tests.planner.queues import GPUS, cohort, cq, gpus, quota_only, quotas, running
from tests.support.examples import examples

FAIR = Rules(fair_sharing=(FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,))


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def looked_at(snapshot: Snapshot) -> list[str]:
    """Uids in the order in which the planner considers them."""
    return [pending.workload.uid for pending in one_by_one(begin(survey(snapshot)))]


def ones(queue: str, count: int, first: float = 0.0, **rest: Any) -> list[Workload]:
    return [gpus(f"{queue}{i}", 1, queue, first + i, **rest) for i in range(count)]


# Fair sharing.


def test_the_smaller_share_is_first_and_is_counted_again_after_every_start() -> None:
    """a is older and requests its whole demand first; the two queues still alternate."""
    snapshot = quota_only(
        [cq("a"), cq("b")],
        [*ones("a", 4), *ones("b", 4, 10.0)],
        cohorts=[cohort("all", 4)],
        rules=FAIR,
    )
    assert [a.uid for a in planned(snapshot).admitted] == ["a0", "a1", "b0", "b1"]
    assert looked_at(snapshot)[:4] == ["a0", "b0", "a1", "b1"]


def test_without_fair_sharing_the_oldest_gangs_take_all() -> None:
    snapshot = quota_only(
        [cq("a"), cq("b")], [*ones("a", 4), *ones("b", 4, 10.0)], cohorts=[cohort("all", 4)]
    )
    assert [a.uid for a in planned(snapshot).admitted] == ["a0", "a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("weight", "starts"),
    [(1000, 3), (2000, 4), (500, 2), (0, 0)],  # of 6, alongside a queue of weight 1
)
def test_weights_divide_the_borrowed_quota(weight: int, starts: int) -> None:
    snapshot = quota_only(
        [cq("a", weight=weight), cq("b")],
        [*ones("a", 6), *ones("b", 6, 10.0)],
        cohorts=[cohort("all", 6)],
        rules=FAIR,
    )
    assert sum(a.uid.startswith("a") for a in planned(snapshot).admitted) == starts


def test_a_gang_within_its_own_quota_is_before_a_borrower_whatever_the_priority() -> None:
    snapshot = quota_only(
        [cq("a"), cq("b", 1)],
        [gpus("high", 1, "a", priority=9), gpus("own", 1, "b")],
        rules=FAIR,
    )
    assert [a.uid for a in planned(snapshot).admitted] == ["own"]


def test_borrowing_of_another_flavor_does_not_count_against_a_gang() -> None:
    """b has the larger share, all of spot; but on demand it stays within its own, where a would borrow."""
    groups = cq("", 0).groups
    both = tuple(
        replace(g, flavors=(quotas(2, flavor="spot"), quotas(2, flavor="on-demand")))
        for g in groups
    )
    snapshot = quota_only(
        [cq("a", groups=both), cq("b", groups=both)],
        [gpus("a0", 3, "a"), gpus("b0", 2, "b", 1.0)],
        [running("r", 4, "b", flavor="spot")],
        rules=FAIR,
        flavors=("spot", "on-demand"),
    )
    assert looked_at(snapshot) == ["b0", "a0"]


def test_shares_decide_level_by_level() -> None:
    """west and east share alike, though west has twice as many queues with pending gangs."""
    snapshot = quota_only(
        [cq("a", cohort="west"), cq("b", cohort="west"), cq("c", cohort="east")],
        [*ones("a", 8), *ones("b", 8), *ones("c", 8)],
        cohorts=[cohort("root", 8), cohort("west", parent="root"), cohort("east", parent="root")],
        rules=FAIR,
    )
    started = [a.uid[0] for a in planned(snapshot).admitted]
    assert {q: started.count(q) for q in "abc"} == {"a": 2, "b": 2, "c": 4}


def test_equal_shares_fall_back_to_priority_then_time() -> None:
    snapshot = quota_only(
        [cq("a"), cq("b"), cq("c")],
        [gpus("late", 1, "a", 3.0), gpus("early", 1, "b", 2.0), gpus("high", 1, "c", 9.0, 1)],
        cohorts=[cohort("all", 3)],
        rules=FAIR,
    )
    assert looked_at(snapshot) == ["high", "early", "late"]


@st.composite
def _shared(draw: st.DrawFn) -> Snapshot:
    """Up to six queues under two levels of cohorts, some with their own quota, all with more demand than capacity."""
    queues = []
    for number in range(draw(st.integers(2, 6))):
        lending = draw(st.sampled_from([None, 0, 1]))
        offered = quotas(draw(st.integers(0, 3)), lending=lending)
        weight = draw(st.sampled_from([0, 500, 1000, 3000]))
        where = draw(st.sampled_from(["west", "east", "root", None]))
        strategy = draw(st.sampled_from(QueueingStrategy))
        queues.append(cq(f"q{number}", offered, where, weight=weight, strategy=strategy))
    pending = [
        gpus(
            f"w{number}",
            draw(st.integers(1, 3)),
            draw(st.sampled_from(queues)).name,
            float(draw(st.integers(0, 3))),
            draw(st.integers(0, 1)),
        )
        for number in range(draw(st.integers(1, 12)))
    ]
    return quota_only(
        queues,
        pending,
        [running(f"r{i}", 1, draw(st.sampled_from(queues)).name) for i in range(2)],
        cohorts=[
            cohort("root", draw(st.integers(0, 4))),
            cohort("west", draw(st.integers(0, 2)), "root", weight=draw(st.integers(0, 2)) * 1000),
            cohort("east", parent="root"),
        ],
        rules=draw(st.sampled_from([FAIR, Rules()])),
    )


def _never(cycle: AdmissionCycle, queue: str, head: Pending) -> bool:
    """Whether a head asks for more than its ClusterQueue can ever use."""
    return head.workload.requests[GPUS] > cycle.problem.pools[queue].most((FLAVOR, GPUS))


def _tournament(cycle: AdmissionCycle, heads: Mapping[str, Pending]) -> str:
    """The winning queue, computed from scratch."""
    use, config = cycle.state.later.quota, cycle.problem.snapshot.config

    def entry(pool: QuotaNode) -> tuple[Any, ...] | None:
        """Key in the parent's tournament, whether it borrows below, charges here, requested rows, queue and position."""
        if not pool.members and pool.name in heads and use.pools[pool.name] is pool:
            head = heads[pool.name]
            row = {(FLAVOR, GPUS): head.workload.requests[GPUS]}
            at = (-head.workload.priority, head.workload.queued_at, head.workload.uid)
            return _keyed(pool, row, False, pool.name, at)
        below = [e for member in pool.members if (e := entry(member)) is not None]
        if not below:
            return None
        _, borrows, charges, name, at = min(below, key=lambda e: e[0])
        return _keyed(pool, charges, borrows, name, at)

    def _keyed(
        pool: QuotaNode,
        row: dict[tuple[str, str], int],
        borrows: bool,
        name: str,
        at: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        if pool.parent is None:
            return (borrows, at), borrows, row, name, at
        share = share_of(pool, use, row)
        beyond = share.borrows_any(row)
        up = {}
        for each, amount in row.items():
            kept, used = pool.local.get(each, 0), use.used.get(pool, {}).get(each, 0)
            up[each] = max(0, used + amount - kept) - max(0, used - kept)
        return (beyond, *share.rank, at), borrows or beyond, up, name, at

    roots = []
    for name in config.cluster_queues:
        pool = use.pools[name]
        while pool.parent is not None:
            pool = pool.parent
        if pool not in roots:
            roots.append(pool)
    winner: str = min((e for r in roots if (e := entry(r)) is not None), key=lambda e: e[0])[3]
    return winner


@settings(deadline=None, max_examples=examples(150))
@given(_shared())
def test_the_updated_tournament_equals_a_fresh_one(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, config=replace(snapshot.config, rules=FAIR))
    lines: dict[str, list[Pending]] = {}
    for entry in sorted(
        snapshot.pending, key=lambda p: (-p.workload.priority, p.workload.queued_at, p.workload.uid)
    ):
        lines.setdefault(entry.workload.queue or "", []).append(entry)
    prepared = begin(survey(snapshot))
    cycle = prepared.cycle
    for pending in one_by_one(prepared):
        queue = pending.workload.queue or ""
        if _never(cycle, queue, pending):
            lines[queue].remove(pending)  # it is not ranked
            continue
        starts = {
            q: [one for one in line if not _never(cycle, q, one)] for q, line in lines.items()
        }
        heads = {name: line[0] for name, line in starts.items() if line}
        assert queue == _tournament(cycle, heads)
        assert heads[queue] is pending
        lines[queue].remove(pending)


def test_a_refused_head_that_would_borrow_leaves_no_trace_on_the_heads_behind_it() -> None:
    """Among cohorts that share no quota, a head that does not borrow is first: ``a1``, as soon as ``a0`` is decided."""
    snapshot = quota_only(
        [cq("a", 4), cq("lender", 4), cq("b", 4, "other"), cq("other-lender", 4, "other")],
        [gpus("a0", 7, "a", priority=9), gpus("a1", 2, "a"), gpus("b0", 6, "b", priority=5)],
        [running("r", 2, "lender")],
        rules=FAIR,
    )
    assert looked_at(snapshot) == ["a0", "a1", "b0"]


# Past use.


def by_use(snapshot: Snapshot, *, before: bool = False, **past: Any) -> Snapshot:
    rule = UsageFairness(half_life=3600.0, sampling=3600.0, before_priority=before)
    rules = Rules(usage_fairness=rule)
    config = snapshot.config
    queues = {n: replace(q, usage_fairness=True) for n, q in config.cluster_queues.items()}
    config = replace(config, rules=rules, cluster_queues=queues)
    return replace(snapshot, config=config, past_use=PastUse(**past))


def lent(*pending: Workload, free: int = 4) -> Snapshot:
    """One ClusterQueue behind the LocalQueues x and y."""
    return quota_only([cq("q", free)], pending, locals_={"x": "q", "y": "q"})


def test_the_queue_that_used_less_is_first_among_equal_priorities() -> None:
    snapshot = lent(gpus("x0", 4, "x", 1.0), gpus("y0", 4, "y", 2.0))
    used = {("team", "x"): 2.0, ("team", "y"): 1.0}
    assert [a.uid for a in planned(by_use(snapshot, local_queues=used)).admitted] == ["y0"]
    assert [a.uid for a in planned(snapshot).admitted] == ["x0"]


@pytest.mark.parametrize(("before", "first"), [(False, "x0"), (True, "y0")])
def test_past_use_is_compared_after_priority_or_as_in_kueue_before_it(
    before: bool, first: str
) -> None:
    snapshot = lent(gpus("x0", 4, "x", priority=5), gpus("y0", 4, "y"))
    used = {("team", "x"): 2.0}
    made = planned(by_use(snapshot, before=before, local_queues=used))
    assert [a.uid for a in made.admitted] == [first]


def test_a_start_of_the_plan_counts_at_once_so_that_queues_alternate() -> None:
    snapshot = lent(*ones("x", 4), *ones("y", 4, 10.0))
    assert looked_at(by_use(snapshot))[:4] == ["x0", "y0", "x1", "y1"]
    assert {a.uid for a in planned(by_use(snapshot)).admitted} == {"x0", "y0", "x1", "y1"}


def test_the_penalty_is_divided_by_the_weight_of_the_local_queue() -> None:
    snapshot = by_use(lent(*ones("x", 6), *ones("y", 6, 10.0), free=6))
    heavy = {
        **snapshot.config.local_queues,
        ("team", "x"): LocalQueue("team", "x", "q", weight=2000),
    }
    snapshot = replace(snapshot, config=replace(snapshot.config, local_queues=heavy))
    assert sum(a.uid.startswith("x") for a in planned(snapshot).admitted) == 4


def test_a_local_queue_of_weight_zero_is_last() -> None:
    snapshot = by_use(
        lent(gpus("x0", 4, "x", 1.0), gpus("y0", 4, "y", 2.0)), local_queues={("team", "y"): 9.0}
    )
    none = {**snapshot.config.local_queues, ("team", "x"): LocalQueue("team", "x", "q", weight=0)}
    snapshot = replace(snapshot, config=replace(snapshot.config, local_queues=none))
    assert [a.uid for a in planned(snapshot).admitted] == ["y0"]


def test_users_of_one_local_queue_alternate_too() -> None:
    snapshot = lent(*ones("x", 3, user="ann"), gpus("bob", 1, "x", 9.0, user="bob"), free=2)
    assert [a.uid for a in planned(by_use(snapshot)).admitted] == ["x0", "bob"]


def test_past_use_of_cluster_queues_breaks_ties_of_priority_among_their_heads() -> None:
    snapshot = quota_only(
        [cq("a"), cq("b")],
        [gpus("a0", 1, "a", 1.0), gpus("b0", 1, "b", 2.0)],
        cohorts=[cohort("all", 1)],
    )
    past = {"a": 3.0, "b": 1.0}
    assert [a.uid for a in planned(by_use(snapshot, cluster_queues=past)).admitted] == ["b0"]


def test_a_queue_without_the_scope_keeps_time_order() -> None:
    snapshot = lent(gpus("x0", 4, "x", 1.0), gpus("y0", 4, "y", 2.0))
    seen = by_use(snapshot, local_queues={("team", "x"): 2.0})
    plain = {n: replace(q, usage_fairness=False) for n, q in seen.config.cluster_queues.items()}
    seen = replace(seen, config=replace(seen.config, cluster_queues=plain))
    assert [a.uid for a in planned(seen).admitted] == ["x0"]


# The window, and classes of equal gangs.


def test_the_window_is_shared_between_queues() -> None:
    """a alone would fill it."""
    snapshot = quota_only(
        [cq("a", 20, None), cq("b", 20, None)], [*ones("a", 10), *ones("b", 3, 50.0)]
    )
    made = planned(replace(snapshot, limits=SolverLimits(window=4)))
    assert [a.uid for a in made.admitted] == ["a0", "a1", "b0", "b1"]
    assert {r.reasons[0].code for r in made.pending} == {Code.PENDING_EVALUATION}


def test_a_part_of_the_window_that_one_queue_leaves_is_used_by_others() -> None:
    snapshot = quota_only(
        [cq("a", 20, None), cq("b", 20, None)], [*ones("a", 10), *ones("b", 1, 50.0)]
    )
    made = planned(replace(snapshot, limits=SolverLimits(window=4)))
    assert [a.uid for a in made.admitted] == ["a0", "a1", "a2", "b0"]


def test_no_queue_starves_behind_another_however_long() -> None:
    """Cycle after cycle, started gangs leave the queue; every queue starts gangs in each of them."""
    pending = [Pending(w) for w in [*ones("a", 12), *ones("b", 4, 50.0), *ones("c", 4, 60.0)]]
    snapshot = quota_only([cq(n, 20, None) for n in "abc"], [])
    for _ in range(2):
        seen = replace(snapshot, pending=tuple(pending), limits=SolverLimits(window=3))
        gone = {a.uid for a in planned(seen).admitted}
        assert {uid[0] for uid in gone} == {"a", "b", "c"}
        pending = [p for p in pending if p.workload.uid not in gone]


def _singly(snapshot: Snapshot) -> tuple[list[str], dict[str, Code]]:
    prepared = begin(survey(snapshot))
    for _ in one_by_one(prepared):
        pass
    codes = {uid: r.reasons[0].code for uid, r in prepared.cycle.refused.items()}
    return sorted(prepared.cycle.starting), codes


@settings(deadline=None, max_examples=examples(150))
@given(_shared(), st.sampled_from([2, 1000]))
def test_decisions_by_class_equal_decisions_by_gang(snapshot: Snapshot, window: int) -> None:
    snapshot = replace(snapshot, limits=SolverLimits(window=window))
    made = planned(snapshot)
    codes = {r.uid: r.reasons[0].code for r in made.pending}
    assert (sorted(a.uid for a in made.admitted), codes) == _singly(snapshot)


@settings(deadline=None, max_examples=examples(60))
@given(_shared(), st.data())
def test_a_plan_does_not_depend_on_the_plans_before(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    count = len(snapshot.pending)
    other = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    before = [
        replace(p, workload=replace(p.workload, priority=7)) if changed else p
        for p, changed in zip(snapshot.pending, other, strict=True)
    ]
    cache = PlannerCache()
    for known in (before[: data.draw(st.integers(0, count))], before):
        plan(replace(snapshot, pending=tuple(known)), cache=cache)
    assert plan(snapshot, cache=cache) == plan(snapshot)


@pytest.mark.parametrize(
    ("before", "policy", "priority", "at"),
    [
        pytest.param(True, WithinClusterQueue.LOWER_PRIORITY, 9, 1.0, id="of a higher priority"),
        pytest.param(
            False, WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY, 0, 1.0, id="that is older"
        ),
    ],
)
def test_a_gang_evicts_others_although_an_equal_one_before_it_may_not(
    before: bool, policy: WithinClusterQueue, priority: int, at: float
) -> None:
    """LocalQueue x used less, so its gang is first. It may not evict r."""
    r = running("r", 4, "q", priority=5 if before else 0)
    r = replace(r, workload=replace(r.workload, queued_at=2.0))
    gangs = [gpus("x0", 4, "x", 3.0), gpus("y0", 4, "y", at, priority)]
    queue = cq("q", 4, None, within_cluster_queue=policy)
    snapshot = quota_only([queue], gangs, [r], locals_={"x": "q", "y": "q"})
    used = by_use(snapshot, before=before, local_queues={("team", "y"): 2.0})
    assert looked_at(used) == ["x0", "y0"]
    assert {(p.victim, p.preemptor) for p in planned(used).preempted} == {("r", "y0")}


@st.composite
def _evicting(draw: st.DrawFn) -> Snapshot:
    """Gangs of two LocalQueues and a full ClusterQueue. They come in the order of past use, or of their lengths."""
    evicting = [each for each in WithinClusterQueue if each is not WithinClusterQueue.NEVER]
    policy = draw(st.sampled_from(evicting))
    strategy = draw(st.sampled_from([QueueingStrategy.BACKFILL, QueueingStrategy.BEST_EFFORT_FIFO]))
    backfill = Backfill(order=draw(st.sampled_from(BackfillOrder)))
    queue = cq("q", 6, None, within_cluster_queue=policy, strategy=strategy, backfill=backfill)

    def gang(name: str, amount: int, local: str) -> Workload:
        seconds = draw(st.sampled_from([None, 60.0, 600.0]))
        duration = None if seconds is None else Duration(seconds, enforced=True)
        at, priority = float(draw(st.integers(0, 5))), draw(st.integers(0, 2))
        return gpus(name, amount, local, at, priority, duration=duration)

    pending = [
        gang(f"w{number}", draw(st.sampled_from([2, 6])), draw(st.sampled_from(["x", "y"])))
        for number in range(draw(st.integers(2, 6)))
    ]
    runs = [replace(running(f"r{i}", 2, "q"), workload=gang(f"r{i}", 2, "q")) for i in range(3)]
    snapshot = quota_only([queue], pending, runs, locals_={"x": "q", "y": "q"})
    used = {("team", draw(st.sampled_from(["x", "y"]))): 2.0}
    return by_use(snapshot, before=draw(st.booleans()), local_queues=used)


def _decisions(snapshot: Snapshot) -> tuple[list[str], set[tuple[str, str]]]:
    made = planned(snapshot)
    return sorted(a.uid for a in made.admitted), {(p.victim, p.preemptor) for p in made.preempted}


@settings(deadline=None, max_examples=examples(600))
@given(_evicting())
def test_what_is_known_of_equal_gangs_changes_no_decision(snapshot: Snapshot) -> None:
    made = _decisions(snapshot)

    def of(classes: GangClasses, pending: Pending, queue: ClusterQueue | None) -> GangClass:
        """Each gang has a separate class."""
        name = queue.name if queue is not None else None
        kind = class_key(pending, name, lines_of(classes.problem.snapshot.config, PlannerCache()))
        own = ClassKey(name, (kind.asks, pending.workload.uid))
        if own not in classes._known:
            classes._known[own] = classes._make(pending, kind, queue)
        return classes._known[own]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GangClasses, "of", of)
        assert _decisions(snapshot) == made


def test_a_released_lease_serves_those_refused_before_in_their_order() -> None:
    """A new head of the strict queue ends the lease of a gang behind it, and is still pending: b's first gang starts, not its second."""
    strict = cq("s", 0, strategy=QueueingStrategy.STRICT_FIFO)
    placed = Placement((PodSetPlacement("w", (), {GPUS: FLAVOR}),))
    lease = CapacityLease(placed, ("gone",), 0.0, 2e6)
    pending = [
        Pending(gpus("head", 4, "s", 0.0, priority=9)),
        Pending(gpus("leased", 3, "s", 1.0, priority=8), lease),
        Pending(gpus("b0", 2, "b", 0.0, priority=9)),
        Pending(gpus("b1", 2, "b", 2.0)),
    ]
    busy = [running("r", 1, "b")]
    made = planned(quota_only([strict, cq("b")], pending, busy, cohorts=[cohort("all", 4)]))
    assert [a.uid for a in made.admitted] == ["b0"]
