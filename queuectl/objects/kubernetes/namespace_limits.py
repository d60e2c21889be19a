"""The limits of a namespace: LimitRanges and ResourceQuotas.

LimitRanges have the defaults that the API server gives the LimitRange itself. ResourceQuotas become allowances: the resources that
count pods, and which pods of managed jobs the scopes include.

Facts that a pod template does not contain are left to the API server: the other objects of an operator (``services``), and the scope
``CrossNamespacePodAffinity``. All pods of managed jobs have the PriorityClass of the admission policy.
"""

from __future__ import annotations

from fractions import Fraction
from sys import intern
from typing import Final

import msgspec

from queuectl.domain.limits import (
    CLAIMS,
    DEVICES_OF_CLASS,
    REQUESTS,
    Allowance,
    BoundKind,
    LimitRange,
    LimitRangeBound,
    QuotaLimit,
)
from queuectl.domain.quantity import PODS
from queuectl.domain.records import LimitRangeRecord, ResourceQuotaRecord
from queuectl.domain.request_rules import LIMITED
from queuectl.objects import keys
from queuectl.objects.errors import under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_amounts, read_factor, read_limit
from queuectl.objects.kubernetes.wire import (
    NamespacedMeta,
    Quantity,
    ScopeRequirement,
    Wire,
    WireResourceQuota,
)

# ---- LimitRanges


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


# ---- ResourceQuotas

_LIMITS: Final = "limits."
_HUGE_PAGES: Final = "hugepages-"


def read_resource_quota(wire: WireResourceQuota) -> ResourceQuotaRecord:
    """Project a ResourceQuota.

    Raises:
        RequestError: an amount is malformed; the API server refuses such objects.
    """
    spec, status, meta = wire.spec, wire.status, wire.metadata
    enforced = status.hard if status is not None and status.hard is not None else None
    where = "status.hard" if enforced is not None else "spec.hard"
    hard = enforced if enforced is not None else (spec.hard if spec is not None else None)
    used = status.used if status is not None else None
    limits = []
    for key in sorted(hard or {}):
        resource = _counted(key)
        if resource is None or (key == CLAIMS and _scoped(wire)):
            continue
        with under(where):
            most = read_limit(resource, (hard or {})[key], round_up=False)
        with under("status.used"):
            amount = read_limit(resource, (used or {}).get(key, 0), round_up=True)
        of_limits = key.startswith(_LIMITS)
        limits.append(QuotaLimit(intern(key), intern(resource), most, amount, of_limits))
    scopes = _scopes(wire)
    if scopes is None:
        limits, scopes = [], {}
    return ResourceQuotaRecord(
        namespace=intern(meta.namespace or "default"),
        uid=meta.uid,
        version=version_of(meta.resource_version),
        counted=used is not None,
        allowance=Allowance(
            meta.name,
            tuple(limits),
            best_effort=scopes.get("BestEffort"),
            terminating=scopes.get("Terminating"),
            scoped=_scoped(wire),
        ),
    )


def _counted(key: str) -> str | None:
    """The requests of a pod that count against a resource of the quota; None if none do, or if it is unknown."""
    if key in (PODS, "count/pods"):
        return PODS
    if key in LIMITED or key.startswith(_HUGE_PAGES):
        return key
    if key == CLAIMS or key.endswith(DEVICES_OF_CLASS):
        return key
    if key.startswith(_LIMITS):
        resource = key.removeprefix(_LIMITS)
        return resource if resource in LIMITED else None
    return key.removeprefix(REQUESTS) if key.startswith(REQUESTS) else None


def _scoped(wire: WireResourceQuota) -> bool:
    spec = wire.spec
    return spec is not None and bool(spec.scopes or spec.scope_selector)


def _scopes(wire: WireResourceQuota) -> dict[str, bool] | None:
    """Whether pods must match ``BestEffort`` and ``Terminating`` to count, where it matters; None if no pod of a managed job counts."""
    spec = wire.spec
    if spec is None:
        return None
    scopes = [ScopeRequirement(name, "Exists") for name in spec.scopes or ()]
    if spec.scope_selector is not None:
        scopes += spec.scope_selector.match_expressions or ()
    matches: dict[str, bool] = {}
    for scope in scopes:
        match scope.scope_name:
            case "BestEffort" | "NotBestEffort" | "Terminating" | "NotTerminating" as name:
                positive = name.removeprefix("Not")
                if matches.setdefault(positive, name == positive) is not (name == positive):
                    return None
            case "PriorityClass" if _has_class(scope):
                pass
            case _:
                return None
    return matches


def _has_class(scope: ScopeRequirement) -> bool:
    """Whether the quota selects the PriorityClass of managed pods."""
    named = keys.POD_PRIORITY_CLASS in (scope.values or ())
    return {"In": named, "NotIn": not named, "Exists": True}.get(scope.operator, False)
