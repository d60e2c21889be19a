"""What is watched: where it lives in the API, and the reader that turns its bytes into a record.

All Jobs are watched and unlabelled ones dropped after decoding. Two labels count (ours and Kueue's) and label selectors
cannot be OR-ed; two watches per kind would make "what is not listed is gone" a statement about half a resource, while
decoding an unlabelled job costs some 30 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from queuectl.domain.records import JobRecord, Record
from queuectl.objects.kinds import KINDS, JobKind, path
from queuectl.objects.kubernetes.limit_ranges import WireLimitRange, read_limit_range
from queuectl.objects.kubernetes.nodes import read_namespace, read_node, read_priority_class
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.resource_quotas import read_resource_quota
from queuectl.objects.kubernetes.wire import (
    WireNamespace,
    WireNode,
    WirePod,
    WirePriorityClass,
    WireResourceQuota,
)

Bytes = bytes | msgspec.Raw
_Wire = TypeVar("_Wire", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Resource:
    """One watched resource.

    Attributes:
        name: plural, as in deltas.
        path: of the collection, all namespaces.
        read: bytes of one object to its record, None when it is none of ours. Raises MsgspecError or RequestError.
        by_uid: deltas name the object by uid, not by name.
        optional: its API may be absent (a CustomResourceDefinition not installed).
    """

    name: str
    path: str
    read: Callable[[Bytes], Record | None]
    by_uid: bool = False
    optional: bool = False


def watched(*, kueue: bool = True) -> tuple[Resource, ...]:
    """Everything the mirror needs. ``kueue``: Kueue's labels count beside ours."""
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
        *(_jobs(kind, kueue) for kind in KINDS.values()),
        Resource("pods", "/api/v1/pods", _reader(WirePod, read_pod), by_uid=True),
    )


def _reader(
    wire: type[_Wire], project: Callable[[_Wire], Record]
) -> Callable[[Bytes], Record | None]:
    decode = msgspec.json.Decoder(wire).decode
    return lambda raw: project(decode(raw))


def _jobs(kind: JobKind, kueue: bool) -> Resource:
    decode: Callable[[Bytes], Any] = msgspec.json.Decoder(kind.wire).decode

    def read(raw: Bytes) -> JobRecord | None:
        record = kind.read(decode(raw), kueue=kueue)
        return record if record.queue is not None else None

    optional = "." in kind.group  # built-in groups of jobs have no domain
    return Resource(kind.plural, path(kind), read, by_uid=True, optional=optional)
