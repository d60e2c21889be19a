"""Random small clusters for property tests: few nodes in few racks, gangs that run, leave, are pending and hold leases.

The numbers are small because brute force must answer too, and three nodes suffice for most defects.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import (
    DEFAULT_VICTIM_ORDER,
    ClusterQueue,
    QueueingStrategy,
    ResourceFlavor,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Growth, PodSet
from tests.planner.build import NOW, gang, holding, node, podset, queue, resources, world

ORDERS = (
    DEFAULT_VICTIM_ORDER,
    (VictimKey.MAX_PRIORITY, VictimKey.COUNT, VictimKey.LOST_WORK),
    (VictimKey.COUNT, VictimKey.MAX_PRIORITY, VictimKey.LOST_WORK),
    (VictimKey.LOST_WORK,),
)
MODELS = ("h100", "a100")


@dataclass
class FreeNodes:
    """Free capacity of each node while gangs are placed, so that admitted gangs always fit."""

    nodes: Sequence[Node]
    left: dict[str, Resources] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = {n.name: n.allocatable for n in self.nodes}

    def take(self, name: str, requests: Resources) -> bool:
        if not requests.fits(self.left[name]):
            return False
        self.left[name] -= requests
        return True


@st.composite
def nodes(draw: st.DrawFn, most: int = 5) -> list[Node]:
    """Up to ``most`` nodes in up to three racks of two blocks; uneven GPUs, cpu and pod slots."""
    made = []
    for i in range(draw(st.integers(2, most))):
        where = draw(st.sampled_from(["b1/r1", "b1/r2", "b2/r1"]))
        model = draw(st.sampled_from(MODELS))
        made.append(
            node(
                f"n{i}",
                where,
                gpu=draw(st.sampled_from([2, 4, 5, 8])),
                cpu=draw(st.sampled_from([4, 8, 12])),
                pods=draw(st.sampled_from([2, 4, 110])),
                labels={"model": model},
                ready=draw(st.integers(0, 9)) > 0,
            )
        )
    return made


@st.composite
def podsets(draw: st.DrawFn, most: int = 3) -> tuple[PodSet, ...]:
    """One to ``most`` podsets; constrained, preferring, grouped or free; with and without GPUs."""
    grouped = draw(st.sampled_from([None, None, "g"]))
    shared = draw(st.sampled_from(["required", "preferred"]))
    level = draw(st.sampled_from(["block", "rack", "kubernetes.io/hostname"]))
    made = []
    for i in range(draw(st.integers(1, most))):
        topology: dict[str, Any] = {}
        if grouped is not None:
            topology = {shared: level}
        elif mode := draw(st.sampled_from(["", "", "required", "preferred"])):
            topology = {mode: draw(st.sampled_from(["block", "rack", "kubernetes.io/hostname"]))}
        gpu = draw(st.sampled_from([0, 1, 2, 3, 4]))
        made.append(
            podset(
                f"p{i}",
                draw(st.integers(1, 3)),
                group=grouped,
                select={"model": draw(st.sampled_from(MODELS))}
                if draw(st.integers(0, 7)) == 0
                else {},
                gpu=gpu,
                cpu=draw(st.sampled_from([0, 1, 2, 4]))
                if gpu
                else draw(st.sampled_from([1, 3, 4])),
                **topology,
            )
        )
    return tuple(made)


@st.composite
def running(
    draw: st.DrawFn, room: FreeNodes, uid: str, flavor_of: dict[str, str]
) -> Admitted | None:
    """A gang of up to three pods wherever there is room, or None."""
    gpu = draw(st.sampled_from([0, 1, 2, 4, 4]))
    cpu = draw(st.sampled_from([0, 1, 2])) if gpu else draw(st.sampled_from([1, 4]))
    shape = resources(pods=1, gpu=gpu, cpu=cpu)
    where: dict[str, int] = {}
    flavor = draw(st.sampled_from(sorted(set(flavor_of.values()))))
    names = [n for n, f in flavor_of.items() if f == flavor]
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(names))
        if room.take(name, shape):
            where[name] = where.get(name, 0) + 1
    if not where:
        return None
    workload = gang(
        uid,
        podset("p", sum(where.values()), gpu=gpu, cpu=cpu),
        priority=draw(st.integers(0, 3)),
        queued_at=float(draw(st.integers(0, 5))),
        preemptible=draw(st.integers(0, 9)) > 0,
    )
    return holding(
        workload,
        where,
        flavor=flavor,
        leaving=draw(st.integers(0, 7)) == 0,
        started_at=NOW - draw(st.sampled_from([0, 10, 100, 1000])),
        checkpoint_at=draw(st.sampled_from([None, None, NOW - 50, NOW + 9])),
        utilization=draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
    )


@st.composite
def queues(draw: st.DrawFn, flavors: Sequence[str]) -> ClusterQueue:
    """Quota from ample to scarce, any policy, either strategy."""
    limits: dict[str, Any] = {} if draw(st.booleans()) else {"gpu": draw(st.integers(2, 16))}
    return queue(
        within=draw(
            st.sampled_from(
                [
                    WithinClusterQueue.LOWER_PRIORITY,
                    WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY,
                    WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY,
                    WithinClusterQueue.NEVER,
                ]
            )
        ),
        strategy=draw(st.sampled_from(list(QueueingStrategy))),
        order=draw(st.sampled_from(ORDERS)),
        flavors=flavors,
        **limits,
    )


@st.composite
def snapshots(draw: st.DrawFn, gangs: int = 1, tenants: int = 6) -> Snapshot:
    """A cluster of at most three racks with up to ``tenants`` running gangs and ``gangs`` pending ones."""
    fleet = draw(nodes())
    split = draw(st.integers(0, 3)) == 0
    known = [ResourceFlavor("default", topology="gpus")]
    flavor_of = {n.name: "default" for n in fleet}
    if split:
        known = [ResourceFlavor(m, (("model", m),), topology="gpus") for m in MODELS]
        flavor_of = {n.name: n.labels["model"] for n in fleet}
    room = FreeNodes(fleet)
    admitted = [
        a
        for i in range(draw(st.integers(0, tenants)))
        if (a := draw(running(room, f"r{i}", flavor_of))) is not None
    ]
    other_pods = {}
    if draw(st.integers(0, 3)) == 0:
        other_pods = {
            draw(st.sampled_from(fleet)).name: resources(gpu=draw(st.integers(1, 3)), pods=1)
        }
    pending = [draw(waiting(f"w{i}", fleet)) for i in range(gangs)]
    main = draw(queues([f.name for f in known]))
    return world(fleet, pending, admitted, main, flavors=known, other_pods=other_pods)


@st.composite
def waiting(draw: st.DrawFn, uid: str, fleet: Sequence[Node]) -> Pending:
    workload = gang(
        uid,
        *draw(podsets()),
        priority=draw(st.integers(0, 4)),
        queued_at=float(draw(st.integers(0, 5))),
    )
    excluded = frozenset(
        {draw(st.sampled_from(fleet)).name} if draw(st.integers(0, 9)) == 0 else ()
    )
    return Pending(workload, excluded=excluded)


@st.composite
def contested(draw: st.DrawFn) -> Snapshot:
    """A full cluster and one gang of higher priority that fits it when empty: most answers have victims."""
    fleet = [
        node(
            f"n{i}",
            draw(st.sampled_from(["b1/r1", "b1/r2", "b2/r1"])),
            gpu=draw(st.sampled_from([4, 5, 8])),
            cpu=draw(st.sampled_from([8, 12])),
            pods=draw(st.sampled_from([4, 110])),
            labels={"model": MODELS[0]},
        )
        for i in range(draw(st.integers(2, 4)))
    ]
    room = FreeNodes(fleet)
    flavor_of = {n.name: "default" for n in fleet}
    admitted = [
        a
        for i in range(draw(st.integers(4, 8)))
        if (a := draw(running(room, f"r{i}", flavor_of))) is not None
    ]
    limits: dict[str, Any] = {}
    if draw(st.booleans()):
        used = sum(a.workload.gpus for a in admitted)
        limits = {"gpu": used + draw(st.integers(-3, 6))}
    main = queue(order=draw(st.sampled_from(ORDERS)), **limits)
    level = draw(st.sampled_from(["", "required", "required", "preferred"]))
    topology: dict[str, Any] = {level: draw(st.sampled_from(["block", "rack"]))} if level else {}
    shared = draw(st.booleans())
    wanted = [
        podset(
            f"p{i}",
            draw(st.integers(1, 2)),
            group="g" if shared else None,
            gpu=draw(st.sampled_from([1, 2, 3, 4])),
            cpu=draw(st.sampled_from([0, 2, 4])),
            **(topology if shared or draw(st.booleans()) else {}),
        )
        for i in range(draw(st.sampled_from([1, 1, 2, 3])))
    ]
    blocked = gang("w0", *wanted, priority=draw(st.integers(2, 5)))
    return world(fleet, [blocked], admitted, main)


def crowded(seed: int, *, mixed: bool = False) -> Snapshot:
    """A crowded cluster with many tenants a node, gangs on several nodes, and one gang that needs much of it.

    Drawn evenly from a seed, not by Hypothesis: simple draws would make most of these trivial.
    """
    rng = random.Random(seed)
    racks = [f"b{rng.randint(1, 2)}/r{i}" for i in range(rng.randint(1, 3))]
    fleet = [
        node(f"n{i}", rng.choice(racks), gpu=rng.choice((4, 8, 8)), cpu=rng.choice((8, 16, 99)))
        for i in range(rng.randint(2, 5))
    ]
    room = FreeNodes(fleet)
    oldest = rng.choice((1, 3, 40))  # close ages make close costs
    admitted = [
        a
        for i in range(rng.randint(6, 9))
        if (a := _squeezed_in(rng, room, f"r{i}", oldest)) is not None
    ]
    other_pods = {}
    if rng.random() < 0.3:
        other_pods = {
            rng.choice(fleet).name: resources(gpu=rng.randint(1, 5), cpu=rng.randint(0, 9))
        }
    gpus = sum(a.workload.gpus for a in admitted)
    limits: dict[str, Any] = {"gpu": gpus + rng.randint(-4, 8)} if rng.random() < 0.4 else {}
    if rng.random() < 0.3:
        limits["cpu"] = sum(a.workload.requests["cpu"] for a in admitted) + rng.randint(-4, 4)
    order = rng.choice((*ORDERS, *ORDERS[:2]))
    level: dict[str, Any] = rng.choice(
        ({}, {"required": "rack"}, {"required": "block"}, {"preferred": "rack"})
    )
    wanted = [
        podset(
            f"p{i}",
            rng.randint(1, 4) if not mixed else rng.randint(1, 2),
            gpu=rng.choice((1, 2, 3, 4, 8)) if i == 0 else rng.choice((0, 1, 2)),
            cpu=rng.choice((0, 1, 4, 8)) if i == 0 else rng.choice((1, 4, 6)),
            group="g" if level else None,
            **level,
        )
        for i in range(rng.randint(2, 3) if mixed else 1)
    ]
    return world(
        fleet,
        [gang("w0", *wanted, priority=rng.randint(2, 5))],
        admitted,
        queue(order=order, **limits),
        other_pods=other_pods,
    )


def elastic(seed: int) -> Snapshot:
    """As :func:`crowded`; some of the tenants are pods that were added to others."""
    snapshot = crowded(seed)
    rng = random.Random(seed + 1)
    bases: dict[int, str] = {}  # by priority
    admitted = []
    for rank, running in enumerate(snapshot.admitted):
        workload = running.workload
        base = bases.setdefault(workload.priority, workload.uid)
        if base != workload.uid and rng.random() < 0.7:
            grown = replace(workload, growth=Growth(base, rank))
            admitted.append(replace(running, workload=grown))
        else:
            admitted.append(running)
    rng.shuffle(admitted)
    return replace(snapshot, admitted=tuple(admitted))


def _squeezed_in(rng: random.Random, room: FreeNodes, uid: str, oldest: int) -> Admitted | None:
    gpu = rng.choice((0, 1, 1, 2, 2, 3, 4, 8))
    cpu = rng.choice((1, 2, 4, 8)) if gpu == 0 else rng.choice((0, 0, 1, 4))
    where: dict[str, int] = {}
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(room.nodes).name
        if room.take(name, resources(pods=1, gpu=gpu, cpu=cpu)):
            where[name] = where.get(name, 0) + 1
    if not where:
        return None
    workload = gang(
        uid,
        podset("p", sum(where.values()), gpu=gpu, cpu=cpu),
        priority=rng.choice((0, 0, 0, 1, 3)),
    )
    return holding(
        workload,
        where,
        leaving=rng.random() < 0.05,
        started_at=NOW - rng.randint(0, oldest),
        utilization=rng.choice((None, 0.1, 1.0)),
    )
