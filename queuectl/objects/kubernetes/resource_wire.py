"""The fields of ``resource.k8s.io/v1`` that queuectl reads."""

from __future__ import annotations

from typing import Any

import msgspec

from queuectl.objects.kubernetes.wire import Meta, NodeSelectorTerms, Quantity, Wire


class Attribute(Wire):
    """Exactly one field is set."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: list[int] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class ValidRange(Wire):
    least: Quantity | None = msgspec.field(default=None, name="min")
    most: Quantity | None = msgspec.field(default=None, name="max")
    step: Quantity | None = None


class RequestPolicy(Wire):
    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: ValidRange | None = None


class WireCapacity(Wire):
    value: Quantity | None = None
    request_policy: RequestPolicy | None = None


class Counter(Wire):
    value: Quantity | None = None


class CounterSet(Wire):
    name: str = ""
    counters: dict[str, Counter] | None = None


class Consumption(Wire):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None


class WireDeviceTaint(Wire):
    key: str = ""
    value: str | None = None
    effect: str = ""


class WireDevice(Wire):
    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, WireCapacity] | None = None
    consumes_counters: list[Consumption] | None = None
    node_name: str | None = None
    node_selector: NodeSelectorTerms | None = None
    all_nodes: bool | None = None
    taints: list[WireDeviceTaint] | None = None
    binding_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None
    node_allocatable_resource_mappings: dict[str, Any] | None = None


class WirePool(Wire):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Wire):
    driver: str = ""
    pool: WirePool = msgspec.field(default_factory=WirePool)
    node_name: str | None = None
    node_selector: NodeSelectorTerms | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[WireDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class WireResourceSlice(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SliceSpec = msgspec.field(default_factory=SliceSpec)


# ---- DeviceClass, ResourceClaim, ResourceClaimTemplate


class CelSelector(Wire):
    expression: str = ""


class WireSelector(Wire):
    cel: CelSelector | None = None


class ClassSpec(Wire):
    selectors: list[WireSelector] | None = None
    extended_resource_name: str | None = None


class WireDeviceClass(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: ClassSpec = msgspec.field(default_factory=ClassSpec)


class WireDeviceToleration(Wire):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class CapacityRequests(Wire):
    requests: dict[str, Quantity] | None = None


class WireOption(Wire):
    name: str = ""
    device_class_name: str = ""
    selectors: list[WireSelector] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[WireDeviceToleration] | None = None
    capacity: CapacityRequests | None = None


class WireRequest(Wire):
    name: str = ""
    exactly: WireOption | None = None
    first_available: list[WireOption] | None = None


class WireConstraint(Wire):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceRequests(Wire):
    requests: list[WireRequest] | None = None
    constraints: list[WireConstraint] | None = None


class WireClaimSpec(Wire):
    devices: DeviceRequests = msgspec.field(default_factory=DeviceRequests)


class DeviceRequestAllocationResult(Wire):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, Quantity] | None = None
    tolerations: list[WireDeviceToleration] | None = None


class DeviceAllocationResult(Wire):
    results: list[DeviceRequestAllocationResult] | None = None


class Allocation(Wire):
    devices: DeviceAllocationResult = msgspec.field(default_factory=DeviceAllocationResult)
    node_selector: NodeSelectorTerms | None = None


class Consumer(Wire):
    resource: str = ""
    uid: str = ""


class ClaimStatus(Wire):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class WireResourceClaim(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: WireClaimSpec = msgspec.field(default_factory=WireClaimSpec)
    status: ClaimStatus | None = None


class TemplateClaim(Wire):
    spec: WireClaimSpec = msgspec.field(default_factory=WireClaimSpec)


class WireClaimTemplate(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TemplateClaim = msgspec.field(default_factory=TemplateClaim)


# ---- DeviceTaintRule


class TaintSelector(Wire):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(Wire):
    device_selector: TaintSelector | None = None
    taint: WireDeviceTaint = msgspec.field(default_factory=WireDeviceTaint)


class WireTaintRule(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: TaintRuleSpec = msgspec.field(default_factory=TaintRuleSpec)
