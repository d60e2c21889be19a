"""Fragmentation: free GPUs that pods cannot use, and gangs over more domains than necessary.

The measure is the one of fragmentation gradient descent (FGD). The free GPUs of a node are fragments for a pod shape that does not fit the
node, because other resources are used up, too few GPUs are free, or its labels and taints exclude the pod. The average over the
shapes of pending and running gangs, weighted by their number of pods, is the expected number of free GPUs that the next pod cannot use.
A shape that does not fit any empty node of a flavor does not count for that flavor. Fragments *inside* nodes have enough of all amounts,
but the devices that are left are not sure to be of one PCIe root, of one NUMA node, or cut from enough memory of a GPU.

The domains of a gang are compared, for each podset and level, with the lowest number for an empty cluster: of the schedulable nodes that
the podset can use, the domains with the most capacity, until all its pods fit. A ratio above 1 shows the effect of running gangs and of
the gang's other podsets. A required or preferred level does not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.domain.accounting import Free
from queuectl.domain.devices import DEVICE_ROW
from queuectl.domain.fleet import NodeRules
from queuectl.domain.plan import Admission
from queuectl.domain.quantity import NOTHING
from queuectl.domain.queues import QueueConfig, ResourceFlavor
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import PodSetPlacement, PodShape
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import FleetIndex, Ints, Mask, Tree, index_of
from queuectl.planner.problem.usage import beside_other_pods
from queuectl.reports.node_gpus import HeldGpus, gpus_on, sizes_of
from queuectl.reports.report_cache import use_for_report

# ---- Free GPUs

Floats: TypeAlias = NDArray[np.float64]
_MOST_SHAPES: Final = 64  # the most frequent ones; the jobs of a cluster have few shapes


def free_gpus(
    snapshot: Snapshot, original: Snapshot, cache: PlannerCache | None = None
) -> Mapping[str, Free]:
    """GPUs on schedulable nodes, by the ResourceFlavor whose labels the nodes have. Flavors without GPUs are left out.

    If several resources are GPUs (whole GPUs, instances, another vendor's), fragments of each are computed with the shapes that
    request it, and count with its weight on each node.

    Args:
        snapshot: with device rows.
        original: the snapshot without device rows, whose devices are counted; the same one if no rows were added.
        cache: of the process.
    """
    cache = cache or PlannerCache()
    index, sizes = index_of(snapshot.fleet, cache), sizes_of(original, cache)
    kinds = _kinds(snapshot, index, sizes)
    left = left_for_shapes(snapshot, index, cache)
    capacity, free = _gpus(kinds, left[0], index, original, sizes)
    if not capacity.any():
        return {}
    by_flavor = {}
    for name, flavor, nodes in _open_nodes(snapshot, index):
        lost, stranded, inside = np.zeros((3, index.size))
        for row, weights, shapes in kinds:
            if not (index.allocatable[row] * weights)[nodes].any():
                continue
            parts = _fragments(shapes, flavor, nodes, left, row, index)
            lost += parts.times * weights / parts.pods
            stranded += parts.stranded * weights
            inside += parts.inside * weights / parts.pods
        each = np.array(
            [
                capacity,
                free,
                np.minimum(lost, free),
                np.minimum(stranded, free),
                np.minimum(inside, free),
            ]
        )
        sums = each[:, nodes].sum(axis=1)
        if sums[0]:
            by_flavor[name] = Free(*map(float, sums))
    return by_flavor


def _gpus(
    kinds: Sequence[tuple[int, Floats, Mapping[PodShape, int]]],
    left: Ints,
    index: FleetIndex,
    original: Snapshot,
    sizes: GpuSizes,
) -> tuple[Floats, Floats]:
    """All GPUs and the free GPUs of each node (N,)."""
    capacity, free = np.zeros(index.size), np.zeros(index.size)
    for row, weights, _ in kinds:
        capacity += index.allocatable[row] * weights
        free += left[row] * weights
    held: dict[str, Fraction] = {}
    known = HeldGpus(original, sizes)
    for gang in original.admitted if sizes.with_devices else ():
        for name, own in known.of(gang).items():
            held[name] = held.get(name, Fraction()) + own.gpus
    for node in sizes.with_devices:
        at = index.position[node.name]
        found = gpus_on(node, NOTHING, held.get(node.name, Fraction()), original, sizes)
        capacity[at], free[at] = float(found.gpus), float(found.free)
    return capacity, free


def fragmented_on_nodes(
    snapshot: Snapshot, index: FleetIndex, free: Sequence[Ints], sizes: GpuSizes
) -> Floats:
    """(N,): the expected number of free GPUs of each node that the next pod cannot use, under the flavor that uses most.

    0 on unschedulable nodes, and on nodes without a flavor.

    Args:
        snapshot: with the gangs.
        index: of its nodes.
        free: the result of :func:`left_for_shapes`.
        sizes: of pods and nodes.
    """
    kinds = _kinds(snapshot, index, sizes)
    least = np.full(index.size, np.inf)
    for _, flavor, nodes in _open_nodes(snapshot, index):
        lost = np.zeros(index.size)
        for row, weights, shapes in kinds:
            parts = _fragments(shapes, flavor, nodes, free, row, index)
            lost += weights * parts.times / parts.pods
        least[nodes] = np.minimum(least, lost)[nodes]
    found: Floats = np.where(np.isfinite(least), least, 0.0)
    return found


def _kinds(
    snapshot: Snapshot, index: FleetIndex, sizes: GpuSizes
) -> list[tuple[int, Floats, Mapping[PodShape, int]]]:
    """Row, weight on each node (N,) and requested shapes of each resource that is a GPU."""

    def on_nodes(resource: str) -> Floats:
        units = sizes.units(resource)
        return np.fromiter((units[node.name] for node in index.nodes), np.float64, index.size)

    return [
        (row, on_nodes(resource), _shapes_wanted(snapshot, resource))
        for resource, row in index.column.items()
        if sizes.is_gpu(resource)
    ]


def _open_nodes(
    snapshot: Snapshot, index: FleetIndex
) -> Iterator[tuple[str, ResourceFlavor, Mask]]:
    """Each flavor with its schedulable nodes."""
    takes = np.array([n.ready and not n.unschedulable for n in index.nodes], dtype=np.bool_)
    for name, flavor in sorted(snapshot.config.flavors.items()):
        yield name, flavor, takes & index.labeled(flavor.node_labels)


def _shapes_wanted(snapshot: Snapshot, resource: str) -> Mapping[PodShape, int]:
    """The most frequent pod shapes of gangs that request these GPUs, each with its number of pods."""
    wanted: Counter[PodShape] = Counter()
    gangs = (
        *(p.workload for p in snapshot.pending),
        *(a.workload for a in snapshot.admitted),
    )
    for workload in gangs:
        for podset in workload.podsets:
            if podset.shape.requests[resource]:
                wanted[podset.shape] += podset.count
    return dict(wanted.most_common(_MOST_SHAPES))


def _left_on_nodes(snapshot: Snapshot, index: FleetIndex, cache: PlannerCache) -> Ints:
    """(R, N): the free capacity of each node; never below 0."""
    free = use_for_report(snapshot, cache).free
    left: Ints = np.maximum(beside_other_pods(free, snapshot, index), 0)
    return left


def left_for_shapes(snapshot: Snapshot, index: FleetIndex, cache: PlannerCache) -> list[Ints]:
    """The same, and once more with other device rows: a pod that fits one of them fits the node."""
    left = [_left_on_nodes(snapshot, index, cache)]
    if snapshot.mixed_nodes is not None:
        mixed = replace(snapshot, other_pods=snapshot.mixed_nodes)
        left.append(_left_on_nodes(mixed, index, cache))
    return left


@dataclass(frozen=True, slots=True)
class _Fragments:
    """For each node: free GPUs times the pods that cannot use them, of ``pods`` in total; and GPUs that no shape can use.

    ``inside``: free GPUs times the pods that cannot use them only because of devices inside the node.
    """

    times: Ints
    pods: int
    stranded: Ints
    inside: Ints


def _fragments(
    shapes: Mapping[PodShape, int],
    flavor: ResourceFlavor,
    nodes: Mask,
    free: Sequence[Ints],
    row: int,
    index: FleetIndex,
) -> _Fragments:
    none = np.zeros(index.size, dtype=np.int64)
    times, inside, pods = none.copy(), none.copy(), 0
    plain = [i for i, name in enumerate(index.resources) if not name.startswith(DEVICE_ROW)]
    gpus = free[0][row]
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
        fits = may & _any(_fits(left, request) for left in free)
        usable |= fits
        times += count * np.where(nodes & ~fits, gpus, 0)
        enough = may & _fits(free[0][plain], request[plain])
        inside += count * np.where(enough & ~fits, gpus, 0)
        pods += count
    if not pods:
        return _Fragments(none, 1, none, none)
    return _Fragments(times, pods, np.where(nodes & ~usable, gpus, 0), inside)


def _fits(left: Ints, request: Ints) -> Mask:
    """The nodes with enough of each resource."""
    return np.asarray((left >= request[:, None]).all(axis=0), dtype=np.bool_)


def _any(masks: Iterable[Mask]) -> Mask:
    return reduce(np.logical_or, masks)


# ---- Domains of gangs

_Fewest: TypeAlias = tuple[int, ...]  # per level of a tree, and of nodes


class DomainSpread(NamedTuple):
    """Domains of one level, summed over podsets: the used number, and the lowest possible number."""

    used: int
    least: int


def spreads(
    snapshot: Snapshot, admissions: Iterable[Admission], cache: PlannerCache | None = None
) -> dict[str, DomainSpread]:
    """The domains of all started podsets, by the label of the level.

    Repaired gangs are left out, because most of their pods do not move. Podsets that are split over flavors, and podsets of flavors
    without a topology, are also left out.
    """
    index = index_of(snapshot.fleet, cache or PlannerCache())
    started = {admission.uid: admission for admission in admissions if not admission.repaired}
    used: Counter[str] = Counter()
    least: Counter[str] = Counter()
    for workload in (p.workload for p in snapshot.pending if p.workload.uid in started):
        shapes = {podset.name: podset.shape for podset in workload.podsets}
        for placed in started[workload.uid].placement.podsets:
            for level, here, fewest in _levels(
                snapshot.config, index, shapes[placed.podset], placed
            ):
                used[level] += here
                least[level] += fewest
    return {level: DomainSpread(used[level], least[level]) for level in used}


def _levels(
    config: QueueConfig, index: FleetIndex, shape: PodShape, placed: PodSetPlacement
) -> Iterator[tuple[str, int, int]]:
    """Level, used domains, and the lowest possible number."""
    flavors = tuple(config.flavors[name] for name in dict.fromkeys(placed.flavors.values()))
    known = (config.topologies.get(flavor.topology or "") for flavor in flavors)
    topology = next((one for one in known if one is not None), None)
    if topology is None or placed.shares or not placed.nodes:
        return
    tree = index.tree(topology.levels)
    fewest = _known_fewest(index, tree, shape, flavors, placed.count)
    nodes = [index.position[name] for name, _ in placed.nodes]
    for level, domain, least in zip(tree.levels, tree.domain, fewest, strict=False):
        yield level, len(set(domain[nodes].tolist())), least
    if tree.node_level is not None:
        yield tree.node_level, len(set(nodes)), fewest[-1]


def _known_fewest(
    index: FleetIndex,
    tree: Tree,
    shape: PodShape,
    flavors: tuple[ResourceFlavor, ...],
    pods: int,
) -> _Fewest:
    """The lowest possible numbers, cached while the nodes do not change: gangs have few shapes."""
    question = (tree.levels, tree.node_level, shape, flavors, pods)
    fewest = index.fewest.get(question)
    if fewest is None:
        room = _room(index, shape, flavors, pods)
        room[tree.position >= index.size] = 0  # nodes that lack a level's label
        sums = [tree.sums(level, room) for level in range(tree.depth)]
        lowest = tuple(_fewest(rooms, pods) for rooms in (*sums, room))
        fewest = index.fewest.keep(question, lowest)
    return fewest


def _room(index: FleetIndex, shape: PodShape, flavors: Iterable[ResourceFlavor], most: int) -> Ints:
    """(N,): the number of such pods that fit each empty node; at most ``most``."""
    rules = shape.rules
    for flavor in flavors:
        rules = flavor.rules_of(rules)
    room = np.where(index.mask(rules) & index.ready, most, 0)
    for resource, amount in shape.requests.items():
        if amount:
            room = np.minimum(room, index.allocatable[index.column[resource]] // amount)
    return room


def _fewest(rooms: Ints, pods: int) -> int:
    """The fewest domains that hold so many pods, largest first; all domains if they do not hold them."""
    filled = np.cumsum(np.sort(rooms)[::-1])
    return min(int(np.searchsorted(filled, pods)) + 1, len(rooms))
