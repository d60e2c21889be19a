"""Parses budgets and their top-ups."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from queuectl.domain.accounting import HOUR
from queuectl.domain.budgets import Budget, BudgetScope, TopUp, WhenSpent, months, units_of
from queuectl.domain.gpus import exact
from queuectl.objects.configuration import wire
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_name, is_time_zone
from queuectl.objects.times import parse_time

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
        try:
            parse_time(spec.at)
        except ValueError as error:
            raise RequestError(f"spec.at: {error}") from None
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


def _amount(given: str | float, field: str) -> int:
    try:
        hours = exact(given)
    except (ValueError, ZeroDivisionError):
        hours = Fraction(-1)
    if not 0 <= hours <= MOST_GPU_HOURS:
        raise RequestError(f"spec.{field}: {given!r} is not a number from 0 to {MOST_GPU_HOURS:,}")
    return units_of(hours)
