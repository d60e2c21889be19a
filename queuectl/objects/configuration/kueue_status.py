"""The status of Kueue's own objects, in Kueue's schema, which queuectl writes while no Kueue does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from queuectl.objects.configuration.status_wire import ACTIVE, ObjectStatus, QueueStatus, seen_parts
from queuectl.objects.configuration.wire import Strict

_USAGE: Final = "flavorsUsage"
_OLDER_USAGE: Final = "flavorUsage"
"""The name of the same field of a LocalQueue in ``v1beta1``."""


class ResourceUse(Strict):
    name: str
    total: str
    borrowed: str | None = None


class FlavorUse(Strict):
    name: str
    resources: list[ResourceUse]


class KueueShare(Strict):
    """The dominant resource share, divided by the weight, in thousandths."""

    weighted_share: int


ENDLESS_SHARE: Final = 2**63 - 1
"""Of a pool that borrows with weight 0."""


class KueueQueueStatus(QueueStatus):
    """The status of a ClusterQueue, a LocalQueue or a Cohort of Kueue. It does not have a generation: its condition has one."""

    flavors_reservation: list[FlavorUse] | None = None
    flavors_usage: list[FlavorUse] | None = None
    fair_sharing: KueueShare | None = None

    @property
    def counts(self) -> tuple[object, ...]:
        uses = self.flavors_reservation, self.flavors_usage
        return (*super().counts, *uses, self.fair_sharing)

    def keep_counts(self, earlier: QueueStatus) -> None:
        super().keep_counts(earlier)
        if isinstance(earlier, KueueQueueStatus):
            self.flavors_reservation = earlier.flavors_reservation
            self.flavors_usage = earlier.flavors_usage
            self.fair_sharing = earlier.fair_sharing


class _SeenResource(msgspec.Struct):
    name: str
    total: str | int = "0"
    borrowed: str | int | None = None


class _SeenFlavor(msgspec.Struct):
    name: str
    resources: list[_SeenResource] = []


class _SeenShare(msgspec.Struct, rename="camel"):
    weighted_share: int = 0


class _SeenUse(msgspec.Struct, rename="camel"):
    flavors_reservation: list[_SeenFlavor] | None = None
    flavors_usage: list[_SeenFlavor] | None = None
    flavor_usage: list[_SeenFlavor] | None = None
    fair_sharing: _SeenShare | None = None


_seen_use = msgspec.json.Decoder(_SeenUse).decode


def seen_kueue_status(content: bytes) -> KueueQueueStatus | None:
    """The part of a status that queuectl writes; None = it is absent, or has another form."""
    parts = seen_parts(content, (ACTIVE,))
    if parts is None:
        return None
    try:
        use = _seen_use(content)
    except (msgspec.MsgspecError, RecursionError):
        return None
    usage = use.flavors_usage if use.flavors_usage is not None else use.flavor_usage
    return KueueQueueStatus(
        None,
        parts.conditions,
        parts.pending_workloads,
        parts.reserving_workloads,
        parts.admitted_workloads,
        _uses(use.flavors_reservation),
        _uses(usage),
        KueueShare(use.fair_sharing.weighted_share) if use.fair_sharing is not None else None,
    )


def _uses(flavors: list[_SeenFlavor] | None) -> list[FlavorUse] | None:
    if flavors is None:
        return None
    return [
        FlavorUse(flavor.name, list(map(_resource_use, flavor.resources))) for flavor in flavors
    ]


def _resource_use(resource: _SeenResource) -> ResourceUse:
    borrowed = None if resource.borrowed is None else str(resource.borrowed)
    return ResourceUse(resource.name, str(resource.total), borrowed)


def kueue_status_body(kind: str, version: str, status: ObjectStatus) -> Mapping[str, Any]:
    """The status as an API server of Kueue's objects takes it in one version."""
    body: dict[str, Any] = msgspec.to_builtins(status)
    if kind == "Cohort":
        del body["conditions"]  # its schema has none
    if version == "v1beta1" and kind == "LocalQueue" and _USAGE in body:
        body[_OLDER_USAGE] = body.pop(_USAGE)
    return body
