"""Reservations in advance: where they are kept, which gangs start alongside them, and what they evict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.checks import EXTERNAL, PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.fleet import Node, NodeRules
from queuectl.domain.plan import Plan
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    Defragment,
    Protection,
    QueueConfig,
    QueueingStrategy,
    ResourceFlavor,
)
from queuectl.domain.reasons import Code
from queuectl.domain.reservations import (
    AdvanceReservation,
    Occurrence,
    ReservationState,
    ReservedCapacity,
    occurrences,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import TopologyMode, TopologyRequest, Workload
from queuectl.planner import plan
from queuectl.planner.cycle import advance
from queuectl.planner.placement.feasible import Feasibility, place
from queuectl.planner.verify import PlanRule, verify
from queuectl.planner.verify.plan_index import PlanIndex
from queuectl.planner.verify.starts import check_evicted, check_reserved
from tests.planner.backfill_clock import Arrival, Clock, job
from tests.planner.build import NOW, config, holding, node, placed, queue, world
from tests.planner.plans import lease
from tests.support.examples import examples

NODES = tuple(node(f"n{number}", f"r{number // 2}", gpu=2) for number in range(4))
STRATEGIES = [*QueueingStrategy]


def reserved(
    pods: int = 0,
    *,
    starts: float = 100.0,
    lasts: float = 100.0,
    rack: TopologyMode | None = None,
    nodes: tuple[str, ...] = (),
    placed: tuple[tuple[str, int], ...] = (),
    name: str = "talk",
    evicts: bool = False,
    users: tuple[str, ...] = (),
    namespaces: tuple[str, ...] = (),
) -> Occurrence:
    """Pods with 2 GPUs each for ClusterQueue ``own``, or nodes; ``starts`` seconds from now."""
    topology = TopologyRequest(rack, "rack") if rack is not None else None
    capacity = ReservedCapacity(pods, Resources({GPU: 2, "pods": 1}), topology=topology)
    reservation = AdvanceReservation(
        name,
        NOW + starts,
        NOW + starts + lasts,
        cluster_queue="own" if pods else None,
        users=frozenset(users),
        namespaces=frozenset(namespaces),
        capacity=capacity if pods else None,
        nodes=nodes,
        evicts=evicts,
    )
    return Occurrence(reservation, reservation.begins, reservation.ends, placed)


def of_own(workload: Workload) -> Workload:
    """A gang of the ClusterQueue of the Reservations."""
    return replace(workload, queue="own")


def cluster(
    *occurrences: Occurrence,
    pending: list[Workload],
    running: list[Admitted] | None = None,
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
) -> Snapshot:
    queues = [replace(queue(strategy=strategy), name=name) for name in ("main", "own")]
    made = world(NODES, pending, running or [], *queues)
    return replace(made, reservations=tuple(occurrences))


def runs(workload: Workload, *nodes: str, ends: float | None = None) -> Admitted:
    """One pod on each of these nodes; ``ends`` seconds from now."""
    held = holding(workload, dict.fromkeys(nodes, 1))
    return replace(held, ends_at=None if ends is None else NOW + ends, end_enforced=True)


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def starts(made: Plan) -> list[str]:
    return sorted(admission.uid for admission in made.admitted)


def nodes_of(made: Plan, name: str = "talk") -> dict[str, int]:
    return next(dict(state.nodes) for state in made.reserved if state.name == name)


def why(made: Plan, uid: str) -> Code:
    return next(r.reasons[0].code for r in made.pending if r.uid == uid)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("workload", "occurrence", "does"),
    [
        pytest.param(job("g", 4, 100, gpu=2), reserved(4), True, id="ends when it starts"),
        pytest.param(job("g", 4, 101, gpu=2), reserved(4), False, id="would still run"),
        pytest.param(job("g", 4, None, gpu=2), reserved(4), False, id="of unknown length"),
        pytest.param(job("g", 2, None, gpu=2), reserved(2), True, id="fits on the other nodes"),
        pytest.param(job("g", 3, None, gpu=2), reserved(2), False, id="one pod too many"),
        pytest.param(of_own(job("g", 4, None, gpu=2)), reserved(4), True, id="of its ClusterQueue"),
        pytest.param(
            of_own(job("g", 4, None, gpu=2)), reserved(4, starts=-10), True, id="of it, later"
        ),
        pytest.param(job("g", 1, 5, gpu=2), reserved(4, starts=-10), False, id="after its start"),
        pytest.param(job("g", 4, 5, gpu=2), reserved(4, starts=-10, lasts=5), True, id="after it"),
        pytest.param(
            of_own(job("g", 4, None, gpu=2)), reserved(4, users=("eve",)), False, id="other user"
        ),
        pytest.param(
            of_own(job("g", 4, None, gpu=2)),
            reserved(4, namespaces=("other",)),
            False,
            id="other namespace",
        ),
        pytest.param(
            job("g", 4, 101, gpu=2), reserved(nodes=("n0",)), False, id="maintenance of a node"
        ),
        pytest.param(job("g", 4, 99, gpu=2), reserved(nodes=("n0",)), True, id="ends before it"),
        pytest.param(
            job("g", 3, None, gpu=2), reserved(nodes=("n0",)), True, id="alongside the node"
        ),
    ],
)
def test_a_gang_starts_if_the_reservation_keeps_its_capacity(
    strategy: QueueingStrategy, workload: Workload, occurrence: Occurrence, does: bool
) -> None:
    snapshot = cluster(occurrence, pending=[workload], strategy=strategy)
    if occurrence.ends <= NOW:
        snapshot = replace(snapshot, reservations=())
    made = planned(snapshot)
    assert starts(made) == ([workload.uid] if does else [])
    if not does:
        assert why(made, "g") is Code.RESERVATION_AHEAD


def test_a_gang_that_waits_learns_the_longest_run_that_fits() -> None:
    occurrences = [reserved(4, starts=100), reserved(1, starts=30, lasts=5, name="probe")]
    made = planned(cluster(*reversed(occurrences), pending=[job("g", 4, None, gpu=2)]))
    reason = made.pending[0].reasons[0]
    assert (reason.details["reservation"], reason.details["mostSeconds"]) == ("probe", 30)
    assert "a run of at most 30 s fits" in reason.message


def test_a_reservation_moves_for_a_gang_within_its_topology_level() -> None:
    in_rack = reserved(2, rack=TopologyMode.PREFERRED, placed=(("n0", 1), ("n1", 1)))
    wants_first = job("g", 1, None, gpu=2)
    podset = wants_first.podsets[0]
    rules = replace(podset.shape.rules, selector=(("kubernetes.io/hostname", "n0"),))
    wants_first = replace(
        wants_first, podsets=(replace(podset, shape=replace(podset.shape, rules=rules)),)
    )
    made = planned(cluster(in_rack, pending=[wants_first]))
    assert starts(made) == ["g"]
    assert nodes_of(made) == {"n2": 1, "n3": 1}
    busy = runs(job("busy", 1, None, gpu=2), "n3")
    made = planned(cluster(in_rack, pending=[wants_first], running=[busy]))
    assert (starts(made), nodes_of(made)) == ([], {"n0": 1, "n1": 1})


def test_a_reservation_keeps_its_nodes_from_plan_to_plan_until_one_is_lost() -> None:
    held = reserved(2, placed=(("n1", 1), ("n3", 1)))
    snapshot = cluster(held, pending=[])
    assert nodes_of(planned(snapshot)) == {"n1": 1, "n3": 1}
    fleet = replace(
        snapshot.fleet,
        nodes=tuple(replace(n, ready=n.name != "n3") for n in snapshot.fleet.nodes),
    )
    assert "n3" not in nodes_of(planned(replace(snapshot, fleet=fleet)))


@pytest.mark.parametrize(
    ("ends", "pods", "reason", "earliest"),
    [
        pytest.param(100.0, 4, "", None, id="ends before it starts"),
        pytest.param(150.0, 4, "at most 3 of 4 pods fit", 150.0, id="ends later"),
        pytest.param(None, 4, "at most 3 of 4 pods fit", None, id="unknown end"),
        pytest.param(None, 5, "even if all nodes were empty", None, id="too large"),
    ],
)
def test_a_reservation_without_a_placement_has_a_reason_and_the_earliest_time(
    ends: float | None, pods: int, reason: str, earliest: float | None
) -> None:
    busy = runs(job("busy", 1, None, gpu=2), "n0", ends=ends)
    made = planned(cluster(reserved(pods), pending=[], running=[busy]))
    state = made.reserved[0]
    assert reason in state.reason
    assert bool(state.nodes) == (not reason)
    assert state.earliest == (NOW + earliest if earliest is not None else None)


@pytest.mark.parametrize(("pods", "known", "most"), [(2, True, 13), (3, False, 3)])
def test_the_earliest_time_takes_few_searches_although_many_gangs_end_later(
    monkeypatch: pytest.MonkeyPatch, *, pods: int, known: bool, most: int
) -> None:
    """200 ends on one node; a pod of the Reservation has room on it after half of them, two pods after all. n1 never has room."""
    nodes = [node(name, "r0", gpu=200) for name in ("n0", "n1")]
    ends = [runs(job(f"g{number}", 1, None), "n0", ends=200.0 + number) for number in range(200)]
    never = runs(job("never", 1, None, gpu=200), "n1")
    each = _asking(reserved(pods).reservation, 100)
    snapshot = world(
        nodes, [], [*ends, never], *[replace(queue(), name=n) for n in ("main", "own")]
    )
    searches = 0

    def counted(*given: Any) -> Feasibility:
        nonlocal searches
        searches += 1
        return place(*given)

    monkeypatch.setattr(advance, "place", counted)
    (state,) = planned(
        replace(snapshot, reservations=(Occurrence(each, each.begins, each.ends),))
    ).reserved
    assert state.earliest == (NOW + 399 if known else None)
    assert searches <= most


@pytest.mark.parametrize("rack", [None, *TopologyMode])
def test_a_reservation_in_a_cluster_without_nodes_has_a_reason(rack: TopologyMode | None) -> None:
    made = planned(replace(world((), [], [], queue()), reservations=(reserved(2, rack=rack),)))
    assert made.reserved[0].reason == "the cluster has no nodes"


def test_devices_of_resource_slices_cannot_be_kept_by_amount() -> None:
    """No node has the resource that stands for them."""
    asked = reserved(1)
    capacity = ReservedCapacity(1, Resources({"gpu.example.com": 2, "pods": 1}))
    asked = replace(asked, reservation=replace(asked.reservation, capacity=capacity))
    (state,) = planned(cluster(asked, pending=[])).reserved
    assert state.reason == (
        "spec.capacity.requests: no node has gpu.example.com; devices of ResourceSlices cannot be kept by amount: "
        "name the nodes in spec.nodes"
    )


def _with_labels(each: AdvanceReservation, **labels: str) -> AdvanceReservation:
    assert each.capacity is not None
    return replace(each, capacity=replace(each.capacity, node_labels=tuple(labels.items())))


def _asking(each: AdvanceReservation, gpus: int) -> AdvanceReservation:
    assert each.capacity is not None
    requests = Resources({GPU: gpus, "pods": 1})
    return replace(each, capacity=replace(each.capacity, requests=requests))


RELABELED = tuple(
    replace(one, labels={**one.labels, "rack": "r9"}) if one.name == "n0" else one for one in NODES
)


@pytest.mark.parametrize("evicts", [True, False])
@pytest.mark.parametrize(
    ("first", "edit", "nodes", "expected"),
    [
        ((("rack", "r0"),), lambda each: _with_labels(each, rack="r1"), NODES, {"n2", "n3"}),
        ((("rack", "r0"),), lambda each: each, RELABELED, set()),
        ((), lambda each: _asking(each, 4), NODES, set()),
        (TopologyMode.REQUIRED, lambda each: each, RELABELED, {"n2", "n3"}),
        ((("rack", "r0"),), lambda each: each, NODES, {"n0", "n1"}),
    ],
    ids=["other labels", "a relabeled node", "larger pods", "another domain", "no edit"],
)
def test_a_reservation_is_placed_again_if_its_nodes_no_longer_meet_its_terms(
    first: TopologyMode | tuple[tuple[str, str], ...],
    edit: Callable[[AdvanceReservation], AdvanceReservation],
    nodes: tuple[Node, ...],
    expected: set[str],
    *,
    evicts: bool,
) -> None:
    rack = first if isinstance(first, TopologyMode) else None
    each = reserved(2, starts=600, rack=rack, evicts=evicts).reservation
    if not isinstance(first, TopologyMode):
        each = _with_labels(each, **dict(first))
    pending = [job("waits", 1, None, gpu=2)]
    before = planned(replace(cluster(pending=pending), reservations=occurrences([each], (), NOW)))
    assert nodes_of(before).keys() == {"n0", "n1"}
    made = world(nodes, pending, [], *[replace(queue(), name=name) for name in ("main", "own")])
    again = occurrences([edit(each)], before.reserved, NOW)
    assert nodes_of(planned(replace(made, reservations=again))).keys() == expected


@pytest.mark.parametrize("evicts", [True, False])
def test_a_reservation_that_is_extended_keeps_its_nodes_and_the_next_one_loses_them(
    *, evicts: bool
) -> None:
    first = reserved(4, starts=-10, lasts=110, name="first").reservation
    second = reserved(4, starts=200, lasts=100, name="second", evicts=evicts).reservation
    before = planned(
        replace(cluster(pending=[]), reservations=occurrences([first, second], (), NOW))
    )
    assert nodes_of(before, "first") == nodes_of(before, "second")
    longer = occurrences([replace(first, ends=NOW + 400), second], before.reserved, NOW)
    after = planned(replace(cluster(pending=[]), reservations=longer))
    assert nodes_of(after, "first") == nodes_of(before, "first")
    assert [state.nodes for state in after.reserved if state.name == "second"] == [()]


def test_the_verifier_finds_two_reservations_on_one_node() -> None:
    twice = [reserved(1, name=name, starts=200) for name in ("first", "second")]
    made = cluster(*twice, pending=[])
    states = tuple(
        ReservationState(n, NOW + 200, NOW + 300, (("n0", 1),)) for n in ("first", "second")
    )
    found = list(check_reserved(PlanIndex(made, Plan(reserved=states))))
    assert [(one.rule, one.subject) for one in found] == [
        (PlanRule.RESERVATION, "first"),
        (PlanRule.RESERVATION, "second"),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_edits_of_reservations_and_nodes_never_break_a_plan(seed: int) -> None:
    draw = Random(seed)

    def made(name: str) -> AdvanceReservation:
        rack = draw.choice([None, TopologyMode.REQUIRED, TopologyMode.PREFERRED])
        starts, lasts = draw.choice([-50, 50, 200, 600]), draw.choice([100, 300])
        each = reserved(
            draw.randint(1, 3),
            starts=starts,
            lasts=lasts,
            rack=rack,
            name=name,
            evicts=draw.random() < 0.6,
        ).reservation
        labels = draw.choice([{}, {}, {"rack": "r0"}, {"rack": "r1"}])
        return _asking(_with_labels(each, **labels), draw.choice([1, 2, 2, 4]))

    names = ["first", "second", "third"]
    current = {name: made(name) for name in names}
    states: tuple[ReservationState, ...] = ()
    for step in range(5):
        nodes = draw.choice([NODES, RELABELED, NODES[1:]])
        pending = [job(f"g{step}-{n}", 1, draw.choice([None, 40, 400]), gpu=2) for n in range(3)]
        running = [runs(job("runs", 1, None, gpu=2), "n2")] if draw.random() < 0.5 else []
        base = world(nodes, pending, running, *[replace(queue(), name=n) for n in ("main", "own")])
        reservations = occurrences(current.values(), states, NOW)
        states = planned(replace(base, reservations=reservations)).reserved
        for name in draw.sample(names, draw.randint(0, 2)):
            current[name] = made(name)


def test_reservations_of_one_time_are_on_different_nodes() -> None:
    made = planned(cluster(reserved(2, name="a"), reserved(2, name="b"), pending=[]))
    assert not nodes_of(made, "a").keys() & nodes_of(made, "b").keys()
    made = planned(cluster(reserved(2, name="a"), reserved(3, name="b"), pending=[]))
    assert made.reserved[1].reason
    apart = reserved(3, name="b", starts=200)
    assert nodes_of(planned(cluster(reserved(2, name="a"), apart, pending=[])), "b")


@pytest.mark.parametrize(
    ("occurrence", "evicted"),
    [
        pytest.param(reserved(4, starts=0), [], id="running gangs stay"),
        pytest.param(reserved(4, starts=0, evicts=True), ["busy"], id="evict"),
        pytest.param(
            reserved(4, starts=0, evicts=True, placed=(*((f"n{i}", 1) for i in range(4)),)),
            ["busy"],
            id="evict from the placement",
        ),
        pytest.param(reserved(4, starts=60, evicts=True), [], id="not yet"),
        pytest.param(reserved(3, starts=0, evicts=True), [], id="other nodes are free"),
        pytest.param(reserved(nodes=("n0",), starts=0), [], id="maintenance, running gangs stay"),
        pytest.param(reserved(nodes=("n0",), starts=0, evicts=True), ["busy"], id="maintenance"),
        pytest.param(reserved(nodes=("n1",), starts=0, evicts=True), [], id="of another node"),
    ],
)
def test_gangs_are_evicted_if_the_reservation_asks_for_it(
    occurrence: Occurrence, evicted: list[str]
) -> None:
    busy = runs(job("busy", 1, None, gpu=2), "n0")
    made = planned(cluster(occurrence, pending=[], running=[busy]))
    assert [eviction.uid for eviction in made.evicted] == evicted
    assert all(eviction.code is Code.RESERVATION_STARTS for eviction in made.evicted)
    if occurrence.reservation.evicts and occurrence.reservation.capacity is not None:
        assert nodes_of(made)


def running_on(uid: str, gpus: int, *nodes: str, priority: int = 0, ran: float = 100.0) -> Admitted:
    """A gang with one pod on each of these nodes that started ``ran`` seconds ago."""
    held = runs(job(uid, len(nodes), None, gpu=gpus, priority=priority), *nodes)
    return replace(held, started_at=NOW - ran)


def evicting(pods: int, gpus: int, **how: Any) -> Occurrence:
    """A Reservation of pods with so many GPUs that evicts gangs and, unless ``starts`` is given, starts now."""
    each = reserved(pods, **{"starts": 0, "evicts": True, **how})
    return replace(each, reservation=_asking(each.reservation, gpus))


def evicted_for(
    *occurrences: Occurrence,
    running: Sequence[Admitted],
    nodes: int = 2,
    protection: Protection | None = None,
) -> list[str]:
    """Gangs that the plan evicts in a cluster with ``nodes`` nodes with 8 GPUs each."""
    made = planned(of_eight(*occurrences, running=running, nodes=nodes, protection=protection))
    assert [each.reason for each in made.reserved] == [""] * len(made.reserved)
    return sorted(eviction.uid for eviction in made.evicted)


def of_eight(
    *occurrences: Occurrence,
    running: Sequence[Admitted],
    nodes: int = 2,
    protection: Protection | None = None,
) -> Snapshot:
    main = replace(queue(), name="main", protection=protection or Protection())
    made = [node(f"n{number}", "r0", gpu=8) for number in range(nodes)]
    snapshot = world(made, [], running, main, replace(queue(), name="own"))
    return replace(snapshot, reservations=occurrences)


@pytest.mark.parametrize(
    ("gangs", "evicted"),
    [
        pytest.param([("small", 1, 0, 10), ("big", 6, 1, 100)], ["big"], id="small is not enough"),
        pytest.param([("small", 1, 0, 10), ("big", 6, 0, 100)], ["big"], id="of one priority"),
        pytest.param([("low", 4, 0, 100), ("high", 4, 1, 10)], ["low"], id="the lower priority"),
        pytest.param([("new", 4, 0, 10), ("old", 4, 0, 100)], ["new"], id="the newer one"),
        pytest.param([("a", 2, 0, 10), ("b", 2, 1, 10), ("c", 4, 2, 10)], ["a", "b"], id="both"),
        pytest.param([("a", 8, 0, 10)], ["a"], id="all"),
        pytest.param([("cpu", 0, 0, 10), ("gpus", 8, 1, 10)], ["gpus"], id="without its resource"),
    ],
)
@pytest.mark.parametrize("placed", [(), (("n0", 1),)], ids=["not placed yet", "on its nodes"])
def test_a_reservation_evicts_no_gang_without_which_its_nodes_have_room(
    gangs: list[tuple[str, int, int, float]], evicted: list[str], placed: tuple[tuple[str, int]]
) -> None:
    running = [
        running_on(uid, gpus, "n0", priority=priority, ran=ran)
        for uid, gpus, priority, ran in gangs
    ]
    assert evicted_for(evicting(1, 4, placed=placed), running=running, nodes=1) == evicted


def test_a_gang_on_two_nodes_of_a_reservation_counts_on_both() -> None:
    """``wide`` must leave n1, which it fills, so ``low`` can stay on n0."""
    running = [running_on("low", 4, "n0"), running_on("wide", 4, "n0", "n1", priority=9)]
    running.append(replace(running_on("stays", 4, "n1"), evictable=False))
    placed = (("n0", 1), ("n1", 1))
    assert evicted_for(evicting(2, 4, placed=placed), running=running) == ["wide"]


@pytest.mark.parametrize("lower", ["n0", "n1"])
@pytest.mark.parametrize("starts", [0, 600], ids=["placed when it starts", "placed before"])
def test_a_reservation_is_placed_over_the_gangs_of_the_lowest_priority(
    lower: str, starts: float
) -> None:
    (other,) = {"n0", "n1"} - {lower}
    running = [running_on("high", 8, other, priority=100), running_on("low", 8, lower)]
    each = evicting(1, 4, starts=starts)
    made = planned(of_eight(each, running=running))
    assert nodes_of(made) == {lower: 1}
    later = replace(each, begins=NOW, placed=made.reserved[0].nodes)
    assert evicted_for(later, running=running) == ["low"]


def test_a_reservation_uses_free_nodes_before_it_evicts_gangs() -> None:
    """One gang is enough, whichever nodes come first."""
    for free in ("n0", "n1", "n2"):
        held = {"n0", "n1", "n2"} - {free}
        running = [running_on(f"on-{name}", 8, name) for name in sorted(held)]
        assert len(evicted_for(evicting(2, 8), running=running, nodes=3)) == 1


def test_a_gang_that_must_leave_anyway_spares_the_others() -> None:
    """Without ``wide``, three nodes are one too few. With it, two of its nodes and the free one are enough."""
    running = [
        running_on("narrow", 8, "n1", ran=10),
        running_on("wide", 8, "n2", "n3", ran=20),
    ]
    for free in ("n0", "n4"):
        filled = {"n0", "n4"} - {free}
        fixed = [replace(running_on("stays", 8, *filled), evictable=False)]
        assert evicted_for(evicting(3, 8), running=[*running, *fixed], nodes=5) == ["wide"]


def test_reservations_that_start_together_evict_no_gang_that_one_of_them_spares_the_other() -> None:
    """``wide`` must leave n1, so ``low`` can stay on n0, although it is the first to leave there."""
    running = [running_on("low", 4, "n0"), running_on("wide", 4, "n0", "n1", priority=9)]
    running.append(replace(running_on("stays", 4, "n1"), evictable=False))
    pair = [evicting(1, 4, name=f"on-{name}", placed=((name, 1),)) for name in ("n0", "n1")]
    assert evicted_for(*pair, running=running) == ["wide"]


def test_the_verifier_finds_a_gang_that_is_evicted_for_no_reservation() -> None:
    running = [running_on("low", 4, "n0"), running_on("high", 4, "n0", priority=9)]
    snapshot = of_eight(evicting(1, 4, placed=(("n0", 1),)), running=running)
    made = planned(snapshot)
    (low,) = made.evicted
    both = replace(made, evicted=(low, replace(low, uid="high")))
    assert [(one.rule, one.subject) for one in verify(snapshot, both)] == [
        (PlanRule.RESERVATION, "high"),
        (PlanRule.RESERVATION, "low"),
    ]
    later = evicting(1, 4, starts=60, placed=(("n0", 1),))
    early = replace(snapshot, reservations=(later,))
    assert [one.subject for one in check_evicted(PlanIndex(early, made))] == ["low"]
    stays = replace(running[0], evictable=False)
    fixed = replace(snapshot, admitted=(stays, running[1]))
    assert [one.subject for one in check_evicted(PlanIndex(fixed, made))] == ["low"]


@pytest.mark.parametrize("starts", [0.0, 60.0, 7 * 86_400.0])
@pytest.mark.parametrize("priority", [0, 9])
def test_a_reservation_that_evicts_moves_to_nodes_that_become_free(
    starts: float, priority: int
) -> None:
    """Its evictions are due 60 s before it starts. One that has begun stays."""
    busy = running_on("busy", 8, "n0", priority=priority)
    each = evicting(1, 8, starts=starts, placed=(("n0", 1),))
    made = planned(with_notice(of_eight(each, running=[busy]), 60.0))
    begun = starts == 0
    assert nodes_of(made) == {"n0" if begun else "n1": 1}
    assert [eviction.uid for eviction in made.evicted] == (["busy"] if begun else [])


@pytest.mark.parametrize(("starts", "node"), [(60.0, "n1"), (61.0, "n0")])
def test_a_reservation_is_placed_once_more_when_its_evictions_are_due(
    starts: float, node: str
) -> None:
    """Until then it stays where it is, because the gangs there can end."""
    running = [running_on("high", 8, "n0", priority=9), running_on("low", 8, "n1")]
    each = evicting(1, 8, starts=starts, placed=(("n0", 1),))
    snapshot = with_notice(of_eight(each, running=running), 60.0)
    made = planned(snapshot)
    assert nodes_of(made) == {node: 1}
    assert [eviction.uid for eviction in made.evicted] == (["low"] if node == "n1" else [])


@pytest.mark.parametrize("freed", [False, True], ids=["its victim leaves", "it has left"])
def test_a_reservation_evicts_no_further_gangs_while_its_victims_leave(*, freed: bool) -> None:
    """Not even gangs of a lower priority that started in the meantime."""
    high, low = running_on("high", 8, "n0", priority=9), running_on("low", 8, "n1")
    each = evicting(1, 8, starts=30, placed=(("n0", 1),))
    running = [low] if freed else [replace(high, leaving=True), low]
    made = planned(with_notice(of_eight(each, running=running), 60.0))
    assert (nodes_of(made), made.evicted) == ({"n0": 1}, ())


def with_notice(snapshot: Snapshot, seconds: float) -> Snapshot:
    """The snapshot with this ``evictionGrace``."""
    rules = replace(snapshot.config.rules, eviction_grace=seconds)
    return replace(snapshot, config=replace(snapshot.config, rules=rules))


def test_a_reservation_evicts_protected_gangs_after_all_others() -> None:
    """It is an instruction of an administrator, so protections only decide the order."""
    young, old = running_on("young", 8, "n0", ran=10), running_on("old", 8, "n1", priority=9)
    keeps = running_on("keeps", 8, "n0", ran=500)
    keeps = replace(keeps, workload=replace(keeps.workload, preemptible=False))
    protection = Protection(min_runtime=50.0)
    for protected in (young, keeps):
        uid, both = protected.workload.uid, [protected, old]
        one = evicted_for(evicting(1, 8), running=both, protection=protection)
        assert one == ["old"]
        two = evicted_for(evicting(2, 8), running=both, protection=protection)
        assert two == sorted([uid, "old"])


def test_gangs_of_its_queue_are_never_evicted_for_it() -> None:
    busy = runs(of_own(job("busy", 1, None, gpu=2)), "n0")
    made = planned(cluster(reserved(4, starts=0, evicts=True), pending=[], running=[busy]))
    assert made.evicted == ()


def test_a_reservation_that_evicts_takes_no_nodes_on_which_a_gang_has_a_lease() -> None:
    """The victim of the lease would have been evicted for nothing. Once its gang runs, it can be evicted for the Reservation."""
    gang, busy, victim = (job(name, 1, None, gpu=1) for name in ("gang", "busy", "victim"))
    stays = [
        replace(runs(job(f"stays{n}", 1, None, gpu=2), f"n{n}"), evictable=False) for n in (1, 2, 3)
    ]
    one = _asking(reserved(1, starts=60, evicts=True).reservation, 1)
    snapshot = cluster(
        Occurrence(one, one.begins, one.ends),
        pending=[gang],
        running=[runs(busy, "n0"), replace(runs(victim, "n0"), leaving=True), *stays],
    )
    leased = replace(snapshot.pending[0], lease=lease(placed(gang, {"n0": 1}), "victim"))
    snapshot = replace(snapshot, pending=(leased,))
    assert (starts(made := planned(snapshot)), nodes_of(made)) == ([], {})
    without_victim = (each for each in snapshot.admitted if each.workload is not victim)
    snapshot = replace(snapshot, admitted=tuple(without_victim))
    assert starts(planned(snapshot)) == ["gang"]
    running = (*snapshot.admitted, runs(gang, "n0"))
    assert nodes_of(planned(replace(snapshot, pending=(), admitted=running))) == {"n0": 1}


def ahead_of_talk(seconds: float, *running: Admitted, gpu: int) -> Snapshot:
    """A gang with this limit can only use node n1 after evictions, and a Reservation keeps that node 1,000 seconds from now."""
    nodes = [node("n0", gpu=4), node("n1", gpu=8)]
    rule = replace(queue(), defragment=Defragment.EXECUTE, defragment_budget=10**6)
    asks = job("g", 1, seconds, priority=4, gpu=gpu)
    snapshot = with_notice(world(nodes, [asks], running, rule), 300.0)
    return replace(snapshot, reservations=(reserved(nodes=("n1",), starts=1000),))


@pytest.mark.parametrize("lease_seconds", [100, 600])
@pytest.mark.parametrize(("spare", "leave"), [(0, True), (1, False)])
def test_gangs_leave_only_for_a_gang_that_ends_before_the_reservation_if_its_lease_ends_first(
    lease_seconds: float, spare: float, leave: bool
) -> None:
    """Otherwise the Reservation can keep it out once they have left."""
    seconds = 1000 - 300 - lease_seconds + spare
    lower = running_on("lower", 8, "n1", ran=5000)
    evicts = ahead_of_talk(seconds, lower, gpu=8)
    moves = ahead_of_talk(seconds, running_on("same", 4, "n1", priority=4, ran=5000), gpu=8)
    for snapshot in (evicts, moves):
        limits = replace(snapshot.limits, lease_seconds=lease_seconds)
        made = planned(replace(snapshot, limits=limits))
        gone = [p.victim for p in made.preempted] + [m.uid for m in made.moved]
        assert gone == ([snapshot.admitted[0].workload.uid] if leave else [])


def test_a_gang_with_a_lease_starts_if_it_then_ends_before_the_reservation() -> None:
    """Its victims have left early."""
    snapshot = ahead_of_talk(900, gpu=8)
    (waits,) = snapshot.pending
    leased = replace(waits, lease=lease(placed(waits.workload, {"n1": 1}), "lower"))
    assert starts(planned(replace(snapshot, pending=(leased,)))) == ["g"]


def test_the_verifier_finds_an_eviction_for_a_gang_that_a_reservation_can_keep_out() -> None:
    snapshot = ahead_of_talk(900, running_on("lower", 8, "n1", ran=5000), gpu=8)
    evicting = plan(replace(snapshot, reservations=()))
    assert [p.victim for p in evicting.preempted] == ["lower"]
    assert {each.rule for each in verify(snapshot, evicting)} == {PlanRule.RESERVATION}


def test_a_notice_is_given_before_the_start() -> None:
    busy = runs(job("busy", 1, None, gpu=2), "n0")
    snapshot = cluster(reserved(4, starts=60, evicts=True), pending=[], running=[busy])
    made = planned(with_notice(snapshot, 60.0))
    assert [eviction.uid for eviction in made.evicted] == ["busy"]


@pytest.mark.parametrize(
    ("seconds", "at"),
    [
        pytest.param(60, 40.0, id="before it"),
        pytest.param(61, 200.0, id="after it"),
        pytest.param(None, 200.0, id="of unknown length"),
    ],
)
def test_a_planned_start_is_alongside_reservations(seconds: float | None, at: float) -> None:
    busy = runs(job("busy", 1, None, gpu=2), "n0", ends=40)
    made = planned(
        cluster(
            reserved(4),
            pending=[job("g", 4, seconds, gpu=2)],
            running=[busy],
            strategy=QueueingStrategy.BACKFILL,
        )
    )
    assert [p.start.at - NOW for p in made.planned] == [at]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (("n0", "gone"), "node gone does not exist"),
        (("typo", "gone"), "nodes typo, gone do not exist"),
        (("n0", "n1"), None),
    ],
)
def test_a_reservation_names_its_nodes_that_do_not_exist(
    nodes: tuple[str, ...], reason: str | None
) -> None:
    """The others are kept nevertheless."""
    each = reserved(nodes=nodes, starts=0, evicts=True)
    made = planned(cluster(each, pending=[], running=[runs(job("busy", 1, None, gpu=2), "n0")]))
    assert [state.reason for state in made.reserved] == ([] if reason is None else [reason])
    assert [eviction.uid for eviction in made.evicted] == (["busy"] if "n0" in nodes else [])


def test_the_verifier_finds_a_gang_on_kept_capacity() -> None:
    snapshot = cluster(reserved(4), pending=[job("g", 1, None, gpu=2)])
    free = plan(replace(snapshot, reservations=()))
    kept = plan(cluster(reserved(4), pending=[])).reserved
    found = verify(snapshot, replace(free, reserved=kept))
    assert {violation.rule for violation in found} == {PlanRule.RESERVATION}


@pytest.mark.parametrize("known", [True, False], ids=["of this plan", "of an earlier plan"])
def test_the_verifier_counts_planned_starts_of_this_plan_only(known: bool) -> None:
    """A gang for which this plan finds no time keeps its earlier time and place in the answer, and takes nothing."""
    busy = runs(job("busy", 1, None, gpu=2), "n0", ends=40)
    snapshot = cluster(
        reserved(4),
        pending=[job("g", 4, None, gpu=2)],
        running=[busy],
        strategy=QueueingStrategy.BACKFILL,
    )
    earlier = plan(replace(snapshot, reservations=()))
    kept = plan(cluster(reserved(4), pending=[])).reserved
    starts = tuple(replace(planned, is_current=known) for planned in earlier.planned)
    made = replace(earlier, reserved=kept, planned=starts)
    found = list(check_reserved(PlanIndex(snapshot, made)))
    assert bool(found) is known


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Gangs of two ClusterQueues; those with a limit keep it."""
    gangs = []
    for number in range(draw(st.integers(3, 8))):
        at = float(draw(st.integers(0, 10)) * 5)
        limit = draw(st.sampled_from([10.0, 20.0, 40.0, 60.0, None]))
        workload = job(
            f"g{number}",
            draw(st.sampled_from([1, 1, 2, 4])),
            limit,
            queued_at=at,
            gpu=draw(st.sampled_from([1, 2])),
            required=draw(st.sampled_from([None, "rack"])),
        )
        own = draw(st.booleans())
        gangs.append(Arrival(at, of_own(workload) if own else workload, limit or 30.0))
    return gangs


@dataclass(eq=False)
class ReservedClock(Clock):
    """A cluster with Reservations; each plan gets the placements of the last one, as in a cluster."""

    reservations: Sequence[AdvanceReservation] = ()

    def _events(self, now: float) -> Iterator[float]:
        yield from super()._events(now)
        for reservation in self.reservations:
            yield from (reservation.begins - NOW, reservation.ends - NOW)

    def _snapshot(self, now: float) -> Snapshot:
        made = super()._snapshot(now)
        states = self.plans[-1][2].reserved if self.plans else ()
        known = occurrences(self.reservations, states, made.now)
        return replace(made, config=of_queues(self.queue.strategy), reservations=known)


def of_queues(strategy: QueueingStrategy) -> QueueConfig:
    return config(*(queue(name, strategy=strategy) for name in ("main", "own")))


def short_of(snapshot: Snapshot, state: ReservationState) -> dict[str, int]:
    """By node, the GPUs that gangs of other ClusterQueues hold of what a Reservation keeps."""
    used: dict[str, int] = {}
    for gang in snapshot.admitted:
        if gang.workload.queue != "own":
            for podset in gang.placement.podsets:
                gpus = gang.workload.podsets[0].shape.requests[GPU]
                for name, pods in podset.nodes:
                    used[name] = used.get(name, 0) + pods * gpus
    free = {node.name: node.allocatable[GPU] - used.get(node.name, 0) for node in NODES}
    return {name: 2 * pods - free[name] for name, pods in state.nodes if free[name] < 2 * pods}


@settings(max_examples=examples(40))
@given(
    arrivals(),
    st.sampled_from(STRATEGIES),
    st.lists(st.tuples(st.integers(1, 3), st.integers(2, 12), st.integers(1, 8)), max_size=2),
)
def test_no_gang_that_keeps_its_limit_holds_reserved_capacity(
    gangs: list[Arrival], strategy: QueueingStrategy, asked: list[tuple[int, int, int]]
) -> None:
    reservations = [
        replace(
            reserved(pods, name=f"r{number}", rack=TopologyMode.PREFERRED).reservation,
            begins=NOW + 5 * begins,
            ends=NOW + 5 * (begins + lasts),
        )
        for number, (pods, begins, lasts) in enumerate(asked)
    ]
    clock = ReservedClock(NODES, gangs, queue(strategy=strategy), reservations=reservations)
    clock.run(until=2_000)
    for now, snapshot, made in clock.plans:
        for state in made.reserved:
            if state.begins <= NOW + now < state.ends:
                assert short_of(snapshot, state) == {}
    placed = {state.name for state in clock.plans[0][2].reserved if state.nodes}
    for _, _, made in clock.plans:  # a Reservation that has nodes never loses them to a gang
        assert not placed & {state.name for state in made.reserved if not state.nodes}


TWO_FLAVORS = [
    ResourceFlavor("default", topology="gpus", node_labels=(("spot", "0"),)),
    ResourceFlavor("spot", topology="gpus", node_labels=(("spot", "1"),)),
]


@pytest.mark.parametrize(
    ("rule", "ready", "does"),
    [
        pytest.param(CheckRule("license"), False, False, id="it waits for its check"),
        pytest.param(CheckRule("license"), True, True, id="its check is ready"),
        pytest.param(
            CheckRule("license", frozenset({"spot"})), False, True, id="of a flavor it cannot use"
        ),
        pytest.param(
            CheckRule("license", frozenset({"default"})), False, False, id="of its flavor"
        ),
        pytest.param(CheckRule("license", provisions=True), False, True, id="makes nodes"),
        pytest.param(
            CheckRule("license", frozenset({"default"}), provisions=True),
            False,
            True,
            id="makes nodes of its flavor",
        ),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gang_that_its_checks_can_hold_leaves_the_nodes_of_a_reservation(
    strategy: QueueingStrategy, rule: CheckRule, ready: bool, does: bool
) -> None:
    """It ends before the Reservation begins only if it starts now."""
    nodes = [replace(each, labels={**each.labels, "spot": "0"}) for each in NODES]
    rules = NodeRules(selector=(("spot", "0"),))
    short = job("short", 1, 50.0, gpu=2)
    (pods,) = short.podsets
    short = replace(short, podsets=(replace(pods, shape=replace(pods.shape, rules=rules)),))
    flavors = ("default", "spot")
    main = replace(queue(flavors=flavors, strategy=strategy), name="main", admission_checks=(rule,))
    own = replace(queue(flavors=flavors), name="own")
    made = world(nodes, [], (), main, own, flavors=TWO_FLAVORS)
    made = replace(
        made,
        config=replace(made.config, checks={"license": _check(provisions=rule.provisions)}),
        reservations=(reserved(4),),
        pending=(Pending(short, ready_checks=frozenset({"license"} if ready else ())),),
    )
    found = planned(made)
    assert starts(found) == (["short"] if does else [])
    assert [one for one in found.pending if one.lease is not None] == []
    assert [r.reasons[0].code for r in found.pending] == ([] if does else [Code.RESERVATION_AHEAD])
    for refusal in found.pending:
        assert "its admission checks can hold it" in refusal.reasons[0].message
        assert refusal.reasons[0].details["mostSeconds"] == 0
    (state,) = found.reserved
    assert len(state.nodes) == 4


def _check(*, provisions: bool) -> AdmissionCheck:
    if provisions:
        return AdmissionCheck("license", PROVISIONING, provisioning=ProvisioningConfig("p", "c"))
    return AdmissionCheck("license", EXTERNAL)
