"""Broken gangs without capacity now: they wait for victims, and only a gang that provably cannot be repaired restarts.

Kueue replaces one failed node, never evicts a gang for it, and evicts the whole gang when two nodes fail (issue 14244).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.queues import ClusterQueue, Protection, WithinClusterQueue
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import plan
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.planner.generate import ORDERS, FreeNodes
from tests.planner.oracle import layers, legal_victims
from tests.planner.oracle_fit import Oracle, SuggestedFix, Task
from tests.planner.plans import rules
from tests.support.examples import examples


def planned(snapshot: Snapshot) -> Plan:
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    return made


def rack(count: int, *out: str, name: str = "a"):
    """Nodes of one rack, some of them not ready."""
    return [node(f"{name}{i}", name, gpu=8, ready=f"{name}{i}" not in out) for i in range(count)]


TRAINING = gang("training", podset(count=3, gpu=8, required="rack"), priority=9)
BROKEN = holding(
    TRAINING, {"a0": 1, "a1": 1, "a2": 1}, lost=(("w", "a1", 1), ("w", "a2", 1)), started_at=0.0
)


def other(uid: str, *names: str, priority: int = 0, **kw) -> Admitted:
    workload = gang(uid, podset(count=len(names), gpu=8), priority=priority, queued_at=50.0)
    return holding(workload, dict.fromkeys(names, 1), **kw)


NODES = [*rack(5, "a1", "a2"), *rack(2, name="b")]
VICTIMS = (other("v3", "a3"), other("v4", "a4"))


def test_two_lost_nodes_are_replaced_by_two_that_victims_free_while_the_rest_stays() -> None:
    made = planned(world(NODES, [], [BROKEN, *VICTIMS]))
    assert (made.admitted, made.evicted) == ((), ())
    assert [(p.victim, p.preemptor) for p in made.preempted] == [
        ("v3", "training"),
        ("v4", "training"),
    ]
    (waits,) = made.pending
    assert waits.reasons[0].code is Code.WAITING_FOR_PREEMPTED
    assert waits.lease is not None
    assert waits.lease.placement.podsets[0].nodes == (("a0", 1), ("a3", 1), ("a4", 1))


def test_it_moves_when_the_last_victim_has_left_and_evicts_no_gang_in_the_meantime() -> None:
    leaving = [replace(v, leaving=True) for v in VICTIMS]
    for still in (leaving, leaving[1:]):
        made = planned(world(NODES, [], [BROKEN, *still]))
        assert (made.admitted, made.preempted, made.evicted) == ((), (), ())
        assert [r.uid for r in made.pending] == ["training"]
    made = planned(world(NODES, [], [BROKEN]))
    (admission,) = made.admitted
    assert admission.repaired
    assert admission.placement.podsets[0].nodes == (("a0", 1), ("a3", 1), ("a4", 1))


@pytest.mark.parametrize("gpus", [8, 7], ids=["full", "over-full"])
def test_a_repair_does_not_depend_on_a_node_that_another_cause_overcommitted(gpus: int) -> None:
    """A GPU fails on a node where it keeps a pod; meanwhile other gangs start, and it is repaired once its victim has left."""
    nodes = [node("n0", gpu=gpus), node("n1", gpu=8, ready=False), node("n2", gpu=8)]
    halves = gang("halves", podset(count=2, gpu=4), priority=5)
    broken = holding(halves, {"n0": 1, "n1": 1}, lost=(("w", "n1", 1),))
    beside = holding(gang("beside", podset(gpu=4), priority=9), {"n0": 1})
    victim = other("victim", "n2")
    light = gang("light", podset())

    snapshot = world(nodes, [light], [broken, beside, victim])
    made = planned(snapshot)
    assert [a.uid for a in made.admitted] == ["light"]
    assert [p.victim for p in made.preempted] == ["victim"]
    assert [r.lease.placement.podsets[0].nodes for r in made.pending if r.lease] == [
        (("n0", 1), ("n2", 1))
    ]
    leaving = world(nodes, [light], [broken, beside, replace(victim, leaving=True)])
    assert [a.uid for a in planned(leaving).admitted] == ["light"]
    repaired = planned(world(nodes, [light], [broken, beside]))
    assert [a.uid for a in repaired.admitted] == ["halves", "light"]

    (waits,) = made.pending
    assert waits.lease is not None
    (placed,) = waits.lease.placement.podsets
    more = replace(waits.lease.placement, podsets=(replace(placed, nodes=(("n0", 2),)),))
    grown = replace(waits, lease=replace(waits.lease, placement=more))
    assert PlanRule.CAPACITY in rules(snapshot, replace(made, pending=(grown,)))


def test_no_gang_takes_the_capacity_that_its_victims_free() -> None:
    """A gang that may not evict the broken one needs the same nodes: it must use others."""
    eager = gang("eager", podset(count=2, gpu=8, required="rack", select={"rack": "a"}), priority=9)
    for leaving in (False, True):
        victims = [replace(v, leaving=leaving) for v in VICTIMS]
        made = planned(world(NODES, [eager], [BROKEN, *victims]))
        held = {r.uid: r.lease for r in made.pending}
        assert held["training"] is not None
        assert held["eager"] is None


@pytest.mark.parametrize(
    ("main", "victims", "why"),
    [
        (queue(within=WithinClusterQueue.NEVER), VICTIMS, "its queue evicts no gang"),
        (queue(), (VICTIMS[0], other("v4", "a4", priority=9)), "one is as urgent"),
        (
            replace(queue(), protection=Protection(min_runtime=60.0)),
            VICTIMS,
            "both started a moment ago",
        ),
        (queue(), (*VICTIMS[:1], other("v4", "a4", "b0", priority=10)), "one is more urgent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_legal_victims_it_restarts_whole_and_no_gang_is_evicted_in_vain(
    main: ClusterQueue, victims: Sequence[Admitted], why: str
) -> None:
    made = planned(world(NODES, [], [BROKEN, *victims], main))
    assert [e.code for e in made.evicted] == [Code.NODE_FAILURES], why
    assert (made.preempted, made.pending) == ((), ())


def test_one_free_node_and_one_victim_repair_it() -> None:
    cheap, dear = other("cheap", "a3", utilization=0.0), other("dear", "a4", started_at=0.0)
    made = planned(world([*NODES, node("a5", "a", gpu=8)], [], [BROKEN, cheap, dear]))
    assert [p.victim for p in made.preempted] == ["cheap"]
    (waits,) = made.pending
    assert waits.lease is not None
    assert waits.lease.placement.podsets[0].nodes == (("a0", 1), ("a3", 1), ("a5", 1))


def test_a_gang_without_a_queue_waits_for_capacity_but_evicts_no_gang() -> None:
    alone = replace(BROKEN, workload=replace(TRAINING, queue=None))
    made = planned(world(NODES, [], [alone, *(replace(v, leaving=True) for v in VICTIMS)]))
    assert [r.uid for r in made.pending] == ["training"]
    made = planned(world(NODES, [], [alone, *VICTIMS]))
    assert [e.uid for e in made.evicted] == ["training"]
    assert made.preempted == ()


def test_a_gang_that_waits_for_its_own_repair_is_not_a_victim() -> None:
    urgent = gang("urgent", podset(gpu=8, select={"rack": "a"}), priority=99)
    made = planned(world(NODES, [urgent], [BROKEN, *VICTIMS]))
    assert "training" not in {p.victim for p in made.preempted}


# -- the verifier


def test_the_verifier_rejects_a_later_repair_that_breaks_a_rule() -> None:
    snapshot = world(NODES, [], [BROKEN, *VICTIMS])
    made = planned(snapshot)
    (waits,) = made.pending
    lease = waits.lease
    assert lease is not None

    def moved(*nodes: tuple[str, int]) -> Plan:
        (placed,) = lease.placement.podsets
        elsewhere = replace(lease.placement, podsets=(replace(placed, nodes=nodes),))
        return replace(made, pending=(replace(waits, lease=replace(lease, placement=elsewhere)),))

    assert PlanRule.WHOLE in rules(snapshot, moved(("a0", 1), ("a3", 1)))
    assert PlanRule.TOPOLOGY in rules(snapshot, moved(("a0", 1), ("a3", 1), ("b0", 1)))
    assert PlanRule.CAPACITY in rules(snapshot, moved(("a0", 1), ("a3", 2)))
    assert PlanRule.REPAIR in rules(snapshot, moved(("a3", 1), ("a4", 1), ("a0", 0)))
    assert PlanRule.ELIGIBLE in rules(snapshot, moved(("a0", 1), ("a1", 1), ("a3", 1)))
    assert PlanRule.VICTIM in rules(snapshot, replace(made, pending=()))
    assert PlanRule.CAPACITY in rules(snapshot, replace(made, preempted=made.preempted[:1]))
    assert PlanRule.PARTITION in rules(snapshot, replace(made, pending=(waits, waits)))
    whole = world(NODES, [], [replace(BROKEN, lost=()), *VICTIMS])
    assert PlanRule.PARTITION in rules(whole, made)


# -- against brute force


@dataclass(frozen=True)
class Accident:
    """A small cluster in which one gang lost nodes."""

    snapshot: Snapshot

    @property
    def broken(self) -> Admitted:
        return next(a for a in self.snapshot.admitted if a.lost)

    def fits(self, gone: frozenset[str], views: tuple[int, ...]) -> bool:
        """Whether the lost pods fit alongside the healthy ones once these have left."""
        ways = list(self._ways())
        return Oracle(self.snapshot, gone).fits([ways], views=views)

    def _ways(self) -> Iterator[SuggestedFix]:
        """One per rack where the healthy pods do not determine it."""
        lost = {p.name: 0 for p in self.broken.workload.podsets}
        for name, _, count in self.broken.lost:
            lost[name] += count
        out = {name for _, name, _ in self.broken.lost}
        for inside in self._racks():
            nodes = frozenset(
                n.name
                for n in self.snapshot.fleet.nodes
                if n.ready and n.name not in out and (inside is None or n.labels["rack"] == inside)
            )
            yield SuggestedFix(
                tuple(
                    Task(lost[p.name], dict(p.shape.requests), nodes)
                    for p in self.broken.workload.podsets
                    if lost[p.name]
                ),
                {},
            )

    def _racks(self) -> set[str | None]:
        workload = self.broken.workload
        if workload.podsets[0].topology is None:
            return {None}
        racks = {n.name: n.labels["rack"] for n in self.snapshot.fleet.nodes}
        lost = {(p, n): c for p, n, c in self.broken.lost}
        healthy: set[str | None] = {
            racks[name]
            for placed in self.broken.placement.podsets
            for name, count in placed.nodes
            if count > lost.get((placed.podset, name), 0)
        }
        return healthy or {*racks.values()}


def accident(seed: int) -> Accident:
    """Nodes fail under a gang of one to three podsets among tenants of any priority; some are leaving."""
    rng = random.Random(seed)
    nodes = [
        node(f"n{i}", rng.choice("ab"), gpu=rng.choice((4, 8, 8)), cpu=rng.choice((8, 16)))
        for i in range(rng.randint(3, 6))
    ]
    room = FreeNodes(nodes)
    workload, held = _victim_of_the_accident(rng, room)
    tenants = list(_tenants(rng, room))
    used = sorted({name for row in held for name in row})
    out = set(rng.sample(used, rng.randint(1, len(used))))
    gone = {name for name in out if rng.random() < 0.3}
    lost = tuple(
        (p.name, name, count)
        for p, row in zip(workload.podsets, held, strict=True)
        for name, count in row.items()
        if name in out
    )
    fleet = [replace(n, ready=n.name not in out) for n in nodes if n.name not in gone]
    lower, newer, never = (
        WithinClusterQueue.LOWER_PRIORITY,
        WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY,
        WithinClusterQueue.NEVER,
    )
    main = queue(order=rng.choice(ORDERS), within=rng.choice((lower, lower, newer, never)))
    return Accident(world(fleet, [], [holding(workload, *held, lost=lost), *tenants], main))


def _victim_of_the_accident(
    rng: random.Random, room: FreeNodes
) -> tuple[Workload, list[dict[str, int]]]:
    """A gang of one to three podsets, all in one rack or anywhere, and the nodes of its pods."""
    level: dict[str, Any] = {"required": "rack", "group": "g"} if rng.random() < 0.7 else {}
    rack_of = {n.name: n.labels["rack"] for n in room.nodes}
    home = rng.choice(sorted(set(rack_of.values())))
    names = [name for name, there in rack_of.items() if there == home or not level]
    podsets: list[PodSet] = []
    held: list[dict[str, int]] = []
    for i in range(rng.choice((1, 1, 2, 3))):
        one = podset(f"p{i}", 1, gpu=rng.choice((0, 1, 2, 4)), cpu=rng.choice((1, 2)), **level)
        row = _put(rng, room, one, names, rng.randint(1, 3))
        if row:
            podsets.append(replace(one, count=sum(row.values())))
            held.append(row)
    return gang("broken", *podsets, priority=rng.randint(1, 4), queued_at=10.0), held


def _put(
    rng: random.Random, room: FreeNodes, one: PodSet, names: list[str], pods: int
) -> dict[str, int]:
    row: dict[str, int] = {}
    for _ in range(pods):
        name = rng.choice(names)
        if room.take(name, one.shape.requests):
            row[name] = row.get(name, 0) + 1
    return row


def _tenants(rng: random.Random, room: FreeNodes) -> Iterator[Admitted]:
    names = [n.name for n in room.nodes]
    for i in range(rng.randint(2, 7)):
        one = podset("t", 1, gpu=rng.choice((0, 1, 2, 4, 8)), cpu=rng.choice((1, 2, 4)))
        row = _put(rng, room, one, names, rng.choice((1, 1, 2)))
        if row:
            priority, queued = rng.randint(0, 4), float(rng.randint(0, 20))
            podsets = replace(one, count=sum(row.values()))
            workload = gang(f"t{i}", podsets, priority=priority, queued_at=queued)
            age, leaving = rng.choice((1, 40, 300)), rng.random() < 0.25
            yield holding(workload, row, leaving=leaving, started_at=NOW - age)


@pytest.mark.seeds
@pytest.mark.parametrize("block", range(examples(6)))
def test_the_plan_repairs_now_or_later_or_restarts_exactly_as_brute_force(block: int) -> None:
    outcomes: set[str] = set()
    for seed in range(100 * block, 100 * (block + 1)):
        outcomes.add(outcome(accident(seed)))
    assert outcomes == {"now", "waits", "evicts", "restarts"}


def outcome(case: Accident) -> str:
    """The action of the plan, after the comparison with brute force."""
    snapshot = case.snapshot
    made = planned(snapshot)
    assert made.proof is Proof.OPTIMAL
    if case.fits(frozenset(), (0, 1)):
        assert [a.uid for a in made.admitted] == ["broken"]
        return "now"
    assert made.admitted == ()
    best = least(case)
    if best is None:
        assert [e.uid for e in made.evicted] == ["broken"]
        return "restarts"
    assert [r.uid for r in made.pending] == ["broken"]
    order = snapshot.config.cluster_queues["main"].victim_order
    assert layers(order, [p.cost for p in made.preempted]) == best
    return "evicts" if made.preempted else "waits"


def least(case: Accident) -> tuple[int, ...] | None:
    """The layers of the least legal victims after which the lost pods fit."""
    legal = [a for a in legal_victims(case.snapshot, case.broken.workload) if not a.lost]
    priced = costs(legal, case.snapshot.now, sizes_of(case.snapshot))
    order = case.snapshot.config.cluster_queues["main"].victim_order
    found = None
    for bits in range(1 << len(legal)):
        chosen = [a.workload.uid for i, a in enumerate(legal) if bits >> i & 1]
        value = layers(order, [priced[u] for u in chosen])
        if (found is None or value < found) and case.fits(frozenset(chosen), (1,)):
            found = value
    return found


def test_broken_gangs_that_make_way_for_a_pending_gang_are_repaired_on_the_nodes_that_it_leaves() -> (
    None
):
    broken = [
        holding(
            gang(uid, podset(count=2, gpu=8), priority=1, queued_at=queued_at),
            {lost: 1, kept: 1},
            lost=(("w", lost, 1),),
            started_at=0.0,
        )
        for uid, lost, kept, queued_at in (("first", "a0", "b0", 1.0), ("second", "a1", "b1", 2.0))
    ]
    pending = gang("new", podset(gpu=8), priority=9)
    nodes = [*rack(4, "a0", "a1"), *rack(2, name="b")]
    made = planned(world(nodes, [pending], broken))
    assert {a.uid: a.repaired for a in made.admitted} == {"first": True, "new": False}
    assert [e.uid for e in made.evicted] == ["second"]


def test_a_pending_gang_takes_no_capacity_from_a_repair_unless_it_may_evict_the_repaired_gang() -> (
    None
):
    gave_way = 0
    for seed in range(150):
        case = accident(seed)
        more = gang("new", podset("w", 2, gpu=2, cpu=2), priority=seed % 6)
        crowd = replace(case.snapshot, pending=(Pending(more),))
        alone, together = planned(case.snapshot), planned(crowd)
        as_alone = (
            together.pending[: len(alone.pending)] == alone.pending
            and together.preempted[: len(alone.preempted)] == alone.preempted
            and together.evicted == alone.evicted
        )
        if not as_alone:
            legal = [a.workload.uid for a in legal_victims(crowd, more)]
            let_in = [a.uid for a in together.admitted] + [
                r.uid for r in together.pending if r.lease
            ]
            assert case.broken.workload.uid in legal
            assert "new" in let_in
            gave_way += 1
    assert gave_way
