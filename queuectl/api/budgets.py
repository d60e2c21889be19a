"""Budgets over REST: top-ups, and the report of their use and its forecast."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container
from datetime import datetime
from itertools import count
from typing import Any, Final

from fastapi import Request
from pydantic import Field

from queuectl.api.access import caller_of
from queuectl.api.auth.audit import record_change
from queuectl.api.problems import ApiProblem, ProblemType, wrong_parameter
from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.budgets import BudgetScope, TopUp, WhenSpent, gpu_hours
from queuectl.domain.errors import Conflict
from queuectl.domain.gpus import rounded
from queuectl.domain.queries import DocumentKey
from queuectl.domain.spending import BudgetReport, Forecast
from queuectl.domain.words import format_time, utc
from queuectl.objects.configuration.config_kinds import API_VERSION
from queuectl.objects.configuration.queue_config import read, validate

P = ProblemType
_TRIES: Final = 20  # each fails only if another request has taken the name in between
_MARK_BYTES: Final = 6
# Characters of a name before the month: a name has at most 253.
_LONGEST_START: Final = 253 - len("-2026-11-") - 2 * _MARK_BYTES


class TopUpBody(View):
    """A top-up of one month."""

    gpu_hours: float | str = Field(description="GPU-hours to add; more than 0.")
    reason: str = Field(min_length=1, max_length=500, description="The reason.")
    month: str | None = Field(
        default=None,
        max_length=7,
        description="The month, as 2026-11. It has not ended in the time zone of the Budget. Default: the current one.",
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
    request: Request,
    store: ApiStore,
    key: DocumentKey,
    body: TopUpBody,
    request_id: str | None,
    *,
    dry_run: bool,
) -> TopUpView:
    """Add GPU-hours to one month of a budget, as a BudgetTopUp with the caller and the time.

    Args:
        request: of the caller.
        store: of the configuration.
        key: of the budget.
        body: what to add.
        request_id: a repeated request of the same caller with the same id is the same top-up; None = a new one.
        dry_run: only check it.

    Raises:
        Problem: not-found; invalid-parameter for a month that has ended; request-id-reused; precondition-failed when other requests keep taking the name.
        DocumentError: the amount or the month is wrong.
    """
    stored = await store.get_config(key)
    if stored is None:
        raise ApiProblem(P.NOT_FOUND, f"{key} does not exist")
    current = read(stored.document).content.month(time.time()).name
    month = body.month or current
    caller = caller_of(request).name
    mark = _mark(caller, key.name, request_id) if request_id is not None else ""
    for _ in range(_TRIES):
        known = {one.key.name: one for one in await store.list_config("BudgetTopUp")}
        before = next((one for one in known if mark and one.endswith(f"-{mark}")), None)
        name = before or _name(key.name, month, mark, known)
        document = _document(name, key.name, month, body, caller)
        new: TopUp = read(document).content
        if before is not None:
            record_change(request, f"{name} exists already")
            return top_up_view(_repeated(new, read(known[name].document).content, body))
        if month < current:
            reason = f"month: {month} has ended; the current month of {key} is {current}"
            raise wrong_parameter("month", reason)
        if dry_run:
            return top_up_view(new)
        try:
            await store.put_config(document, 0)
        except Conflict:
            continue  # another request has taken the name
        record_change(request, f"created {name}: {body.gpu_hours} GPU-hours; reason: {body.reason}")
        return top_up_view(new)
    raise ApiProblem(P.PRECONDITION_FAILED, f"{key} is topped up by others; try again")


def _document(name: str, budget: str, month: str, body: TopUpBody, caller: str) -> dict[str, Any]:
    """A BudgetTopUp in its stored form. Raises DocumentError."""
    spec = {
        "budget": budget,
        "month": month,
        "gpuHours": body.gpu_hours,
        "reason": body.reason,
        "by": caller or None,
        "at": format_time(time.time()),
    }
    given = {
        "apiVersion": API_VERSION,
        "kind": "BudgetTopUp",
        "metadata": {"name": name},
        "spec": {field: value for field, value in spec.items() if value is not None},
    }
    document, _ = validate(given)
    return document


def _mark(caller: str, budget: str, request_id: str) -> str:
    """The end of the name of a top-up with a request id."""
    identity = f"{caller}\0{budget}\0{request_id}"
    return hashlib.blake2b(identity.encode(), digest_size=_MARK_BYTES).hexdigest()


def _name(budget: str, month: str, mark: str, names: Container[str]) -> str:
    """A name for a top-up: with the mark, or the first number that none of ``names`` has. A long name of a budget is cut, so that it is valid."""
    start = f"{budget[:_LONGEST_START].rstrip('-.')}-{month}"
    if mark:
        return f"{start}-{mark}"
    return next(name for name in (f"{start}-{n}" for n in count(1)) if name not in names)


def _repeated(new: TopUp, before: TopUp, body: TopUpBody) -> TopUp:
    """The top-up of an earlier request with the same id. Raises a problem if this one asks for another."""
    same_month = body.month in (None, before.month)  # the next month can have begun since
    if not same_month or (new.amount, new.reason) != (before.amount, before.reason):
        text = f"the Idempotency-Key was used for another top-up: {before.name}"
        raise ApiProblem(P.REQUEST_ID_REUSED, text)
    return before


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
        month_ends=utc(balance.month.ends),
        when_spent=budget.when_spent,
        granted_gpu_hours=gpu_hours(balance.granted),
        spent_gpu_hours=gpu_hours(forecast.used),
        ledger_gpu_hours=gpu_hours(balance.spent),
        counted_until=utc(balance.counted),
        committed_gpu_hours=gpu_hours(forecast.committed),
        left_gpu_hours=gpu_hours(forecast.left),
        running_gpus=rounded(forecast.rate),
        spent_at=maybe(forecast.spent_at),
        pending_gpu_hours=gpu_hours(forecast.waiting),
        top_ups=[top_up_view(t) for t in sorted(own, key=lambda t: t.name)],
    )
