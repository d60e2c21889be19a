"""Nodes from an autoscaler: the settings of a check that asks for them, and the request as the autoscaler answers it.

The API of the requests is ``autoscaling.x-k8s.io``, which cluster-autoscaler serves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queuectl.domain.workload import Placement, PodSet

CONSUMES: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
"""Annotation of a pod: the request that made its node."""

CLASS: Final = "autoscaling.x-k8s.io/provisioning-class-name"
"""Annotation of a pod: the class of that request."""

JOIN_SECONDS: Final = 300.0
"""After a request is provisioned: the time in which its nodes can join before its gang evicts others instead."""

MOST_PODSETS: Final = 32
"""Of a request, by its CustomResourceDefinition."""


class MergePolicy(StrEnum):
    """Which podsets are one podset of the request, as in Kueue."""

    TEMPLATES = "IdenticalPodTemplates"
    SCHEDULING = "IdenticalWorkloadSchedulingRequirements"


@dataclass(frozen=True, slots=True)
class ProvisioningConfig:
    """A ProvisioningRequestConfig.

    Attributes:
        class_name: the mode of the autoscaler.
        parameters: of the class.
        managed: resources; a podset that requests none of them is not in the request. Empty = all podsets are.
        retries: how often a request that failed is made again, before the gang is deactivated.
        backoff_base, backoff_ceiling: seconds until the gang queues again, doubled with each retry up to the second.
        selectors: (node label, name of the detail in the request's status with its value), added to the pods.
        merge: None = each podset stands for itself.
    """

    name: str
    class_name: str
    parameters: tuple[tuple[str, str], ...] = ()
    managed: frozenset[str] = frozenset()
    retries: int = 3
    backoff_base: float = 60.0
    backoff_ceiling: float = 1800.0
    selectors: tuple[tuple[str, str], ...] = ()
    merge: MergePolicy | None = None

    def requested(
        self, podsets: Collection[PodSet], placement: Placement | None = None
    ) -> tuple[tuple[PodSet, int], ...]:
        """The podsets of a request with their numbers of pods. A podset stands for those that are merged with it.

        ``placement``: which flavors they are charged to; None = all to the same.
        """
        merged: dict[object, tuple[PodSet, int]] = {}
        for podset in podsets:
            asked = {resource for resource, amount in podset.shape.requests.items() if amount}
            if not podset.count or (self.managed and self.managed.isdisjoint(asked)):
                continue
            placed = placement.of(podset.name) if placement is not None else None
            # The template of a request has what decides about nodes only, so it follows from the shape and the flavors.
            template = podset.shape, placed.charged if placed is not None else frozenset()
            key = template if self.merge is not None else podset.name
            first, count = merged.get(key, (podset, 0))
            merged[key] = first, count + podset.count
        return tuple(merged.values())


class RequestState(StrEnum):
    """The state of a request: the conditions of which one decides about its check."""

    PENDING = "Pending"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    REVOKED = "CapacityRevoked"
    EXPIRED = "BookingExpired"


@dataclass(frozen=True, slots=True)
class ProvisioningRecord:
    """A ProvisioningRequest that queuectl made.

    Attributes:
        gang: uid of its workload.
        state: of its conditions the one that decides, by Kueue's order.
        message: of that condition.
        details: values of the class for its users.
        templates: names of its PodTemplates.
        deleting: it is deleted, and its finalizers are not done.
    """

    namespace: str
    name: str
    uid: str
    version: int
    gang: str
    state: RequestState = RequestState.PENDING
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    deleting: bool = False
