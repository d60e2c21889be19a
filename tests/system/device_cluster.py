"""The control plane of the tests with devices: the nodes have no device plugin, a driver publishes eight GPUs of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.nodes import EXTENDED_RESOURCE, Driver, pool
from tests.support.shared_resource import SharedResource
from tests.system.claims import SinglePods, allocated, template, using
from tests.system.installation import Installation, Workspace, installed

NODES: Final = NodeSpec(racks_per_block=2, hosts_per_rack=8, gpus=0, devices=8)


def _installed() -> AbstractContextManager[Installation]:
    return installed(NODES, operators=())


@pytest.fixture(scope="module")
def device_installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 devices: 2 racks of 8."""
    return shared_resource.get(_installed)


@contextmanager
def device_workspace(
    installation: Installation, quota: int = 128, **queue: Any
) -> Iterator[DeviceWorkspace]:
    """A namespace with a queue ``main`` of so many devices; audited and emptied at the end."""
    with installation.workspace(0, **queue) as workspace:
        covered: dict[str, int | str] = {EXTENDED_RESOURCE: quota, "cpu": "1M"}
        workspace.rest.apply([m.cluster_queue(workspace.namespace, "gpu", covered, **queue)])
        yield DeviceWorkspace(workspace)


@dataclass(frozen=True)
class DeviceWorkspace:
    """A workspace for Jobs whose pods claim devices."""

    base: Workspace

    @property
    def driver(self) -> Driver:
        return Driver(self.base.client)

    def templates(self, **specs: Document) -> None:
        """Apply ResourceClaimTemplates by name."""
        self.base.client.apply(
            *(template(name, self.base.namespace, spec) for name, spec in specs.items())
        )

    def job(
        self,
        name: str,
        pods: PodSetManifest,
        *templates: str,
        claims: Sequence[str] = (),
        resources: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Submit a Job whose pods have claims of these templates, share these claims, or request extended resources."""
        document = m.job(name, self.base.namespace, pods=pods, **{"queue": "main", **options})
        pod = document["spec"]["template"]["spec"]
        if templates or claims:
            document["spec"]["template"]["spec"] = pod = using(pod, *templates, claims=claims)
        for kind in ("requests", "limits"):
            pod["containers"][0]["resources"][kind] |= dict(resources or {})
        self.base.submit(document)

    def devices(self, name: str) -> dict[str, int]:
        """Node name to the number of devices that pods of a job hold there."""
        pods = {pod.uid for pod in self.base.pods(name)}
        found = Counter[str]()
        for one in self.claims():
            if pods & {owner["uid"] for owner in one["metadata"].get("ownerReferences", [])}:
                found.update(device.split("/")[0] for device in allocated(one))
        return dict(found)

    def claims(self) -> list[Document]:
        """The claims of the namespace."""
        return SinglePods(self.base.client, self.base.namespace).claims()

    def refused(self) -> list[str]:
        """Pods of the namespace that kube-scheduler has reported as unschedulable, also for a moment."""
        path = f"/apis/events.k8s.io/v1/namespaces/{self.base.namespace}/events"
        events = self.base.client.get(path)["items"]
        return [
            f"{one['regarding']['name']}: {one.get('note')}"
            for one in events
            if one["reason"] == "FailedScheduling"
        ]

    def pool(self, node: str, devices: Sequence[Document], generation: int) -> list[Document]:
        """The slices of a node, which are deleted with it."""
        owner = self.base.client.get(f"/api/v1/nodes/{node}")
        return pool(node, devices, generation=generation, per_slice=4, owner=owner)
