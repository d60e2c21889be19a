"""What a namespace may use: Kubernetes' ResourceQuota, as far as it speaks of pods.

A gang whose pods would exceed it must not be resumed: its controller could not create them all, and it would hold its nodes
in vain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.workload import PodSet, PodShape

Coming: TypeAlias = tuple[PodSet, int]  # so many pods of a podset are still to be created


@dataclass(frozen=True, slots=True)
class Limit:
    """One line of a ResourceQuota; amounts as in :mod:`queuectl.domain.quantity`.

    Attributes:
        key: as the quota spells it, e.g. ``requests.nvidia.com/gpu``.
        resource: what of a pod counts against it, e.g. ``nvidia.com/gpu``.
        hard: all that may be used.
        used: what the API server counts as used.
        of_limits: the pods' limits of the resource count, not their requests.
    """

    key: str
    resource: str
    hard: int
    used: int
    of_limits: bool = False

    def per_pod(self, podset: PodSet) -> int:
        """What one pod counts against it."""
        return (podset.limits if self.of_limits else podset.shape.requests)[self.resource]


@dataclass(frozen=True, slots=True)
class Allowance:
    """One ResourceQuota of a namespace.

    Attributes:
        name: of the quota.
        limits: its lines, in the order of their keys.
        best_effort: True = only pods without any CPU and memory count, False = only the others do, None = all.
        promised: per line, what pods of started gangs that do not exist yet will take; empty = nothing.
    """

    name: str
    limits: tuple[Limit, ...]
    best_effort: bool | None = None
    promised: tuple[int, ...] = ()

    def covers(self, shape: PodShape) -> bool:
        """Whether a pod of this shape counts."""
        return self.best_effort is None or self.best_effort is is_best_effort(shape)


def is_best_effort(shape: PodShape) -> bool:
    """Kubernetes' quality of service class: no container asks for CPU or memory."""
    return not (shape.requests[CPU] or shape.requests[MEMORY])


def with_promises(quota: Allowance, coming: Iterable[Coming]) -> Allowance:
    """The quota when these pods will come."""
    counted = [(podset, count) for podset, count in coming if quota.covers(podset.shape)]
    if not counted:
        return quota
    promised = tuple(
        sum(count * limit.per_pod(podset) for podset, count in counted) for limit in quota.limits
    )
    return replace(quota, promised=promised)
