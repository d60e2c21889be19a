"""Documents of Kubernetes as the records that the watch of the controller delivers for them.

Some documents are jobs, and some of these were not created yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.records import (
    ClaimRecord,
    ClaimTemplateRecord,
    LimitRangeRecord,
    NodeRecord,
    Record,
    ResourceQuotaRecord,
)
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds import KINDS, JobKinds, descriptions_of
from queuectl.objects.kinds.ray import is_service
from queuectl.objects.kubernetes import resource_slices
from queuectl.objects.kubernetes.namespace_limits import (
    WireLimitRange,
    read_limit_range,
    read_resource_quota,
)
from queuectl.objects.kubernetes.nodes import API_VERSION as TOPOLOGIES
from queuectl.objects.kubernetes.nodes import (
    DEFAULT_PODS,
    WireNodeTopology,
    read_namespace,
    read_node,
    read_node_topology,
    read_priority_class,
)
from queuectl.objects.kubernetes.nodes import KIND as TOPOLOGY
from queuectl.objects.kubernetes.resource_claims import (
    read_claim,
    read_claim_template,
    read_device_class,
)
from queuectl.objects.kubernetes.resource_slices import read_resource_slice
from queuectl.objects.kubernetes.resource_wire import (
    WireClaimTemplate,
    WireDeviceClass,
    WireResourceClaim,
    WireResourceSlice,
    WireTaintRule,
)
from queuectl.objects.kubernetes.templates import API_VERSION as RUNTIME_CLASSES
from queuectl.objects.kubernetes.templates import KIND as RUNTIME_CLASS
from queuectl.objects.kubernetes.templates import WireRuntimeClass, read_runtime_class
from queuectl.objects.kubernetes.wire import (
    WireNamespace,
    WireNode,
    WirePriorityClass,
    WireResourceQuota,
)

# ---- Records

_DEVICES: Final = "resource.k8s.io/v1"
_READERS: Final[Mapping[tuple[str, str], tuple[Any, Callable[[Any], Record]]]] = {
    ("v1", "Node"): (WireNode, read_node),
    ("v1", "Namespace"): (WireNamespace, read_namespace),
    ("v1", "ResourceQuota"): (WireResourceQuota, read_resource_quota),
    ("v1", "LimitRange"): (WireLimitRange, read_limit_range),
    (RUNTIME_CLASSES, RUNTIME_CLASS): (WireRuntimeClass, read_runtime_class),
    ("scheduling.k8s.io/v1", "PriorityClass"): (WirePriorityClass, read_priority_class),
    (_DEVICES, "ResourceSlice"): (WireResourceSlice, read_resource_slice),
    (_DEVICES, "DeviceClass"): (WireDeviceClass, read_device_class),
    (_DEVICES, "ResourceClaim"): (WireResourceClaim, read_claim),
    (_DEVICES, "ResourceClaimTemplate"): (WireClaimTemplate, read_claim_template),
    (TOPOLOGIES, TOPOLOGY): (WireNodeTopology, read_node_topology),
    (resource_slices.VERSION, resource_slices.KIND): (
        WireTaintRule,
        resource_slices.read_taint_rule,
    ),
    (resource_slices.OLDER_VERSION, resource_slices.KIND): (
        WireTaintRule,
        resource_slices.read_older_taint_rule,
    ),
}
RECORDS: Final = frozenset(_READERS)
"""API versions and kinds that :func:`read_record` reads."""


def has_record(document: Document) -> bool:
    """Whether :func:`read_record` reads objects of its kind."""
    return (document.api_version, document.kind) in RECORDS


def read_record(document: Document) -> Record:
    """The record of an object of a kind in :data:`RECORDS`. An object without a uid gets a uid that is made of its names.

    Raises:
        DocumentError: naming file, document and field.
    """
    wire, read = _READERS[document.api_version, document.kind]
    try:
        record = read(document.convert(wire))
    except RequestError as error:
        raise document.error("", str(error)) from None
    match record:
        case ResourceQuotaRecord() | LimitRangeRecord() | ClaimTemplateRecord():
            return replace(record, uid=record.uid or f"{document.kind}/{document.name}")
        case ClaimRecord():
            uid = record.uid or f"{document.kind}/{document.name}"
            return replace(record, uid=uid, content=replace(record.content, uid=uid))
        case _:
            return record


def states_no_slots(node: NodeRecord) -> bool:
    """Whether a Node states amounts, and not how many pods it takes."""
    return bool(node.node.allocatable) and PODS not in node.node.allocatable


def with_slots(node: NodeRecord) -> NodeRecord:
    """The Node with the number of pods that kubelet takes by default."""
    room = Resources({**node.node.allocatable, PODS: DEFAULT_PODS})
    return replace(node, node=replace(node.node, allocatable=room))


# ---- Jobs


def is_job(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether queuectl runs jobs of its kind, or the clusters of a service."""
    if is_service(document.api_version, document.kind):
        return True
    kind = kinds.get(document.kind)
    return kind is not None and document.api_version == f"{kind.group}/{kind.version}"


def controller_of(document: Document) -> tuple[str, str] | None:
    """Kind, and namespace/name, of the object whose controller made it; None if none did."""
    namespace = document.name.partition("/")[0]
    meta = document.body.get("metadata") or {}
    owners = meta.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller"):
            return str(owner.get("kind")), f"{namespace}/{owner.get('name')}"
    return None


def is_child(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether the controller of another job made it, so that its pods belong to that job."""
    controller = controller_of(document)
    return controller is not None and controller[0] in {
        one.kind
        for one in descriptions_of(kinds)
        if document.kind in [child.kind for child in one.children]
    }


def unseen(document: Document) -> bool:
    """Whether the object was not created yet: it has no fields of the API server."""
    meta = document.body.get("metadata") or {}
    return not (meta.get("uid") or meta.get("creationTimestamp") or document.body.get("status"))
