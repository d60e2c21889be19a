"""GPUs that are held outside the queues: by pods of no job in a queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class UnmanagedPod:
    """A pod that holds GPUs on a node and belongs to no job in a queue.

    Attributes:
        gpus: by weight, as in the usage ledger: an instance of a GPU is a part of one.
        since: unix seconds at which the kubelet accepted the pod; None = it has not yet.
    """

    namespace: str
    name: str
    node: str
    gpus: Fraction
    since: float | None


@dataclass(frozen=True, slots=True)
class NamespaceSum:
    """The sum of the requests of the unmanaged pods of one namespace."""

    namespace: str
    pods: int
    gpus: Fraction


def summed(pods: Iterable[UnmanagedPod]) -> tuple[NamespaceSum, ...]:
    """One sum per namespace, by name of the namespace."""
    held: dict[str, list[Fraction]] = {}
    for pod in pods:
        held.setdefault(pod.namespace, []).append(pod.gpus)
    return tuple(
        NamespaceSum(namespace, len(gpus), sum(gpus, Fraction()))
        for namespace, gpus in sorted(held.items())
    )
