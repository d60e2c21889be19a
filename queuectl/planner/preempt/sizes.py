"""The size of gangs in GPUs, by which lost work and waits are compared: also of pods that have no GPU.

- A pod with GPUs counts as its GPUs (:mod:`queuectl.domain.gpus`).
- Each other accelerator counts as one GPU, but all accelerators of a node as at most ``ACCELERATORS_OF_NODE``.
- Any pod counts as at least its share of a node, times ``NODE``: a CPU is worth less than a GPU.

The *share of a node* is that of the resource of which the pod requests the largest part of a node. A node has the largest amount that any
node of the fleet has. A request therefore counts the same on each node, and after its node is deleted. Without a node that has the
resource, ``_USUAL`` counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from queuectl.domain.devices import IMPLICIT_RESOURCE, stands_for_claims
from queuectl.domain.fleet import Fleet
from queuectl.domain.gpus import MOST_GPUS, GpuWeights, is_accelerator
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import is_planner_row

NODE: Final = 0.5
"""GPUs that all of a node counts as for pods without accelerators."""

ACCELERATORS_OF_NODE: Final = 8
"""GPUs that all accelerators of a node count as, if they are more: units of a resource can be cores or parts of a device."""

_USUAL: Final = {CPU: 64_000, MEMORY: 256 << 30, PODS: 110}
_USUAL_DEVICES: Final = 8
_KEPT: Final = 4096
_KEPT_GANGS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class GangSize:
    """GPUs that the pods of a gang count as: of pods with accelerators, whose use can be measured, and of all others."""

    accelerators: float
    others: float

    @property
    def total(self) -> float:
        return self.accelerators + self.others


@dataclass(frozen=True, eq=False, slots=True)
class Sizes:
    """Sizes of gangs on the nodes of one fleet.

    Attributes:
        weights: of the resources that the configuration names. They count by their weight alone.
        largest: the largest amount of each resource on one node.
    """

    weights: GpuWeights
    largest: Resources
    _known: dict[tuple[Resources, float], tuple[float, bool]] = field(default_factory=dict)
    _running: dict[tuple[int, int], tuple[Workload, Placement, GangSize]] = field(
        default_factory=dict
    )

    def of_running(self, gang: Admitted) -> GangSize:
        """The size of a gang that runs; none for pods it started without, or that are done."""
        key = (id(gang.workload), id(gang.placement))
        known = self._running.get(key)
        if known is None:
            if len(self._running) >= _KEPT_GANGS:
                self._running.clear()
            placed = ((p, gang.placement.of(p.name)) for p in gang.workload.podsets)
            pods = ((p, p.count if at is None else at.pods_of(p)) for p, at in placed)
            size = self._of(float(gang.gpus), pods)
            # Kept with the size, so that their ids name them.
            known = self._running[key] = gang.workload, gang.placement, size
        return known[2]

    def of_waiting(self, workload: Workload) -> GangSize:
        """The size of a gang with all of its pods."""
        return self._of(float(workload.gpus), ((p, p.count) for p in workload.podsets))

    def _of(self, gpus: float, podsets: Iterable[tuple[PodSet, int]]) -> GangSize:
        others, with_gpus = 0.0, gpus > 0
        for podset, pods in podsets:
            if with_gpus and stands_for_claims(podset.name):
                continue  # the GPUs of claims that pods share count once for the gang
            more, accelerated = self._more(podset)
            if accelerated:
                gpus += more * pods
            else:
                others += more * pods
        return GangSize(min(gpus, MOST_GPUS), min(others, MOST_GPUS))

    def _more(self, podset: PodSet) -> tuple[float, bool]:
        """The GPUs that a pod counts as in addition to its own, and whether it has accelerators."""
        key = (podset.shape.requests, float(podset.gpus.each))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[key] = self._count(*key)
        return known

    def _count(self, requests: Resources, gpus: float) -> tuple[float, bool]:
        accelerators, share = gpus, 0.0
        given = dict(self.weights.configured)
        for name, amount in requests.items():
            if name in given or self.weights.of(name) or is_planner_row(name):
                continue
            part = amount / (self.largest[name] or _usual(name) or amount)
            if is_accelerator(name.removeprefix(IMPLICIT_RESOURCE)):
                accelerators = max(accelerators, min(amount, ACCELERATORS_OF_NODE * part))
            elif self.largest[name] or _usual(name):
                share = max(share, part)
        return max(accelerators, NODE * share) - gpus, accelerators > 0


def sizes_of(snapshot: Snapshot, cache: PlannerCache | None = None) -> Sizes:
    """The sizes of gangs of a snapshot; ``cache``: of the planner."""
    weights = snapshot.config.rules.accounting.gpus
    known = cache.get(snapshot.fleet, Sizes) if cache is not None else None
    if known is None or known.weights != weights:
        known = Sizes(weights, _largest(snapshot.fleet))
        if cache is not None:
            cache.keep(snapshot.fleet, known)
    return known


def _largest(fleet: Fleet) -> Resources:
    largest: dict[str, int] = {}
    for amounts in {id(n.allocatable): n.allocatable for n in fleet.nodes}.values():
        for name, amount in amounts.items():
            largest[name] = max(largest.get(name, 0), amount)
    return Resources(largest)


def _usual(resource: str) -> int:
    """The usual amount of a node; 0 for a resource of which nothing is known."""
    return _USUAL.get(resource, _USUAL_DEVICES if "/" in resource else 0)
