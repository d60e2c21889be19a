"""LimitRanges, RuntimeClasses and webhooks as the API server applies them to a new pod: it gets what is missing, or it is refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from queuectl.domain.admission import AdmissionObjects, RuntimeClass, refusal
from queuectl.domain.fleet import NodeRules
from queuectl.domain.limits import LimitRange
from queuectl.domain.quantity import format_quantity
from queuectl.domain.workload import PodSet, PodShape
from queuectl.objects.kubernetes.namespace_limits import WireLimitRange, read_limit_range
from queuectl.objects.kubernetes.pods import write_toleration
from queuectl.objects.kubernetes.requests import read_needs, read_pod_needs
from queuectl.objects.kubernetes.templates import WireRuntimeClass, read_runtime_class
from queuectl.objects.kubernetes.wire import TemplateSpec
from tests.doubles.apiserver import Document, Server


def _ranges(server: Server, namespace: str) -> list[LimitRange]:
    own = [r for r in server.all("limitranges") if r["metadata"]["namespace"] == namespace]
    read = (read_limit_range(msgspec.convert(one, WireLimitRange)) for one in own)
    return sorted((record.limit_range for record in read), key=lambda one: one.name)


def _classes(server: Server) -> dict[str, RuntimeClass]:
    wires = (msgspec.convert(one, WireRuntimeClass) for one in server.all("runtimeclasses"))
    return {record.name: record.content for record in map(read_runtime_class, wires)}


def admit(server: Server, pod: Document) -> bool:
    """Set what is missing in a new pod. Returns whether the API server takes the pod."""
    if not _accepted(server, pod):
        return False
    _fill(server, pod)
    _extend(server, pod)
    for change in server.webhooks:
        change(pod)
    return _accepted(server, pod)


def _fill(server: Server, pod: Document) -> None:
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


def _extend(server: Server, pod: Document) -> None:
    """Set the overhead, and add the labels of nodes and the tolerations of its RuntimeClass."""
    spec = pod["spec"]
    runtime = _classes(server).get(spec.get("runtimeClassName", ""))
    if runtime is None:
        return
    if runtime.overhead:
        spec["overhead"] = {name: format_quantity(name, n) for name, n in runtime.overhead}
    if runtime.selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **dict(runtime.selector)}
    if runtime.tolerations:
        more = map(write_toleration, runtime.tolerations)
        spec["tolerations"] = [*spec.get("tolerations", ()), *more]


def _accepted(server: Server, pod: Document) -> bool:
    """Whether no LimitRange and no RuntimeClass refuses the pod."""
    spec = msgspec.convert(pod["spec"], TemplateSpec)
    podset = PodSet(
        "pod",
        1,
        PodShape(read_pod_needs(spec)[1]),
        needs=replace(read_needs(spec), runtime_class=spec.runtime_class_name or ""),
        rules=NodeRules(tuple((spec.node_selector or {}).items())),
    )
    namespace = pod["metadata"]["namespace"]
    ranges = {namespace: _ranges(server, namespace)}
    around = AdmissionObjects(ranges, _classes(server)).of(namespace)
    return refusal([podset], namespace, around) is None
