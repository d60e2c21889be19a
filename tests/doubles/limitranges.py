"""LimitRanges as the API server applies them to a new pod: missing requests get defaults, and violations are refused."""

from __future__ import annotations

import msgspec

from queuectl.domain.limitrange import LimitRange, refusal
from queuectl.domain.quantity import format_quantity
from queuectl.domain.workload import PodSet, PodShape
from queuectl.objects.kubernetes.limit_ranges import WireLimitRange, read_limit_range
from queuectl.objects.kubernetes.requests import pod_requests, read_needs
from queuectl.objects.kubernetes.wire import TemplateSpec
from tests.doubles.apiserver import Document, Server


def _ranges(server: Server, namespace: str) -> list[LimitRange]:
    own = [r for r in server.all("limitranges") if r["metadata"]["namespace"] == namespace]
    read = (read_limit_range(msgspec.convert(one, WireLimitRange)) for one in own)
    return sorted((record.limit_range for record in read), key=lambda one: one.name)


def fill(server: Server, pod: Document) -> None:
    """Set the missing requests of its containers to the defaults."""
    ranges, spec = _ranges(server, pod["metadata"]["namespace"]), pod["spec"]
    if not ranges:
        return
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        needs = container.setdefault("resources", {})
        requests = {**needs.get("limits", {}), **needs.get("requests", {})}
        limits = dict(needs.get("limits", {}))
        for one in ranges:
            for name, amount in one.requests:
                requests.setdefault(name, format_quantity(name, amount))
            for name, amount in one.limits:
                limits.setdefault(name, format_quantity(name, amount))
        needs |= {"requests": requests, "limits": limits}


def lets_be(server: Server, pod: Document) -> bool:
    """Whether a pod with its defaults violates no LimitRange."""
    spec = msgspec.convert(pod["spec"], TemplateSpec)
    podset = PodSet("pod", 1, PodShape(pod_requests(spec)), needs=read_needs(spec))
    namespace = pod["metadata"]["namespace"]
    return refusal([podset], namespace, _ranges(server, namespace)) is None
