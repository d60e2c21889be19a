"""The annotation of a Node with a change of its MIG configuration, and the patches of a change.

Each patch has the uid and the resourceVersion of the Node, so it succeeds only if the Node has not changed in between.
"""

from __future__ import annotations

from typing import Any

import msgspec

from queuectl.domain.mig import ANNOTATION, CONFIG, STATE, MigGeometry, MigPhase, MigReconfiguration
from queuectl.domain.records import NodeRecord
from queuectl.domain.words import format_time
from queuectl.objects.times import parse_time


class _Geometry(msgspec.Struct):
    config: str
    product: str
    gpus: dict[str, int]


class _Reconfiguration(msgspec.Struct, omit_defaults=True):
    phase: MigPhase
    since: str
    source: _Geometry = msgspec.field(name="from")
    target: _Geometry = msgspec.field(name="to")
    gang: str
    nodes: int
    begun: str
    failures: int = 0


_decode = msgspec.json.Decoder(_Reconfiguration).decode


def read_mig_reconfiguration(text: str) -> MigReconfiguration | None:
    """The change in an annotation; None if queuectl did not write it."""
    try:
        wire = _decode(text)
        begun, since = parse_time(wire.begun), parse_time(wire.since)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return MigReconfiguration(
        _geometry(wire.source),
        _geometry(wire.target),
        wire.gang,
        wire.nodes,
        begun,
        wire.phase,
        since,
        wire.failures,
    )


def _geometry(wire: _Geometry) -> MigGeometry:
    return MigGeometry(wire.config, wire.product, tuple(sorted(wire.gpus.items())))


def mig_annotation(change: MigReconfiguration) -> str:
    """The annotation, with whole seconds."""
    wire = _Reconfiguration(
        change.phase,
        format_time(change.since),
        _wire(change.source),
        _wire(change.target),
        change.gang,
        change.nodes,
        format_time(change.begun),
        change.failures,
    )
    return msgspec.json.encode(wire).decode()


def _wire(geometry: MigGeometry) -> _Geometry:
    return _Geometry(geometry.config, geometry.product, dict(geometry.gpus))


def mig_patch(
    record: NodeRecord,
    change: MigReconfiguration,
    *,
    cordon: bool | None = None,
    config: str | None = None,
) -> dict[str, Any]:
    """One merge patch.

    Args:
        record: the Node that the patch is for.
        change: the new annotation.
        cordon: whether new pods are kept off; None = as before.
        config: the configuration that the MIG manager is to apply; None = as before.
    """
    metadata: dict[str, Any] = {
        "uid": record.uid,
        "resourceVersion": str(record.version),
        "annotations": {ANNOTATION: mig_annotation(change)},
    }
    if config is not None:
        metadata["labels"] = {CONFIG: config, STATE: None}
    patch: dict[str, Any] = {"metadata": metadata}
    if cordon is not None:
        patch["spec"] = {"unschedulable": True if cordon else None}
    return patch
