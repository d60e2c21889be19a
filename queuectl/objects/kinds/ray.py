"""The kinds of ``ray.io/v1``, run by KubeRay. The head of a Ray cluster is a podset, and each group of workers.

With the feature gate RayMultiHostIndexing, which is on by default, KubeRay counts the replicas of a group of workers, and the hosts
of a replica. The rank of a worker follows from both. The head has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from queuectl.domain.needs import ContainerNeeds
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.workload import PodSet
from queuectl.objects.kinds.additions import with_init
from queuectl.objects.kinds.common import SpecFields
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import (
    Conditions,
    Description,
    Manager,
    PodSets,
    Unsupported,
)

_HEAD: Final = "head"

# KubeRay gives each worker an init container that waits for the head, with these resources.
_WAIT: Final = ContainerNeeds(
    requests=((CPU, 200), (MEMORY, 256 << 20)),
    limits=((CPU, 200), (MEMORY, 256 << 20)),
    incidental=True,
)
_CLEANS_UP: Final = "fault tolerance of the GCS is not supported: the pod that clears its storage is created after the end of the cluster"


def _podsets(cluster: str) -> tuple[PodSets, ...]:
    """The places of the podsets of the Ray cluster at this path."""
    return (
        PodSets(path=f"{cluster}.headGroupSpec", name=_HEAD, count=()),
        PodSets(
            path=f"{cluster}.workerGroupSpecs",
            key="groupName",
            count=(("replicas", "maxReplicas"), ("numOfHosts",)),
            least="minReplicas",
            ranks=("numOfHosts",),
            optional=True,
            unsupported=(
                Unsupported(
                    path="suspend",
                    reason="a group of workers is not suspended alone: set its replicas and minReplicas to 0",
                ),
            ),
        ),
    )


def _unsupported(cluster: str) -> tuple[Unsupported, ...]:
    return (
        Unsupported(
            path=f"{cluster}.enableInTreeAutoscaling",
            reason="a number of workers that changes while the cluster runs is not supported",
        ),
        Unsupported(path=f"{cluster}.gcsFaultToleranceOptions", reason=_CLEANS_UP),
        Unsupported(path="metadata.annotations", annotation="ray.io/ft-enabled", reason=_CLEANS_UP),
    )


class RayKind(DescribedKind):
    """Adds the init container of workers, and that KubeRay creates each pod again that has ended."""

    def complete(self, podsets: list[PodSet]) -> list[PodSet]:
        return [one if one.name == _HEAD else with_init(one, _WAIT) for one in podsets]

    def asked(self, document: Any, fields: SpecFields) -> SpecFields:  # noqa: ARG002 - as in the base class
        return replace(fields, followed=True)


RAYCLUSTER: Final = RayKind(
    Description(
        kind="RayCluster",
        group="ray.io",
        version="v1",
        plural="rayclusters",
        suspend="spec.suspend",
        podsets=_podsets("spec"),
        selector="ray.io/cluster",
        # It runs until it is deleted.
        conditions=Conditions(succeeded="", failed="", suspended="RayClusterSuspended"),
        manager=Manager(path="spec.managedBy", name="ray.io/kuberay-operator"),
        unsupported=_unsupported("spec"),
        operator="kubeRayOperator",
    )
)
