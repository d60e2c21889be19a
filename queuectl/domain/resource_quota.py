"""Kubernetes' ResourceQuota, for pods.

A gang whose pods would exceed a ResourceQuota must not be resumed: its controller could not create all pods, and the gang would hold
its nodes without running.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.workload import PodSet, PodShape

Coming: TypeAlias = tuple[PodSet, int]  # number of pods of a podset that are still to be created


@dataclass(frozen=True, slots=True)
class Limit:
    """One resource of a ResourceQuota; amounts as in :mod:`queuectl.domain.quantity`.

    Attributes:
        key: its key in the quota, for example ``requests.nvidia.com/gpu``.
        resource: the resource of a pod that counts against it, for example ``nvidia.com/gpu``.
        hard: the limit.
        used: the use that the API server counts.
        of_limits: whether limits of the pods count, not requests.
    """

    key: str
    resource: str
    hard: int
    used: int
    of_limits: bool = False

    def per_pod(self, podset: PodSet) -> int:
        """The amount that one pod counts against it."""
        return (podset.limits if self.of_limits else podset.shape.requests)[self.resource]


@dataclass(frozen=True, slots=True)
class Allowance:
    """One ResourceQuota of a namespace.

    Attributes:
        name: of the quota.
        limits: its resources, in the order of their keys.
        best_effort: True = only pods without CPU and memory requests count, False = only the others, None = all.
        promised: for each limit, the amount for pods of started gangs that do not exist yet; empty = none.
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
    """The quota with these future pods."""
    counted = [(podset, count) for podset, count in coming if quota.covers(podset.shape)]
    if not counted:
        return quota
    promised = tuple(
        sum(count * limit.per_pod(podset) for podset, count in counted) for limit in quota.limits
    )
    return replace(quota, promised=promised)
