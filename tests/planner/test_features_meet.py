"""Two features at once: each one keeps its rules while the other one is used."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from queuectl.control.questions.preview import eviction_costs, starters, taken_down
from queuectl.domain.commands import Action
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.plan import Plan
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    Cohort,
    Defragment,
    Protection,
    QueueingStrategy,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import FairStrategy
from queuectl.domain.snapshot import Admitted, CapacityLease, MakeRoom, Pending, Snapshot
from queuectl.domain.workload import Duration, Growth, Workload
from queuectl.planner import plan
from queuectl.planner.capacity.reservations import lease_end
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import PlanRule, verify
from tests.planner.backfill_clock import job, line
from tests.planner.build import NOW, gang, holding, node, placed, podset, queue, world
from tests.planner.test_advance import reserved
from tests.planner.test_borrow_backoff import team
from tests.planner.test_budgets import budget, of, spending
from tests.planner.test_defrag_plan import NODES, WHOLE, half_full, moving
from tests.planner.test_elastic import base, cluster, grown_to, rank
from tests.planner.test_fair_order import by_use
from tests.planner.test_provisioning import checked as with_provisioning

STRICT = QueueingStrategy.STRICT_FIFO
LONG = 50_000.0


def planned(snapshot: Snapshot) -> Plan:
    """The plan, which passes its verification."""
    made = plan(snapshot)
    assert not verify(snapshot, made)
    return made


def started(made: Plan) -> list[str]:
    return [admission.uid for admission in made.admitted]


def reasons(made: Plan) -> dict[str, Code]:
    return {refusal.uid: refusal.reasons[0].code for refusal in made.pending}


def starts(made: Plan) -> dict[str, float]:
    """Seconds until the planned starts."""
    return {each.uid: each.start.at - NOW for each in made.planned if each.is_current}


def machines(count: int, gpu: int = 1) -> list[Node]:
    return [node(f"n{number}", gpu=gpu) for number in range(count)]


def running(workload: Workload, *nodes: str, ends: float | None = None, **more: Any) -> Admitted:
    """A gang with one pod on each node that ends at its limit, in so many seconds."""
    held = holding(workload, dict.fromkeys(nodes, 1), started_at=NOW - 100)
    end = None if ends is None else NOW + ends
    return replace(held, ends_at=end, end_enforced=ends is not None, **more)


# ---- Planned starts


@pytest.mark.parametrize(
    ("pods", "seconds"), [(1, None), (3, LONG)], ids=["of unknown length", "too large"]
)
def test_a_gang_that_waits_for_a_resource_claim_has_a_planned_start(
    pods: int, seconds: float | None
) -> None:
    def sharing(workload: Workload) -> Workload:
        return replace(workload, claims=("dataset",))

    holder = running(sharing(job("holder", 1, 200)), "n0", ends=100)
    waiting = sharing(job("waiting", 1, 500))
    behind = job("behind", pods, seconds, queued_at=5)
    made = planned(world(machines(3), [waiting, behind], [holder], line()))
    assert starts(made) == {"waiting": 100}
    assert "behind" not in started(made)
    endless = planned(
        world(machines(3), [waiting, behind], [replace(holder, ends_at=None)], line())
    )
    assert starts(endless) == {}
    assert started(endless) == [], (
        "a gang of unknown length does not pass it, a large one has no room"
    )


def test_two_gangs_that_wait_for_a_resource_claim_start_one_after_the_other() -> None:
    def sharing(uid: str, queued_at: float) -> Workload:
        return replace(job(uid, 1, 500, queued_at=queued_at), claims=("dataset",))

    holder = running(sharing("holder", 0), "n0", ends=100)
    made = planned(world(machines(3), [sharing("a", 1), sharing("b", 2)], [holder], line(2)))
    assert starts(made) == {"a": 100, "b": 600}


@pytest.mark.parametrize("queues", [(line(),), (line(), queue("other"))])
def test_a_later_gang_leaves_a_planned_start_the_resource_claim_that_it_needs(
    queues: tuple[ClusterQueue, ...],
) -> None:
    def sharing(workload: Workload) -> Workload:
        return replace(workload, claims=("dataset",))

    of = queues[-1].name
    holder = running(job("holder", 2, 200), "n0", "n1", ends=100)
    first = sharing(job("first", 3, 500))
    later, short = (job("later", 1, seconds, queued_at=5, of=of) for seconds in (LONG, 50.0))
    nodes = machines(4)
    made = planned(world(nodes, [first, sharing(later)], [holder], *queues))
    assert starts(made) == {"first": 100}
    assert reasons(made)["later"] is Code.WOULD_DELAY
    assert started(planned(world(nodes, [first, sharing(short)], [holder], *queues))) == ["later"]
    assert started(planned(world(nodes, [first, later], [holder], *queues))) == ["later"]


def test_a_repaired_gang_gives_all_its_nodes_back_at_its_end() -> None:
    """One of its two nodes is lost. The planned start waits for its end, and nothing takes the other node before."""
    large, small = job("large", 4, 500), job("small", 1, 5000, queued_at=5)
    run = running(job("run", 2, 200), "n0", "n1", ends=100)
    first = planned(world(machines(5), [large], [run], line()))
    (promise,) = first.planned
    assert starts(first) == {"large": 100}
    left = Fleet(tuple(each for each in machines(5) if each.name != "n1"))
    made = planned(
        replace(
            world(machines(5), [], [], line()),
            now=NOW + 10,
            fleet=left,
            admitted=(replace(run, lost=(("w", "n1", 1),)),),
            pending=(Pending(large, planned_start=promise.start), Pending(small)),
        )
    )
    assert started(made) == ["run"]
    assert starts(made) == {"large": 100}
    assert made.planned[0].slip is None
    assert reasons(made)["small"] is Code.WOULD_DELAY


def test_equal_gangs_with_several_planned_starts_are_considered_again_in_their_order() -> None:
    """A lease ends within the plan. The first of two equal gangs starts on its node."""

    def of_zone(workload: Workload) -> Workload:
        (pods,) = workload.podsets
        shape = podset(gpu=1, select={"z": "a"}).shape
        return replace(workload, podsets=(replace(pods, shape=shape),))

    nodes = [node(name, gpu=1, labels={"z": "a"}) for name in ("n0", "n1", "n3")]
    nodes += [node(name, gpu=1, labels={"z": "b"}) for name in ("n5", "n6")]
    first = of_zone(job("first", 1, 500, priority=5))
    equal = of_zone(job("equal", 1, 500, queued_at=5))
    leased = job("leased", 2, 500, priority=3, of="other")
    lease = CapacityLease(placed(leased, {"n1": 1, "n3": 1}), ("v",), NOW - 5, NOW + 600)
    runs = running(job("r", 1, 200), "n0", ends=100)
    leaves = running(job("v", 1, None, of="other"), "n1", leaving=True)
    for planned_starts in (1, 2):
        pending: list[Workload | Pending] = [first, equal, Pending(leased, lease=lease)]
        queues = line(planned_starts), queue("other")
        made = planned(world(nodes, pending, [runs, leaves], *queues))
        assert started(made) == ["first", "leased"]


@pytest.mark.parametrize("seconds", [3600.0, None])
def test_a_gang_behind_one_that_waits_for_its_victims_has_a_planned_start(
    seconds: float | None,
) -> None:
    """The gang with the lease ends at the latest when its lease and its run are over."""
    rule = line(within=WithinClusterQueue.LOWER_PRIORITY)
    victim = running(job("victim", 4, LONG), "n0", "n1", "n2", "n3", ends=LONG)
    preemptor = job("preemptor", 4, seconds, priority=5)
    waiting, long = job("waiting", 5, 500, queued_at=2), job("long", 1, LONG, queued_at=3)
    made = planned(world(machines(5), [preemptor, waiting, long], [victim], rule))
    (lease,) = [refusal.lease for refusal in made.pending if refusal.lease is not None]
    if seconds is None:
        assert starts(made) == {}
        return
    assert starts(made) == {"waiting": lease.expires_at + seconds - NOW}
    assert started(made) == []
    assert reasons(made)["long"] is Code.WOULD_DELAY


@pytest.mark.parametrize(("seconds", "evicts"), [(300.0, True), (900.0, False)])
def test_a_gang_evicts_others_if_it_leaves_a_planned_start_its_time_from_the_end_of_its_lease_on(
    seconds: float, evicts: bool
) -> None:
    rule = line(within=WithinClusterQueue.LOWER_PRIORITY)
    stays = running(job("stays", 1, 2000), "n0", ends=1000)
    victim = running(job("victim", 1, 2000, priority=-1), "n1", ends=1000)
    first, later = job("first", 2, 500), job("later", 1, seconds, queued_at=5)
    snapshot = world(machines(2), [first, later], [stays, victim], rule)
    assert lease_end(snapshot) - NOW == 600
    made = planned(snapshot)
    assert starts(made) == {"first": 1000}
    assert [one.victim for one in made.preempted] == (["victim"] if evicts else [])


# ---- Reservations


def test_a_gang_migrates_to_a_node_that_a_reservation_needs_after_its_end() -> None:
    first, second = half_full().admitted
    short = replace(first.workload, duration=Duration(3600, enforced=True))
    first = replace(
        first, workload=short, started_at=NOW - 3500, ends_at=NOW + 100, end_enforced=True
    )
    second = replace(second, ends_at=NOW + 100, end_enforced=True, restartable=False)
    snapshot = replace(
        half_full(), admitted=(first, second), reservations=(reserved(nodes=("n1",), starts=200),)
    )
    assert [move.uid for move in planned(snapshot).moved] == ["small0"]


def test_nodes_are_made_for_a_gang_that_must_not_use_the_nodes_of_a_reservation() -> None:
    snapshot = world([node("n0", gpu=8)], [gang("g", podset("w", gpu=8))], [], queue())
    snapshot = replace(snapshot, reservations=(reserved(nodes=("n0",), starts=100),))
    assert reasons(planned(snapshot)) == {"g": Code.RESERVATION_AHEAD}
    assert reasons(planned(with_provisioning(snapshot))) == {"g": Code.WAITING_FOR_CHECKS}


def test_nodes_are_made_for_a_gang_that_would_delay_a_planned_start() -> None:
    """The planned start is of a ClusterQueue for which no nodes are made."""
    holder = running(job("holder", 2, 200), "n0", "n1", ends=100)
    first, late = job("first", 3, 500), job("late", 1, LONG, queued_at=5, of="cloud")
    queues = [replace(each, cohort="both") for each in (line(), replace(line(), name="cloud"))]
    snapshot = world(machines(3), [first, late], [holder], *queues)
    both = Cohort("both", backfill=Backfill(1, BackfillOrder.QUEUE, 0.0))
    snapshot = replace(snapshot, config=replace(snapshot.config, cohorts={"both": both}))
    assert reasons(planned(snapshot))["late"] is Code.WOULD_DELAY
    config = with_provisioning(snapshot).config
    main = replace(config.cluster_queues["main"], admission_checks=())
    config = replace(config, cluster_queues={**config.cluster_queues, "main": main})
    made = planned(replace(snapshot, config=config))
    assert starts(made) == {"first": 100}
    assert reasons(made)["late"] is Code.WAITING_FOR_CHECKS


# ---- Idle quota of a pending gang, and invalid leases


@pytest.mark.parametrize("patience", [0.0, 30.0])
def test_a_head_that_waits_before_it_reclaims_keeps_its_idle_quota(patience: float) -> None:
    def asks(uid: str, pods: int, of: str, queued_at: float = 0.0) -> Workload:
        return gang(uid, podset(gpu=8, count=pods), queue=of, queued_at=queued_at)

    borrower = replace(holding(asks("borrower", 1, "b"), {"n0": 1}), started_at=NOW - 5000)
    protected = replace(team("c", 0), protection=Protection(min_runtime=3600.0))
    owner = team("a", 16, reclaim_patience=patience, strategy=STRICT)
    pending: list[Workload | Pending] = [
        Pending(asks("head", 2, "a"), reclaim_since=None),
        asks("other", 1, "c", 5.0),
    ]
    made = planned(world(machines(2, 8), pending, [borrower], owner, team("b", 0), protected))
    assert started(made) == []
    assert reasons(made)["other"] is Code.WAITING_FOR_QUOTA


FAIR = (FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,)


@pytest.mark.parametrize("fair", [(), FAIR], ids=["by borrowing", "by share"])
@pytest.mark.parametrize("leased", [False, True])
def test_a_lease_on_a_lost_node_gives_no_gang_a_place_before_others(
    leased: bool, fair: tuple[FairStrategy, ...]
) -> None:
    owner = gang("owner", podset(gpu=8), queue="a", queued_at=5.0)
    borrower = gang("borrower", podset(gpu=8), queue="b", queued_at=9.0)
    lease = CapacityLease(placed(borrower, {"n0": 1}), ("x",), NOW - 10, NOW + 500)
    nodes = [node("n0", gpu=8, ready=False), node("n1", gpu=8)]
    pending: list[Workload | Pending] = [owner, Pending(borrower, lease=lease if leased else None)]
    snapshot = world(nodes, pending, [], team("a", 8), team("b", 0))
    rules = replace(snapshot.config.rules, fair_sharing=fair)
    snapshot = replace(snapshot, config=replace(snapshot.config, rules=rules))
    assert started(planned(snapshot)) == ["owner"]


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("limit", ["maxPerUser", "ResourceClaim"])
def test_a_lease_on_a_lost_node_takes_nothing_of_a_limit(leased: bool, limit: str) -> None:
    def of_ann(uid: str, priority: int) -> Workload:
        made = replace(gang(uid, podset(gpu=4), priority=priority), user="ann")
        return replace(made, claims=("dataset",)) if limit == "ResourceClaim" else made

    first, second = of_ann("first", 5), of_ann("second", 0)
    rule: ClusterQueue = queue()
    if limit == "maxPerUser":
        rule = replace(rule, max_per_user=((GPU, 4),))
    lease = CapacityLease(placed(second, {"n0": 1}), ("x",), NOW - 10, NOW + 500)
    nodes = [node("n0", gpu=4, ready=False), node("n1", gpu=4)]
    pending: list[Workload | Pending] = [first, Pending(second, lease=lease if leased else None)]
    assert started(planned(world(nodes, pending, [], rule))) == ["first"]


@pytest.mark.parametrize("strategy", list(QueueingStrategy))
@pytest.mark.parametrize("returns", [True, False])
def test_a_gang_that_migrates_keeps_its_new_place_until_its_pods_are_created_again(
    strategy: QueueingStrategy, returns: bool
) -> None:
    """For a while: an index of an array, for example."""
    index = gang("index", podset(gpu=4))
    lease = CapacityLease(placed(index, {"n0": 1}), (), NOW - 10, NOW + 500)
    why = Reason(Code.WAITING_FOR_PODS, "its pod does not exist")
    until = NOW + 50 if returns else None
    waits = Pending(index, lease=lease, blocked=why, returns_by=until)
    for priority in (0, 1):
        other = gang("other", podset(gpu=4), priority=priority, queued_at=5.0)
        made = planned(world([node("n0", gpu=4)], [other, waits], [], queue(strategy=strategy)))
        kept = returns and not (priority and strategy is STRICT)
        assert started(made) == ([] if kept else ["other"])
        (refusal,) = [one for one in made.pending if one.uid == "index"]
        assert (refusal.lease, refusal.reasons) == (lease if kept else None, (why,))


def test_a_gang_for_which_others_migrate_on_request_has_no_planned_start() -> None:
    rule = replace(line(), defragment=Defragment.OFF)
    snapshot = half_full(rule, ends_at=NOW + 100.0, end_enforced=True)
    whole = replace(WHOLE, duration=Duration(600.0, enforced=True))
    snapshot = replace(snapshot, pending=(Pending(whole),))
    assert starts(planned(snapshot)) == {"whole": 100}
    made = planned(replace(snapshot, make_room=MakeRoom()))
    assert [move.uid for move in made.moved] == ["small0"]
    assert starts(made) == {}


# ---- Past use


def test_a_gang_behind_one_at_a_limit_that_used_less_holds_back_no_gang() -> None:
    """By time, it is before the gang behind which it waits."""
    behind = of("behind", queued_at=1.0, user="eve")
    at_limit = of("at_limit", queued_at=3.0, user="bob")
    free = of("free", 0, queued_at=2.0, user="eve")
    snapshot = spending(budget(), [behind, at_limit, free], spent=10, strategy=STRICT)
    made = planned(by_use(snapshot, users={"eve": 1.0}))
    assert started(made) == ["free"]
    assert reasons(made) == {"behind": Code.WAITING_IN_ORDER, "at_limit": Code.BUDGET_SPENT}


# ---- Elastic gangs


def test_a_pod_that_is_held_for_its_nodes_is_added_before_those_of_higher_ranks() -> None:
    excluded = Pending(rank(1), excluded=frozenset({"n1"}))
    made = planned(with_provisioning(cluster(2, [excluded, rank(2)], grown_to(0))))
    assert started(made) == []
    assert reasons(made)["train.002"] is Code.WAITING_IN_ORDER


def test_a_pod_that_waits_at_a_limit_holds_back_no_gang_of_its_user() -> None:
    rule = replace(queue(strategy=STRICT), max_per_user=((GPU, 12),))
    runs = holding(replace(base(), user="ann"), {"n0": 1})
    small = replace(gang("small", podset(gpu=2), queued_at=5.0), user="ann")
    made = planned(world(machines(3, 8), [replace(rank(1), user="ann"), small], [runs], rule))
    assert started(made) == ["small"]
    assert reasons(made)["train.001"] is Code.MAX_PER_USER


@pytest.mark.parametrize("added", [0, 3])
def test_a_gang_stays_while_a_pod_that_was_added_to_it_is_protected(added: int) -> None:
    """The gang is old enough to be evicted, the added pods are not, and they would end with it."""
    rule = replace(queue(), protection=Protection(min_runtime=600.0))
    old, *young = grown_to(added)
    admitted = [replace(old, started_at=NOW - 7200)]
    admitted += [replace(pod, started_at=NOW - 60) for pod in young]
    high = gang("high", podset("w", gpu=8, select={"kubernetes.io/hostname": "n0"}), priority=1)
    made = planned(world(machines(4, 8), [high], admitted, rule))
    assert [one.victim for one in made.preempted] == ([] if added else ["train"])


def test_pods_of_an_elastic_gang_share_its_resource_claim() -> None:
    gangs = [replace(w, claims=("dataset",)) for w in (base(), rank(1))]
    made = planned(cluster(2, gangs[1:], [holding(gangs[0], {"n0": 1})]))
    assert started(made) == ["train.001"]
    other = replace(gang("other", podset(gpu=8)), claims=("dataset",))
    made = planned(cluster(2, [other], [holding(gangs[0], {"n0": 1})]))
    assert started(made) == []


def in_rack(uid: str, rank: int | None = None) -> Workload:
    """An elastic gang of one pod that requires one rack, or a pod of it that can be added in rack r."""
    selects = {"rack": "r"} if rank is not None else None
    found = gang(uid, podset("w", gpu=8, required="rack", select=selects))
    return found if rank is None else replace(found, growth=Growth("train", rank))


def test_a_gang_is_repaired_in_the_domain_of_the_pods_that_were_added_to_it() -> None:
    lost = holding(in_rack("train"), {"n0": 1}, lost=(("w", "n0", 1),))
    added = holding(in_rack("train.001", 1), {"n1": 1})
    down, full, free = (
        node("n0", "r", gpu=8, ready=False),
        node("n1", "r", gpu=8),
        node("n2", "s", gpu=8),
    )
    snapshot = world([down, full, free], [], [lost, added])
    made = planned(snapshot)
    assert [one.uid for one in made.evicted] == ["train"]
    alone = world([down, full, free], [], [lost])
    without = planned(alone)
    assert started(without) == ["train"]
    elsewhere = replace(without.admitted[0], placement=placed(in_rack("train"), {"n2": 1}))
    wrong = replace(without, admitted=(elsewhere,))
    assert {v.rule for v in verify(snapshot, wrong)} == {PlanRule.TOPOLOGY}
    made = planned(world([down, full, free, node("n3", "r", gpu=8)], [], [lost, added]))
    assert made.admitted[0].placement.podsets[0].nodes == (("n3", 1),)


@pytest.mark.parametrize("runs", [False, True])
def test_no_pod_is_placed_for_a_gang_before_its_lost_pods_are(runs: bool) -> None:
    """Its repair decides on the domain."""
    lost = holding(in_rack("train"), {"n0": 1}, lost=(("w", "n0", 1),))
    second = in_rack("train.001", 1)
    admitted = [lost, *([holding(second, {"n1": 1}, lost=(("w", "n1", 1),))] if runs else [])]
    down = [node(name, "r", gpu=8, ready=False) for name in ("n0", "n1")]
    nodes = [*down, node("n2", "r", gpu=8), *(node(f"n{n}", "s", gpu=8) for n in (3, 4))]
    made = planned(world(nodes, [] if runs else [second], admitted))
    assert started(made) == ["train"]
    assert made.evicted == ()
    assert reasons(made) == ({} if runs else {"train.001": Code.WAITING_IN_ORDER})


@pytest.mark.parametrize("added", [False, True])
def test_a_planned_start_waits_for_a_resource_claim_until_the_elastic_gang_ends(
    added: bool,
) -> None:
    """Its added pods end with it, whatever their own length is."""

    def sharing(workload: Workload) -> Workload:
        return replace(workload, claims=("dataset",))

    holder = running(sharing(job("holder", 1, 200)), "n0", ends=100)
    pod = sharing(replace(job("holder.001", 1, 200), growth=Growth("holder", 1)))
    waiting = sharing(job("waiting", 1, 500, queued_at=5))
    admitted = [holder, *([running(pod, "n1", ends=150)] if added else [])]
    made = planned(world(machines(3), [waiting, *([] if added else [pod])], admitted, line()))
    assert starts(made) == {"waiting": 100}
    assert started(made) == ([] if added else ["holder.001"])


def test_a_pod_that_waits_to_be_added_stops_no_migration() -> None:
    rule = moving(strategy=STRICT)
    small = [
        replace(g, workload=replace(g.workload, queued_at=3.0)) for g in half_full(rule).admitted
    ]
    elastic = holding(base(), {"n2": 1})
    whole = replace(WHOLE, queued_at=9.0)
    nodes = [*NODES, node("n2", "r1", gpu=8)]
    made = planned(world(nodes, [rank(1), whole], [*small, elastic], rule))
    assert [move.uid for move in made.moved] == ["small0"]


def test_a_preview_queues_a_gang_where_its_local_queue_leads_now() -> None:
    """The ClusterQueue of its start has no quota now."""
    runs = holding(gang("runs", podset(gpu=8)), {"n0": 1})
    runs = replace(runs, workload=replace(runs.workload, charged_queue="first"))
    queues = (queue("first", gpu=0), queue("main", gpu=8))
    snapshot = world([node("n0", gpu=8)], [], [runs], *queues)
    assert started(planned(taken_down(snapshot, runs, Action.REQUEUE))) == ["runs"]


def test_the_preview_of_an_action_on_an_elastic_gang_is_about_all_its_pods() -> None:
    other = gang("other", podset("w", 3, gpu=8), queued_at=5.0)
    runs = grown_to(2)
    snapshot = cluster(3, [rank(3), other], runs)
    held = taken_down(snapshot, runs[0], Action.HOLD)
    assert starters(plan(snapshot), plan(held)) == ("other",)
    one = taken_down(snapshot, runs[2], Action.HOLD)
    assert [g.workload.uid for g in one.admitted] == ["train", "train.001"]
    cost = eviction_costs(snapshot, runs[:1])["train"]
    parts = costs(runs, snapshot.now, sizes_of(snapshot))
    assert (cost.gpus, cost.lost_work) == (
        Fraction(24),
        sum(part.lost_work for part in parts.values()),
    )
