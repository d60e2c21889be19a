"""Small snapshots for planner tests: nodes, gangs, running gangs and their queues.

Resource names are shortened: ``gpu`` for the GPU resource, everything else as written (plain integers, no units).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from queuectl.domain.fleet import HOSTNAME, Fleet, Node, NodeRules, Taint, Toleration
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    DEFAULT_VICTIM_ORDER,
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    VictimKey,
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

NOW = 1_000_000.0
PLENTY = 10**6
LEVELS = ("block", "rack", HOSTNAME)
FLAVOR = "default"
RESOURCES = (GPU, "cpu", "memory", PODS)


def resources(**amounts: int) -> Resources:
    return Resources({GPU if name == "gpu" else name: value for name, value in amounts.items()})


def node(
    name: str,
    where: str = "b/r",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    **amounts: int,
) -> Node:
    """A node at ``block/rack`` (a rack without a block is in block ``b``), with 110 pods unless the arguments differ."""
    block, _, rack = where.rpartition("/")
    amounts.setdefault(PODS, 110)
    return Node(
        name,
        {"block": block or "b", "rack": rack, HOSTNAME: name, **(labels or {})},
        resources(**amounts),
        tuple(taints),
        ready,
    )


def podset(
    name: str = "w",
    count: int = 1,
    *,
    required: str | None = None,
    preferred: str | None = None,
    slices: Sequence[tuple[str, int]] = (),
    balanced: bool = False,
    group: str | None = None,
    select: Mapping[str, str] | None = None,
    tolerations: Sequence[Toleration] = (),
    **amounts: int,
) -> PodSet:
    """``slices``: (level, size), coarse to fine."""
    topology = None
    if required is not None:
        topology = TopologyRequest(TopologyMode.REQUIRED, required)
    elif preferred is not None:
        topology = TopologyRequest(TopologyMode.PREFERRED, preferred)
    if slices or balanced:
        topology = replace(
            topology or TopologyRequest(TopologyMode.UNCONSTRAINED),
            slices=tuple(Slice(level, size) for level, size in slices),
            balanced=balanced,
        )
    rules = NodeRules(tuple(sorted((select or {}).items())), None, tuple(tolerations))
    shape = PodShape(resources(pods=1, **amounts), rules)
    return PodSet(name, count, shape, topology, group)


def gang(
    uid: str,
    *podsets: PodSet,
    priority: int = 0,
    queued_at: float = 0.0,
    queue: str | None = "main",
    preemptible: bool = True,
) -> Workload:
    return Workload(
        uid, "Job", "team", uid, tuple(podsets), queue, priority, queued_at, preemptible
    )


def placed(workload: Workload, *nodes: Mapping[str, int], flavor: str | None = FLAVOR) -> Placement:
    """One mapping of node to count per podset; ``flavor`` is charged for all of them, None charges no flavor."""
    return Placement(
        tuple(
            PodSetPlacement(
                p.name,
                tuple(where.items()),
                dict.fromkeys(p.shape.requests, flavor) if flavor is not None else {},
            )
            for p, where in zip(workload.podsets, nodes, strict=True)
        )
    )


def holding(
    workload: Workload,
    *nodes: Mapping[str, int],
    flavor: str | None = FLAVOR,
    leaving: bool = False,
    started_at: float = NOW,
    checkpoint_at: float | None = None,
    utilization: float | None = None,
    lost: tuple[tuple[str, str, int], ...] = (),
) -> Admitted:
    return Admitted(
        workload,
        placed(workload, *nodes, flavor=flavor),
        leaving,
        started_at,
        checkpoint_at,
        utilization,
        lost,
    )


def queue(
    name: str = "main",
    *,
    within: WithinClusterQueue = WithinClusterQueue.LOWER_PRIORITY,
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    order: tuple[VictimKey, ...] = DEFAULT_VICTIM_ORDER,
    flavors: Sequence[str] = (FLAVOR,),
    **nominal: int,
) -> ClusterQueue:
    """Covers each resource that a test requests, with ample quota for those that are not named; each flavor has the same quota."""
    quotas = dict.fromkeys(RESOURCES, PLENTY) | dict(resources(**nominal))
    quotas |= {GPU if r == "gpu" else r: 0 for r, v in nominal.items() if v == 0}
    group = ResourceGroup(RESOURCES, tuple(FlavorQuotas(f, quotas) for f in flavors))
    return ClusterQueue(
        name,
        (group,),
        strategy,
        within,
        namespace_selector=LabelSelector(),
        victim_order=order,
    )


def with_gpus(made: ClusterQueue, gpus: Mapping[str, int]) -> ClusterQueue:
    """A ClusterQueue of :func:`queue` with so many GPUs of each flavor."""
    (group,) = made.groups
    quotas = tuple(
        replace(each, nominal={**each.nominal, GPU: gpus[each.flavor]}) for each in group.flavors
    )
    return replace(made, groups=(replace(group, flavors=quotas),))


def config(*queues: ClusterQueue, flavors: Sequence[ResourceFlavor] | None = None) -> QueueConfig:
    """A LocalQueue of the same name in namespace ``team`` leads to each ClusterQueue."""
    known = flavors if flavors is not None else (ResourceFlavor(FLAVOR, topology="gpus"),)
    return QueueConfig(
        1,
        {q.name: q for q in queues},
        {("team", q.name): LocalQueue("team", q.name, q.name) for q in queues},
        {f.name: f for f in known},
        {"gpus": Topology("gpus", LEVELS)},
    )


def world(
    nodes: Sequence[Node],
    pending: Sequence[Workload | Pending] = (),
    admitted: Sequence[Admitted] = (),
    *queues: ClusterQueue,
    flavors: Sequence[ResourceFlavor] | None = None,
    other_pods: Mapping[str, Resources] | None = None,
) -> Snapshot:
    """A snapshot; one ClusterQueue ``main`` with plenty of quota unless others are given."""
    entries = [p if isinstance(p, Pending) else Pending(p) for p in pending]
    return Snapshot(
        NOW,
        Fleet(tuple(sorted(nodes, key=lambda n: n.name))),
        config(*(queues or (queue(),)), flavors=flavors),
        tuple(entries),
        tuple(admitted),
        other_pods or {},
        {"team": {}},
    )


def without_quota(workload: Workload) -> Workload:
    return replace(workload, queue=None)
