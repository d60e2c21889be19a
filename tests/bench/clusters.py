"""Synthetic clusters and gangs for planner benchmarks: 8-GPU nodes in blocks and racks, partly used, some out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.quantity import CPU, GPU, MEMORY, PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    Slice,
    TopologyMode,
    TopologyRequest,
    Workload,
)

HALL, BLOCK, ROW, RACK = (f"example.com/{level}" for level in ("hall", "block", "row", "rack"))
THREE, FIVE = (BLOCK, RACK, HOSTNAME), (HALL, BLOCK, ROW, RACK, HOSTNAME)  # levels of a topology
GI = 2**30
COVERED = (GPU, CPU, MEMORY, PODS)
NOW = 1_000_000.0


@dataclass(frozen=True)
class Size:
    """Blocks, racks per block, hosts per rack."""

    blocks: int
    racks: int
    hosts: int

    @property
    def nodes(self) -> int:
        return self.blocks * self.racks * self.hosts


SIZES = (Size(1, 10, 64), Size(5, 20, 50), Size(10, 20, 50))


def config(
    nominal: int = 10**9,
    within: WithinClusterQueue = WithinClusterQueue.NEVER,
    levels: tuple[str, ...] = THREE,
) -> QueueConfig:
    quotas = {**dict.fromkeys(COVERED, 10**18), GPU: nominal}
    group = ResourceGroup(COVERED, (FlavorQuotas("h100", quotas),))
    queue = ClusterQueue(
        "main", (group,), namespace_selector=LabelSelector(), within_cluster_queue=within
    )
    return QueueConfig(
        1,
        {"main": queue},
        {("team", "main"): LocalQueue("team", "main", "main")},
        {"h100": ResourceFlavor("h100", topology="fabric")},
        {"fabric": Topology("fabric", levels)},
    )


def fleet(size: Size, rng: random.Random, out: float = 0.03) -> Fleet:
    capacity = Resources({GPU: 8, CPU: 128_000, MEMORY: 1024 * GI, PODS: 110})
    nodes = []
    for b in range(size.blocks):
        for r in range(size.racks):
            for h in range(size.hosts):
                name = f"b{b}-r{r}-h{h}"
                labels = {BLOCK: f"b{b}", RACK: f"r{r}", HOSTNAME: name}
                labels |= {
                    HALL: f"h{b // 2}",
                    ROW: f"w{r // 5}",
                }  # two blocks a hall, five racks a row
                nodes.append(Node(name, labels, capacity, ready=rng.random() >= out))
    return Fleet(tuple(sorted(nodes, key=lambda n: n.name)))


def shape(gpus: int, cpu: int, memory: int) -> PodShape:
    """GPUs, millicores, GiB."""
    return PodShape(Resources({GPU: gpus, CPU: cpu, MEMORY: memory * GI, PODS: 1}))


def gang(uid: str, *podsets: PodSet, priority: int = 0, queued_at: float = 0.0) -> Workload:
    return Workload(uid, "Job", "team", uid, podsets, "main", priority, queued_at)


def admitted(uid: str, pod: PodShape, where: dict[str, int], priority: int = 0) -> Admitted:
    workload = gang(uid, PodSet("w", sum(where.values()), pod), priority=priority)
    flavors = dict.fromkeys(pod.requests, "h100")
    placement = Placement((PodSetPlacement("w", tuple(where.items()), flavors),))
    return Admitted(workload, placement, started_at=NOW - 3600)


def busy(nodes: Fleet, full: float, rng: random.Random) -> tuple[Admitted, ...]:
    """Gangs of 1 to 16 whole nodes on a share of the nodes; a third of the rest runs small jobs of uneven shape."""
    names = [n.name for n in nodes.nodes]
    gangs: list[Admitted] = []
    at = 0
    rest: list[str] = []
    while at < len(names):
        width = rng.choice((1, 1, 2, 4, 8, 16))
        group = names[at : at + width]
        at += width
        if rng.random() < full:
            gangs.append(admitted(f"r{len(gangs)}", shape(8, 64_000, 512), dict.fromkeys(group, 1)))
        else:
            rest.extend(group)
    for name in rest:
        if rng.random() < 1 / 3:
            pod = shape(
                rng.choice((1, 1, 2, 4)), rng.choice((4_000, 24_000)), rng.choice((32, 128))
            )
            gangs.append(admitted(f"r{len(gangs)}", pod, {name: rng.choice((1, 2))}))
    return tuple(gangs)


def random_gang(uid: str, rng: random.Random, queued_at: float = 0.0) -> Workload:
    """One to three podsets of 1 to 8 GPUs a pod, in a rack, a block or anywhere; several podsets share it."""
    level = rng.choice((RACK, BLOCK, None))
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    sets = rng.choice((1, 1, 2, 3))
    return gang(uid, *_podsets(sets, topology, rng), queued_at=queued_at)


def gang_of(
    uid: str, sets: int, rng: random.Random, levels: tuple[str, ...] = THREE, queued_at: float = 0.0
) -> Workload:
    """A number of podsets of 1 to 8 GPUs a pod, together at a level above the node, or without topology."""
    level = rng.choice((*levels[:-1], None))
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    return gang(uid, *_podsets(sets, topology, rng), queued_at=queued_at)


def _podsets(sets: int, topology: TopologyRequest | None, rng: random.Random) -> Iterator[PodSet]:
    group = "g" if sets > 1 and topology is not None else None
    for i in range(sets):
        gpus = rng.choice((1, 2, 3, 4, 5, 6, 8))
        count = rng.choice((1, 2, 4, 8, 16, 32) if i == 0 else (1, 1, 2, 4))
        yield PodSet(f"p{i}", count, shape(gpus, 8_000 * gpus, 64 * gpus), topology, group)


def sliced_gang(
    uid: str, rng: random.Random, levels: tuple[str, ...] = THREE, queued_at: float = 0.0
) -> Workload:
    """One podset in slices of 2 or 4 pods a rack, on five levels two of them a row."""
    size = rng.choice((2, 4))
    layers = [Slice(RACK, size)] if levels is THREE else [Slice(ROW, 2 * size), Slice(RACK, size)]
    level = rng.choice((levels[levels.index(layers[0].level) - 1], None))
    mode = TopologyMode.REQUIRED if level else TopologyMode.UNCONSTRAINED
    gpus = rng.choice((2, 4, 8, 8))
    pod = shape(gpus, 8_000 * gpus, 64 * gpus)
    count = layers[0].size * rng.choice((1, 2, 4))
    podset = PodSet("w", count, pod, TopologyRequest(mode, level, tuple(layers)))
    return gang(uid, podset, queued_at=queued_at)


def mixed_gang(
    uid: str, rng: random.Random, levels: tuple[str, ...] = THREE, queued_at: float = 0.0
) -> Workload:
    """Any of the above: one to four podsets, or sliced."""
    sets = rng.choice((1, 1, 2, 3, 4, 0))
    if sets == 0:
        return sliced_gang(uid, rng, levels, queued_at)
    return gang_of(uid, sets, rng, levels, queued_at)


def chain_gang(uid: str, rng: random.Random, queued_at: float = 0.0) -> Workload:
    """One podset of 1, 2, 4 or 8 GPUs a pod, in a rack, a block or anywhere."""
    level = rng.choice((RACK, BLOCK, None))
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level else None
    gpus = rng.choice((1, 2, 4, 8, 8))
    pod = shape(gpus, 8_000 * gpus, 64 * gpus)
    return gang(
        uid, PodSet("w", rng.choice((1, 2, 4, 8, 16, 32)), pod, topology), queued_at=queued_at
    )


def snapshot(
    nodes: Fleet,
    settings: QueueConfig,
    running: tuple[Admitted, ...],
    pending: tuple[Workload, ...],
) -> Snapshot:
    waiting = tuple(Pending(w) for w in pending)
    return Snapshot(NOW, nodes, settings, waiting, running, namespaces={"team": {}})
