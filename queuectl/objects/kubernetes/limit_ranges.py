"""LimitRanges, with the defaults that the API server gives the LimitRange itself."""

from __future__ import annotations

from fractions import Fraction
from sys import intern

import msgspec

from queuectl.domain.limits import BoundKind, LimitRange, LimitRangeBound
from queuectl.domain.records import LimitRangeRecord
from queuectl.objects.errors import under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_amounts, read_factor
from queuectl.objects.kubernetes.wire import NamespacedMeta, Quantity, Wire


class LimitItem(Wire):
    type: str = ""
    default: dict[str, Quantity] | None = None
    default_request: dict[str, Quantity] | None = None
    min: dict[str, Quantity] | None = None
    max: dict[str, Quantity] | None = None
    max_limit_request_ratio: dict[str, Quantity] | None = None


class LimitRangeSpec(Wire):
    limits: list[LimitItem] | None = None


class WireLimitRange(Wire):
    metadata: NamespacedMeta = msgspec.field(default_factory=NamespacedMeta)
    spec: LimitRangeSpec | None = None


def read_limit_range(wire: WireLimitRange) -> LimitRangeRecord:
    """Project a LimitRange. Of its items, later ones overrule earlier ones in what they fill in.

    Raises:
        RequestError: an amount is malformed; the API server refuses such objects.
    """
    meta = wire.metadata
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    bounds: list[LimitRangeBound] = []
    for i, limit in enumerate((wire.spec or LimitRangeSpec()).limits or ()):
        path = f"spec.limits[{i}]"
        least, most = _amounts(limit.min, f"{path}.min"), _amounts(limit.max, f"{path}.max")
        default = _amounts(limit.default, f"{path}.default")
        request = _amounts(limit.default_request, f"{path}.defaultRequest")
        ratios = _ratios(limit.max_limit_request_ratio, f"{path}.maxLimitRequestRatio")
        if limit.type not in ("Container", "Pod"):
            continue  # of claims
        if limit.type == "Container":
            limits |= {**most, **default}
            requests |= {**least, **most, **default, **request}
        whole = limit.type == "Pod"
        for kind, values in (
            (BoundKind.MIN, least),
            (BoundKind.MAX, most),
            (BoundKind.RATIO, ratios),
        ):
            bounds += [
                LimitRangeBound(kind, intern(r), Fraction(v), whole) for r, v in values.items()
            ]
    return LimitRangeRecord(
        namespace=intern(meta.namespace or "default"),
        uid=meta.uid,
        version=version_of(meta.resource_version),
        limit_range=LimitRange(
            meta.name, tuple(requests.items()), tuple(limits.items()), tuple(bounds)
        ),
    )


def _amounts(quantities: dict[str, Quantity] | None, path: str) -> dict[str, int]:
    with under(path):
        return dict(read_amounts(quantities))


def _ratios(quantities: dict[str, Quantity] | None, path: str) -> dict[str, Fraction]:
    with under(path):
        return {name: read_factor(name, text) for name, text in (quantities or {}).items()}
