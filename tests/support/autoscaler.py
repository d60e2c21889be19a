"""A simulated cluster-autoscaler: it answers ProvisioningRequests of class ``best-effort-atomic-scale-up`` as cluster-autoscaler does.

It was compared with the source of cluster-autoscaler (``processors/provreq``, ``provisioningrequest/besteffortatomic``). It sets ``Accepted``,
and then ``Provisioned``: true when the pods of all templates fit the free capacity with nodes that it adds, all of them or none; false with
the reason ``CapacityIsNotFound`` otherwise, and then it tries again. The nodes that it found stay booked until ``BookingExpired``. Tests set
``Failed`` and ``CapacityRevoked``, which come from clouds. It adds equal nodes of one group, and counts GPUs only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"


class Cluster(Protocol):
    """The API server, as the simulated autoscaler uses it."""

    def requests(self) -> Iterable[Document]:
        """All ProvisioningRequests."""

    def template(self, namespace: str, name: str) -> Document | None:
        """One PodTemplate; None if it does not exist."""

    def free(self) -> dict[str, int]:
        """Free GPUs of each node."""

    def add_node(self, document: Document) -> None:
        """Add a node, which is ready."""

    def set_conditions(self, request: Document, conditions: list[Document]) -> None:
        """Write the conditions of the status of a request."""


@dataclass
class SimulatedAutoscaler:
    """One node group.

    Attributes:
        node: the document of a new node from its number.
        gpus: of one new node.
        most: nodes that the group can get.
        added: names of the nodes that it added.
        asked: names of the requests that it has seen.
        booked: GPUs of nodes that are kept for pods that do not exist yet, by request.
        boots: new nodes join one at a time, each with :meth:`boot`.
        booting: new nodes that have not joined yet.
    """

    cluster: Cluster
    node: Callable[[int], Document]
    gpus: int = 8
    most: int = 1000
    added: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    booked: dict[str, Counter[str]] = field(default_factory=dict)
    boots: bool = False
    booting: list[Document] = field(default_factory=list)

    def boot(self) -> str:
        """The next new node joins; returns its name."""
        document = self.booting.pop(0)
        self.cluster.add_node(document)
        return str(document["metadata"]["name"])

    def step(self) -> None:
        """Take the next step of each request."""
        present = {r["metadata"]["name"] for r in self.cluster.requests()}
        for name in self.booked.keys() - present:
            del self.booked[name]
        for request in list(self.cluster.requests()):
            name = request["metadata"]["name"]
            if name not in self.asked:
                self.asked.append(name)
            if not is_true(request, "Accepted"):
                self.set(request, "Accepted", "ProvisioningRequestAccepted", "accepted")
            elif not (is_true(request, "Provisioned") or is_true(request, "Failed")):
                self._provision(request)

    def set(
        self, request: Document, kind: str, reason: str, message: str, status: str = "True"
    ) -> None:
        """Set one condition of a request."""
        others = [c for c in conditions_of(request) if c["type"] != kind]
        condition = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-11-24T00:00:00Z",
        }
        self.cluster.set_conditions(request, [*others, condition])

    def expire(self, request: Document) -> None:
        """End the booking of a request, which cluster-autoscaler does 10 minutes after ``Provisioned``."""
        self.booked.pop(request["metadata"]["name"], None)
        message = "Capacity reservation time is expired"
        self.set(request, "BookingExpired", "CapacityReservationTimeExpired", message)

    def _provision(self, request: Document) -> None:
        pods = self._pods(request)
        if pods is None:
            return  # a template is missing: the next step tries again
        free = Counter(self.cluster.free())
        for booked in self.booked.values():
            free.subtract(booked)
        taken: Counter[str] = Counter()
        new = 0
        for gpus in sorted(pods, reverse=True):
            at = next((n for n, left in sorted(free.items()) if left >= gpus), None)
            if at is None:
                new += 1
                at = f"new-{new}"
                free[at] = self.gpus
            free[at] -= gpus
            taken[at] += gpus
        if new > self.most - len(self.added) or any(gpus > self.gpus for gpus in pods):
            message = "Capacity is not found, CA will try to find it later."
            self.set(request, "Provisioned", "CapacityIsNotFound", message, status="False")
            return
        names = {f"new-{number + 1}": self._add() for number in range(new)}
        self.booked[request["metadata"]["name"]] = Counter(
            {names.get(node, node): gpus for node, gpus in taken.items()}
        )
        message = "Capacity is found in the cluster"
        self.set(request, "Provisioned", "CapacityIsProvisioned", message)

    def _pods(self, request: Document) -> list[int] | None:
        """The GPUs of each pod; None if a template does not exist."""
        pods = []
        for podset in request["spec"]["podSets"]:
            meta, name = request["metadata"], podset["podTemplateRef"]["name"]
            template = self.cluster.template(meta["namespace"], name)
            if template is None:
                return None
            containers = template["template"]["spec"]["containers"]
            gpus = sum(int(c["resources"].get("requests", {}).get(GPU, 0)) for c in containers)
            pods += [gpus] * podset["count"]
        return pods

    def _add(self) -> str:
        document = self.node(len(self.added))
        self.added.append(document["metadata"]["name"])
        self.booting.append(document)
        if not self.boots:
            self.boot()
        return self.added[-1]


def conditions_of(request: Document) -> list[Document]:
    """The conditions of a request."""
    return list(request.get("status", {}).get("conditions") or [])


def is_true(request: Document, kind: str) -> bool:
    """Whether a request has this condition."""
    return any(c["type"] == kind and c["status"] == "True" for c in conditions_of(request))
