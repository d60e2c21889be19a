"""QuotaOverrides, Budgets, their top-ups and Reservations, field by field, as in :mod:`queuectl.objects.configuration.wire`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from queuectl.domain.budgets import WhenSpent
from queuectl.objects.configuration.wire import ObjectHead, Priority, Strict
from queuectl.objects.kubernetes.wire import Quantity


class QuotaOverrideSpec(Strict):
    cluster_queue: str
    flavor: str
    resource: str
    begins: str = msgspec.field(name="from")
    until: str
    nominal_quota: Quantity | None = None
    add: Quantity | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class QuotaOverrideDocument(ObjectHead, kw_only=True):
    spec: QuotaOverrideSpec


class BudgetSpec(Strict):
    gpu_hours_per_month: Quantity
    cluster_queue: str | None = None
    local_queue: str | None = None
    namespace: str | None = None
    user: Annotated[str, msgspec.Meta(max_length=253)] | None = None
    time_zone: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    when_spent: WhenSpent | None = None
    priority_when_spent: Priority | None = None
    whole_run: bool | None = None


class BudgetDocument(ObjectHead, kw_only=True):
    spec: BudgetSpec


class BudgetTopUpSpec(Strict):
    budget: str
    month: str
    gpu_hours: Quantity
    reason: Annotated[str, msgspec.Meta(max_length=500)]
    by: Annotated[str, msgspec.Meta(max_length=253)] | None = None
    at: str | None = None


class BudgetTopUpDocument(ObjectHead, kw_only=True):
    spec: BudgetTopUpSpec


class ReservedCapacitySpec(Strict):
    pods: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    requests: dict[str, Quantity]
    flavor: str | None = None
    node_selector: dict[str, str] | None = None
    required_topology: str | None = None
    preferred_topology: str | None = None


class ReservationSpec(Strict):
    begins: str = msgspec.field(name="from")
    until: str
    cluster_queue: str | None = None
    capacity: ReservedCapacitySpec | None = None
    nodes: list[str] | None = None
    recurrence: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None = None
    time_zone: str | None = None
    users: list[str] | None = None
    namespaces: list[str] | None = None
    evict: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class ReservationDocument(ObjectHead, kw_only=True):
    spec: ReservationSpec
