"""Past use that a LocalQueue states in its status, as Kueue writes it (``admissionFairSharingStatus``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used
from queuectl.domain.quantity import CPU, exact_quantity, is_quantity
from queuectl.domain.words import shortened
from queuectl.objects.documents import Document
from queuectl.objects.kubernetes.wire import Meta, Quantity, Wire
from queuectl.objects.times import time_or_none

_FIELD: Final = "status.fairSharing.admissionFairSharingStatus.consumedResources"


class _Admission(Wire):
    consumed_resources: dict[str, Quantity] | None = None
    last_update: str | None = None


class _FairSharing(Wire):
    admission_fair_sharing_status: _Admission | None = None


class _Status(Wire):
    fair_sharing: _FairSharing | None = None


class _Spec(Wire):
    cluster_queue: str = ""


class _LocalQueue(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status | None = None


def read_used(documents: Iterable[Document], now: float) -> tuple[Used, ...]:
    """Of the LocalQueues among configuration documents, and of ClusterQueues as the sum of theirs. Users are not stated.

    The amounts are used as they are: they are at most one sampling interval old. A time after ``now`` (unix seconds) counts as ``now``:
    until then, what the queue holds would add nothing.

    Raises:
        DocumentError: an amount is malformed.
    """
    used: dict[PastUseAccount, Used] = {}
    for document in documents:
        if document.kind != "LocalQueue":
            continue
        queue = document.convert(_LocalQueue)
        amounts, at = _stated(document, queue)
        if not amounts:
            continue
        namespace, name = queue.metadata.namespace or "default", queue.metadata.name
        own = PastUseAccount.of_local_queue(namespace, name)
        at = min(at, now)
        used[own] = Used(own, at, amounts)
        whole = PastUseAccount(AccountScope.CLUSTER_QUEUE, queue.spec.cluster_queue)
        known = used.get(whole) or Used(whole, at)
        used[whole] = Used(whole, max(at, known.at), _plus(known.amounts, amounts))
    return tuple(used.values())


def _plus(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in {**left, **right}}


def _stated(document: Document, queue: _LocalQueue) -> tuple[dict[str, float], float]:
    sharing = queue.status.fair_sharing if queue.status is not None else None
    stated = sharing.admission_fair_sharing_status if sharing is not None else None
    if stated is None:
        return {}, 0.0
    amounts = {}
    for resource, text in (stated.consumed_resources or {}).items():
        if not is_quantity(str(text)):
            shown = shortened(repr(str(text)))
            raise document.error(f"{_FIELD}.{resource}", f"{shown} is not a quantity")
        units = 1000 if resource == CPU else 1
        amounts[resource] = float(exact_quantity(resource, str(text)) * units)
        if amounts[resource] < 0:
            raise document.error(f"{_FIELD}.{resource}", f"{text!r} is below 0")
    return amounts, time_or_none(stated.last_update) or 0.0
