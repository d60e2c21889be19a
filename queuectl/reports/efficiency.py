"""The efficiency of the cluster: each GPU of a cluster map in one part, by node and by the value of a node label.

A part takes at most what the parts before it have left of the node, in this order: measured gangs, gangs and other pods without a
measurement, free GPUs, failed GPUs. The parts of a node therefore add up to its GPUs, also while a gang holds a failed GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

from queuectl.domain.cluster_map import GangOnMap, NodeOccupancy
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.usage_reports import NO_GPUS, GpuParts
from queuectl.domain.utilization import GangUse, used_share
from queuectl.planner.cache import PlannerCache
from queuectl.reports.cluster_map import occupied

_MILLION: Final = 1_000_000
_NONE: Final = Fraction()


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
    """The parts of all GPUs together; the arguments are those of the cluster map."""
    found = efficiency_of(*occupied(snapshot, original, uses, cache or PlannerCache()))
    return sum(found.values(), NO_GPUS)


def parts_of(occupancy: NodeOccupancy, gangs: Sequence[GangOnMap]) -> GpuParts:
    """The parts of one node's GPUs."""
    gpus, free, failed = occupancy.gpus, occupancy.free_gpus, occupancy.failed_gpus
    left = gpus + failed if failed else gpus

    def take(amount: Fraction) -> Fraction:
        nonlocal left
        if amount <= 0:
            return _NONE
        taken = min(amount, left)
        left -= taken
        return taken

    effective, idle, held, unmeasured = _NONE, _NONE, _NONE, _NONE
    for tenant in occupancy.tenants:
        share = used_share(gangs[tenant.gang].use)
        held += tenant.gpus
        if share is None:
            unmeasured += tenant.gpus
        else:
            measured = take(tenant.gpus)
            used = measured * Fraction(round(share * _MILLION), _MILLION)
            effective, idle = effective + used, idle + measured - used
    others = gpus - free - held if free != gpus or held else _NONE
    unknown = take(unmeasured + max(others, _NONE)) if others or held else _NONE
    free = take(free)
    fragmented = min(occupancy.fragmented, free) if occupancy.open else _NONE
    unallocated = _NONE if not occupancy.open else free - fragmented if fragmented else free
    unhealthy = left + (_NONE if occupancy.open else free)
    return GpuParts(effective, idle, fragmented, unhealthy, unallocated, unknown)
