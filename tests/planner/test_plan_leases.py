"""Preemption in the walk, capacity leases, and the two views of what is free."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.queues import (
    ClusterQueue,
    Fungibility,
    LocalQueue,
    QueueingStrategy,
    ReclaimWithinCohort,
    ResourceFlavor,
    StopPolicy,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules, UsageFairness
from queuectl.domain.snapshot import Admitted, CapacityLease, PastUse, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.build import (
    NOW,
    gang,
    holding,
    node,
    placed,
    podset,
    queue,
    resources,
    with_gpus,
    world,
)
from tests.planner.generate_features import Sizes, snapshot_of
from tests.planner.queues import cq, gpus, quota_only, running
from tests.support.examples import examples


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def started(made: Plan) -> dict[str, tuple[tuple[str, int], ...]]:
    return {a.uid: a.placement.podsets[0].nodes for a in made.admitted}


def codes(made: Plan) -> dict[str, Code]:
    return {r.uid: r.reasons[0].code for r in made.pending}


def whole(uid: str, nodes: int = 1, **kwargs):
    return gang(uid, podset(count=nodes, gpu=8), **kwargs)


def runs(uid: str, *names: str, leaving: bool = False, **kwargs) -> Admitted:
    workload = whole(uid, len(names), **kwargs)
    return holding(workload, dict.fromkeys(names, 1), leaving=leaving)


def leased(workload, *names: str, victims=("v",), until: float = NOW + 60, **kwargs) -> Pending:
    lease = CapacityLease(placed(workload, dict.fromkeys(names, 1)), victims, NOW - 60, until)
    return Pending(workload, lease, **kwargs)


HIGH = 10
FLAVORS = [
    ResourceFlavor(name, node_labels=(("m", name),), topology="gpus") for name in ("one", "two")
]


# Preempting.


def test_a_blocked_gang_evicts_and_holds_a_lease() -> None:
    made = planned(world([node("a0", gpu=8)], [whole("g", priority=HIGH)], [runs("v", "a0")]))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("v", "g")]
    (refusal,) = made.pending
    assert refusal.reasons[0].code is Code.WAITING_FOR_PREEMPTED
    assert refusal.lease is not None
    assert refusal.lease.victims == ("v",)
    assert (refusal.lease.created_at, refusal.lease.expires_at) == (NOW, NOW + 600)
    assert refusal.lease.placement.podsets[0].nodes == (("a0", 1),)


def test_kept_gangs_are_moved_before_any_gang_is_evicted() -> None:
    """The first gang would use the only rack of the second; moving it costs nothing."""
    nodes = [
        node("a0", "a", gpu=8, labels={"m": "x"}),
        node("b0", "b", gpu=8),
        node("b1", "b", gpu=8),
    ]
    gangs = [
        gang("any", podset(gpu=8), priority=20),
        gang("x", podset(gpu=8, select={"m": "x"}), priority=10),
    ]
    made = planned(world(nodes, gangs, [runs("v", "b1")]))
    assert started(made) == {"any": (("b0", 1),), "x": (("a0", 1),)}
    assert made.preempted == ()


def test_no_gang_is_evicted_for_one_that_would_not_fit_after_it() -> None:
    made = planned(world([node("a0", gpu=8)], [whole("g", 2, priority=HIGH)], [runs("v", "a0")]))
    assert made.preempted == ()
    assert codes(made) == {"g": Code.SHAPE_NEVER_FITS}


def test_two_blocked_gangs_never_count_on_the_same_victim() -> None:
    gangs = [whole(f"g{i}", queued_at=float(i), priority=HIGH) for i in range(3)]
    running = [runs("v0", "a0"), runs("v1", "a1")]
    made = planned(world([node("a0", gpu=8), node("a1", gpu=8)], gangs, running))
    assert sorted(p.victim for p in made.preempted) == ["v0", "v1"]
    assert codes(made) == {
        "g0": Code.WAITING_FOR_PREEMPTED,
        "g1": Code.WAITING_FOR_PREEMPTED,
        "g2": Code.TOPOLOGY_PLACEMENT_FAILED,
    }


def test_idle_capacity_that_a_lease_needs_is_not_given_to_later_gangs() -> None:
    """One node is idle, one is freed; the gang needs both, so the small one behind it must wait."""
    gangs = [whole("large", 2, priority=HIGH), whole("small", queued_at=5.0)]
    made = planned(world([node("a0", gpu=8), node("a1", gpu=8)], gangs, [runs("v", "a0")]))
    assert started(made) == {}
    assert [p.victim for p in made.preempted] == ["v"]
    assert codes(made)["small"] is Code.TOPOLOGY_PLACEMENT_FAILED


def test_capacity_freed_beyond_the_lease_is_free_for_others_only_after_the_victim_left() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    gangs = [whole("large", priority=HIGH), whole("small", queued_at=5.0)]
    first = planned(world(nodes, gangs, [runs("v", "a0", "a1")]))
    assert started(first) == {}
    assert [p.victim for p in first.preempted] == ["v"]
    entries = [
        Pending(workload, refusal.lease)
        for workload, refusal in zip(gangs, first.pending, strict=True)
    ]
    assert set(started(planned(world(nodes, entries)))) == {"large", "small"}


def test_a_strict_queue_preempts_for_its_head_alone() -> None:
    gangs = [
        whole("head", 2, queued_at=1.0, priority=HIGH),
        whole("next", queued_at=2.0, priority=HIGH),
    ]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    running = [runs("v", "a0"), runs("equal", "a1", priority=HIGH)]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO)
    made = planned(world(nodes, gangs, running, strict))
    assert made.preempted == ()
    assert codes(made) == {
        "head": Code.TOPOLOGY_PLACEMENT_FAILED,
        "next": Code.WAITING_IN_ORDER,
    }
    made = planned(world(nodes, gangs, running))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("v", "next")]


def test_a_gang_that_fits_leaving_capacity_waits_for_it_and_evicts_no_gang() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    running = [runs("going", "a0", leaving=True), runs("v", "a1")]
    made = planned(world(nodes, [whole("g", priority=HIGH)], running))
    assert made.preempted == ()
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert refusal.lease.victims == ("going",)
    assert refusal.lease.placement.podsets[0].nodes == (("a0", 1),)


def test_quota_alone_can_require_victims() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    made = planned(world(nodes, [whole("g", priority=HIGH)], [runs("v", "a0")], queue(gpu=8)))
    assert [p.victim for p in made.preempted] == ["v"]


@pytest.mark.parametrize(("slow", "awaited"), [(2, 0), (3, 0), (4, 1)])
@pytest.mark.parametrize("victim", ["runs", "leaves"])
def test_a_new_lease_waits_for_gangs_of_other_places_only_where_too_few_nodes_are_free(
    slow: int, awaited: int, victim: str
) -> None:
    """Quota is short, and one gang of its queue frees it and a node. Gangs of another queue leave other nodes of five."""
    nodes = [node(f"a{i}", gpu=8) for i in range(5)]
    others = [runs(f"slow{i}", f"a{i}", leaving=True, queue="other") for i in range(slow)]
    own = runs("v", "a4", leaving=victim == "leaves")
    snapshot = world(
        nodes, [whole("g", 2, priority=HIGH)], [own, *others], queue(gpu=16), queue("other")
    )
    made = planned(snapshot)
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert len(refusal.lease.victims) == 1 + awaited
    assert "v" in refusal.lease.victims


def test_a_new_lease_waits_for_others_rather_than_to_be_evicted_once_more_but_for_as_few_as_it_can() -> (
    None
):
    """One node is free, four are left by others; three are requested, and its quota is short until its victim has left."""
    nodes = [node(f"a{i}", gpu=8) for i in range(6)]
    others = [runs(f"slow{i}", f"a{i}", leaving=True, queue="other") for i in range(4)]
    own = runs("v", "a4")
    made = planned(
        world(nodes, [whole("g", 3, priority=HIGH)], [own, *others], queue(gpu=24), queue("other"))
    )
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert [p.victim for p in made.preempted] == ["v"]
    assert len(refusal.lease.victims) == 2


@pytest.mark.parametrize(
    ("case", "priority", "waits"),
    [
        ("a later gang", 0, True),
        ("a gang of lower priority", -1, True),
        ("a gang of higher priority", HIGH, False),
        ("a gang that queued earlier", 0, False),
        ("the evicted gang does not queue again", 0, False),
        ("its LocalQueue is stopped", 0, False),
    ],
)
@pytest.mark.parametrize("short_of", ["nodes", "quota"])
def test_an_evicted_gang_keeps_its_place_while_it_leaves(
    case: str, priority: int, waits: bool, short_of: str
) -> None:
    nodes = [node("a0", gpu=8), *([node("a1", gpu=8)] if short_of == "quota" else [])]
    evicted = replace(
        runs("evicted", "a0", leaving=True, queued_at=5.0), returns="not queue again" not in case
    )
    at = 1.0 if "earlier" in case else 9.0
    other = whole("other", priority=priority, queued_at=at, queue="second")
    own = queue(gpu=8)
    snapshot = world(nodes, [other], [evicted], own)
    known = dict(snapshot.config.local_queues)
    known["team", "second"] = LocalQueue("team", "second", "main")
    if "stopped" in case:
        known["team", "main"] = replace(known["team", "main"], stop_policy=StopPolicy.HOLD)
    made = planned(replace(snapshot, config=replace(snapshot.config, local_queues=known)))
    (refusal,) = made.pending
    assert (refusal.lease is None) == waits
    assert made.preempted == ()


@pytest.mark.parametrize("avoided", [frozenset(), frozenset({"a0"})])
def test_an_evicted_gang_keeps_its_place_on_nodes_that_it_does_not_avoid(
    avoided: frozenset[str],
) -> None:
    evicted = replace(runs("evicted", "a0", leaving=True), returns=True, excluded=avoided)
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    made = planned(world(nodes, [whole("later", queued_at=9.0)], [evicted]))
    assert started(made) == ({} if avoided else {"later": (("a1", 1),)})


def test_an_evicted_gang_that_has_no_nodes_keeps_its_place_too() -> None:
    evicted = replace(running("evicted", 8, "main"), leaving=True, returns=True)
    snapshot = quota_only([cq("main", 8)], [gpus("later", 8, "main", at=9.0)], [evicted])
    (refusal,) = planned(snapshot).pending
    assert refusal.lease is None


@pytest.mark.parametrize("by_use", [False, True], ids=["by time", "by past use"])
@pytest.mark.parametrize(("leads_to", "waits"), [(None, False), ("other", False), ("main", True)])
def test_an_evicted_gang_keeps_its_place_where_its_local_queue_leads_now(
    leads_to: str | None, waits: bool, by_use: bool
) -> None:
    """Its LocalQueue is deleted, or leads to another ClusterQueue, since its start in ``main``."""
    evicted = replace(runs("evicted", "a0", leaving=True, queue="own"), returns=True)
    evicted = replace(evicted, workload=replace(evicted.workload, charged_queue="main"))
    queues = [replace(queue(name, gpu=8), usage_fairness=by_use) for name in ("main", "other")]
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    snapshot = world(nodes, [whole("later", queued_at=9.0)], [evicted], *queues)
    known = dict(snapshot.config.local_queues)
    if leads_to is not None:
        known["team", "own"] = LocalQueue("team", "own", leads_to)
    rules = Rules(usage_fairness=UsageFairness(half_life=3600.0))
    config = replace(snapshot.config, local_queues=known, rules=rules)
    (refusal,) = planned(replace(snapshot, config=config)).pending
    assert (refusal.lease is None) == waits


# Holding a lease.


def test_a_lease_is_claimed_as_soon_as_all_of_it_is_free() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", priority=HIGH), "a1")
    busy = [runs("v", "a1", leaving=True), runs("r", "a0")]
    waiting = planned(world(nodes, [entry], busy))
    assert codes(waiting) == {"g": Code.WAITING_FOR_PREEMPTED}
    assert waiting.pending[0].lease == entry.lease
    assert waiting.preempted == ()
    assert started(planned(world(nodes, [entry]))) == {"g": (("a1", 1),)}


SLOW = runs("v", "a1", leaving=True)


@pytest.mark.parametrize(
    ("case", "running", "quota", "starts"),
    [
        ("other nodes are free", [SLOW], 64, {"g": (("a0", 1),)}),
        ("a gang behind it would start there", [SLOW], 16, {"g": (("a0", 1),)}),
        ("its quota is used until the victim has left", [SLOW], 8, {}),
        ("no other node is free", [SLOW, runs("r", "a0")], 64, {}),
        ("an earlier lease is on the other node", [SLOW, runs("w", "a0", leaving=True)], 64, {}),
    ],
)
def test_a_gang_with_a_lease_starts_as_soon_as_it_fits_anywhere(
    case: str,
    running: list[Admitted],
    quota: int,
    starts: dict[str, tuple[tuple[str, int], ...]],
) -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    never = queue(gpu=quota, within=WithinClusterQueue.NEVER)
    entries = [leased(whole("g", priority=HIGH), "a1"), Pending(whole("behind", queued_at=9.0))]
    if "earlier lease" in case:
        entries.append(leased(whole("early", priority=20), "a0", victims=("w",)))
    assert started(planned(world(nodes, entries, running, never))) == starts


def test_the_lease_of_a_gang_that_starts_elsewhere_is_free_for_others() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    half = holding(gang("v", podset(gpu=4)), {"a1": 1}, leaving=True)
    entries = [leased(whole("g", priority=HIGH), "a1"), Pending(part("behind", 4, queued_at=9.0))]
    assert started(planned(world(nodes, entries, [half]))) == {
        "g": (("a0", 1),),
        "behind": (("a1", 1),),
    }


def test_an_unsuccessful_search_for_another_place_leaves_each_lease_as_it_is() -> None:
    """Three leases, of which the last is complete: it starts, and each other one keeps what its victims have left."""
    nodes = [node("a0", gpu=8), node("a1", gpu=8), node("a2", gpu=8)]
    entries = [
        leased(whole(f"g{at}", priority=20 - at), f"a{at}", victims=(f"v{at}",)) for at in range(3)
    ]
    halves = [
        holding(gang(f"v{at}", podset(gpu=4)), {f"a{at}": 1}, leaving=True) for at in range(2)
    ]
    small = Pending(part("small", 4, queued_at=9.0))
    made = planned(world(nodes, [*entries, small], halves))
    assert started(made) == {"g2": (("a2", 1),)}
    kept = {refusal.uid: refusal.lease for refusal in made.pending}
    assert kept == {"g0": entries[0].lease, "g1": entries[1].lease, "small": None}


@pytest.mark.parametrize(
    ("rule", "starts"), [(WhenCan.TRY_NEXT_FLAVOR, True), (WhenCan.MAY_STOP_SEARCH, False)]
)
def test_a_gang_with_a_lease_starts_on_another_flavor_where_its_queue_prefers_that_to_evictions(
    rule: WhenCan, starts: bool
) -> None:
    nodes = [node("a0", gpu=8, labels={"m": "one"}), node("b0", gpu=8, labels={"m": "two"})]
    asks = whole("g", priority=HIGH)
    until = CapacityLease(placed(asks, {"a0": 1}, flavor="one"), ("v",), NOW - 60, NOW + 60)
    going = holding(whole("v"), {"a0": 1}, flavor="one", leaving=True)
    own = replace(queue(flavors=("one", "two")), fungibility=Fungibility(when_can_preempt=rule))
    made = planned(world(nodes, [Pending(asks, until)], [going], own, flavors=FLAVORS))
    assert started(made) == ({"g": (("b0", 1),)} if starts else {})


def test_a_gang_whose_lease_ends_later_in_the_plan_counts_for_the_evictions_before() -> None:
    """Queue ``a`` is over its own of flavor ``one`` with the lease of ``waits``, which then starts on flavor ``two``."""
    ones = [node(f"a{at}", gpu=8, labels={"m": "one"}) for at in range(3)]
    twos = [node(f"b{at}", gpu=8, labels={"m": "two"}) for at in range(2)]
    queues = [
        replace(two_flavors(name, one, two), reclaim_patience=0.0)
        for name, one, two in (("a", 8, 0), ("b", 24, 16))
    ]
    waits = whole("waits", queue="a")
    until = CapacityLease(placed(waits, {"a1": 1}, flavor="one"), ("goes",), NOW - 60, NOW + 60)
    pending: list[Workload | Pending] = [
        gang("reclaims", podset(gpu=8, select={"m": "one"}), queue="b", priority=HIGH),
        gang("head", podset(count=2, gpu=8, select={"m": "two"}), queue="a", priority=1),
        Pending(waits, until),
    ]
    gangs = [
        holding(whole("stays", queue="a"), {"a0": 1}, flavor="one"),
        holding(whole("goes", queue="b"), {"a1": 1}, flavor="one", leaving=True),
        holding(whole("other", queue="b", priority=HIGH), {"a2": 1}, flavor="one"),
        holding(whole("high", queue="b", priority=HIGH), {"b1": 1}, flavor="two"),
    ]
    made = planned(world([*ones, *twos], pending, gangs, *queues, flavors=FLAVORS))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("stays", "reclaims")]
    assert started(made) == {"waits": (("b0", 1),)}


@pytest.mark.parametrize(("own", "pods"), [(8, 1), (12, 2)])
def test_the_place_that_is_kept_for_an_evicted_gang_counts_for_the_evictions_after(
    own: int, pods: int
) -> None:
    """Queue ``a`` is over its own of flavor ``one`` with the place of ``returns``, of which one pod has not ended."""
    fleet = [node(f"a{at}", gpu=8, labels={"m": "one"}) for at in range(3)]
    queues = [
        replace(two_flavors(name, one, two), reclaim_patience=0.0)
        for name, one, two in (("a", own, 8), ("b", 24, 0))
    ]
    of = {name: podset(gpu=8, select={"m": name}) for name in ("one", "two")}
    pending = [
        gang("next", of["two"], queue="a", priority=5, queued_at=5.0),
        gang("reclaims", of["one"], queue="b"),
    ]
    asks = podset(gpu=8 // pods, count=pods, select={"m": "one"})
    returns = holding(gang("returns", asks, queue="a", priority=5), {"a1": 1}, flavor="one")
    gangs = [
        holding(whole("stays", queue="a"), {"a0": 1}, flavor="one"),
        replace(returns, leaving=True, returns=True),
        holding(whole("high", queue="b", priority=HIGH), {"a2": 1}, flavor="one"),
    ]
    fleet.append(node("b0", gpu=8, labels={"m": "two"}))
    made = planned(world(fleet, pending, gangs, *queues, flavors=FLAVORS))
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("stays", "reclaims")]
    assert started(made) == {"next": (("b0", 1),)}


def test_an_evicted_gang_that_returns_keeps_no_other_flavor_from_gangs_that_fit_there() -> None:
    fleet = [node("a0", gpu=8, labels={"m": "one"}), node("a1", gpu=8, labels={"m": "one"})]
    fleet.append(node("b0", gpu=8, labels={"m": "two"}))
    queues = [two_flavors(name, 8, 8) for name in ("a", "b")]
    pending = [
        gang("next", podset(gpu=16), queue="a", priority=1, queued_at=5.0),
        gang("fits", podset(gpu=8, select={"m": "one"}), queue="b"),
    ]
    gangs = [
        holding(whole("runs", queue="a"), {"a0": 1}, flavor="one"),
        holding(whole("returns", queue="a", priority=1), {"b0": 1}, flavor="two", leaving=True),
    ]
    gangs[1] = replace(gangs[1], returns=True)
    made = planned(world(fleet, pending, gangs, *queues, flavors=FLAVORS))
    assert started(made) == {"fits": (("a1", 1),)}
    assert made.preempted == ()


@pytest.mark.parametrize("left", [False, True])
def test_the_head_of_a_strict_fifo_queue_takes_the_flavor_of_a_lease_behind_it(left: bool) -> None:
    """The lease is of flavor ``two``, for which the head waits. Its gang could also use flavor ``one``."""
    fleet = [node("a0", gpu=8, labels={"m": "one"})]
    fleet += [node(name, gpu=8, labels={"m": "two"}) for name in ("b0", "b1")]
    own = replace(two_flavors("a", 8, 16), strategy=QueueingStrategy.STRICT_FIFO)
    head = whole("head", 2, queue="a", queued_at=1.0)
    later = whole("later", queue="a", queued_at=2.0)
    lease = CapacityLease(placed(later, {"b0": 1}, flavor="two"), ("v",), NOW - 60, NOW + 60)
    gangs = [holding(whole("busy", queue="a"), {"a0": 1}, flavor="one")]
    if not left:
        gangs.append(holding(whole("v", queue="a"), {"b0": 1}, flavor="two", leaving=True))
    made = planned(
        world(fleet, [Pending(head), Pending(later, lease)], gangs, own, flavors=FLAVORS)
    )
    nodes = (("b0", 1), ("b1", 1))
    leases = {r.uid: r.lease.placement.podsets[0].nodes for r in made.pending if r.lease}
    assert (started(made), leases) == (({"head": nodes}, {}) if left else ({}, {"head": nodes}))


def two_flavors(name: str, one: int, two: int) -> ClusterQueue:
    """A ClusterQueue with so many GPUs of each flavor, which reclaims within its cohort."""
    made = with_gpus(queue(name, flavors=("one", "two")), {"one": one, "two": two})
    any_priority = ReclaimWithinCohort.ANY
    return replace(made, cohort="all", reclaim_within_cohort=any_priority)


def test_leased_capacity_is_kept_from_gangs_before_and_after() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", queued_at=2.0), "a1", "a0", victims=("v",))
    entry = replace(entry, workload=whole("g", 2, queued_at=2.0))
    others = [whole("before", queued_at=1.0), whole("after", queued_at=3.0)]
    never = queue(within=WithinClusterQueue.NEVER)
    made = planned(world(nodes, [entry, *others], [runs("v", "a1", leaving=True)], never))
    assert started(made) == {}
    assert codes(made)["before"] is Code.TOPOLOGY_PLACEMENT_FAILED


def test_capacity_free_now_and_later_can_be_used_alongside_a_lease() -> None:
    """The node holds 8 GPUs: 4 leave, 4 are idle; the lease needs 4 of them, the other 4 are free for any gang."""
    nodes = [node("a0", gpu=8)]
    leaving = holding(gang("v", podset(gpu=4)), {"a0": 1}, leaving=True)
    entry = leased(gang("g", podset(gpu=4), priority=HIGH), "a0")
    small = gang("small", podset(gpu=4))
    made = planned(world(nodes, [entry, small], [leaving]))
    assert started(made) == {"g": (("a0", 1),)}
    busy = holding(gang("r", podset(gpu=2)), {"a0": 1})
    tight = world(nodes, [entry, gang("small", podset(gpu=2))], [leaving, busy])
    assert started(planned(tight)) == {"small": (("a0", 1),)}


def test_a_gang_with_an_expired_or_impossible_lease_is_planned_again() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    for entry, where in (
        (leased(whole("g", priority=HIGH), "a1", until=NOW), "a0"),
        (leased(whole("g", priority=HIGH), "gone"), "a0"),
        (replace(leased(whole("g", priority=HIGH), "a0"), excluded=frozenset({"a0"})), "a1"),
    ):
        assert started(planned(world(nodes, [entry]))) == {"g": ((where, 1),)}
    lost = [node("a0", gpu=8), node("a1", gpu=8, ready=False)]
    entry = leased(whole("g", priority=HIGH), "a1")
    assert started(planned(world(lost, [entry]))) == {"g": (("a0", 1),)}


def test_a_gang_whose_leased_capacity_was_taken_from_outside_is_planned_again() -> None:
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    entry = leased(whole("g", priority=HIGH), "a1")
    made = planned(world(nodes, [entry], other_pods={"a1": resources(gpu=1)}))
    assert started(made) == {"g": (("a0", 1),)}


def test_a_blocked_holder_releases_its_lease() -> None:
    nodes = [node("a0", gpu=8)]
    entry = replace(leased(whole("g"), "a0"), blocked=Reason(Code.HELD, "held"))
    made = planned(world(nodes, [entry, whole("other", queued_at=9.0)]))
    assert set(started(made)) == {"other"}
    assert made.pending[0].lease is None


def test_a_pending_head_takes_the_lease_of_one_behind_it_in_a_strict_queue() -> None:
    """Otherwise the leased gang would pass it. It starts at once if the capacity is enough."""
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    strict = queue(strategy=QueueingStrategy.STRICT_FIFO, within=WithinClusterQueue.NEVER)
    head = whole("head", 2, priority=20)
    entry = leased(whole("g", priority=HIGH), "a1")
    made = planned(world(nodes, [head, entry], [], strict))
    assert started(made) == {"head": (("a0", 1), ("a1", 1))}
    assert codes(made) == {"g": Code.TOPOLOGY_PLACEMENT_FAILED}
    assert made.pending[0].lease is None
    busy = runs("r", "a0")
    waits = planned(world(nodes, [head, entry], [busy], strict))
    assert codes(waits) == {
        "head": Code.TOPOLOGY_PLACEMENT_FAILED,
        "g": Code.WAITING_IN_ORDER,
    }
    assert waits.pending[1].lease is None


# Leases in a StrictFIFO queue that orders by past use.


def by_use(snapshot: Snapshot, *, before: bool = False, **users: float) -> Snapshot:
    """Past use counts in the ClusterQueue ``strict``."""
    strict = replace(snapshot.config.cluster_queues["strict"], usage_fairness=True)
    config = replace(
        snapshot.config,
        cluster_queues={**snapshot.config.cluster_queues, "strict": strict},
        rules=Rules(usage_fairness=UsageFairness(half_life=3600.0, before_priority=before)),
    )
    return replace(snapshot, config=config, past_use=PastUse(users=users))


STRICT = queue("strict", strategy=QueueingStrategy.STRICT_FIFO)


def of(user: str, workload: Workload) -> Workload:
    return replace(workload, user=user)


def test_a_new_lease_does_not_change_the_order_by_past_use() -> None:
    """Of the gangs of the StrictFIFO queue, that of bob is first, before and after another gang of bob has a lease."""
    leases = of("bob", whole("leases", queue="other", priority=HIGH))
    first = of("bob", whole("first", 2, queue="strict", priority=2))
    second = of("eve", whole("second", queue="strict", priority=2, queued_at=1.0))
    running = [
        runs("a", "a0", queue="other"),
        runs("b", "b0", queue="strict"),
        runs("c", "c0", queue="other", priority=HIGH),
    ]
    nodes = [node("a0", gpu=8), node("b0", gpu=8), node("c0", gpu=8)]
    snapshot = by_use(
        world(nodes, [leases, first, second], running, STRICT, queue("other")), bob=1.0, eve=1.0
    )
    made = planned(snapshot)
    assert [(p.victim, p.preemptor) for p in made.preempted] == [("a", "leases")]
    assert codes(made)["second"] is Code.WAITING_IN_ORDER


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    ("head", "before", "ends"),
    [
        pytest.param(of("bob", whole("head", 2, queue="strict")), False, False, id="used less"),
        pytest.param(
            of("bob", whole("head", 2, queue="strict", priority=HIGH)),
            False,
            True,
            id="of a higher priority",
        ),
        pytest.param(
            of("bob", whole("head", 2, queue="strict", priority=HIGH)),
            True,
            False,
            id="of a higher priority, which counts after past use",
        ),
        pytest.param(
            of("eve", whole("head", 2, queue="strict")), True, True, id="of the same user"
        ),
    ],
)
def test_past_use_alone_ends_no_lease(head: Workload, before: bool, ends: bool, left: bool) -> None:
    """When the lease was given, its user had used less than the other one."""
    entry = leased(of("eve", whole("g", queue="strict", queued_at=9.0)), "a0")
    running = [runs("busy", "a1", queue="strict", priority=2 * HIGH)]
    if not left:
        running.append(runs("v", "a0", queue="strict", leaving=True))
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    made = planned(
        by_use(world(nodes, [head, entry], running, STRICT), before=before, bob=1.0, eve=2.0)
    )
    refused = {refusal.uid: refusal for refusal in made.pending}
    assert "g" in started(made) if left and not ends else (refused["g"].lease is None) is ends


def test_a_gang_of_the_same_user_that_waits_behind_another_one_ends_a_lease_too() -> None:
    """Otherwise the gang with the lease would pass it."""
    nodes = [node("a0", gpu=8), node("a1", gpu=8)]
    pending: list[Workload | Pending] = [
        of("bob", whole("head", 2, queue="strict")),
        of("eve", whole("earlier", queue="strict", queued_at=1.0)),
        leased(of("eve", whole("g", queue="strict", queued_at=9.0)), "a0"),
    ]
    running = [runs("busy", "a1", queue="strict", priority=HIGH)]
    made = planned(by_use(world(nodes, pending, running, STRICT), bob=1.0, eve=2.0))
    assert started(made) == {}
    assert codes(made)["earlier"] is codes(made)["g"] is Code.WAITING_IN_ORDER


@pytest.mark.seeds
def test_no_lease_ends_while_only_past_use_changes() -> None:
    """Victims go on leaving, and each plan has another past use."""
    leases = 0
    for seed in range(examples(150)):
        rng = random.Random(seed)
        snapshot = _ordered_by_use(seed, rng)
        made = planned(snapshot)
        holders = {r.uid for r in made.pending if r.lease is not None and r.lease.victims}
        leases += len(holders)
        for _ in range(2 if holders and not made.moved else 0):
            snapshot = replace(
                _while_victims_leave(snapshot, made), past_use=_any_use(snapshot, rng)
            )
            made = plan(snapshot)
            holders -= {admission.uid for admission in made.admitted}
            assert holders <= {r.uid for r in made.pending if r.lease is not None}, seed
    assert leases > examples(150) // 10


def _ordered_by_use(seed: int, rng: random.Random) -> Snapshot:
    """A snapshot of StrictFIFO queues in which nothing but a plan and past use changes anything."""
    snapshot = snapshot_of(seed, Sizes(nodes=(3, 6), running=(4, 12), pending=(4, 10), hinders=0.0))
    config = snapshot.config
    queues = {
        name: replace(
            made,
            strategy=QueueingStrategy.STRICT_FIFO,
            usage_fairness=True,
            time_slice=None,
            within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
        )
        for name, made in config.cluster_queues.items()
    }
    by_use = UsageFairness(half_life=3600.0, before_priority=rng.random() < 0.5)
    config = replace(
        config,
        cluster_queues=queues,
        cohorts={name: replace(cohort, backfill=None) for name, cohort in config.cohorts.items()},
        rules=replace(config.rules, usage_fairness=by_use),
    )
    return replace(
        snapshot,
        config=config,
        admitted=tuple(g for g in snapshot.admitted if not g.lost and not g.leaving),
        pending=tuple(replace(p, borrows_at=None) for p in snapshot.pending),
        past_use=_any_use(snapshot, rng),
    )


def _any_use(snapshot: Snapshot, rng: random.Random) -> PastUse:
    return PastUse(
        {name: rng.random() for name in snapshot.config.local_queues},
        {name: rng.random() for name in snapshot.config.cluster_queues},
        {user: rng.random() for user in ("ann", "bob", "eve")},
    )


def _while_victims_leave(snapshot: Snapshot, made: Plan) -> Snapshot:
    """One second after the plan: its gangs run, and its victims have not left yet."""
    waiting = {p.workload.uid: p for p in snapshot.pending}
    refused = {refusal.uid: refusal for refusal in made.pending}
    leave = {p.victim for p in made.preempted} | {e.uid for e in made.evicted}
    stay = [
        replace(g, leaving=True, returns=True) if g.workload.uid in leave else g
        for g in snapshot.admitted
    ]
    start = [
        Admitted(waiting[a.uid].workload, a.placement, started_at=snapshot.now)
        for a in made.admitted
        if a.uid in waiting
    ]
    left = [replace(p, lease=refused[uid].lease) for uid, p in waiting.items() if uid in refused]
    return replace(snapshot, now=snapshot.now + 1, admitted=(*stay, *start), pending=tuple(left))


def test_leases_hold_quota_too() -> None:
    nodes = [node(f"a{i}", gpu=8) for i in range(3)]
    entry = leased(whole("g", priority=HIGH), "a0")
    never = queue(gpu=16, within=WithinClusterQueue.NEVER)
    made = planned(world(nodes, [entry, whole("other", 2)], [runs("v", "a0", leaving=True)], never))
    assert codes(made)["other"] is Code.WAITING_FOR_QUOTA


# The part of the free capacity that is kept for a lease now.


def part(uid: str, gpus: int, **kwargs):
    return gang(uid, podset(gpu=gpus), **kwargs)


def goes(uid: str, gpus: int, node_name: str = "a0", **kwargs) -> Admitted:
    return holding(part(uid, gpus, **kwargs), {node_name: 1}, leaving=True)


def test_capacity_that_its_victims_freed_is_not_taken_because_a_slow_gang_leaves_too() -> None:
    """The node holds 8 GPUs; the slow gang still has 4 of them, and no gang waits for it."""
    entry = leased(part("g", 4, priority=HIGH), "a0", victims=("gone",))
    before = part("before", 4, priority=20)
    made = planned(world([node("a0", gpu=8)], [before, entry], [goes("slow", 4)]))
    assert started(made) == {"g": (("a0", 1),)}


def test_a_lease_whose_victims_still_run_leaves_others_the_capacity_that_it_does_not_need() -> None:
    entry = leased(part("g", 4, priority=HIGH), "a0", victims=("v",))
    before = part("before", 2, priority=20)
    running = [goes("v", 2), goes("slow", 2)]
    made = planned(world([node("a0", gpu=8)], [before, entry], running))
    assert set(started(made)) == {"before"}
    made = planned(world([node("a0", gpu=8)], [replace_gpus(before, 3), entry], running))
    assert started(made) == {}


def replace_gpus(workload, gpus: int):
    return part(workload.uid, gpus, priority=workload.priority)


def test_a_holder_whose_victim_still_runs_does_not_take_capacity_kept_for_another() -> None:
    early = leased(part("early", 4, priority=20), "a0", victims=("slow",))
    late = leased(part("late", 4, priority=HIGH), "a0", victims=("gone",))
    made = planned(world([node("a0", gpu=8)], [early, late], [goes("slow", 4)]))
    assert set(started(made)) == {"late"}


def test_two_leases_without_victims_left_are_served_in_queue_order() -> None:
    early = leased(part("early", 4, priority=20), "a0", victims=("gone",))
    late = leased(part("late", 4, priority=HIGH), "a0", victims=("gone",))
    made = planned(world([node("a0", gpu=8)], [late, early], [goes("slow", 4)]))
    assert set(started(made)) == {"early"}


def test_nothing_is_kept_for_a_lease_that_an_outside_pod_blocks() -> None:
    """Unmanaged pods took 2 of the 4 GPUs that its victim left; it waits for the slow gang, and 2 are free for any gang."""
    entry = leased(part("g", 4, priority=HIGH), "a0", victims=("gone",))
    small = part("small", 2)
    taken = {"a0": resources(gpu=2)}
    snapshot = world([node("a0", gpu=8)], [entry, small], [goes("slow", 4)], other_pods=taken)
    assert set(started(planned(snapshot))) == {"small"}


def test_a_new_lease_names_only_gangs_that_it_has_to_wait_for() -> None:
    """8 GPUs are requested; without an eviction, a0 is free once two have left, and the third leaves another node."""
    running = [goes("one", 4), goes("two", 4), goes("far", 8, "a1"), runs("v", "a2")]
    nodes = [node(f"a{i}", gpu=8) for i in range(3)]
    made = planned(world(nodes, [whole("g", priority=HIGH)], running))
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert refusal.lease.placement.podsets[0].nodes in ((("a0", 1),), (("a1", 1),))
    where = refusal.lease.placement.podsets[0].nodes[0][0]
    assert set(refusal.lease.victims) == {"a0": {"one", "two"}, "a1": {"far"}}[where]


def test_free_capacity_is_kept_for_a_new_lease_at_once() -> None:
    """2 GPUs are idle, 2 its victim's, 4 those of a slow gang that the lease does not wait for; a later gang must not take the idle ones."""
    nodes = [node("a0", gpu=8)]
    running = [holding(part("v", 2), {"a0": 1}), goes("slow", 4, priority=30)]
    strict = queue(gpu=8)
    gangs = [part("g", 4, priority=HIGH), part("small", 2)]
    made = planned(world(nodes, gangs, running, strict))
    lease = next(r.lease for r in made.pending if r.uid == "g")
    assert lease is not None
    assert set(lease.victims) in ({"slow"}, {"v"})
    assert (set(started(made)) == {"small"}) == (lease.victims == ("slow",))


@pytest.mark.parametrize(("asks", "starts"), [(3, True), (4, False)])
def test_quota_of_a_cohort_that_victims_have_left_is_not_borrowed_in_the_meantime(
    asks: int, starts: bool
) -> None:
    """16 in all: the victim in a still has 4 of the 8 that b's lease needs, a slow gang has 5; 7 are free, 4 of them kept."""
    queues = [cq("a", 8), cq("b", 8)]
    lease = CapacityLease(running("g", 8, "b").placement, ("v",), NOW - 60, NOW + 60)
    entry = Pending(gpus("g", 8, "b"), lease)
    leaving = [running("v", 4, "a", leaving=True), running("slow", 5, "b", leaving=True)]
    other = gpus("other", asks, "a", priority=HIGH)
    made = planned(quota_only(queues, [entry, other], leaving))
    assert ("other" in {a.uid for a in made.admitted}) is starts


def test_a_lease_that_a_limit_ends_is_free_for_others_in_the_same_plan() -> None:
    """It is of a gang that was held for its checks, so no victim leaves for it."""
    nodes = [node("n0", gpu=8), node("n1", gpu=8)]
    rule = replace(queue(), max_per_user=(("nvidia.com/gpu", 8),))
    held = replace(whole("held"), user="ada")
    lease = CapacityLease(placed(held, {"n1": 1}), (), NOW - 60, NOW + 1e9)
    busy = holding(replace(whole("busy"), user="ada"), {"n0": 1})
    pending = [Pending(held, lease=lease), replace(whole("other", queued_at=1.0), user="bob")]
    made = planned(world(nodes, pending, [busy], rule))
    assert started(made) == {"other": (("n1", 1),)}
    assert codes(made) == {"held": Code.MAX_PER_USER}
