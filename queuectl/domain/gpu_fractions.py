"""Requests for a fraction of a GPU that only another scheduler can fulfil, and the units of this cluster that can replace them.

KAI and Run:ai read annotations of pods, HAMi reads resources. They divide a GPU by software of their own. kube-scheduler counts whole
units of resources: MIG instances and replicas are such units, a part of a unit is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from queuectl.domain.fleet import Fleet
from queuectl.domain.gpu_labels import Sharing, unit_of
from queuectl.domain.gpus import GpuWeights, exact
from queuectl.domain.words import counted

ANNOTATIONS: Final = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Of a pod, for KAI and Run:ai."""
RESOURCES: Final = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
"""Of a container, for HAMi. Its nodes offer none of them: HAMi's own scheduler counts them."""
_PERCENT: Final = ("nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class GpuFraction:
    """A request for a fraction of a GPU.

    Attributes:
        field: with its path in the object.
        value: as it is written.
        gpus: the fraction for one pod; None = the request names no fraction, for example an amount of memory.
    """

    field: str
    value: str
    gpus: Fraction | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A unit that is a part of a GPU, on all nodes where it is the same."""

    resource: str
    gpus: Fraction
    kind: str
    nodes: int

    def __str__(self) -> str:
        where = counted(self.nodes, "node")
        return f"{self.resource}: 1 ({self.kind}, {self.gpus} of a GPU, on {where})"


def annotated_fraction(annotations: Mapping[str, str] | None, path: str) -> GpuFraction | None:
    """The request in the annotations of a pod template, whose path is ``path``."""
    given = annotations or {}
    for name in ANNOTATIONS:
        if name in given:
            gpus = _number(given[name]) if name == ANNOTATIONS[0] else None
            return GpuFraction(f"{path}: {name}", given[name], gpus)
    return None


def requested_fraction(requests: Mapping[str, int], path: str) -> GpuFraction | None:
    """The request in the resources of a pod, whose path is ``path``."""
    for name in RESOURCES:
        if name in requests:
            gpus = Fraction(requests[name], 100) if name in _PERCENT else None
            return GpuFraction(f"{path}: resource {name}", str(requests[name]), gpus)
    return None


def why_refused(asked: GpuFraction, fleet: Fleet, weights: GpuWeights) -> str:
    """The sentence for a gang with this request: the reason, and what this cluster offers instead."""
    parts = _nearest(_parts(fleet, weights), asked.gpus)
    offered = " or ".join(map(str, parts[:_NAMED]))
    instead = (
        f"request {offered} instead"
        if parts
        else "request whole GPUs: no node offers MIG instances or replicas"
    )
    return (
        f"{asked.field} is {asked.value!r}: kube-scheduler does not divide a unit of a GPU "
        f"resource; {instead}"
    )


def _number(text: str) -> Fraction | None:
    try:
        return exact(text)
    except (ValueError, ZeroDivisionError):
        return None


@lru_cache(maxsize=2)
def _parts(fleet: Fleet, weights: GpuWeights) -> tuple[_Part, ...]:
    """The smallest first."""
    found: dict[tuple[str, Fraction, str], int] = {}
    for node in fleet.nodes:
        for resource in node.allocatable:
            gpus = weights.of(resource, node.labels)
            if 0 < gpus < 1:
                key = (resource, gpus, _kind(resource, node.labels))
                found[key] = found.get(key, 0) + 1
    parts = (_Part(*key, nodes) for key, nodes in found.items())
    return tuple(sorted(parts, key=lambda part: (part.gpus, part.resource, part.kind)))


def _kind(resource: str, labels: Mapping[str, str]) -> str:
    unit = unit_of(resource, labels)
    if unit is None:
        return "a part"
    if unit.sharing is not Sharing.NONE:
        return f"a replica by {unit.sharing}"
    return "a MIG instance" if unit.instance else "a partition"


def _nearest(parts: tuple[_Part, ...], gpus: Fraction | None) -> list[_Part]:
    """Those that are large enough, the smallest first; then the others, the largest first."""
    least = gpus or Fraction()
    enough = [part for part in parts if part.gpus >= least]
    return enough + [part for part in reversed(parts) if part.gpus < least]
