"""Fragmented clusters: enough capacity is free in total, but not where one gang needs it. Drawn evenly from a seed.

Running gangs have their own topologies, some unlike what they hold now, so that not every move is possible.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSet
from tests.planner.build import NOW, gang, holding, node, podset, queue, resources, world
from tests.planner.generate import MODELS, FreeNodes

LEVELS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"required": "rack"},
    {"required": "block"},
    {"required": HOSTNAME},
)


def scattered(seed: int) -> Snapshot:
    """Up to five nodes, up to five tenants, one pending gang."""
    rng = random.Random(seed)
    racks = [f"b{rng.randint(1, 2)}/r{i}" for i in range(rng.randint(1, 3))]
    fleet = [
        node(
            f"n{i}",
            rng.choice(racks),
            gpu=rng.choice((4, 8, 8)),
            cpu=rng.choice((16, 99)),
            labels={"model": rng.choice(MODELS)},
            ready=rng.random() > 0.05,
        )
        for i in range(rng.randint(2, 5))
    ]
    split = rng.random() < 0.2
    flavors = [ResourceFlavor("default", topology="gpus")]
    if split:
        flavors = [ResourceFlavor(m, (("model", m),), topology="gpus") for m in MODELS]
    room = FreeNodes(fleet)
    admitted = [
        tenant
        for i in range(rng.randint(2, 5))
        if (tenant := _tenant(rng, room, f"r{i}", split)) is not None
    ]
    gpus = sum(a.workload.gpus for a in admitted)
    limits: dict[str, Any] = {"gpu": gpus + rng.randint(-4, 10)} if rng.random() < 0.3 else {}
    level: dict[str, Any] = rng.choice(LEVELS)
    shared = rng.random() < 0.6
    most = max(room.left[n.name][GPU] for n in fleet)
    least_too_large = most + 1 if rng.random() < 0.7 and most < 8 else rng.choice((1, 2, 4, 8))
    wanted = [
        podset(
            f"p{i}",
            1 if least_too_large == most + 1 else rng.randint(1, 2),
            gpu=least_too_large if i == 0 else rng.choice((0, 1, 2)),
            cpu=rng.choice((0, 0, 1, 4)) if i == 0 else rng.choice((1, 2, 4)),
            group="g" if shared else None,
            **(level if shared or i == 0 else rng.choice(LEVELS)),
        )
        for i in range(rng.choice((1, 1, 1, 1, 2, 3)))
    ]
    main = queue(flavors=[f.name for f in flavors], **limits)
    waiting = gang("w0", *wanted, priority=rng.randint(0, 4))
    return world(fleet, [waiting], admitted, main, flavors=flavors)


def _tenant(rng: random.Random, room: FreeNodes, uid: str, split: bool) -> Admitted | None:
    first = rng.choice(room.nodes)
    placed = [
        found
        for i in range(rng.choice((1, 1, 1, 2)))
        if (found := _part(rng, room, f"p{i}", first, split)) is not None
    ]
    if not placed:
        return None
    workload = gang(
        uid,
        *(p for p, _ in placed),
        priority=rng.choice((0, 0, 1, 3, 5)),
        preemptible=rng.random() > 0.1,
    )
    return holding(
        workload,
        *(where for _, where in placed),
        flavor=first.labels["model"] if split else "default",
        leaving=rng.random() < 0.05,
        started_at=NOW - rng.randint(0, rng.choice((1, 3, 40))),
        utilization=rng.choice((None, 0.1, 1.0)),
    )


def _part(
    rng: random.Random, room: FreeNodes, name: str, first: Node, split: bool
) -> tuple[PodSet, dict[str, int]] | None:
    gpu = rng.choice((0, 1, 1, 2, 2, 3, 4))
    cpu = rng.choice((1, 2, 4, 8)) if gpu == 0 else rng.choice((0, 0, 1, 4))
    level: dict[str, Any] = rng.choice(LEVELS)
    where: dict[str, int] = {}
    near = _near(room.nodes, first, level if rng.random() < 0.95 else {}, split)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.choice(near).name
        if room.take(at, resources(pods=1, gpu=gpu, cpu=cpu)):
            where[at] = where.get(at, 0) + 1
    if not where:
        return None
    made = podset(name, sum(where.values()), gpu=gpu, cpu=cpu, **level)
    return made, where


def _near(nodes: Sequence[Node], first: Node, level: dict[str, Any], split: bool) -> list[Node]:
    label = level.get("required")
    keys = {None: (), "block": ("block",), "rack": ("block", "rack"), HOSTNAME: (HOSTNAME,)}[label]
    if split:
        keys = (*keys, "model")
    return [n for n in nodes if all(n.labels[k] == first.labels[k] for k in keys)]


def tight(seed: int) -> Snapshot:
    """Nodes of 8 GPUs with tenants of odd sizes and little free capacity: often several must move, one for another."""
    rng = random.Random(seed)
    racks = [f"b/r{i}" for i in range(rng.randint(1, 2))]
    fleet = [node(f"n{i}", rng.choice(racks), gpu=8) for i in range(rng.randint(3, 5))]
    room = FreeNodes(fleet)
    admitted = []
    for i in range(rng.randint(5, 8)):
        at = rng.choice(fleet)
        gpu = rng.randint(1, 5)
        if room.take(at.name, resources(pods=1, gpu=gpu)):
            level: dict[str, Any] = rng.choice(({}, {}, {"required": "rack"}))
            workload = gang(f"r{i}", podset("p", 1, gpu=gpu, **level))
            age = rng.choice((0, 5, 5, 10, 100))
            admitted.append(holding(workload, {at.name: 1}, started_at=NOW - age))
    free = sum(room.left[n.name][GPU] for n in fleet)
    largest = max(room.left[n.name][GPU] for n in fleet)
    count = 2 if free >= 16 and rng.random() < 0.5 else 1
    gpu = rng.randint(min(largest + 1, 8), 8) if count == 1 else 8
    asked: dict[str, Any] = rng.choice(({}, {"required": "rack"}))
    wanted = podset("w", count, gpu=gpu, **asked)
    return world(fleet, [gang("w0", wanted)], admitted)


SHAPES: tuple[dict[str, Any], ...] = (
    {"required": "rack"},
    {"slices": (("rack", 2),)},
    {"required": "block", "slices": (("rack", 2),)},
    {"required": "block", "slices": (("rack", 4), (HOSTNAME, 2))},
    {"slices": ((HOSTNAME, 2),)},
    {"required": "block", "balanced": True},
)


def shaped(seed: int) -> Snapshot:
    """Sliced, balanced and grouped tenants, some started with fewer pods than they asked for; one such gang is pending."""
    rng = random.Random(seed)
    fleet = [
        node(f"n{i}", rng.choice(("b1/r0", "b1/r1", "b2/r2")), gpu=rng.choice((2, 4, 4)))
        for i in range(rng.randint(3, 5))
    ]
    room = FreeNodes(fleet)
    tenants = [_shaped_tenant(rng, room, f"r{i}") for i in range(rng.randint(4, 7))]
    waiting = gang("w0", *_shaped_podsets(rng))
    return world(fleet, [waiting], [tenant for tenant in tenants if tenant is not None])


def _shaped_podsets(rng: random.Random) -> list[PodSet]:
    shape = rng.choice(SHAPES)
    workers = podset("p0", rng.choice((2, 4)) if shape is not SHAPES[3] else 4, gpu=1, **shape)
    if "required" in shape and rng.random() < 0.3:
        leader = podset("p1", 1, gpu=1, required=shape["required"], group="g")
        return [replace(workers, group="g"), leader]
    return [workers]


def _shaped_tenant(rng: random.Random, room: FreeNodes, uid: str) -> Admitted | None:
    """Its pods are where its shape allows them, as far as simple tries find; its nodes are in topology order."""
    podsets = _shaped_podsets(rng)
    if rng.random() < 0.25:
        lone = podset("p0", rng.choice((1, 2, 3)), gpu=1)
        podsets = [replace(lone, count=lone.count + 2, min_count=1)]
        pods = [lone.count]
    else:
        pods = [p.count for p in podsets]
    for _ in range(20):
        where = [_spread(rng, room, count) for count in pods]
        if all(_allowed(p, row, room.nodes) for p, row in zip(podsets, where, strict=True)) and (
            len(podsets) < 2 or _share(podsets, where, room.nodes)
        ):
            break
    else:
        return None
    before = dict(room.left)
    for row in where:
        for name, count in row.items():
            if not room.take(name, resources(pods=count, gpu=count)):
                room.left.update(before)
                return None
    held = holding(gang(uid, *podsets), *where, started_at=NOW - rng.choice((0, 5, 10, 40)))
    if podsets[0].min_count is None:
        return held
    (part,) = held.placement.podsets
    return replace(held, placement=Placement((replace(part, pods=pods[0]),)))


def _spread(rng: random.Random, room: FreeNodes, count: int) -> dict[str, int]:
    row: dict[str, int] = {}
    for _ in range(count):
        name = rng.choice(room.nodes).name
        row[name] = row.get(name, 0) + 1
    order = {n.name: (n.labels["block"], n.labels["rack"], n.name) for n in room.nodes}
    return {name: row[name] for name in sorted(row, key=order.__getitem__)}


def _allowed(asked: PodSet, row: dict[str, int], nodes: Sequence[Node]) -> bool:
    request = asked.topology
    if request is None:
        return True
    levels = ("block", "rack", HOSTNAME)
    of = {n.name: tuple(n.labels[level] for level in levels) for n in nodes}
    if request.level is not None:
        path = levels.index(request.level) + 1
        if len({of[name][:path] for name in row}) > 1:
            return False
    for layer in request.slices:
        pods: dict[tuple[str, ...], int] = {}
        for name, count in row.items():
            domain = of[name][: levels.index(layer.level) + 1]
            pods[domain] = pods.get(domain, 0) + count
        if any(count % layer.size for count in pods.values()):
            return False
    return True


def _share(
    podsets: Sequence[PodSet], where: Sequence[dict[str, int]], nodes: Sequence[Node]
) -> bool:
    """Whether a group is in one domain of the level that it requires."""
    together = {name: 1 for row in where for name in row}
    return _allowed(replace(podsets[0], topology=podsets[-1].topology), together, nodes)
