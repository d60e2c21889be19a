"""Full clusters for benchmarks of evictions: 8-GPU nodes in blocks and racks, and running gangs of many kinds on them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.quantity import CPU, GPU, MEMORY, PODS, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    TopologyMode,
    TopologyRequest,
    Workload,
)

NOW = 2_000_000.0
LEVELS = ("block", "rack", HOSTNAME)
GIB = 1 << 30
COVERED = (CPU, MEMORY, PODS, GPU)
FLAVORS = dict.fromkeys(COVERED, "default")
MIXED, SMALL, FLAT, BLEND = "mixed", "small", "small, one priority", "spread"
MANY = "mixed with small"


@dataclass(frozen=True)
class Line:
    """One line of a table: a cluster, what runs on it, the blocked gang, and the prototype's figure in ms.

    ``large``: the share of gangs of several whole nodes in the mixed loads; it sets how many gangs there are.
    ``lenders``: the gangs belong to so many other ClusterQueues of one cohort, which borrow what is the blocked gang's own;
    0 = all are of its own queue. ``fair``: they are taken back by fair shares; the blocked gang's own quota is too small.
    """

    blocks: int
    racks: int
    hosts: int
    load: str
    nodes: int
    level: str | None
    prototype: str
    # Alongside the workers a launcher without GPUs and six 2-GPU pods, all in one domain.
    several: bool = False
    large: float = 0.35
    target: str = "-"
    idle: float = 0.03
    lenders: int = 0
    fair: bool = False

    @property
    def size(self) -> int:
        return self.blocks * self.racks * self.hosts


def fleet_of(line: Line) -> Fleet:
    allocatable = Resources({GPU: 8, CPU: 96_000, MEMORY: 1024 * GIB, PODS: 110})
    nodes = [
        Node(
            f"n-{b}-{r}-{h}",
            {"block": f"b{b}", "rack": f"r{b}-{r}", HOSTNAME: f"n-{b}-{r}-{h}"},
            allocatable,
        )
        for b in range(line.blocks)
        for r in range(line.racks)
        for h in range(line.hosts)
    ]
    return Fleet(tuple(sorted(nodes, key=lambda n: n.name)))


def config() -> QueueConfig:
    quotas = FlavorQuotas("default", dict.fromkeys(COVERED, 1 << 55))
    queue = ClusterQueue(
        "main",
        (ResourceGroup(COVERED, (quotas,)),),
        within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
        namespace_selector=LabelSelector(),
    )
    return QueueConfig(
        1,
        {"main": queue},
        {("team", "main"): LocalQueue("team", "main", "main")},
        {"default": ResourceFlavor("default", topology="gpus")},
        {"gpus": Topology("gpus", LEVELS)},
    )


def cohort_config(line: Line, gpus: int) -> QueueConfig:
    """The blocked gang's queue and its lenders; together they have the GPUs that are used."""
    own = 4 * line.nodes if line.fair else max(8 * line.nodes, gpus // 8)
    each = (gpus - own) // line.lenders
    names = ["main", *(f"q{i}" for i in range(line.lenders))]

    def queue(name: str) -> ClusterQueue:
        nominal = dict.fromkeys(COVERED, 1 << 54) | {GPU: own if name == "main" else each}
        group = ResourceGroup(COVERED, (FlavorQuotas("default", nominal),))
        return ClusterQueue(
            name,
            (group,),
            within_cluster_queue=WithinClusterQueue.LOWER_PRIORITY,
            namespace_selector=LabelSelector(),
            cohort="all",
            reclaim_within_cohort=ReclaimWithinCohort.ANY,
        )

    return replace(
        config(),
        cluster_queues={name: queue(name) for name in names},
        local_queues={("team", name): LocalQueue("team", name, name) for name in names},
        cohorts={"all": Cohort("all")},
        rules=Rules(fair_sharing=tuple(FairStrategy) if line.fair else ()),
    )


def shape(gpus: int) -> PodShape:
    return PodShape(Resources({GPU: gpus, CPU: gpus * 11_000, MEMORY: gpus * 100 * GIB, PODS: 1}))


def gang(uid: str, pods: int, gpus: int, priority: int, level: str | None = None) -> Workload:
    topology = TopologyRequest(TopologyMode.REQUIRED, level) if level is not None else None
    podset = PodSet("w", pods, shape(gpus), topology)
    return Workload(uid, "Job", "team", uid, (podset,), "main", priority)


def with_helpers(workers: Workload) -> Workload:
    """The gang with podsets of two more shapes in the same domain."""
    (main,) = workers.podsets
    group = "g" if main.topology is not None else None
    cpu_only = PodShape(Resources({CPU: 20_000, MEMORY: 8 * GIB, PODS: 1}))
    small = PodShape(Resources({GPU: 2, CPU: 20_000, MEMORY: 8 * GIB, PODS: 1}))
    podsets = (
        replace(main, group=group),
        PodSet("launcher", 1, cpu_only, main.topology, group),
        PodSet("loader", 6, small, main.topology, group),
    )
    return replace(workers, podsets=podsets)


def tenants(line: Line, fleet: Fleet, rng: random.Random) -> Iterator[Admitted]:
    """Gangs one after the other over the nodes in topology order; ``line.idle`` of the nodes stay idle."""
    names = [n.name for n in fleet.nodes if rng.random() >= line.idle]
    priorities = (0,) if line.load in (FLAT, BLEND) else (0, 0, 10, 20, 50)
    for number, (nodes, gpus) in enumerate(_held(line, names, rng)):
        yield admitted(f"g{number}", nodes, gpus, rng.choice(priorities), rng)


def _held(line: Line, names: list[str], rng: random.Random) -> Iterator[tuple[list[str], int]]:
    """Nodes and GPUs per node of one gang after the other."""
    load = line.load
    if load == BLEND:
        yield from _spread(names, rng)
        return
    at = 0
    while at < len(names):
        if load in (MIXED, MANY) and rng.random() < line.large:
            nodes = min(rng.choice((2, 4, 8, 16, 32)), len(names) - at)
            yield names[at : at + nodes], 8
            at += nodes
            continue
        left = 8
        while left > 0 and (left == 8 or rng.random() < 0.93):
            gpus = min(left, rng.choice((8, 8, 4) if load == MIXED else (1, 2, 2, 4, 4, 8)))
            yield [names[at]], gpus
            left -= gpus
        at += 1


def _spread(names: list[str], rng: random.Random) -> Iterator[tuple[list[str], int]]:
    """Gangs of one to four 2- or 4-GPU pods on nodes near each other that they share with others: the hardest load."""
    for first in range(0, len(names), 16):
        near = names[first : first + 16]
        for gpus, slots in ((4, 1), (2, 2)):
            pieces = [n for n in near for _ in range(slots)]
            rng.shuffle(pieces)
            while pieces:
                size = rng.choice((1, 1, 2, 3, 4))
                yield list(dict.fromkeys(pieces[:size])), gpus
                pieces = pieces[size:]


def admitted(uid: str, nodes: list[str], gpus: int, priority: int, rng: random.Random) -> Admitted:
    workload = gang(uid, len(nodes), gpus, priority)
    where = PodSetPlacement("w", tuple((n, 1) for n in nodes), FLAVORS)
    started = NOW - rng.randrange(60, 200_000)
    return Admitted(
        workload,
        Placement((where,)),
        started_at=started,
        checkpoint_at=NOW - rng.randrange(0, 7200) if rng.random() < 0.7 else None,
        utilization=rng.choice((None, 0.05, 0.5, 0.9, 0.97)),
    )


def snapshot(line: Line, seed: int) -> Snapshot:
    rng = random.Random(seed)
    fleet = fleet_of(line)
    blocked = gang("blocked", line.nodes, 8, 100, line.level)
    if line.several:
        blocked = with_helpers(blocked)
    running = tuple(tenants(line, fleet, rng))
    queues = config()
    if line.lenders:
        queues = cohort_config(line, sum(int(g.workload.gpus) for g in running))
        running = tuple(
            replace(g, workload=replace(g.workload, queue=f"q{rng.randrange(line.lenders)}"))
            for g in running
        )
    return Snapshot(NOW, fleet, queues, (Pending(blocked),), running, {}, {"team": {}})
