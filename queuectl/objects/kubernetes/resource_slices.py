"""ResourceSlices and DeviceTaintRules as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from sys import intern
from typing import Any, Final, TypeVar

from queuectl.domain.devices import (
    Amounts,
    AttributeValue,
    CapacityPolicy,
    DeviceEffect,
    DeviceKind,
    DeviceTaint,
    DeviceTaintRule,
    NodeAccess,
    PoolSlice,
    PublishedDevice,
    Version,
)
from queuectl.domain.fleet import SelectorTerm
from queuectl.domain.records import SliceRecord, TaintRuleRecord
from queuectl.domain.semver import read_semver
from queuectl.objects.errors import MalformedError, under
from queuectl.objects.kubernetes.nodes import version_of
from queuectl.objects.kubernetes.requests import read_factor
from queuectl.objects.kubernetes.resource_wire import (
    Attribute,
    Counter,
    RequestPolicy,
    SliceSpec,
    TaintSelector,
    WireCapacity,
    WireDevice,
    WireDeviceTaint,
    WireResourceSlice,
    WireTaintRule,
)
from queuectl.objects.kubernetes.templates import read_term
from queuectl.objects.kubernetes.wire import NodeSelectorTerms, Quantity

# ---- Slices

_EFFECTS: Final = {effect.value: effect for effect in DeviceEffect}


def read_resource_slice(wire: WireResourceSlice) -> SliceRecord:
    """One ResourceSlice.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    spec = wire.spec
    _check(spec)
    meta = wire.metadata
    sets = [one.name for one in spec.shared_counters or ()]
    content = PoolSlice(
        name=meta.name,
        driver=intern(spec.driver),
        pool=spec.pool.name,
        generation=spec.pool.generation,
        slices=spec.pool.resource_slice_count,
        access=None if spec.per_device_node_selection else _access(spec, "spec"),
        devices=tuple(
            _device(device, spec, f"spec.devices[{i}]")
            for i, device in enumerate(spec.devices or ())
        ),
        counters=tuple(sorted(_counters(spec))),
        repeated=next((name for name in sets if sets.count(name) > 1), ""),
    )
    return SliceRecord(meta.name, version_of(meta.resource_version), content)


def _check(spec: SliceSpec) -> None:
    for name, value in (("driver", spec.driver), ("pool.name", spec.pool.name)):
        if not value:
            raise MalformedError(f"spec.{name}: is required")
    count = spec.pool.resource_slice_count
    if count < 1:
        raise MalformedError(f"spec.pool.resourceSliceCount: {count} is not a positive number")
    chosen = {
        "nodeName": spec.node_name,
        "nodeSelector": spec.node_selector,
        "allNodes": spec.all_nodes,
        "perDeviceNodeSelection": spec.per_device_node_selection,
    }
    given = [name for name, value in chosen.items() if value]
    if len(given) != 1:
        text = " and ".join(given) if given else "none"
        raise MalformedError(f"spec: needs exactly one of {', '.join(chosen)}: has {text}")


def _access(wire: SliceSpec | WireDevice, path: str) -> NodeAccess | None:
    if wire.node_name:
        return NodeAccess(wire.node_name)
    if wire.node_selector is not None:
        return NodeAccess(selector=_selector(wire.node_selector, f"{path}.nodeSelector"))
    return NodeAccess() if wire.all_nodes else None


def _selector(selector: NodeSelectorTerms, path: str) -> SelectorTerm:
    terms = selector.node_selector_terms or []
    if len(terms) != 1:
        raise MalformedError(f"{path}.nodeSelectorTerms: needs exactly one term: has {len(terms)}")
    return read_term(terms[0], f"{path}.nodeSelectorTerms[0]")


def _counters(spec: SliceSpec) -> Iterator[tuple[tuple[str, str], int]]:
    for i, one in enumerate(spec.shared_counters or ()):
        path = f"spec.sharedCounters[{i}].counters"
        for name, amount in _values(one.counters, path):
            yield (one.name, name), floor(amount)


def _values(counters: Mapping[str, Counter] | None, path: str) -> Iterator[tuple[str, Fraction]]:
    for name, counter in (counters or {}).items():
        yield name, _amount(f"{path}.{name}.value", counter.value)


def _amount(path: str, quantity: Quantity | None) -> Fraction:
    if quantity is None:
        raise MalformedError(f"{path}: is required")
    return read_factor(path, quantity)


# ---- Devices


def _device(device: WireDevice, spec: SliceSpec, path: str) -> PublishedDevice:
    if not device.name:
        raise MalformedError(f"{path}.name: is required")
    consumes = {
        (one.counter_set, name): ceil(amount)
        for i, one in enumerate(device.consumes_counters or ())
        for name, amount in _values(one.counters, f"{path}.consumesCounters[{i}].counters")
    }
    own = _access(device, path) if spec.per_device_node_selection else None
    return PublishedDevice(
        name=intern(device.name),
        kind=_kind(device, spec.driver, path),
        consumes=_same(tuple(sorted(consumes.items()))),
        access=own,
        unsupported=_unsupported(device, spec.driver),
    )


def _unsupported(device: WireDevice, driver: str) -> str:
    if device.binding_conditions:
        return "it waits for bindingConditions before a pod is bound"
    if device.node_allocatable_resource_mappings:
        return "nodeAllocatableResourceMappings change the free resources of the node"
    for name in device.attributes or ():
        if "/" not in name and f"{driver}/{name}" in (device.attributes or ()):
            return f"attribute {name} occurs with its domain and without it"
    return ""


def _kind(device: WireDevice, driver: str, path: str) -> DeviceKind:
    attributes: dict[str, tuple[str, AttributeValue]] = {}
    for name, given in (device.attributes or {}).items():
        qualified = intern(name if "/" in name else f"{driver}/{name}")
        value = _attribute(given, f"{path}.attributes.{name}")
        attributes[qualified] = _pair(qualified, value)
    capacity, policies = _capacity(device.capacity or {}, f"{path}.capacity")
    return _same(
        DeviceKind(
            driver=intern(driver),
            attributes=tuple(attributes[name] for name in sorted(attributes)),
            capacity=_same(capacity),
            taints=tuple(map(_read_taint, device.taints or ())),
            shared=bool(device.allow_multiple_allocations),
            policies=_same(policies),
        )
    )


# ---- Equal values are one object: a cluster has thousands of devices that differ only in their names and a UUID.

_T = TypeVar("_T")


@lru_cache(maxsize=1 << 14)
def _kept(shared: Any) -> Any:
    return shared


def _same(shared: _T) -> _T:
    kept: _T = _kept(shared)
    return kept


@lru_cache(maxsize=1 << 14, typed=True)
def _kept_pair(name: str, attribute: AttributeValue) -> tuple[str, AttributeValue]:
    return name, attribute


def _pair(name: str, attribute: AttributeValue) -> tuple[str, AttributeValue]:
    """Lists are not shared: the types of their elements do not count in a cache."""
    return (name, attribute) if isinstance(attribute, tuple) else _kept_pair(name, attribute)


def _read_taint(taint: WireDeviceTaint, rule: str = "") -> DeviceTaint:
    """A taint. An unknown effect has no effect, as in kube-scheduler. ``rule``: the name of its DeviceTaintRule."""
    effect = _EFFECTS.get(taint.effect, DeviceEffect.NONE)
    return DeviceTaint(taint.key, effect, taint.value or "", rule)


def _attribute(attribute: Attribute, path: str) -> AttributeValue:
    by_type: dict[str, Any] = {
        "int": attribute.integer,
        "bool": attribute.boolean,
        "string": attribute.string,
        "version": attribute.version,
        "ints": attribute.ints,
        "bools": attribute.bools,
        "strings": attribute.strings,
        "versions": attribute.versions,
    }
    found = {name: value for name, value in by_type.items() if value is not None}
    if len(found) != 1:
        text = " and ".join(found) if found else "none"
        raise MalformedError(f"{path}: needs exactly one of {', '.join(by_type)}: has {text}")
    ((name, value),) = found.items()
    match name:
        case "version":
            return _version(value, path)
        case "versions":
            return tuple(_version(each, path) for each in value)
        case "ints" | "bools" | "strings":
            return tuple(value)
        case _:
            scalar: int | str | bool = value
            return scalar


def _version(text: str, path: str) -> Version:
    try:
        read_semver(text)
    except ValueError as error:
        raise MalformedError(f"{path}: {error}") from None
    return Version(text)


def _capacity(
    capacity: Mapping[str, WireCapacity], path: str
) -> tuple[Amounts, tuple[tuple[str, CapacityPolicy], ...]]:
    amounts, policies = [], []
    for name, given in sorted(capacity.items()):
        amounts.append((name, _amount(f"{path}.{name}.value", given.value)))
        if given.request_policy is not None:
            with under(f"{path}.{name}.requestPolicy", "."):
                policies.append((name, _policy(given.request_policy)))
    return tuple(amounts), tuple(policies)


def _policy(policy: RequestPolicy) -> CapacityPolicy:
    bounds = policy.valid_range
    if bounds is not None and policy.valid_values:
        raise MalformedError("validRange: is not allowed with validValues")
    return CapacityPolicy(
        default=_optional("default", policy.default),
        valid_values=tuple(
            read_factor(f"validValues[{i}]", value)
            for i, value in enumerate(policy.valid_values or ())
        ),
        least=None if bounds is None else _optional("validRange.min", bounds.least),
        most=None if bounds is None else _optional("validRange.max", bounds.most),
        step=None if bounds is None else _step(bounds.step),
    )


def _optional(path: str, quantity: Quantity | None) -> Fraction | None:
    return None if quantity is None else read_factor(path, quantity)


def _step(quantity: Quantity | None) -> Fraction | None:
    step = _optional("validRange.step", quantity)
    if step is not None and step <= 0:
        raise MalformedError(f"validRange.step: {quantity!r} is not positive")
    return step


# ---- DeviceTaintRules

KIND: Final = "DeviceTaintRule"
VERSION: Final = "resource.k8s.io/v1"
OLDER_VERSION: Final = "resource.k8s.io/v1beta2"
"""That of Kubernetes 1.36, behind the feature gate ``DRADeviceTaintRules``."""


def read_taint_rule(wire: WireTaintRule) -> TaintRuleRecord:
    """One DeviceTaintRule.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    return _read(wire, wire.spec.device_selector)


def read_older_taint_rule(wire: WireTaintRule) -> TaintRuleRecord:
    """One of ``OLDER_VERSION``. Without a selector, kube-scheduler 1.36 puts the taint on all devices, and 1.37 on none.

    Raises:
        MalformedError: naming field and value; the API server refuses it.
    """
    return _read(wire, wire.spec.device_selector or TaintSelector())


def _read(wire: WireTaintRule, selector: TaintSelector | None) -> TaintRuleRecord:
    meta, taint = wire.metadata, wire.spec.taint
    if not taint.key:
        raise MalformedError("spec.taint.key: is required")
    content = None
    if selector is not None:
        content = DeviceTaintRule(
            _read_taint(taint, meta.name), selector.driver, selector.pool, selector.device
        )
    return TaintRuleRecord(meta.name, version_of(meta.resource_version), content)
