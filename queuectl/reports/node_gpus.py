"""The GPUs of each node: those of gangs, of other pods, free and failed."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from queuectl.devices.gpu_sizes import GpuSizes
from queuectl.devices.shared import charged_gangs
from queuectl.domain.accounting import ClusterGpus
from queuectl.domain.fleet import Node
from queuectl.domain.gpus import ZERO_GPUS, summed
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.cache import PlannerCache


@dataclass(frozen=True, slots=True)
class Held:
    """The part of a gang on one node."""

    pods: int
    gpus: Fraction


@dataclass(frozen=True, slots=True)
class GpusOnNode:
    """GPUs of one node that pods can hold, the free ones of them, and failed ones."""

    gpus: Fraction
    free: Fraction
    failed: Fraction


def sizes_of(original: Snapshot, cache: PlannerCache) -> GpuSizes:
    """The sizes of pods and nodes in a snapshot."""
    last = cache.latest(GpuSizes)
    return cache.keep_latest(GpuSizes.of(original.fleet, original.devices, original.config, last))


class HeldGpus:
    """The GPUs that the gangs of a snapshot hold. A claim that several gangs share counts for the one that started first."""

    def __init__(self, original: Snapshot, sizes: GpuSizes) -> None:
        """``original``: without device rows. ``sizes``: of ``original``."""
        self._given = original
        self._sizes = sizes
        self._charged = charged_gangs(original.admitted) if original.claims else {}

    def of(self, gang: Admitted) -> dict[str, Held]:
        """Pods and GPUs of a gang on each node that exists."""
        nodes = self._given.fleet.by_name
        held: dict[str, Held] = {}
        for name, pods, gpus in self.parts(gang):
            if name in nodes:
                was = held.get(name, Held(0, ZERO_GPUS))
                held[name] = Held(was.pods + pods, was.gpus + gpus)
        return held

    def parts(
        self, gang: Admitted, besides: Container[str] = ()
    ) -> Iterator[tuple[str, int, Fraction]]:
        """Node name, pods and GPUs, also of nodes that do not exist. ``besides``: nodes that are left out."""
        nodes, counted = self._given.fleet.by_name, set[str]()
        for podset in gang.workload.podsets:
            placed = gang.placement.of(podset.name)
            if placed is None or not placed.nodes:
                continue
            for name, pods in placed.nodes:
                if name not in besides:
                    node = nodes.get(name)
                    each = podset.gpus.each if node is None else self._sizes.on(podset.shape, node)
                    yield name, pods, each * pods
            first = placed.nodes[0][0]
            for claim in podset.shared_claims if first not in besides else ():
                key = (gang.workload.namespace, claim)
                known = self._given.claims.get(key)
                mine = self._charged.get(key) == gang.workload.uid
                if known is not None and mine and claim not in counted:
                    counted.add(claim)
                    found = self._sizes.by_claim(known, nodes.get(first))
                    yield first, 0, sum((gpus for _, gpus in found), ZERO_GPUS)


def gpus_on(
    node: Node, free: Resources, held: Fraction, original: Snapshot, sizes: GpuSizes
) -> GpusOnNode:
    """The GPUs of a node.

    Args:
        node: as in ``original``.
        free: what pods leave of it; it decides on a node without devices.
        held: GPUs of gangs on it.
        original: the snapshot without device rows.
        sizes: of ``original``.
    """
    own = sizes.of_node(node)
    if sizes.has_devices(node):
        left = own.gpus - held - others_on(node, original, sizes)
        return GpusOnNode(own.gpus, max(left, ZERO_GPUS), own.failed)
    return GpusOnNode(own.gpus, sizes.plugins(free, node), own.failed)


def others_on(node: Node, original: Snapshot, sizes: GpuSizes) -> Fraction:
    """GPUs of a node that pods of no gang hold."""
    pods: Mapping[str, Resources] = original.other_pods
    plugins = sizes.plugins(pods.get(node.name, NOTHING), node)
    return plugins + sizes.allocated(original.other_devices.get(node.name, ()))


def cluster_gpus(original: Snapshot, cache: PlannerCache) -> ClusterGpus:
    """All GPUs of the cluster. Held GPUs are looked up only on nodes where they decide what is unhealthy."""
    sizes, nodes = sizes_of(original, cache), original.fleet.by_name
    own = {node.name: sizes.of_node(node) for node in original.fleet.nodes}
    doubtful = {
        node.name
        for node in original.fleet.nodes
        if own[node.name].failed or not node.ready or node.unschedulable
    }
    held_gpus = HeldGpus(original, sizes)
    certain = own.keys() - doubtful
    held: dict[str, Fraction] = dict.fromkeys(doubtful, ZERO_GPUS)
    gone = ZERO_GPUS
    for gang in original.admitted:
        for name, _, part in held_gpus.parts(gang, besides=certain):
            if name in nodes:
                held[name] += part
            else:
                gone += part
    free_pods = {
        name: others_on(nodes[name], original, sizes)
        for name in original.other_pods.keys() | original.other_devices.keys()
        if name in nodes
    }
    unhealthy = ZERO_GPUS
    for name in doubtful:
        gpus, node = own[name], nodes[name]
        left = max(gpus.gpus + gpus.failed - held[name] - free_pods.get(name, ZERO_GPUS), ZERO_GPUS)
        closed = not node.ready or node.unschedulable
        unhealthy += left if closed else min(left, gpus.failed)
    physical = summed(one.gpus + one.failed for one in own.values())
    return ClusterGpus(physical + gone, summed(free_pods.values()), unhealthy)
