"""LimitRanges of a file: the requests and limits that the API server gives to containers that leave them out.

It does so when a pod is created, so the template of a job shows nothing of it. What a LimitRange forbids (``min``, ``max``
and ratios) is left to the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.requests import read_vector
from queuectl.objects.wire import NamespacedMeta, Quantity, Wire

KIND: Final = ("v1", "LimitRange")
_DEPTH: Final = 8  # a job's pod templates stand no deeper than this


class LimitItem(Wire):
    type: str = ""
    default: dict[str, Quantity] | None = None
    default_request: dict[str, Quantity] | None = None
    min: dict[str, Quantity] | None = None
    max: dict[str, Quantity] | None = None


class LimitRangeSpec(Wire):
    limits: list[LimitItem] | None = None


class WireLimitRange(Wire):
    metadata: NamespacedMeta = msgspec.field(default_factory=NamespacedMeta)
    spec: LimitRangeSpec | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What one LimitRange gives to each container."""

    requests: Mapping[str, Quantity]
    limits: Mapping[str, Quantity]


def read_limit_ranges(documents: Iterable[Document]) -> dict[str, list[Defaults]]:
    """By namespace, in the order of their names.

    Raises:
        DocumentError: naming the field.
    """
    found: dict[str, list[tuple[str, Defaults]]] = {}
    for document in documents:
        if (document.api_version, document.kind) == KIND:
            wire = document.convert(WireLimitRange)
            namespace = wire.metadata.namespace or "default"
            found.setdefault(namespace, []).append((wire.metadata.name, _read(document, wire)))
    by_name = {
        namespace: sorted(named, key=lambda one: one[0]) for namespace, named in found.items()
    }
    return {namespace: [one for _, one in named] for namespace, named in by_name.items()}


def _read(document: Document, wire: WireLimitRange) -> Defaults:
    """With the defaults that the API server gives the LimitRange itself; a later item of it overrules an earlier one."""
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    for i, item in enumerate((wire.spec or LimitRangeSpec()).limits or ()):
        for field in ("default", "defaultRequest", "min", "max"):
            amounts = getattr(item, "default_request" if field == "defaultRequest" else field)
            try:
                read_vector(amounts, round_up=True)
            except RequestError as error:
                raise document.error(f"spec.limits[{i}].{field}", str(error)) from None
        if item.type == "Container":
            most = {**(item.max or {}), **(item.default or {})}
            limits.update(most)
            requests.update({**(item.min or {}), **most, **(item.default_request or {})})
    return Defaults(requests, limits)


def with_defaults(document: Document, ranges: Mapping[str, Sequence[Defaults]]) -> Document:
    """The document with every container of its pod templates filled in; what is malformed there is left as it is."""
    defaults = ranges.get(document.name.partition("/")[0])
    spec = document.body.get("spec")
    if not defaults or not isinstance(spec, dict):
        return document
    return replace(document, body={**document.body, "spec": _within(spec, defaults, _DEPTH)})


def _within(part: Any, defaults: Sequence[Defaults], depth: int) -> Any:
    if depth == 0 or not isinstance(part, dict | list):
        return part
    if isinstance(part, list):
        return [_within(one, defaults, depth - 1) for one in part]
    return {
        key: _containers(value, defaults)
        if key in ("containers", "initContainers")
        else _within(value, defaults, depth - 1)
        for key, value in part.items()
    }


def _containers(containers: Any, defaults: Sequence[Defaults]) -> Any:
    if not isinstance(containers, list):
        return containers
    return [_filled(one, defaults) if isinstance(one, dict) else one for one in containers]


def _filled(container: dict[str, Any], defaults: Sequence[Defaults]) -> dict[str, Any]:
    needs = _mapping(container, "resources")
    limits, requests = _mapping(needs, "limits"), _mapping(needs, "requests")
    if needs is None or limits is None or requests is None:
        return container
    requests = {**limits, **requests}  # a limit stands in before any LimitRange does
    for one in defaults:
        limits = {**one.limits, **limits}
        requests = {**one.requests, **requests}
    return {**container, "resources": {**needs, "limits": limits, "requests": requests}}


def _mapping(part: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    """Of a field that may be missing; None where it, or what it stands in, is something else."""
    value = part.get(key) if part is not None else None
    return {} if value is None and part is not None else value if isinstance(value, dict) else None
