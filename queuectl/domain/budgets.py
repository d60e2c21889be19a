"""Budgets: GPU-hours that a queue, a namespace or a user can spend in a calendar month, with top-ups.

All amounts are whole units of the usage ledger (:data:`~queuectl.domain.accounting.UNITS` of a GPU-second), so that sums are exact.
The ledger has sums by hour. A month therefore begins at a full hour of UTC, and a time zone where it does not is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

from queuectl.domain.accounting import HOUR, MILLISECONDS, UNITS
from queuectl.domain.gpus import Gpus, in_parts
from queuectl.domain.words import plain

GPU_HOUR: Final = HOUR * UNITS
"""Units of a GPU-hour."""
_THOUSANDTH: Final = GPU_HOUR // 1000
UNKNOWN_RUN: Final = float(HOUR)
"""Seconds from now for which a gang counts whose end is not known."""


class BudgetScope(StrEnum):
    """The field of a budget that names whose gangs spend it."""

    CLUSTER_QUEUE = "clusterQueue"
    LOCAL_QUEUE = "localQueue"  # namespace/name
    NAMESPACE = "namespace"
    USER = "user"


class WhenSpent(StrEnum):
    """The effect of a spent budget on pending gangs. Running gangs continue."""

    HOLD = "Hold"  # no gang starts
    LOWER_PRIORITY = "LowerPriority"  # gangs have a lower priority until they start


@dataclass(frozen=True, slots=True)
class Spender:
    """The names to which the use of a gang is charged. ``queue`` is the LocalQueue; empty texts name nothing."""

    cluster_queue: str
    namespace: str
    queue: str
    user: str

    def of(self, scope: BudgetScope) -> str:
        """The name in a scope."""
        match scope:
            case BudgetScope.CLUSTER_QUEUE:
                return self.cluster_queue
            case BudgetScope.LOCAL_QUEUE:
                return f"{self.namespace}/{self.queue}"
            case BudgetScope.NAMESPACE:
                return self.namespace
            case BudgetScope.USER:
                return self.user


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in a time zone: ``name`` as ``2026-11``, begin and end in unix seconds."""

    name: str
    begins: int
    ends: int


@dataclass(frozen=True, slots=True)
class Budget:
    """The GPU time that the gangs of one spender can use in each month.

    Attributes:
        holder: the name in ``scope``.
        monthly: units that each month begins with.
        time_zone: of the calendar, an IANA name.
        priority_when_spent: with LowerPriority, the highest priority of pending gangs once the budget is spent.
        whole_run: a gang starts only if the budget can pay its whole run in this month.
    """

    name: str
    scope: BudgetScope
    holder: str
    monthly: int
    time_zone: str = "UTC"
    when_spent: WhenSpent = WhenSpent.HOLD
    priority_when_spent: int = 0
    whole_run: bool = False

    def least_left(self, cost: int) -> int:
        """Units that must be left for the start of a gang whose run costs so many in this month: all of them, or any unit."""
        return cost if self.whole_run else min(cost, 1)

    def month(self, at: float) -> Month:
        """The month of a time (unix seconds)."""
        return month_of(at, self.time_zone)

    def granted(self, month: Month, top_ups: Iterable[TopUp]) -> int:
        """Units of a month, with its top-ups."""
        more = (t.amount for t in top_ups if (t.budget, t.month) == (self.name, month.name))
        return self.monthly + sum(more)


class BudgetsByHolder:
    """Budgets by the name of their spender. To find those of a gang takes one step for each scope, however many budgets there are."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._budgets: dict[tuple[BudgetScope, str], list[Budget]] = {}
        for budget in budgets:
            self._budgets.setdefault((budget.scope, budget.holder), []).append(budget)

    def of(self, spender: Spender) -> Iterator[Budget]:
        """The budgets that the gangs of a spender use."""
        for scope in BudgetScope:
            yield from self._budgets.get((scope, spender.of(scope)), ())


@dataclass(frozen=True, slots=True)
class TopUp:
    """GPU time that is added to one month of a budget.

    Attributes:
        amount: in units.
        by, at: the user, and RFC 3339 time, of the request; empty for a document that was applied.
    """

    name: str
    budget: str
    month: str
    amount: int
    reason: str
    by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class BudgetBalance:
    """A budget in the current month.

    Attributes:
        granted: units of the month, with top-ups.
        spent: units in the usage ledger.
        ended: units that gangs used after ``counted`` and that have ended since.
        counted: unix seconds; the ledger has all use of the month before. Running gangs count from here.
    """

    budget: Budget
    month: Month
    granted: int
    spent: int = 0
    ended: int = 0
    counted: float = 0.0

    @property
    def used(self) -> int:
        """Units that gangs have used, except those of running gangs since ``counted``."""
        return self.spent + self.ended

    def running_cost(self, gpus: Gpus, started_at: float, ends_at: float | None, now: float) -> int:
        """Units that a running gang uses from ``counted`` to its end, within the month.

        A gang without a known end, or beyond it, counts until ``UNKNOWN_RUN`` from now.
        """
        known = ends_at is not None and ends_at > now
        end = ends_at if ends_at is not None and known else now + UNKNOWN_RUN
        return self.cost(gpus, max(started_at, self.counted), end)

    def start_cost(self, gpus: Gpus, seconds: float | None, now: float) -> int:
        """Units that a gang uses within the month if it starts now. ``seconds``: its run; None = unknown."""
        return self.cost(gpus, now, now + (UNKNOWN_RUN if seconds is None else seconds))

    def cost(self, gpus: Gpus, begins: float, ends: float) -> int:
        """Units of so many GPUs for a span of time, within the month."""
        begin, end = max(begins, self.month.begins), min(ends, self.month.ends)
        return in_parts(gpus) * max(0, round(end * MILLISECONDS) - round(begin * MILLISECONDS))


@dataclass(frozen=True, slots=True)
class SpentUnits:
    """Sums of the usage ledger.

    Attributes:
        until: unix seconds before which all use is counted; None = none is.
        units: by budget and begin of its month.
    """

    until: float | None = None
    units: Mapping[tuple[str, int], int] = field(default_factory=dict)


@lru_cache(maxsize=256)
def _month(year: int, number: int, time_zone: str) -> Month:
    zone = ZoneInfo(time_zone)
    begins = datetime(year, number, 1, tzinfo=zone)
    ends = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=zone)
    return Month(f"{year:04}-{number:02}", int(begins.timestamp()), int(ends.timestamp()))


def month_of(at: float, time_zone: str) -> Month:
    """The calendar month of a time (unix seconds)."""
    local = datetime.fromtimestamp(at, ZoneInfo(time_zone))
    return _month(local.year, local.month, time_zone)


def months(time_zone: str, years: Iterable[int]) -> Iterator[Month]:
    """The months of these years."""
    return (_month(year, number, time_zone) for year in years for number in range(1, 13))


def holder_of(spec: Mapping[str, Any]) -> str:
    """The spender in the document of a budget: ``clusterQueue team-a``."""
    return next((f"{scope} {spec[scope]}" for scope in BudgetScope if spec.get(scope)), "")


def units_of(gpu_hours: Fraction) -> int:
    """GPU-hours in units, rounded to the nearest one."""
    return round(gpu_hours * GPU_HOUR)


def gpu_hours(units: int) -> float:
    """Units in GPU-hours, for documents: to a thousandth."""
    return round(units / GPU_HOUR, 3)


def gpu_hours_text(units: int) -> str:
    """The same for sentences."""
    return plain(gpu_hours(units))


def least_top_up(missing: int) -> int:
    """The units of the smallest top-up that pays for these: whole thousandths of a GPU-hour, as sentences have them."""
    return -(-missing // _THOUSANDTH) * _THOUSANDTH
