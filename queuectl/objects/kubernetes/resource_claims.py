"""DeviceClasses, ResourceClaims and ResourceClaimTemplates to records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from queuectl.domain.devices import (
    AllocatedDevice,
    Amounts,
    Claim,
    ClaimSpec,
    DeviceClass,
    DeviceConstraint,
    DeviceEffect,
    DeviceId,
    DeviceOption,
    DeviceRequest,
    DeviceToleration,
)
from queuectl.domain.fleet import SelectorTerm
from queuectl.domain.records import ClaimRecord, ClaimTemplateRecord, DeviceClassRecord
from queuectl.objects.errors import MalformedError, RequestError, under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_factor
from queuectl.objects.kubernetes.resource_wire import (
    Allocation,
    WireClaimSpec,
    WireClaimTemplate,
    WireConstraint,
    WireDeviceClass,
    WireDeviceToleration,
    WireOption,
    WireRequest,
    WireResourceClaim,
    WireSelector,
)
from queuectl.objects.kubernetes.templates import check_names, read_term
from queuectl.objects.kubernetes.wire import Meta, Quantity
from queuectl.objects.times import time_or_none

MOST_DEVICES: Final = 32  # of one claim, in the API
_EFFECTS: Final = {effect.value: effect for effect in DeviceEffect}
_EXACT, _ALL = "ExactCount", "All"
_NOTHING: Final = ClaimSpec(())


def read_device_class(wire: WireDeviceClass) -> DeviceClassRecord:
    """One DeviceClass.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    meta = wire.metadata
    content = DeviceClass(
        name=meta.name,
        selectors=tuple(_selectors(wire.spec.selectors, "spec.selectors")),
        extended_resource=wire.spec.extended_resource_name or None,
        created_at=time_or_none(meta.creation_timestamp) or 0.0,
    )
    return DeviceClassRecord(meta.name, version_of(meta.resource_version), content)


def read_claim_template(wire: WireClaimTemplate) -> ClaimTemplateRecord:
    """One ResourceClaimTemplate. For a request that cannot be planned, the record has an error.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    meta = wire.metadata
    spec, error = _planned(wire.spec.spec, "spec.spec")
    return ClaimTemplateRecord(
        namespace=meta.namespace or "default",
        name=meta.name,
        uid=meta.uid,
        version=version_of(meta.resource_version),
        spec=spec,
        error=error,
    )


def read_claim(wire: WireResourceClaim) -> ClaimRecord:
    """One ResourceClaim. For a request that cannot be planned, the record has an error.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    meta, status = wire.metadata, wire.status
    spec, error = _planned(wire.spec, "spec")
    namespace = meta.namespace or "default"
    allocation = status.allocation if status is not None else None
    reserved = (status.reserved_for if status is not None else None) or ()
    users = {one.uid for one in reserved if one.resource == "pods"}
    content = Claim(
        uid=meta.uid or f"ResourceClaim/{namespace}/{meta.name}",
        namespace=namespace,
        name=meta.name,
        spec=spec,
        owner=_made_for(meta, users),
        allocated=None if allocation is None else tuple(_allocated(allocation)),
        node=None if allocation is None else _nodes(allocation),
    )
    return ClaimRecord(namespace, content.uid, version_of(meta.resource_version), content, error)


def _made_for(meta: Meta, users: Collection[str]) -> str | None:
    """The pod that owns it, unless only other pods use it: any user can write an owner."""
    for owner in meta.owner_references or ():
        if owner.kind == "Pod" and owner.controller:
            return owner.uid if not users or owner.uid in users else None
    return None


def _allocated(allocation: Allocation) -> Iterator[AllocatedDevice]:
    path = "status.allocation.devices.results"
    for i, one in enumerate(allocation.devices.results or ()):
        yield AllocatedDevice(
            id=DeviceId(one.driver, one.pool, one.device),
            request=one.request,
            admin=bool(one.admin_access),
            share=_amounts(one.consumed_capacity, f"{path}[{i}].consumedCapacity"),
            tolerations=tuple(
                _toleration(each, f"{path}[{i}].tolerations[{j}]")
                for j, each in enumerate(one.tolerations or ())
            ),
        )


def _nodes(allocation: Allocation) -> tuple[SelectorTerm, ...] | None:
    if allocation.node_selector is None:
        return None
    path = "status.allocation.nodeSelector.nodeSelectorTerms"
    terms = allocation.node_selector.node_selector_terms or ()
    return tuple(read_term(term, f"{path}[{i}]") for i, term in enumerate(terms))


# ---- what a claim requests


def _planned(spec: WireClaimSpec, path: str) -> tuple[ClaimSpec, str | None]:
    """The request, or the reason why it cannot be planned."""
    try:
        with under(f"{path}.devices", "."):
            return _spec(spec), None
    except MalformedError:
        raise
    except RequestError as error:
        return _NOTHING, str(error)


def _spec(spec: WireClaimSpec) -> ClaimSpec:
    given = spec.devices.requests or []
    requests = tuple(_request(one, f"requests[{i}]") for i, one in enumerate(given))
    check_names([one.name for one in requests], "requests")
    names = {name for one in requests for name in _names(one)}
    constraints = tuple(
        _constraint(one, names, f"constraints[{i}]")
        for i, one in enumerate(spec.devices.constraints or ())
    )
    fewest = sum(min(option.count or 1 for option in one.options) for one in requests)
    if fewest > MOST_DEVICES:
        raise RequestError(
            f"requests: {fewest} devices: a claim can have at most {MOST_DEVICES}", unsupported=True
        )
    return ClaimSpec(requests, constraints)


def _request(request: WireRequest, path: str) -> DeviceRequest:
    if (request.exactly is None) == (not request.first_available):
        raise MalformedError(f"{path}: needs exactly one of exactly, firstAvailable")
    if request.exactly is not None:
        return DeviceRequest(request.name, (_option(request.exactly, f"{path}.exactly"),))
    given = request.first_available or []
    options = tuple(_option(one, f"{path}.firstAvailable[{i}]") for i, one in enumerate(given))
    names = [one.name for one in given]
    check_names(names, f"{path}.firstAvailable")
    return DeviceRequest(request.name, options, tuple(names))


def _option(option: WireOption, path: str) -> DeviceOption:
    if not option.device_class_name:
        raise MalformedError(f"{path}.deviceClassName: is required")
    mode = option.allocation_mode or _EXACT
    if mode not in (_EXACT, _ALL):
        raise RequestError(f"{path}.allocationMode: {mode!r} is not supported", unsupported=True)
    count = option.count if mode == _ALL or option.count is not None else 1
    if mode == _ALL and count:
        raise MalformedError(f"{path}.count: is not allowed with allocationMode {_ALL}")
    if mode == _EXACT and (count is None or count < 1):
        raise MalformedError(f"{path}.count: {count} is not a positive number")
    if count is not None and count > MOST_DEVICES:
        raise RequestError(
            f"{path}.count: {count} devices: a claim can have at most {MOST_DEVICES}",
            unsupported=True,
        )
    requested = option.capacity.requests if option.capacity is not None else None
    return DeviceOption(
        device_class=option.device_class_name,
        selectors=tuple(_selectors(option.selectors, f"{path}.selectors")),
        count=None if mode == _ALL else count,
        admin=bool(option.admin_access),
        tolerations=tuple(
            _toleration(one, f"{path}.tolerations[{i}]")
            for i, one in enumerate(option.tolerations or ())
        ),
        capacity=_amounts(requested, f"{path}.capacity.requests"),
    )


def _selectors(selectors: Sequence[WireSelector] | None, path: str) -> Iterator[str]:
    for i, one in enumerate(selectors or ()):
        if one.cel is None or not one.cel.expression:
            raise MalformedError(f"{path}[{i}].cel.expression: is required")
        yield one.cel.expression


def _toleration(toleration: WireDeviceToleration, path: str) -> DeviceToleration:
    operator = toleration.operator or "Equal"
    if operator not in ("Equal", "Exists"):
        raise MalformedError(f"{path}.operator: {operator!r} is neither Equal nor Exists")
    if operator == "Equal" and not toleration.key:
        raise MalformedError(f"{path}.operator: must be Exists if no key is set")
    effect = toleration.effect or None
    if effect is not None and effect not in _EFFECTS:
        raise MalformedError(f"{path}.effect: {effect!r} is not one of {', '.join(_EFFECTS)}")
    return DeviceToleration(
        key=toleration.key or "",
        operator=operator,
        value=toleration.value or "",
        effect=None if effect is None else _EFFECTS[effect],
        seconds=toleration.toleration_seconds,
    )


def _constraint(constraint: WireConstraint, names: set[str], path: str) -> DeviceConstraint:
    """``names``: those of the requests and of their subrequests."""
    same, distinct = constraint.match_attribute, constraint.distinct_attribute
    if (same is None) == (distinct is None):
        raise MalformedError(f"{path}: needs exactly one of matchAttribute, distinctAttribute")
    attribute = same if same is not None else distinct or ""
    if "/" not in attribute:
        field = "matchAttribute" if same is not None else "distinctAttribute"
        raise MalformedError(f"{path}.{field}: {attribute!r} has no domain")
    for i, name in enumerate(constraint.requests or ()):
        if name not in names:
            raise MalformedError(f"{path}.requests[{i}]: {name!r} is not a request of the claim")
    return DeviceConstraint(tuple(constraint.requests or ()), attribute, distinct is not None)


def _names(request: DeviceRequest) -> Iterator[str]:
    yield request.name
    yield from (f"{request.name}/{name}" for name in request.subrequests)


def _amounts(amounts: Mapping[str, Quantity] | None, path: str) -> Amounts:
    with under(path, "."):
        return tuple(sorted((name, read_factor(name, a)) for name, a in (amounts or {}).items()))
