"""The cluster map of a snapshot, and the efficiency of its GPUs.

The map has the nodes of each gang, and the free capacity of each domain. The efficiency puts each GPU of a map in one part, by node and
by the value of a node label. A part takes at most what the parts before it have left of the node, in this order: measured gangs, gangs
and other pods without a measurement, free GPUs, failed GPUs. The parts of a node therefore add up to its GPUs, even while a gang holds a
failed GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.devices.pools import effective, out_of_placement
from queuectl.domain.cluster_map import (
    ClusterMap,
    GangOnMap,
    GangOnNode,
    MapDomain,
    NodeOccupancy,
    TopologyLayout,
    TopologyLevel,
    utilization_of,
)
from queuectl.domain.gpus import ZERO_GPUS, summed
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.usage_reports import NO_GPUS, GpuParts
from queuectl.domain.utilization import GangUse, used_share
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, Tree, index_of
from queuectl.reports.fragmentation import fragmented_on_nodes, left_for_shapes
from queuectl.reports.node_gpus import HeldGpus, gpus_on, sizes_of

# ---- The map

_GangsOn = list[list[GangOnNode]]
_MILLION: Final = 1_000_000


def cluster_map_of(
    snapshot: Snapshot,
    original: Snapshot,
    uses: Mapping[str, GangUse],
    cache: PlannerCache | None = None,
) -> ClusterMap:
    """The cluster map.

    Args:
        snapshot: with device rows.
        original: the snapshot without device rows, whose devices are counted; the same one if no rows were added.
        uses: the known GPU utilization of gangs, by uid.
        cache: of the process.
    """
    cache = cache or PlannerCache()
    gangs, node_counts = occupied(snapshot, original, uses, cache)
    index = index_of(snapshot.fleet, cache)
    layouts = tuple(
        TopologyLayout(name, _levels(index.tree(topology.levels), node_counts, gangs))
        for name, topology in sorted(snapshot.config.topologies.items())
    )
    return ClusterMap(snapshot.now, gangs, node_counts, layouts)


def occupied(
    snapshot: Snapshot, original: Snapshot, uses: Mapping[str, GangUse], cache: PlannerCache
) -> tuple[tuple[GangOnMap, ...], tuple[NodeOccupancy, ...]]:
    """The gangs and the nodes of the cluster map."""
    index, sizes = index_of(snapshot.fleet, cache), sizes_of(original, cache)
    gangs, gangs_on = _gangs_by_node(original, index, uses, sizes)
    return gangs, _node_counts(snapshot, index, gangs_on, cache, original, sizes)


def _gangs_by_node(
    original: Snapshot, index: FleetIndex, uses: Mapping[str, GangUse], sizes: GpuSizes
) -> tuple[tuple[GangOnMap, ...], _GangsOn]:
    gangs: list[GangOnMap] = []
    known = HeldGpus(original, sizes)
    gangs_on: _GangsOn = [[] for _ in index.nodes]
    for gang in sorted(original.admitted, key=lambda a: (a.workload.ref, a.workload.uid)):
        workload = gang.workload
        queue = original.queue_of(workload)
        held = known.of(gang)
        for name, own in held.items():
            gangs_on[index.position[name]].append(GangOnNode(len(gangs), own.pods, own.gpus))
        gangs.append(
            GangOnMap(
                workload=workload,
                cluster_queue=queue.name if queue is not None else "",
                gpus=summed(own.gpus for own in held.values()),
                pods=sum(own.pods for own in held.values()),
                leaving=gang.leaving,
                use=uses.get(workload.uid),
            )
        )
    return tuple(gangs), gangs_on


def _node_counts(
    snapshot: Snapshot,
    index: FleetIndex,
    gangs_on: _GangsOn,
    cache: PlannerCache,
    original: Snapshot,
    sizes: GpuSizes,
) -> tuple[NodeOccupancy, ...]:
    left = left_for_shapes(snapshot, index, cache)
    fragmented = fragmented_on_nodes(snapshot, index, left, sizes).tolist()
    tainted = out_of_placement(original.devices)
    node_counts = []
    for node, plain, amounts, lost, tenants in zip(
        index.nodes, original.fleet.nodes, left[0].T.tolist(), fragmented, gangs_on, strict=True
    ):
        free = Resources(zip(index.resources, amounts, strict=True))
        found = gpus_on(plain, free, summed(one.gpus for one in tenants), original, sizes)
        node_counts.append(
            NodeOccupancy(
                node=node,
                free=free,
                gpus=found.gpus,
                free_gpus=found.free,
                failed_gpus=found.failed,
                tainted=tuple(
                    (str(device.id), str(taint))
                    for device in tainted.get(node.name, ())
                    for taint in effective(device)
                ),
                fragmented=Fraction(round(lost * _MILLION), _MILLION) if lost else ZERO_GPUS,
                tenants=tuple(sorted(tenants, key=lambda t: (-t.gpus, -t.pods, t.gang))),
                other_pods=original.other_pods.get(node.name, NOTHING),
            )
        )
    return tuple(node_counts)


def _levels(
    tree: Tree, node_counts: Sequence[NodeOccupancy], gangs: Sequence[GangOnMap]
) -> tuple[TopologyLevel, ...]:
    return tuple(
        TopologyLevel(
            label,
            tuple(
                _domain(path, [node_counts[i] for i in tree.nodes_in(level, d).tolist()], gangs)
                for d, path in enumerate(tree.names[level])
            ),
            tuple(tree.domain[level].tolist()),
        )
        for level, label in enumerate(tree.levels)
    )


def _domain(
    path: tuple[str, ...], node_counts: Sequence[NodeOccupancy], gangs: Sequence[GangOnMap]
) -> MapDomain:
    """The sums over its nodes."""
    takes = [occupancy for occupancy in node_counts if occupancy.open]
    most = max(takes, key=lambda occupancy: occupancy.free_gpus, default=None)
    tenants = [tenant for occupancy in node_counts for tenant in occupancy.tenants]
    return MapDomain(
        path=path,
        nodes=len(node_counts),
        open=len(takes),
        gpus=summed(occupancy.gpus for occupancy in node_counts),
        free=summed(occupancy.free_gpus for occupancy in takes),
        fragmented=summed(occupancy.fragmented for occupancy in takes),
        largest=(most.node.name, most.free_gpus) if most is not None else None,
        gangs=len({tenant.gang for tenant in tenants}),
        utilization=utilization_of(tenants, gangs),
    )


# ---- The efficiency


def efficiency_of(
    gangs: Sequence[GangOnMap], occupancies: Iterable[NodeOccupancy], label: str | None = None
) -> Mapping[str, GpuParts]:
    """The parts of all GPUs, by the value of a node label, in the order of the values; nodes without GPUs are left out.

    Args:
        gangs: of the cluster map.
        occupancies: its nodes.
        label: of nodes. Nodes without it are under "", as all nodes are without a label.
    """
    found: dict[str, GpuParts] = {}
    for occupancy in occupancies:
        if occupancy.gpus or occupancy.failed_gpus:
            value = occupancy.node.labels.get(label, "") if label is not None else ""
            found[value] = found.get(value, NO_GPUS) + parts_of(occupancy, gangs)
    return dict(sorted(found.items()))


def all_parts(
    snapshot: Snapshot,
    original: Snapshot,
    uses: Mapping[str, GangUse],
    cache: PlannerCache | None = None,
) -> GpuParts:
    """The parts of all GPUs together; the arguments are as for the cluster map."""
    found = efficiency_of(*occupied(snapshot, original, uses, cache or PlannerCache()))
    return sum(found.values(), NO_GPUS)


def parts_of(occupancy: NodeOccupancy, gangs: Sequence[GangOnMap]) -> GpuParts:
    """The parts of one node's GPUs."""
    gpus, free, failed = occupancy.gpus, occupancy.free_gpus, occupancy.failed_gpus
    left = gpus + failed if failed else gpus

    def take(amount: Fraction) -> Fraction:
        nonlocal left
        if amount <= 0:
            return ZERO_GPUS
        taken = min(amount, left)
        left -= taken
        return taken

    effective, idle, held, unmeasured = ZERO_GPUS, ZERO_GPUS, ZERO_GPUS, ZERO_GPUS
    for tenant in occupancy.tenants:
        share = used_share(gangs[tenant.gang].use)
        held += tenant.gpus
        if share is None:
            unmeasured += tenant.gpus
        else:
            measured = take(tenant.gpus)
            used = measured * Fraction(round(share * _MILLION), _MILLION)
            effective, idle = effective + used, idle + measured - used
    others = gpus - free - held if free != gpus or held else ZERO_GPUS
    unknown = take(unmeasured + max(others, ZERO_GPUS)) if others or held else ZERO_GPUS
    free = take(free)
    fragmented = min(occupancy.fragmented, free) if occupancy.open else ZERO_GPUS
    unallocated = ZERO_GPUS if not occupancy.open else free - fragmented if fragmented else free
    unhealthy = left + (ZERO_GPUS if occupancy.open else free)
    return GpuParts(effective, idle, fragmented, unhealthy, unallocated, unknown)
