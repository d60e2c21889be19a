"""The amounts that gangs can still spend of their budgets, as a plan goes.

A budget with ``whenSpent: Hold`` counts the use in the ledger, what running gangs use until their ends, and what gangs use that
this plan starts. Thus two gangs of one plan do not both start on the last GPU-hours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from queuectl.domain.accounting import UNITS
from queuectl.domain.budgets import BudgetBalance, WhenSpent, gpu_hours
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.spending import Spending, start_cost
from queuectl.domain.words import format_time
from queuectl.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class Charge:
    """The need of one gang of one budget to start, in units of the usage ledger.

    Attributes:
        held: units that are used, or that running gangs use until their ends.
        cost: units of its run in this month.
        need: units that must be left: its whole cost, or any.
    """

    balance: BudgetBalance
    held: int
    cost: int

    @property
    def need(self) -> int:
        return self.cost if self.balance.budget.whole_run else 1

    @property
    def name(self) -> str:
        return self.balance.budget.name


@dataclass(slots=True)
class BudgetUse:
    """The use of budgets that hold gangs, by the gangs of a snapshot."""

    snapshot: Snapshot
    _spending: Spending = field(init=False)
    _held: Counter[str] = field(default_factory=Counter)  # by budget
    _leased: dict[str, dict[str, int]] = field(default_factory=dict)  # by gang, then budget

    def __post_init__(self) -> None:
        self._spending = Spending(self.snapshot)
        for balance in self.snapshot.budgets:
            self._held[balance.budget.name] = self._spending.committed(balance)
        for pending in self.snapshot.pending if self.snapshot.budgets else ():
            if pending.lease is not None:
                leased = {charge.name: charge.cost for charge in self.charges(pending.workload)}
                self._leased[pending.workload.uid] = leased
        for leased in self._leased.values():
            self._held.update(leased)

    def charges(self, workload: Workload) -> Iterator[Charge]:
        """The needs of a gang of each budget that can hold it, without the part that its own lease keeps."""
        own = self._leased.get(workload.uid, {})
        for balance in self._holding(workload):
            cost = start_cost(self.snapshot, balance, workload)
            if cost:
                name = balance.budget.name
                used = balance.used + self._held[name] - own.get(name, 0)
                yield Charge(balance, used, cost)

    def claim(self, workload: Workload) -> None:
        """The lease of a gang is not counted in addition to the gang itself."""
        self._held.subtract(self._leased.pop(workload.uid, {}))

    def _holding(self, workload: Workload) -> Iterator[BudgetBalance]:
        for balance in self._spending.of(workload):
            if balance.budget.when_spent is WhenSpent.HOLD:
                yield balance


def reason_maker(workload: Workload, charge: Charge) -> Callable[[int], Reason]:
    """Makes the reason of a gang that a budget holds, from the units that are used or kept."""
    return partial(_reason, workload, charge)


def _reason(workload: Workload, charge: Charge, held: int) -> Reason:
    balance, budget = charge.balance, charge.balance.budget
    left = max(0, balance.granted - held)
    missing = charge.need - (balance.granted - held)
    month = balance.month
    details: dict[str, Any] = {
        "budget": budget.name,
        "month": month.name,
        "grantedGpuHours": gpu_hours(balance.granted),
        "spentGpuHours": gpu_hours(balance.spent),
        "leftGpuHours": gpu_hours(left),
        "costGpuHours": gpu_hours(charge.cost),
        "missingGpuHours": gpu_hours(missing),
        "until": month.ends,
    }
    where = f"{gpu_hours(left):g} of {gpu_hours(balance.granted):g} GPU-hours are left in Budget {budget.name}"
    until = f"or wait until {format_time(month.ends)}"
    if not budget.whole_run:
        text = f"{where} in {month.name}, after what running gangs still use; top up the Budget, {until}"
        return Reason(Code.BUDGET_SPENT, text, details)
    text = (
        f"{gpu_hours(charge.cost):g} GPU-hours are needed for the whole run, and {where} in {month.name}, after what "
        f"running gangs still use; top up the Budget by {gpu_hours(missing):g} GPU-hours{_shorter(workload, left)}, {until}"
    )
    return Reason(Code.BUDGET_SPENT, text, details)


def _shorter(workload: Workload, left: int) -> str:
    """The limit with which the rest pays for the run."""
    seconds = left // max(1, round(workload.gpus * UNITS))
    return f", set a limit of at most {seconds} s" if seconds else ""
