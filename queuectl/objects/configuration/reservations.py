"""Parses Reservations, and budgets with their top-ups."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import Final

from queuectl.domain.accounting import HOUR
from queuectl.domain.budgets import Budget, BudgetScope, TopUp, WhenSpent, months, units_of
from queuectl.domain.devices import IMPLICIT_RESOURCE
from queuectl.domain.gpus import exact
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.reservations import (
    FREQUENCIES,
    LARGEST_PART,
    REQUESTS,
    AdvanceReservation,
    ReservedCapacity,
    no_amount,
    parts_of,
    recurrence_rule,
)
from queuectl.domain.workload import TopologyMode, TopologyRequest
from queuectl.objects.configuration import reservations_wire as wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError
from queuectl.objects.kubernetes.pods import read_count
from queuectl.objects.kubernetes.requests import read_amount
from queuectl.objects.names import is_label_key, is_name, is_time_zone
from queuectl.objects.times import time_of

# ---- Reservations

_LONGEST_OCCURRENCE: Final = 366 * 24 * 3600.0
_CHECKED: Final = 64  # occurrences that are compared with the next one


def read_reservation(document: wire.ReservationDocument) -> AdvanceReservation:
    """Raises RequestError naming field and value."""
    spec = document.spec
    begins, ends = time_of(spec.begins, "spec.from"), time_of(spec.until, "spec.until")
    if ends <= begins:
        raise RequestError(f"spec.until: {spec.until!r} is not after spec.from")
    if (spec.capacity is None) == (not spec.nodes):
        raise RequestError("spec: give either capacity or nodes")
    if spec.capacity is not None and spec.cluster_queue is None:
        raise RequestError("spec.clusterQueue: a Reservation of capacity is for one ClusterQueue")
    if spec.cluster_queue is None and (spec.users or spec.namespaces):
        raise RequestError("spec.clusterQueue: is required with users or namespaces")
    if spec.cluster_queue is not None and not is_name(spec.cluster_queue):
        raise RequestError(f"spec.clusterQueue: {spec.cluster_queue!r} is not a name")
    for field, names in (("nodes", spec.nodes), ("namespaces", spec.namespaces)):
        once(names or (), f"spec.{field}:")
        for name in names or ():
            if not is_name(name):
                raise RequestError(f"spec.{field}: {name!r} is not a name")
    zone = "UTC" if spec.time_zone is None else spec.time_zone
    if not is_time_zone(zone):
        raise RequestError(f"spec.timeZone: {zone!r} is not a time zone")
    if spec.recurrence is not None:
        _check_recurrence(spec.recurrence, zone, begins, ends - begins)
    elif spec.time_zone is not None:
        raise RequestError(
            "spec.timeZone: is the time zone of a recurrence; from and until have theirs"
        )
    return AdvanceReservation(
        name=document.metadata.name,
        begins=begins,
        ends=ends,
        cluster_queue=spec.cluster_queue,
        users=frozenset(spec.users or ()),
        namespaces=frozenset(spec.namespaces or ()),
        capacity=None if spec.capacity is None else _capacity(spec.capacity),
        nodes=tuple(sorted(spec.nodes or ())),
        recurrence=spec.recurrence or "",
        time_zone=zone,
        evicts=bool(spec.evict),
    )


def _check_recurrence(text: str, zone: str, begins: float, length: float) -> None:
    path = "spec.recurrence:"
    if length > _LONGEST_OCCURRENCE:
        raise RequestError("spec.until: with a recurrence, it is at most 366 days after spec.from")
    parts = parts_of(text)
    if parts.get("FREQ") not in FREQUENCIES:
        raise RequestError(f"{path} FREQ of {text!r} is not one of {', '.join(FREQUENCIES)}")
    if parts["FREQ"] == "HOURLY" and zone != "UTC":
        raise RequestError(
            "spec.timeZone: FREQ=HOURLY has no time zone: clocks repeat and skip hours"
        )
    for name in ("COUNT", "INTERVAL"):
        if not 1 <= (read_count(parts.get(name, "1")) or 0) <= LARGEST_PART:
            raise RequestError(
                f"{path} {name} of {text!r} is not a number from 1 to {LARGEST_PART}"
            )
    try:
        first = [
            at.timestamp()
            for at, _ in zip(recurrence_rule(text, begins, zone), range(_CHECKED), strict=False)
        ]
    except ValueError as error:
        raise RequestError(f"{path} {text!r} is not a rule of RFC 5545: {error}") from None
    if not first or first[0] != begins:
        raise RequestError(f"{path} spec.from is not a time of {text!r} in {zone}")
    if any(after - before < length for before, after in pairwise(first)):
        raise RequestError(f"{path} by {text!r} it starts again before it has ended")


def _capacity(capacity: wire.ReservedCapacitySpec) -> ReservedCapacity:
    path = "spec.capacity"
    requests = {PODS: 1}
    for resource, written in capacity.requests.items():
        if not is_label_key(resource):
            raise RequestError(f"{path}.requests: {resource!r} is not a resource name")
        if resource.startswith(IMPLICIT_RESOURCE):
            raise RequestError(f"{REQUESTS}: {no_amount(resource)}")
        try:
            requests[resource] = read_amount(resource, written, round_up=True)
        except RequestError as error:
            raise RequestError(f"{path}.requests.{resource}: {error}") from None
    if not any(amount for name, amount in requests.items() if name != PODS):
        raise RequestError(f"{path}.requests: give at least one resource")
    if capacity.flavor is not None and not is_name(capacity.flavor):
        raise RequestError(f"{path}.flavor: {capacity.flavor!r} is not a name")
    for key in capacity.node_selector or {}:
        if not is_label_key(key):
            raise RequestError(f"{path}.nodeSelector: {key!r} is not a label key")
    return ReservedCapacity(
        pods=capacity.pods,
        requests=Resources(requests),
        flavor=capacity.flavor,
        node_labels=tuple(sorted((capacity.node_selector or {}).items())),
        topology=_topology(capacity, path),
    )


def _topology(capacity: wire.ReservedCapacitySpec, path: str) -> TopologyRequest | None:
    required, preferred = capacity.required_topology, capacity.preferred_topology
    if required is not None and preferred is not None:
        raise RequestError(f"{path}: give either requiredTopology or preferredTopology")
    for field, level in (("requiredTopology", required), ("preferredTopology", preferred)):
        if level is not None and not is_label_key(level):
            raise RequestError(f"{path}.{field}: {level!r} is not a label key")
    if required is not None:
        return TopologyRequest(TopologyMode.REQUIRED, required)
    return TopologyRequest(TopologyMode.PREFERRED, preferred) if preferred is not None else None


# ---- Budgets and top-ups

MOST_GPU_HOURS: Final = 10**9
_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_YEARS: Final = range(2025, 2041)


def read_budget(document: wire.BudgetDocument) -> Budget:
    """Raises RequestError naming field and value."""
    spec = document.spec
    scope, holder = _holder(spec)
    zone = spec.time_zone or "UTC"
    _check_zone(zone)
    policy = spec.when_spent or WhenSpent.HOLD
    lowers = policy is WhenSpent.LOWER_PRIORITY
    if lowers != (spec.priority_when_spent is not None):
        raise RequestError("spec.priorityWhenSpent: give it if whenSpent is LowerPriority")
    if lowers and spec.whole_run:
        raise RequestError("spec.wholeRun: has no effect if whenSpent is LowerPriority")
    return Budget(
        name=document.metadata.name,
        scope=scope,
        holder=holder,
        monthly=_amount(spec.gpu_hours_per_month, "gpuHoursPerMonth"),
        time_zone=zone,
        when_spent=policy,
        priority_when_spent=spec.priority_when_spent or 0,
        whole_run=bool(spec.whole_run),
    )


def read_top_up(document: wire.BudgetTopUpDocument) -> TopUp:
    """Raises RequestError naming field and value."""
    spec = document.spec
    if not is_name(spec.budget):
        raise RequestError(f"spec.budget: {spec.budget!r} is not a name")
    if not _MONTH.fullmatch(spec.month):
        raise RequestError(f"spec.month: {spec.month!r} is not a month, e.g. 2026-11")
    amount = _amount(spec.gpu_hours, "gpuHours")
    if not amount:
        raise RequestError(f"spec.gpuHours: {spec.gpu_hours!r} is not more than 0")
    if not spec.reason.strip():
        raise RequestError("spec.reason: is empty")
    if spec.at is not None:
        time_of(spec.at, "spec.at")
    who, when = spec.by or "", spec.at or ""
    name = document.metadata.name
    return TopUp(name, spec.budget, spec.month, amount, spec.reason, who, when)


def _holder(spec: wire.BudgetSpec) -> tuple[BudgetScope, str]:
    given = {
        BudgetScope.CLUSTER_QUEUE: spec.cluster_queue,
        BudgetScope.LOCAL_QUEUE: spec.local_queue,
        BudgetScope.NAMESPACE: spec.namespace,
        BudgetScope.USER: spec.user,
    }
    named = [(scope, name) for scope, name in given.items() if name is not None]
    if len(named) != 1:
        raise RequestError(f"spec: give one of {', '.join(given)}")
    scope, name = named[0]
    parts = name.split("/") if scope is BudgetScope.LOCAL_QUEUE else [name]
    if scope is BudgetScope.LOCAL_QUEUE and len(parts) != 2:
        raise RequestError(f"spec.localQueue: {name!r} is not namespace/name")
    valid = bool(name) if scope is BudgetScope.USER else all(map(is_name, parts))
    if not valid:
        raise RequestError(f"spec.{scope}: {name!r} is not a name")
    return scope, name


def _check_zone(zone: str) -> None:
    if not is_time_zone(zone):
        raise RequestError(f"spec.timeZone: {zone!r} is not a time zone")
    if any(month.begins % HOUR for month in months(zone, _YEARS)):
        text = "has months that do not begin at a full hour of UTC; usage is counted by these hours"
        raise RequestError(f"spec.timeZone: {zone} {text}")


def _amount(stated: str | float, field: str) -> int:
    try:
        hours = exact(stated)
    except (ValueError, ZeroDivisionError):
        hours = Fraction(-1)
    if not 0 <= hours <= MOST_GPU_HOURS:
        raise RequestError(f"spec.{field}: {stated!r} is not a number from 0 to {MOST_GPU_HOURS:,}")
    return units_of(hours)
