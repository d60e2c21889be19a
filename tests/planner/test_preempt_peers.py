"""The victims that Kueue (and KAI) would choose where their order is not the best, and a check that ours are never worse.

Kueue evicts lowest priority first and newest first until the gang fits, then puts back, last first, gangs that are not needed.
With ``victimOrder: [maxPriority, count, lostWork]`` the tuple (highest priority touched, number, lost work) of our victims
is never above that of any such order.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuectl.domain.plan import Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner import plan
from queuectl.planner.preempt.cost import costs, sizes_of
from queuectl.planner.verify import verify
from tests.planner import cases, generate, peers
from tests.planner.build import NOW, gang, holding, node, podset, queue, world
from tests.planner.oracle import fits_without, layers, legal_victims
from tests.planner.test_preempt import answers
from tests.support.examples import examples

COUNT_FIRST = cases.COUNT_FIRST
WELL = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
CLUSTERS = st.one_of(
    generate.contested(),
    SEEDS.map(generate.crowded),
    SEEDS.map(lambda seed: generate.crowded(seed, mixed=True)),
)


def low(uid: str, where: Mapping[str, int], age: float, gpu: int = 8, **kw: Any) -> Admitted:
    priority = kw.pop("priority", 0)
    asked = podset(count=sum(where.values()), gpu=gpu, **kw)
    return holding(gang(uid, asked, priority=priority), where, started_at=NOW - age)


@dataclass(frozen=True)
class Case:
    """Every node has 8 GPUs by default; the first letter of its name is its rack. Gangs are in no order."""

    name: str
    why: str
    nodes: Mapping[str, Mapping[str, Any]]
    running: tuple[Admitted, ...]
    asked: tuple[int, Mapping[str, Any], str | None]  # pods, the request of each, level required
    kueue: frozenset[str] | None
    ours: frozenset[str] | None
    priority: int = 100
    contested: tuple[str, ...] = (GPU,)

    @property
    def snapshot(self) -> Snapshot:
        count, amounts, level = self.asked
        blocked = gang("w", podset("w", count, required=level, **amounts), priority=self.priority)
        nodes = [node(name, name[0], **{"gpu": 8, **more}) for name, more in self.nodes.items()]
        within = WithinClusterQueue.LOWER_PRIORITY
        return world(nodes, [blocked], self.running, queue(order=COUNT_FIRST, within=within))


def plain(*names: str) -> dict[str, dict[str, int]]:
    return {name: {} for name in names}


CASES = [
    Case(
        "P1: many small against one",
        "Kueue takes the two newest, one-node gangs of rack a; one two-node gang of rack b is enough",
        plain("a0", "a1", "b0", "b1"),
        (low("s1", {"a0": 1}, 60), low("s2", {"a1": 1}, 60), low("d", {"b0": 1, "b1": 1}, 100)),
        (2, {"gpu": 8}, "rack"),
        kueue=frozenset({"s1", "s2"}),
        ours=frozenset({"d"}),
    ),
    Case(
        "P2: a node shared by two",
        "Kueue clears the node of the two newest tenants; the older gang alone fills the free half of another",
        plain("a0", "a1"),
        (
            low("dear", {"a0": 1}, 9000, gpu=4),
            low("c1", {"a1": 1}, 60, gpu=4),
            low("c2", {"a1": 1}, 60, gpu=4),
        ),
        (1, {"gpu": 8}, None),
        kueue=frozenset({"c1", "c2"}),
        ours=frozenset({"dear"}),
    ),
    Case(
        "P3: priority before everything",
        "both take the two of the lowest priority, whatever they lose, and leave the one of priority 10",
        plain("a0", "a1", "b0", "b1"),
        (
            low("x1", {"a0": 1}, 5000),
            low("x2", {"a1": 1}, 5000),
            low("y", {"b0": 1, "b1": 1}, 1, priority=10),
        ),
        (2, {"gpu": 8}, "rack"),
        kueue=frozenset({"x1", "x2"}),
        ours=frozenset({"x1", "x2"}),
    ),
    Case(
        "P4: a gang that spans two racks",
        "Kueue considers it only after the two newest in rack a, and then puts those back; it counts once",
        plain("a0", "a1", "a2", "b0", "b1", "b2"),
        (
            low("span", {"a0": 1, "b0": 1, "b1": 1}, 400),
            low("p", {"a1": 1}, 10),
            low("q", {"a2": 1}, 10),
        ),
        (3, {"gpu": 8}, "rack"),
        kueue=frozenset({"span"}),
        ours=frozenset({"span"}),
    ),
    Case(
        "P5: no victim without need",
        "the only node that could hold the pod runs an equal priority: neither evicts a gang",
        {"a0": {}, "b0": {"gpu": 4}},
        (low("h", {"a0": 1}, 1, priority=10), low("l", {"b0": 1}, 1, gpu=4)),
        (1, {"gpu": 8}, None),
        kueue=None,
        ours=None,
        priority=10,
    ),
    Case(
        "P5 (issue 10497): the pod slots are taken by a gang without GPUs",
        "Kueue considers only gangs that use the contested GPUs, and never evicts",
        {"a0": {"pods": 2}},
        (low("gpus", {"a0": 1}, 60), low("slot", {"a0": 1}, 60, gpu=0, cpu=0)),
        (2, {"gpu": 4}, None),
        kueue=None,
        ours=frozenset({"gpus", "slot"}),
    ),
    Case(
        "P6: a gang without GPUs holds the cpu alongside idle GPUs",
        "Kueue evicts the GPU gang of the other rack; the cpu-only one unlocks eight idle GPUs",
        {"a0": {"cpu": 8}, "b0": {"cpu": 8}},
        (
            low("cpu", {"a0": 1}, 50, gpu=0, cpu=8),
            low("gpu1", {"b0": 1}, 20, gpu=4, cpu=1),
            low("gpu2", {"b0": 1}, 20, gpu=4, cpu=1),
        ),
        (1, {"gpu": 8, "cpu": 8}, "rack"),
        kueue=frozenset({"gpu1", "gpu2"}),
        ours=frozenset({"cpu"}),
    ),
    Case(
        "P7: eight new ones or one old one",
        "Kueue takes the eight newest and can put none back; one eviction suffices",
        plain("a0", "b0"),
        (*(low(f"new{i}", {"a0": 1}, 60, gpu=1) for i in range(8)), low("old", {"b0": 1}, 7200)),
        (1, {"gpu": 8}, None),
        kueue=frozenset(f"new{i}" for i in range(8)),
        ours=frozenset({"old"}),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_victims_are_those_of_the_case_and_no_worse_than_kueues(case: Case) -> None:
    snapshot = case.snapshot
    (entry,) = snapshot.pending
    assert (
        peers.kueue(snapshot, entry.workload, fits_by_force(snapshot), case.contested) == case.kueue
    )
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert made.proof is Proof.OPTIMAL
    assert {p.victim for p in made.preempted} == (case.ours or set())
    (refusal,) = made.pending
    assert (refusal.lease is not None) == (case.ours is not None)


def test_no_gang_is_evicted_for_a_preference() -> None:
    """One gang of rack a and one of rack b suffice; only both of rack a would let it run in its preferred rack.

    Kueue also only prefers: it stops at the first victims after which the gang fits anywhere.
    """
    running = [
        low("a-old", {"a0": 1}, 9000),
        low("a-new", {"a1": 1}, 60),
        low("b-new", {"b0": 1}, 60),
    ]
    nodes = [node(n, n[0], gpu=8) for n in ("a0", "a1", "b0")]
    blocked = gang("w", podset("w", 2, gpu=8, preferred="rack"), priority=9)
    made = plan(world(nodes, [blocked], running))
    assert {p.victim for p in made.preempted} == {"a-new", "b-new"}


def test_a_preemptor_runs_as_close_together_as_it_prefers_on_freed_nodes() -> None:
    """The whole of rack b is free after the only possible victim; node a0 was free before."""
    running = [low("big", {"b0": 1, "b1": 1}, 60)]
    nodes = [node(n, n[0], gpu=8) for n in ("a0", "b0", "b1")]
    blocked = gang("w", podset("w", 2, gpu=8, preferred="rack"), priority=9)
    made = plan(world(nodes, [blocked], running))
    (refusal,) = made.pending
    assert refusal.lease is not None
    assert dict(refusal.lease.placement.podsets[0].nodes) == {"b0": 1, "b1": 1}


# -- never above, on random clusters


def fits_by_force(
    snapshot: Snapshot, only: Iterable[Mapping[str, str]] | None = None
) -> peers.Fits:
    (entry,) = snapshot.pending[:1]
    chosen = None if only is None else list(only)
    return lambda gone: fits_without(snapshot, entry, gone, only=chosen)


def counting_first(snapshot: Snapshot) -> Snapshot:
    config = snapshot.config
    queues = {n: replace(q, victim_order=COUNT_FIRST) for n, q in config.cluster_queues.items()}
    return replace(snapshot, config=replace(config, cluster_queues=queues))


@WELL
@given(CLUSTERS)
def test_the_victims_are_never_worse_than_any_greedy_order_on_small_clusters(
    drawn: Snapshot,
) -> None:
    snapshot = counting_first(drawn)
    entry = snapshot.pending[0]
    contested = list(entry.workload.requests)
    priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
    for request, _, answer in answers(snapshot):
        fits = fits_by_force(snapshot, request.flavors)
        for taken in (
            peers.kueue(snapshot, entry.workload, fits, contested),
            peers.kai(snapshot, entry.workload, fits),
        ):
            if taken is None:
                continue
            assert answer is not None
            ours = layers(COUNT_FIRST, [p.cost for p in answer.victims])
            assert ours <= layers(COUNT_FIRST, [priced[uid] for uid in taken])


@pytest.mark.parametrize("level", [None, "rack", "block"])
@pytest.mark.parametrize("seed", range(12))
def test_the_victims_are_never_worse_than_any_greedy_order_on_medium_clusters(
    seed: int, level: str | None
) -> None:
    snapshot = middling(seed, level)
    entry = snapshot.pending[0]
    fits = peers.by_floor_sums(snapshot, entry.workload)
    priced = costs(legal_victims(snapshot, entry.workload), snapshot.now, sizes_of(snapshot))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    ours = [p.cost for p in made.preempted]
    assert fits(frozenset(p.victim for p in made.preempted))
    for taken in (
        peers.kueue(snapshot, entry.workload, fits, [GPU]),
        peers.kai(snapshot, entry.workload, fits),
    ):
        assert taken, "these clusters are full and the gang fits once its juniors left"
        assert layers(COUNT_FIRST, ours) <= layers(COUNT_FIRST, [priced[u] for u in taken])


def middling(seed: int, level: str | None) -> Snapshot:
    """64 nodes in 8 racks of 2 blocks, filled to the last GPU by gangs of all sizes, and one gang that needs eight nodes."""
    rng = random.Random(seed)
    nodes = [node(f"n{i:02}", f"b{i // 32}/r{i // 8}", gpu=8, cpu=96) for i in range(64)]
    slots = [
        (n.name, size) for n in nodes for size in rng.choice(((8,), (4, 4), (4, 2, 2), (1,) * 8))
    ]
    running: list[Admitted] = []
    while slots:
        name, size = slots.pop(0)
        where = {name: 1}
        for other in [s for s in slots if s[1] == size and s[0] not in where][
            : rng.choice((0, 0, 1, 3))
        ]:
            slots.remove(other)
            where[other[0]] = 1
        age = rng.uniform(1, 90_000)
        uid = f"g{len(running)}"
        running.append(low(uid, where, age, gpu=size, priority=rng.choice((0, 0, 10, 20))))
    blocked = gang("w", podset("w", 8, gpu=8, required=level), priority=100)
    return world(nodes, [blocked], running, queue(order=COUNT_FIRST))
