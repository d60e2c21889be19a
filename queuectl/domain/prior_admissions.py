"""The decisions of a Kueue that ran before queuectl, as its Workloads show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PriorPodSet:
    """``flavors`` by resource; ``hosts``: (hostname label, pods) in the order of ranks, empty where that is not known."""

    flavors: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PriorAdmission:
    """The decisions of a Kueue that ran here before, about a job. Times are unix seconds.

    Attributes:
        uid, kind, namespace, name: of the job, as the Workload names its owner.
        queued_at: since when it was in its queue; None if that is not known.
        active: False: Kueue had deactivated it, or a user held it.
        cluster_queue: that its admission names, "" without one.
        admitted_at: None unless it was admitted.
        podsets: of its admission, by name.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    queued_at: float | None = None
    active: bool = True
    cluster_queue: str = ""
    admitted_at: float | None = None
    podsets: Mapping[str, PriorPodSet] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """``namespace/name`` of the job."""
        return f"{self.namespace}/{self.name}"
