"""Gangs that lose devices because of taints: their nodes have too few other devices for the pods that replace the deleted ones.

Kubernetes deletes the pods that hold a device with a ``NoExecute`` taint. Their replacements would stay unschedulable on the planned
node, so the gang is stopped at once. It has not failed itself, and is planned again without a back-off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from queuectl.devices.matching import Matching, NotMatched
from queuectl.devices.taints import effective, endures
from queuectl.domain.devices import (
    ClaimSpec,
    Device,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceTaint,
)
from queuectl.domain.events import Evict
from queuectl.domain.job_records import JobRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.pod_records import PodRecord
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.records import ClaimRecord
from queuectl.state.devices import backed_resources
from queuectl.state.mirror import Mirror


class LostDevices:
    """As of now, as the watch shows the cluster.

    Attributes:
        nodes: the devices with taints that have an effect, by node.
    """

    def __init__(self, mirror: Mirror) -> None:
        """Of this copy of the cluster."""
        self._mirror = mirror
        self.nodes: Mapping[str, tuple[Device, ...]] = mirror.devices.out_of_placement(mirror.fleet)

    def eviction(self, entry: Entry, job: JobRecord) -> Evict | None:
        """The stop of a gang whose pods are deleted and cannot be replaced on their nodes; None if there are no such pods."""
        placed = entry.placement.podsets if entry.placement is not None else ()
        if not any(name in self.nodes for podset in placed for name, _ in podset.nodes):
            return None
        evidence: dict[str, str] = {}
        for pod in self._mirror.pods_of(job):
            if pod.node is not None and not pod.terminal and pod.attempt == entry.attempt:
                for lost in self._lost(pod, job):
                    evidence.setdefault(pod.node, lost)
        return _evict("Kubernetes deletes pods that cannot be replaced", evidence)

    def refusal(self, pods: Iterable[PodRecord], names: Mapping[str, str]) -> Evict | None:
        """The stop of a gang whose pods kube-scheduler refuses on nodes with tainted devices; None if taints are no cause.

        Args:
            pods: that kube-scheduler refuses.
            names: hostname label -> node name.
        """
        evidence: dict[str, str] = {}
        pins = set()
        for pod in pods:
            node = names.get(pod.pin or "", "")
            found = next(self._untolerated(pod, node), None) if node in self.nodes else None
            if pod.pin is not None and found is not None:
                evidence.setdefault(node, found)
                pins.add(pod.pin)
        return _evict("kube-scheduler refuses pods", evidence, tuple(sorted(pins)))

    def _lost(self, pod: PodRecord, job: JobRecord) -> Iterator[str]:
        """The evidence against devices that a pod loses, if its node has too few others for the claim."""
        tainted = {device.id: device for device in self.nodes.get(pod.node or "", ())}
        records = (
            [*self._mirror.devices.claims_of(pod.uid), *self._named(pod, job)] if tainted else []
        )
        for record in records:
            for held in record.content.allocated or ():
                device = tainted.get(held.id)
                for taint in effective(device) if device is not None else ():
                    tolerated = any(
                        t.effect is DeviceEffect.NO_EXECUTE and t.tolerates(taint)
                        for t in held.tolerations
                    )
                    deletes = taint.effect is DeviceEffect.NO_EXECUTE and not tolerated
                    if deletes and not self._served_again(record.content.spec, pod, records):
                        yield _text(held.id, taint)

    def _named(self, pod: PodRecord, job: JobRecord) -> Iterator[ClaimRecord]:
        """The claims that a pod shares."""
        for podset in job.podsets:
            for reference in podset.claims if podset.name == pod.podset else ():
                if reference.claim is not None:
                    found = self._mirror.devices.named_claim(job.namespace, reference.claim)
                    if found is not None:
                        yield found

    def _served_again(self, spec: ClaimSpec, pod: PodRecord, own: Iterable[ClaimRecord]) -> bool:
        """Whether the node can have devices for each request, once the pod has released its own ones."""
        released = {held.id for record in own for held in record.content.allocated or ()}
        taken = self._taken - released
        return all(
            any(self._enough(option, pod.node or "", taken) for option in request.options)
            for request in spec.requests
        )

    def _enough(self, option: DeviceOption, node: str, taken: set[DeviceId]) -> bool:
        if option.admin:
            return True
        inventory = self._mirror.devices.inventory(self._mirror.fleet).nodes[node]
        selected = [inventory.devices[at] for at in self._selected(option, node)]
        free = [
            device
            for device in selected
            if (device.kind.shared or device.id not in taken)
            and all(endures(option.tolerations, taint) for taint in effective(device))
        ]
        return len(free) >= (len(selected) if option.count is None else option.count)

    def _untolerated(self, pod: PodRecord, node: str) -> Iterator[str]:
        """The evidence against devices of a node that a pod without an allocation could use otherwise."""
        tainted = {device.id for device in self.nodes[node]}
        inventory = self._mirror.devices.inventory(self._mirror.fleet).nodes[node]
        for option in self._options(pod, node):
            for at in self._selected(option, node):
                device = inventory.devices[at]
                for taint in effective(device) if device.id in tainted else ():
                    if not any(t.tolerates(taint) for t in option.tolerations):
                        yield _text(device.id, taint)

    def _options(self, pod: PodRecord, node: str) -> Iterator[DeviceOption]:
        """The options of the claims of a pod, and of the one that kube-scheduler makes for extended resources once it has devices."""
        for record in self._mirror.devices.claims_of(pod.uid):
            for request in record.content.spec.requests:
                yield from request.options
        allocatable = self._mirror.fleet.by_name[node].allocatable
        for name, known in self._mirror.devices.classes.items():
            by_plugin = [r for r in backed_resources(known) if allocatable[r]]
            if any(r in pod.requests and r not in by_plugin for r in backed_resources(known)):
                yield DeviceOption(name)

    def _selected(self, option: DeviceOption, node: str) -> tuple[int, ...]:
        inventory = self._mirror.devices.inventory(self._mirror.fleet)
        try:
            return self._matching(option, inventory.nodes[node])
        except NotMatched:
            return ()

    @cached_property
    def _matching(self) -> Matching:
        return Matching(self._mirror.devices.classes)

    @cached_property
    def _taken(self) -> set[DeviceId]:
        """All devices that claims hold, other than for administration."""
        devices = self._mirror.devices
        return {
            held.id
            for holder in devices.holders
            for record in devices.claims_of(holder)
            for held in record.content.allocated or ()
            if not held.admin
        }


def _text(device: DeviceId, taint: DeviceTaint) -> str:
    return f"device {device} has the taint {taint}"


def _evict(what: str, evidence: dict[str, str], excluded: tuple[str, ...] = ()) -> Evict | None:
    if not evidence:
        return None
    nodes = sorted(evidence)
    listed = "; ".join(f"{name}: {evidence[name]}" for name in nodes)
    reason = Reason(Code.NODE_FAILURES, f"{what}: {listed}", {"nodes": nodes})
    return Evict(reason, excluded=excluded)
