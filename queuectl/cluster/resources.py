"""The watched resources: their paths, and the readers that turn bytes into records.

queuectl watches all Jobs and drops those without a queue label after decoding. Two labels count (its own and Kueue's), and label
selectors have no OR. With two watches for a kind, a list would be complete for half of the objects only. To decode an unlabeled job
takes about 30 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from queuectl.domain.jobs import JobRecord
from queuectl.domain.records import Record, TaintRuleRecord
from queuectl.objects.kinds import KINDS, JobKind, JobKinds, index_labels, leaderworkerset, path
from queuectl.objects.kinds.pods import Bytes, pod_reader
from queuectl.objects.kubernetes.namespace_limits import (
    WireLimitRange,
    read_limit_range,
    read_resource_quota,
)
from queuectl.objects.kubernetes.nodes import API_VERSION as TOPOLOGIES
from queuectl.objects.kubernetes.nodes import (
    WireNodeTopology,
    read_namespace,
    read_node,
    read_node_topology,
    read_priority_class,
)
from queuectl.objects.kubernetes.provisioning import API_VERSION as AUTOSCALING
from queuectl.objects.kubernetes.provisioning import (
    REQUESTS,
    WireProvisioningRequest,
    read_provisioning_request,
)
from queuectl.objects.kubernetes.resource_claims import (
    read_claim,
    read_claim_template,
    read_device_class,
)
from queuectl.objects.kubernetes.resource_slices import (
    OLDER_VERSION,
    VERSION,
    read_older_taint_rule,
    read_resource_slice,
    read_taint_rule,
)
from queuectl.objects.kubernetes.resource_wire import (
    WireClaimTemplate,
    WireDeviceClass,
    WireResourceClaim,
    WireResourceSlice,
    WireTaintRule,
)
from queuectl.objects.kubernetes.templates import API_VERSION as RUNTIME_CLASSES
from queuectl.objects.kubernetes.templates import WireRuntimeClass, read_runtime_class
from queuectl.objects.kubernetes.wire import (
    WireNamespace,
    WireNode,
    WirePriorityClass,
    WireResourceQuota,
)

_Wire = TypeVar("_Wire", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Resource:
    """One watched resource.

    Attributes:
        name: plural, as in deltas.
        path: of the collection, all namespaces.
        read: bytes of one object to its record; None if queuectl does not manage it. Raises one of
            :data:`~queuectl.objects.errors.UNREADABLE`.
        by_uid: deltas identify the object by uid, not by name.
        optional: its API can be absent (a CustomResourceDefinition that is not installed, an older API server).
        since: the release of Kubernetes whose API server serves it; empty = it does not depend on the release.
        older: the same resource in an older version of its API, for API servers that do not serve this one.
    """

    name: str
    path: str
    read: Callable[[Bytes], Record | None]
    by_uid: bool = False
    optional: bool = False
    since: str = ""
    older: Resource | None = None


def watched(*, kueue: bool = True, kinds: JobKinds = KINDS) -> tuple[Resource, ...]:
    """All resources that the controller watches. ``kueue``: Kueue's labels also count. ``kinds``: of jobs."""
    return (
        Resource("nodes", "/api/v1/nodes", _reader(WireNode, read_node)),
        Resource("namespaces", "/api/v1/namespaces", _reader(WireNamespace, read_namespace)),
        Resource(
            "priorityclasses",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            _reader(WirePriorityClass, read_priority_class),
        ),
        Resource(
            "resourcequotas",
            "/api/v1/resourcequotas",
            _reader(WireResourceQuota, read_resource_quota),
            by_uid=True,
        ),
        Resource(
            "limitranges",
            "/api/v1/limitranges",
            _reader(WireLimitRange, read_limit_range),
            by_uid=True,
        ),
        Resource(
            "runtimeclasses",
            f"/apis/{RUNTIME_CLASSES}/runtimeclasses",
            _reader(WireRuntimeClass, read_runtime_class),
        ),
        *_devices(),
        Resource(
            "noderesourcetopologies",
            f"/apis/{TOPOLOGIES}/noderesourcetopologies",
            _reader(WireNodeTopology, read_node_topology),
            optional=True,
        ),
        Resource(
            REQUESTS,
            f"/apis/{AUTOSCALING}/{REQUESTS}",
            _reader(WireProvisioningRequest, read_provisioning_request),
            by_uid=True,
            optional=True,
        ),
        *(_jobs(kind, kueue) for kind in kinds.values()),
        _sets(kueue),
        Resource(
            "pods", "/api/v1/pods", pod_reader(index_labels(kinds), kinds, kueue=kueue), by_uid=True
        ),
    )


def _devices() -> Iterator[Resource]:
    """Of dynamic resource allocation."""
    base = "/apis/resource.k8s.io/v1"
    cluster_wide = (
        ("resourceslices", _reader(WireResourceSlice, read_resource_slice)),
        ("deviceclasses", _reader(WireDeviceClass, read_device_class)),
    )
    namespaced = (
        ("resourceclaims", _reader(WireResourceClaim, read_claim)),
        ("resourceclaimtemplates", _reader(WireClaimTemplate, read_claim_template)),
    )
    for name, read in cluster_wide:
        yield Resource(name, f"{base}/{name}", read, optional=True, since="1.34")
    yield _taint_rules(VERSION, read_taint_rule, _taint_rules(OLDER_VERSION, read_older_taint_rule))
    for name, read in namespaced:
        yield Resource(name, f"{base}/{name}", read, by_uid=True, optional=True, since="1.34")


def _taint_rules(
    version: str,
    project: Callable[[WireTaintRule], TaintRuleRecord],
    older: Resource | None = None,
) -> Resource:
    path = f"/apis/{version}/devicetaintrules"
    return Resource(
        "devicetaintrules", path, _reader(WireTaintRule, project), optional=True, older=older
    )


def _reader(
    wire: type[_Wire], project: Callable[[_Wire], Record | None]
) -> Callable[[Bytes], Record | None]:
    decode = msgspec.json.Decoder(wire).decode
    return lambda raw: project(decode(raw))


def _sets(kueue: bool) -> Resource:
    decode = msgspec.json.Decoder(leaderworkerset.WireSet).decode

    def read(raw: Bytes) -> JobRecord | None:
        record = leaderworkerset.read_set(decode(raw), kueue=kueue)
        return record if record.queue is not None else None

    name, path = leaderworkerset.PLURAL, leaderworkerset.PATH
    return Resource(name, path, read, by_uid=True, optional=True)


def _jobs(kind: JobKind, kueue: bool) -> Resource:
    decode: Callable[[Bytes], Any] = msgspec.json.Decoder(kind.wire).decode

    def read(raw: Bytes) -> JobRecord | None:
        record = kind.read(decode(raw), kueue=kueue)
        return record if record.queue is not None or record.parent else None

    optional = "." in kind.group  # built-in groups of jobs have no domain
    return Resource(kind.plural, path(kind), read, by_uid=True, optional=optional)
