"""ResourceQuotas as the API server keeps them: pods that would exceed one are not created, and its status counts the others."""

from __future__ import annotations

import msgspec

from queuectl.domain.quantity import Resources
from queuectl.objects.kubernetes.namespace_limits import read_resource_quota
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod, WireResourceQuota
from tests.doubles.apiserver import Document, Server

FINISHED = ("Succeeded", "Failed")


def _asked(pod: Document) -> Resources:
    return read_pod(msgspec.convert(pod, WirePod)).requests


def _used(server: Server, namespace: str) -> Resources:
    used = Resources()
    for pod in server.all("pods"):
        finished = pod.get("status", {}).get("phase") in FINISHED
        if pod["metadata"]["namespace"] == namespace and not finished:
            used += _asked(pod)
    return used


def lets_in(server: Server, pod: Document) -> bool:
    """Whether all quotas of the namespace admit a new pod."""
    namespace = pod["metadata"]["namespace"]
    for quota in server.all("resourcequotas"):
        if quota["metadata"]["namespace"] == namespace:
            allowance = read_resource_quota(msgspec.convert(quota, WireResourceQuota)).allowance
            after = _used(server, namespace) + _asked(pod)
            if any(after[limit.resource] > limit.hard for limit in allowance.limits):
                return False
    return True


def count(server: Server) -> None:
    """Update the status of every quota."""
    for quota in server.all("resourcequotas"):
        used = _used(server, quota["metadata"]["namespace"])
        limits = read_resource_quota(msgspec.convert(quota, WireResourceQuota)).allowance.limits
        said = {
            limit.key: f"{used[limit.resource]}{'m' if limit.resource == 'cpu' else ''}"
            for limit in limits
        }
        status = {"hard": quota["spec"]["hard"], "used": said}
        server.edit("resourcequotas", quota, lambda d, status=status: d.update(status=status))  # type: ignore[misc]
