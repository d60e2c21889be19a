"""The identity of an object, also of one that its reader refuses: an unreadable object is not a deleted one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from queuectl.cluster.nesting import shallow

_LEVELS: Final = 3
"""Labels are values at this level, and no part of an identity is deeper."""

_Value = TypeVar("_Value")
_Fields = dict[str, msgspec.Raw]


class _Object(msgspec.Struct, gc=False):
    metadata: _Fields
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_object = msgspec.json.Decoder(_Object).decode
_fields = msgspec.json.Decoder(_Fields).decode
_text = msgspec.json.Decoder(str).decode
_texts = msgspec.json.Decoder(dict[str, str]).decode
_boolean = msgspec.json.Decoder(bool).decode


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """The parts that each object has, also an unreadable one. A part that is absent or malformed is empty.

    Attributes:
        uid: of the object.
        namespace: empty for an object without one.
        name: of the object.
        resource_version: of this state of the object.
        node_name: ``spec.nodeName`` of a pod.
        phase: ``status.phase`` of a pod.
        deletion_timestamp: empty while it is not being deleted.
        labels: empty if they cannot be read.
        annotations: empty if they cannot be read.
        suspended: ``spec.suspend`` or ``spec.runPolicy.suspend`` of a job; None if it has neither.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    node_name: str
    phase: str
    deletion_timestamp: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    suspended: bool | None = None


def identify(document: bytes | msgspec.Raw) -> ObjectIdentity:
    """The identity of one object. Each part is read alone, so no other part can hide it, at any depth.

    Raises:
        msgspec.MsgspecError: the bytes are no JSON object with metadata.
    """
    found = _object(shallow(bytes(document), _LEVELS))
    meta, spec, status = found.metadata, _part(_fields, found.spec), _part(_fields, found.status)
    return ObjectIdentity(
        uid=_string(meta, "uid"),
        namespace=_string(meta, "namespace"),
        name=_string(meta, "name"),
        resource_version=_string(meta, "resourceVersion"),
        node_name=_string(spec or {}, "nodeName"),
        phase=_string(status or {}, "phase"),
        deletion_timestamp=_string(meta, "deletionTimestamp"),
        suspended=_suspended(spec or {}),
        labels=_strings(meta, "labels"),
        annotations=_strings(meta, "annotations"),
    )


def _string(fields: _Fields, name: str) -> str:
    return (_part(_text, fields[name]) if name in fields else None) or ""


def _suspended(spec: _Fields) -> bool | None:
    policy = _part(_fields, spec["runPolicy"]) if "runPolicy" in spec else None
    for fields in (spec, policy or {}):
        found = _part(_boolean, fields["suspend"]) if "suspend" in fields else None
        if found is not None:
            return found
    return None


def _strings(fields: _Fields, name: str) -> Mapping[str, str]:
    return (_part(_texts, fields[name]) if name in fields else None) or {}


def _part(decode: Callable[[msgspec.Raw], _Value], raw: msgspec.Raw) -> _Value | None:
    try:
        return decode(raw)
    except msgspec.MsgspecError:
        return None
