"""Budgets and the gangs of a snapshot: what is committed, which priorities are lowered, and when a budget will be spent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from queuectl.domain.accounting import MILLISECONDS
from queuectl.domain.budgets import (
    BudgetBalance,
    BudgetsByHolder,
    Month,
    Spender,
    TopUp,
    WhenSpent,
)
from queuectl.domain.gpus import in_parts
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload


def running_cost(snapshot: Snapshot, balance: BudgetBalance, gang: Admitted) -> int:
    """Units that a running gang uses until its end; one that is leaving, until now; one that is held, in its whole run from now."""
    if gang.held:
        return balance.start_cost(gang.gpus, _seconds(gang.workload), snapshot.now)
    if gang.leaving:
        return balance.cost(gang.gpus, max(gang.started_at, balance.counted), snapshot.now)
    return balance.running_cost(gang.gpus, gang.started_at, gang.ends_at, snapshot.now)


def start_cost(snapshot: Snapshot, balance: BudgetBalance, workload: Workload) -> int:
    """Units that a pending gang uses in this month if it starts now."""
    return balance.start_cost(workload.gpus, _seconds(workload), snapshot.now)


def _seconds(workload: Workload) -> float | None:
    return workload.duration.seconds if workload.duration is not None else None


class Spending:
    """Which budgets of a snapshot its gangs spend."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._balances = {balance.budget.name: balance for balance in snapshot.budgets}
        self._budgets = BudgetsByHolder(balance.budget for balance in snapshot.budgets)
        self._running: dict[str, list[Admitted]] = {}
        for gang in snapshot.admitted if snapshot.budgets else ():
            for balance in self.of(gang.workload):
                self._running.setdefault(balance.budget.name, []).append(gang)

    def of(self, workload: Workload) -> list[BudgetBalance]:
        """The budgets that a gang spends."""
        if not self._balances:
            return []
        queue = self.snapshot.queue_of(workload)
        spender = Spender(
            queue.name if queue is not None else "",
            workload.namespace,
            workload.queue or "",
            workload.user or "",
        )
        return [self._balances[budget.name] for budget in self._budgets.of(spender)]

    def running(self, balance: BudgetBalance) -> Sequence[Admitted]:
        """The gangs that hold capacity and spend a budget."""
        return self._running.get(balance.budget.name, ())

    def pending(self, balance: BudgetBalance) -> Sequence[Pending]:
        """The pending gangs that spend a budget."""
        return self._pending.get(balance.budget.name, ())

    @cached_property
    def _pending(self) -> Mapping[str, Sequence[Pending]]:
        found: dict[str, list[Pending]] = {}
        for pending in self.snapshot.pending:
            for balance in self.of(pending.workload):
                found.setdefault(balance.budget.name, []).append(pending)
        return found

    def committed(self, balance: BudgetBalance) -> int:
        """Units that the running gangs of a budget use until their ends."""
        return sum(running_cost(self.snapshot, balance, gang) for gang in self.running(balance))


def with_new_month(snapshot: Snapshot, balance: BudgetBalance) -> BudgetBalance:
    """The budget as if its next month began at the time of the snapshot, with all that gangs leave of that month."""
    budget, now = balance.budget, int(snapshot.now)
    month = budget.month(balance.month.ends)
    begins = float(month.begins)
    still = (g for g in snapshot.admitted if g.ends_at is None or g.ends_at > begins)
    then = Spending(replace(snapshot, now=begins, admitted=tuple(still)))
    left = budget.granted(month, snapshot.config.top_ups.values()) - then.committed(
        BudgetBalance(budget, month, 0, counted=begins)
    )
    shifted = Month(month.name, now, now + month.ends - month.begins)
    begun = BudgetBalance(budget, shifted, 0, counted=snapshot.now)
    return replace(begun, granted=left + Spending(snapshot).committed(begun))


def lowered_priorities(
    spending: Spending, never_fit: Collection[str] = frozenset()
) -> dict[str, int]:
    """The priorities of pending gangs, by uid, that spent budgets lower.

    The rest of a budget is for its pending gangs in queue order: gangs that start in one plan do not exceed it together. Pods that wait
    to be added to elastic gangs come after all gangs, because they delay none.

    Args:
        spending: of the snapshot.
        never_fit: uids of the gangs that never fit. They use nothing of the rest.
    """
    priorities: dict[str, int] = {}
    snapshot = spending.snapshot
    for balance in snapshot.budgets:
        budget = balance.budget
        if budget.when_spent is not WhenSpent.LOWER_PRIORITY:
            continue
        left = balance.granted - balance.used - spending.committed(balance)
        for pending in sorted(spending.pending(balance), key=_turn):
            workload = pending.workload
            known = priorities.get(workload.uid, workload.priority)
            if left <= 0 and budget.priority_when_spent < known:
                priorities[workload.uid] = budget.priority_when_spent
            if pending.blocked is None and workload.uid not in never_fit:
                left -= start_cost(snapshot, balance, workload)
    return priorities


def _turn(pending: Pending) -> tuple[bool, int, float, str]:
    """The order in which pending gangs get the rest of a budget."""
    own = pending.workload
    return own.grows, -own.priority, own.queued_at, own.uid


def with_priority(pending: Pending, priority: int | None) -> Pending:
    """A pending gang with another priority; None = its own."""
    if priority is None:
        return pending
    own = pending.workload
    return replace(pending, workload=replace(own, priority=priority), own_priority=own.priority)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A budget as it is now, and as it will be if no other gang starts. Amounts in units of the usage ledger.

    Attributes:
        used: of the month until now.
        committed: of running gangs from now to their ends; one without a known end counts for an hour.
        rate: GPUs that run now.
        spent_at: unix seconds at which nothing is left; None = not in this month.
        waiting: what pending gangs with an enforced limit would use in this month.
    """

    balance: BudgetBalance
    used: int
    committed: int
    rate: Fraction
    spent_at: float | None
    waiting: int

    @property
    def left(self) -> int:
        """The amount that other gangs can still spend; negative if running gangs use more than is granted."""
        return self.balance.granted - self.used - self.committed


def forecast(spending: Spending, balance: BudgetBalance) -> Forecast:
    """The forecast of one budget. Running gangs without a known end run on."""
    snapshot, running = spending.snapshot, spending.running(balance)
    now = snapshot.now
    since = [(gang, max(gang.started_at, balance.counted)) for gang in running]
    used = balance.used + sum(balance.cost(gang.gpus, begin, now) for gang, begin in since)
    committed = balance.used + spending.committed(balance) - used
    stays = [gang for gang in running if not gang.leaving]
    waiting = sum(
        start_cost(snapshot, balance, pending.workload)
        for pending in spending.pending(balance)
        if pending.workload.duration is not None and pending.workload.duration.enforced
    )
    rate = sum((gang.gpus for gang in stays), Fraction())
    left = balance.granted - used
    return Forecast(
        balance, used, max(0, committed), rate, _runs_out(balance, stays, left, now), waiting
    )


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """All budgets at a time (unix seconds), with the top-ups of all months.

    ``lacks``: by budget and uid of a pending gang that spends it, whether the budget keeps it from its start, or lowers its priority.
    """

    at: float
    forecasts: tuple[Forecast, ...] = ()
    top_ups: tuple[TopUp, ...] = ()
    lacks: Mapping[tuple[str, str], bool] = field(default_factory=dict)


def report(snapshot: Snapshot) -> BudgetReport:
    """The budgets of a snapshot, by name."""
    spending = Spending(snapshot)
    forecasts = tuple(forecast(spending, balance) for balance in snapshot.budgets)
    lacks = {
        (each.balance.budget.name, pending.workload.uid): _lacks(snapshot, each, pending.workload)
        for each in forecasts
        for pending in spending.pending(each.balance)
    }
    return BudgetReport(snapshot.now, forecasts, tuple(snapshot.config.top_ups.values()), lacks)


def _lacks(snapshot: Snapshot, spent: Forecast, workload: Workload) -> bool:
    budget = spent.balance.budget
    if budget.when_spent is WhenSpent.LOWER_PRIORITY:
        return workload.priority == budget.priority_when_spent
    least = budget.least_left(start_cost(snapshot, spent.balance, workload))
    return least > 0 and spent.left < least


def _runs_out(
    balance: BudgetBalance, running: list[Admitted], left: int, now: float
) -> float | None:
    """The time at which running gangs have used what is left; None = not in this month."""
    if left <= 0:
        return now
    ends = {
        gang.workload.uid: gang.ends_at if gang.ends_at is not None and gang.ends_at > now else None
        for gang in running
    }
    times = sorted({min(end, balance.month.ends) for end in ends.values() if end is not None})
    at = now
    for until in [*times, float(balance.month.ends)]:
        going = (g for g in running if (end := ends[g.workload.uid]) is None or end > at)
        each = sum(in_parts(gang.gpus) for gang in going) * MILLISECONDS  # units in a second
        if each and left <= each * (until - at):
            return at + left / each
        left -= round(each * (until - at))
        at = until
    return None
