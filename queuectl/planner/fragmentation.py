"""Free GPUs, and how many of them the gangs that want GPUs cannot use where they are.

The measure is that of fragmentation gradient descent (FGD): a node's free GPUs are fragments for a pod shape that does not
fit the node, because other resources are used up, too few GPUs are left, or its labels and taints forbid it. Averaged over
the shapes, each weighed by how many pods want it, that is how many free GPUs the next pod is expected not to be able to
use. Shapes are those of gangs that wait and that run. A shape that fits no node of a flavor even when it is empty says
nothing of that flavor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from queuectl.domain.accounting import Free
from queuectl.domain.fleet import NodeRules
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import ResourceFlavor
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodShape
from queuectl.planner.fleetindex import FleetIndex, index_of
from queuectl.planner.topology import Ints, Mask
from queuectl.planner.usage import usage_of

MOST_SHAPES: Final = 64  # the most wanted ones; a cluster's jobs come in few shapes


def free_gpus(snapshot: Snapshot) -> Mapping[str, Free]:
    """GPUs on nodes that take pods, by the ResourceFlavor whose labels the nodes carry; flavors without GPUs are left out."""
    index = index_of(snapshot.fleet)
    row = index.column.get(GPU)
    if row is None:
        return {}
    free = _free(snapshot, index)
    open_nodes = np.array([n.ready and not n.unschedulable for n in index.nodes], dtype=np.bool_)
    shapes = shapes_wanted(snapshot)
    found = {}
    for name, flavor in sorted(snapshot.config.flavors.items()):
        nodes = open_nodes & index.labelled(flavor.node_labels)
        capacity = int(index.allocatable[row, nodes].sum())
        if capacity:
            fragments, stranded = _fragments(shapes, flavor, nodes, free, row, index)
            found[name] = Free(capacity, int(free[row, nodes].sum()), fragments, stranded)
    return found


def shapes_wanted(snapshot: Snapshot) -> Mapping[PodShape, int]:
    """Pod shapes with GPUs of all gangs, with how many pods want each: the most wanted ones."""
    wanted: Counter[PodShape] = Counter()
    gangs = (
        *(p.workload for p in snapshot.pending),
        *(a.workload for a in snapshot.admitted),
    )
    for workload in gangs:
        for podset in workload.podsets:
            if podset.shape.requests[GPU]:
                wanted[podset.shape] += podset.count
    return dict(wanted.most_common(MOST_SHAPES))


def _free(snapshot: Snapshot, index: FleetIndex) -> Ints:
    """(R, N): what nobody holds on each node; never below 0."""
    free = index.allocatable - usage_of(snapshot).held
    for name, amounts in snapshot.strangers.items():
        at = index.position.get(name)
        if at is None:
            continue
        for resource, amount in amounts.items():
            row = index.column.get(resource)
            if row is not None:
                free[row, at] -= amount
    left: Ints = np.maximum(free, 0)
    return left


def _fragments(
    shapes: Mapping[PodShape, int],
    flavor: ResourceFlavor,
    nodes: Mask,
    free: Ints,
    row: int,
    index: FleetIndex,
) -> tuple[float, int]:
    """Of the free GPUs on these nodes: expected to be unusable, and on nodes that no shape fits."""
    unusable, pods = 0.0, 0
    usable = np.zeros(index.size, dtype=np.bool_)
    for shape, count in shapes.items():
        request = index.vector(shape.requests)
        if request is None:
            continue
        rules = shape.rules
        tolerant = NodeRules(rules.selector, rules.affinity, rules.tolerations + flavor.tolerations)
        may = nodes & index.mask(tolerant)
        if not (may & (index.allocatable >= request[:, None]).all(axis=0)).any():
            continue
        fits = may & (free >= request[:, None]).all(axis=0)
        usable |= fits
        unusable += count * float(free[row, nodes & ~fits].sum())
        pods += count
    if not pods:
        return 0.0, 0
    return unusable / pods, int(free[row, nodes & ~usable].sum())
