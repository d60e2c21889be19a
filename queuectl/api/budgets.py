"""Budgets over REST: top-ups, and the report of their use and its forecast."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count, islice
from typing import Final

from fastapi import Request
from pydantic import Field

from queuectl.api.access import caller_of
from queuectl.api.auth.audit import record_change
from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.api.schemas import View, maybe, moment
from queuectl.db.ports import ApiStore
from queuectl.domain.budgets import BudgetScope, TopUp, WhenSpent, gpu_hours
from queuectl.domain.errors import Conflict
from queuectl.domain.gpus import rounded
from queuectl.domain.queries import DocumentKey
from queuectl.domain.spending import BudgetReport, Forecast
from queuectl.domain.words import format_time
from queuectl.objects.configuration.config_kinds import API_VERSION
from queuectl.objects.configuration.queue_config import read, validate

P = ProblemType
_TRIES: Final = 20  # each fails only if another request has taken the name in between
# Characters of a name before the month: a name has at most 253, six of them for digits.
_LONGEST_START: Final = 253 - len("-2026-11-") - 6


class TopUpBody(View):
    """A top-up of one month."""

    gpu_hours: float | str = Field(description="GPU-hours to add; more than 0.")
    reason: str = Field(min_length=1, max_length=500, description="The reason.")
    month: str | None = Field(
        default=None, max_length=7, description="The month, as 2026-11. Default: the current one."
    )


class TopUpView(View):
    """GPU-hours that were added to a month of a Budget."""

    name: str = Field(description="Name of the BudgetTopUp.")
    budget: str
    month: str
    gpu_hours: float
    reason: str
    by: str | None = Field(description="The user of the request; null = a document was applied.")
    at: str | None = Field(description="The time of the request; null = a document was applied.")


class BudgetStatusView(View):
    """A Budget in the current month. Amounts in GPU-hours."""

    name: str
    scope: BudgetScope = Field(description="The field that names whose gangs spend it.")
    holder: str = Field(description="The name in that field.")
    month: str
    time_zone: str
    month_ends: datetime
    when_spent: WhenSpent
    granted_gpu_hours: float = Field(description="Of the month, with top-ups.")
    spent_gpu_hours: float = Field(description="Used until the time of the report.")
    ledger_gpu_hours: float = Field(description="The part in the usage ledger, until countedUntil.")
    counted_until: datetime
    committed_gpu_hours: float = Field(
        description="Use by running gangs until their ends; a gang without a known end counts for one hour."
    )
    left_gpu_hours: float = Field(description="granted - spent - committed; can be negative.")
    running_gpus: float = Field(description="GPUs of the gangs that run now.")
    spent_at: datetime | None = Field(
        description="When running gangs will have spent it, if no other starts; null = not in this month."
    )
    pending_gpu_hours: float = Field(
        description="Use by pending gangs with an enforced limit in this month, if they start now."
    )
    top_ups: list[TopUpView] = Field(description="Of the month, by name.")


class BudgetsView(View):
    at: datetime = Field(description="Time of the report.")
    items: list[BudgetStatusView] = Field(description="By name.")


def shown(forecast: Forecast, namespaces: frozenset[str] | None) -> bool:
    """Whether a caller who sees these namespaces (None = all) sees a budget."""
    budget = forecast.balance.budget
    if namespaces is None:
        return True
    inside = budget.scope in (BudgetScope.NAMESPACE, BudgetScope.LOCAL_QUEUE)
    return inside and budget.holder.partition("/")[0] in namespaces


async def top_up(
    request: Request, store: ApiStore, key: DocumentKey, body: TopUpBody, *, dry_run: bool
) -> TopUpView:
    """Add GPU-hours to one month of a budget, as a BudgetTopUp with the caller and the time. ``dry_run``: only check them.

    Raises:
        Problem: not-found; precondition-failed when other requests keep taking the name.
        DocumentError: the amount or the month is wrong.
    """
    stored = await store.get_config(key)
    if stored is None:
        raise ApiProblem(P.NOT_FOUND, f"{key} does not exist")
    budget = read(stored.document).content
    month = body.month or budget.month(time.time()).name
    taken = {one.key.name for one in await store.list_config("BudgetTopUp")}
    for name in islice((name for name in _names(key.name, month) if name not in taken), _TRIES):
        spec = {
            "budget": key.name,
            "month": month,
            "gpuHours": body.gpu_hours,
            "reason": body.reason,
            "by": caller_of(request).name or None,
            "at": format_time(time.time()),
        }
        given = {
            "apiVersion": API_VERSION,
            "kind": "BudgetTopUp",
            "metadata": {"name": name},
            "spec": {field: value for field, value in spec.items() if value is not None},
        }
        document, _ = validate(given)
        if dry_run:
            return top_up_view(read(document).content)
        try:
            await store.put_config(document, 0)
        except Conflict:
            continue  # another request has taken the name
        record_change(request, f"created {name}: {body.gpu_hours} GPU-hours; reason: {body.reason}")
        return top_up_view(read(document).content)
    raise ApiProblem(P.PRECONDITION_FAILED, f"{key} is topped up by others; try again")


def _names(budget: str, month: str) -> Iterator[str]:
    """Names of top-ups. A long name of a budget is cut, so that each name is valid."""
    start = budget[:_LONGEST_START].rstrip("-.")
    return (f"{start}-{month}-{number}" for number in count(1))


def top_up_view(top_up: TopUp) -> TopUpView:
    """A top-up as the API answers it."""
    return TopUpView(
        name=top_up.name,
        budget=top_up.budget,
        month=top_up.month,
        gpu_hours=gpu_hours(top_up.amount),
        reason=top_up.reason,
        by=top_up.by or None,
        at=top_up.at or None,
    )


def status_view(forecast: Forecast, report: BudgetReport) -> BudgetStatusView:
    """A budget as the API answers it."""
    balance, budget = forecast.balance, forecast.balance.budget
    own = [t for t in report.top_ups if (t.budget, t.month) == (budget.name, balance.month.name)]
    return BudgetStatusView(
        name=budget.name,
        scope=budget.scope,
        holder=budget.holder,
        month=balance.month.name,
        time_zone=budget.time_zone,
        month_ends=moment(balance.month.ends),
        when_spent=budget.when_spent,
        granted_gpu_hours=gpu_hours(balance.granted),
        spent_gpu_hours=gpu_hours(forecast.used),
        ledger_gpu_hours=gpu_hours(balance.spent),
        counted_until=moment(balance.counted),
        committed_gpu_hours=gpu_hours(forecast.committed),
        left_gpu_hours=gpu_hours(forecast.left),
        running_gpus=rounded(forecast.rate),
        spent_at=maybe(forecast.spent_at),
        pending_gpu_hours=gpu_hours(forecast.waiting),
        top_ups=[top_up_view(t) for t in sorted(own, key=lambda t: t.name)],
    )
