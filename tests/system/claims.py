"""Claims for devices, and single pods that use them, on a real control plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuectl.localcluster.client import Client, Document, wait_until
from queuectl.localcluster.nodes import API_VERSION, DRIVER

SECONDS: Final = 30.0
_GATE: Final = "example.com/wait"


def request(name: str = "gpu", count: int = 1, of: str = DRIVER, **fields: Any) -> Document:
    """A request for devices of one class."""
    return {"name": name, "exactly": {"deviceClassName": of, "count": count, **fields}}


def devices(*requests: Document, constraints: Sequence[Document] = ()) -> Document:
    """The spec of a claim."""
    spec: Document = {"requests": list(requests)}
    return {"devices": spec | ({"constraints": list(constraints)} if constraints else {})}


def template(name: str, namespace: str, spec: Document) -> Document:
    """A ResourceClaimTemplate."""
    return _object("ResourceClaimTemplate", name, namespace, {"spec": spec})


def claim(name: str, namespace: str, spec: Document) -> Document:
    """A ResourceClaim that several pods can share."""
    return _object("ResourceClaim", name, namespace, spec)


def using(spec: Document, *templates: str, claims: Sequence[str] = ()) -> Document:
    """The spec of a pod with claims: one for each template, and existing ones by name."""
    listed = [{"name": one, "resourceClaimTemplateName": one} for one in templates]
    listed += [{"name": one, "resourceClaimName": one} for one in claims]
    container = spec["containers"][0]
    resources = container.get("resources", {}) | {"claims": [{"name": c["name"]} for c in listed]}
    return {
        **spec,
        "resourceClaims": listed,
        "containers": [container | {"resources": resources}],
    }


def _object(kind: str, name: str, namespace: str, spec: Document) -> Document:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class SinglePods:
    """Pods of no job in one namespace, each gated until it is released to a node."""

    client: Client
    namespace: str

    def create(
        self,
        name: str,
        *templates: str,
        claims: Sequence[str] = (),
        resources: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        container: Document = {"name": "main", "image": "registry.invalid/x:1"}
        if resources:
            container["resources"] = {"requests": dict(resources), "limits": dict(resources)}
        spec: Document = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "schedulingGates": [{"name": _GATE}],
            "containers": [container],
        }
        metadata = {"name": name, "annotations": dict(annotations or {})}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        spec = using(spec, *templates, claims=claims) if templates or claims else spec
        self.client.create(self._pods, document | {"spec": spec})

    def release(self, name: str, node: str) -> None:
        """Pin it to the node and remove its gate, in one patch, as queuectl does."""
        selector = {"kubernetes.io/hostname": node}
        self.client.patch(
            f"{self._pods}/{name}", {"spec": {"nodeSelector": selector, "schedulingGates": None}}
        )

    def start(self, name: str, node: str, *templates: str, **options: Any) -> None:
        """Create a pod, release it, and wait until it runs."""
        self.create(name, *templates, **options)
        self.release(name, node)
        self.until_running(name)

    def get(self, name: str) -> Document:
        return self.client.get(f"{self._pods}/{name}")

    def delete(self, name: str) -> None:
        self.client.delete(f"{self._pods}/{name}", missing_ok=True)

    def exists(self, name: str) -> bool:
        return self.client.exists(f"{self._pods}/{name}")

    def running(self, name: str) -> bool:
        return bool(self.get(name)["status"].get("phase") == "Running")

    def unschedulable(self, name: str) -> bool:
        """Whether kube-scheduler reports that it cannot schedule the pod."""
        conditions = self.get(name)["status"].get("conditions", [])
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    def until_running(self, name: str) -> None:
        wait_until(lambda: self.running(name), f"{name} runs", SECONDS)

    def until_unschedulable(self, name: str) -> None:
        wait_until(lambda: self.unschedulable(name), f"{name} is unschedulable", SECONDS)

    def until_gone(self, name: str) -> None:
        wait_until(lambda: not self.exists(name), f"{name} is gone", SECONDS)

    def claims(self) -> list[Document]:
        listed = self.client.get(f"/apis/{API_VERSION}/namespaces/{self.namespace}/resourceclaims")
        items: list[Document] = listed["items"]
        return items

    def claims_of(self, name: str) -> list[Document]:
        """The claims whose owner is the pod."""
        uid = self.get(name)["metadata"]["uid"]
        return [
            one
            for one in self.claims()
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences", []))
        ]

    def devices_of(self, name: str) -> list[str]:
        """The allocated devices of its own claims, sorted."""
        return sorted(device for one in self.claims_of(name) for device in allocated(one))

    def empty(self) -> None:
        """Delete all pods and claims, and wait until no device is allocated."""
        self.client.delete(self._pods)
        for one in self.claims():
            path = f"/apis/{API_VERSION}/namespaces/{self.namespace}/resourceclaims"
            self.client.delete(f"{path}/{one['metadata']['name']}", missing_ok=True)
        wait_until(lambda: not self.claims(), "the claims are deleted", SECONDS)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


def allocated(document: Document) -> list[str]:
    """``pool/device`` of each allocated device of a claim."""
    allocation = document.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", [])
    return [f"{one['pool']}/{one['device']}" for one in results]
