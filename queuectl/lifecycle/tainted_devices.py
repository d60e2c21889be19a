"""Running gangs on devices with taints that their claims do not tolerate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from queuectl.devices.taints import effective, endures
from queuectl.domain.devices import AllocatedDevice, Device, DeviceEffect, DeviceTaint
from queuectl.domain.job_records import JobRecord
from queuectl.domain.node_health import HealthMode, NodeHealthRules
from queuectl.state.mirror import Mirror


class TaintedDevices:
    """The devices with taints that a queue with ``unhealthyNodes: Drain`` drains, as of now."""

    def __init__(self, mirror: Mirror, rules: NodeHealthRules) -> None:
        """Of the cluster as the watch shows it.

        If more nodes have such devices than can be unhealthy at a time, maintenance is the likely cause. Then only ``NoExecute`` counts,
        because running pods keep devices with ``NoSchedule``.
        """
        self._mirror = mirror
        self.nodes: Mapping[str, tuple[Device, ...]] = {}
        if rules.mode is HealthMode.CORDON:
            self.nodes = mirror.devices.out_of_placement(mirror.fleet)
        self._few = len(self.nodes) <= max(1, int(rules.most * len(mirror.nodes)))

    def of(self, job: JobRecord) -> dict[str, str]:
        """The evidence against devices that a job holds, by node."""
        evidence: dict[str, list[str]] = {}
        for node, held in self._held(job):
            for device in self.nodes[node]:
                if device.id == held.id:
                    texts = (
                        f"device {device.id} has the taint {t}" for t in self._bad(device, held)
                    )
                    evidence.setdefault(node, []).extend(texts)
        return {node: "; ".join(dict.fromkeys(texts)) for node, texts in evidence.items() if texts}

    def _held(self, job: JobRecord) -> Iterator[tuple[str, AllocatedDevice]]:
        """The devices of the pods of a job on nodes with tainted devices."""
        devices = self._mirror.devices
        shared = {name.claim for podset in job.podsets for name in podset.claims if name.claim}
        named = [devices.named_claim(job.namespace, name) for name in sorted(shared)]
        for pod in self._mirror.pods_of(job):
            if pod.node is not None and pod.node in self.nodes:
                for record in (*devices.claims_of(pod.uid), *filter(None, named)):
                    for held in record.content.allocated or ():
                        yield pod.node, held

    def _bad(self, device: Device, held: AllocatedDevice) -> Iterator[DeviceTaint]:
        for taint in effective(device):
            counts = self._few or taint.effect is DeviceEffect.NO_EXECUTE
            if counts and not endures(held.tolerations, taint):
                yield taint
