"""Control planes with the gang scheduling of Kubernetes: PodGroups and Workloads of ``scheduling.k8s.io``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuectl.demo.scenario import Document
from tests.support.controlplane import NODES
from tests.system.installation import Installation, installed

GROUP: Final = "scheduling.k8s.io"


@dataclass(frozen=True)
class NativeGangs:
    """One version of Kubernetes and its feature gates.

    Attributes:
        kubernetes: the release.
        version: of the API.
        gates: the feature gates that are on.
        apis: more API versions that are served.
        by_jobs: the controller of Jobs makes a Workload and a PodGroup for each Job.
    """

    kubernetes: str
    version: str
    gates: tuple[str, ...]
    apis: tuple[str, ...] = ()
    by_jobs: bool = True

    def path(self, namespace: str, resource: str) -> str:
        return f"/apis/{GROUP}/{self.version}/namespaces/{namespace}/{resource}"

    def pod_group(self, name: str, namespace: str, **spec: Any) -> Document:
        return self._document(
            "PodGroup", name, namespace, {"schedulingPolicy": {"basic": {}}, **spec}
        )

    def workload(
        self, name: str, namespace: str, job: Mapping[str, str], priority: str
    ) -> Document:
        """A Workload for the pods of a job, with its own priority class."""
        template = {
            "name": "main",
            "schedulingPolicy": {"basic": {}},
            "schedulingConstraints": {},
            "priorityClassName": priority,
        }
        spec = {"controllerRef": dict(job), "podGroupTemplates": [template]}
        return self._document("Workload", name, namespace, spec)

    def _document(self, kind: str, name: str, namespace: str, spec: Document) -> Document:
        return {
            "apiVersion": f"{GROUP}/{self.version}",
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }

    def installed(self) -> Any:
        return installed(
            NODES,
            kubernetes=self.kubernetes,
            feature_gates=self.gates,
            apis=(f"{GROUP}/{self.version}", *self.apis),
        )


VARIANTS: Final = {
    "1.36-alpha": NativeGangs(
        "1.36.3",
        "v1alpha2",
        (
            "GenericWorkload",
            "GangScheduling",
            "TopologyAwareWorkloadScheduling",
            "WorkloadAwarePreemption",
            "WorkloadWithJob",
        ),
    ),
    "1.37-beta": NativeGangs("1.37.2", "v1beta1", ("GenericWorkload",), by_jobs=False),
    "1.37-alpha": NativeGangs(
        "1.37.2",
        "v1beta1",
        (
            "GenericWorkload",
            "CompositePodGroup",
            "TopologyAwareWorkloadScheduling",
            "WorkloadWithJob",
        ),
        apis=(f"{GROUP}/v1alpha3",),
    ),
}


def priority_class(installation: Installation, name: str, value: int) -> None:
    """A PriorityClass of Kubernetes that users can name."""
    installation.cluster.client.apply(
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    )
