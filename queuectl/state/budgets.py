"""The use of budgets: the leader's copy of sums of the usage ledger, and the cost of gangs that moved.

The sums are read once for each budget and month. From then on each folding of the ledger adds its hours, so the copy is equal to the
ledger at each time, and no sum over a month is computed in a cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from queuectl.domain.budgets import Budget, BudgetBalance, Spender, SpentUnits, TopUp
from queuectl.domain.durations import DAY
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import Gpus
from queuectl.domain.ledger import Entry, EntryChange, MigrationCost
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.spending import Spending, lowered_priorities, with_priority
from queuectl.state.marking import holds

# ---- Sums of the usage ledger


@dataclass(frozen=True, slots=True)
class _Ended:
    """The use of a gang from its start, or from the time that the ledger has counted, to its end."""

    spender: Spender
    gpus: Gpus
    begins: float
    ends: float


class BudgetSums:
    """Of one process."""

    def __init__(self) -> None:
        self._budgets: Mapping[str, Budget] = {}
        self._spent: dict[tuple[str, int], int] = {}  # by budget and begin of the month
        self._counted = 0.0
        self._ended: list[_Ended] = []
        self._lowered: dict[str, tuple[Pending, Pending]] = {}

    def knows(self, config: QueueConfig) -> bool:
        """Whether the sums of all budgets of a configuration are known."""
        return config.budgets == self._budgets

    def learn(self, budgets: Mapping[str, Budget], spent: SpentUnits) -> None:
        """Replace all sums by those of the ledger."""
        self._budgets, self._spent = dict(budgets), dict(spent.units)
        self._advance(spent.until or 0.0)

    def add(self, fold: Fold, until: float) -> None:
        """Add the hours of a folding that is written. ``until``: everything before is counted then."""
        for hour, spender, units in fold.spent():
            for budget in self._budgets.values():
                if budget.pays(spender):
                    key = (budget.name, budget.month(hour).begins)
                    self._spent[key] = self._spent.get(key, 0) + units
        self._advance(until)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes: gangs that end."""
        for change in changes if self._budgets else ():
            before = change.before
            if before is None or not holds(before.state) or holds(change.after.state):
                continue
            if change.at > self._counted:
                began = before.started_at if before.started_at is not None else before.since
                begins = max(began, self._counted)
                self._ended.append(_Ended(_spender(before), before.gpus, begins, change.at))

    def settle(self) -> None:
        """Count all gangs that have ended as spent. Only for a process that writes no usage ledger."""
        for one in self._ended:
            for budget in self._budgets.values():
                if budget.pays(one.spender):
                    self._spend(budget, one)
        self._ended = []

    def _spend(self, budget: Budget, attempt: _Ended) -> None:
        at = attempt.begins
        while at < attempt.ends:
            month = budget.month(at)
            key = (budget.name, month.begins)
            cost = BudgetBalance(budget, month, 0).cost(attempt.gpus, at, attempt.ends)
            self._spent[key] = self._spent.get(key, 0) + cost
            at = month.ends

    def balances(self, config: QueueConfig, now: float) -> tuple[BudgetBalance, ...]:
        """The budgets in the present month, by name."""
        top_ups = list(config.top_ups.values())
        budgets = sorted(config.budgets.items())
        return tuple(self._balance(budget, top_ups, now) for _, budget in budgets)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the budgets, and with lower priorities where they are spent; the same objects as last time."""
        if not snapshot.config.budgets:
            self._lowered = {}
            return snapshot
        snapshot = replace(snapshot, budgets=self.balances(snapshot.config, snapshot.now))
        spending = Spending(snapshot)
        lowered = lowered_priorities(spending)
        if not lowered:
            return snapshot
        before, self._lowered = self._lowered, {}
        pending = []
        for gang in snapshot.pending:
            known = before.get(gang.workload.uid)
            made = with_priority(gang, lowered.get(gang.workload.uid))
            if known is not None and known[0] is gang and known[1] == made:
                made = known[1]
            self._lowered[gang.workload.uid] = (gang, made)
            pending.append(made)
        return replace(snapshot, pending=tuple(pending))

    def _balance(self, budget: Budget, top_ups: Collection[TopUp], now: float) -> BudgetBalance:
        month = budget.month(now)
        balance = BudgetBalance(
            budget,
            month,
            budget.granted(month, top_ups),
            self._spent.get((budget.name, month.begins), 0),
            counted=max(self._counted, month.begins),
        )
        own = (one for one in self._ended if budget.pays(one.spender))
        return replace(
            balance, ended=sum(balance.cost(one.gpus, one.begins, one.ends) for one in own)
        )

    def _advance(self, until: float) -> None:
        self._counted = until
        self._ended = [
            replace(one, begins=max(one.begins, until)) for one in self._ended if one.ends > until
        ]


def _spender(entry: Entry) -> Spender:
    return Spender(entry.cluster_queue, entry.namespace, entry.queue, entry.user)


# ---- The cost of moved gangs
#
# The source is the history in the database. This is the leader's copy: it is read when the leader starts, and updated by its commits.


class MigrationBudget:
    """The moves of the last day."""

    def __init__(self, costs: Iterable[MigrationCost] = ()) -> None:
        self._known = list(costs)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Add the moves of committed changes."""
        for change in changes:
            if change.note is not None:
                spent = MigrationCost.from_reason(change.at, change.note.reason)
                if spent is not None:
                    self._known.append(spent)

    def by_queue(self, now: float) -> dict[str, int]:
        """ClusterQueue to GPU-seconds of lost work within the day before ``now`` (unix seconds)."""
        self._known = [spent for spent in self._known if spent.at > now - DAY]
        totals: dict[str, int] = {}
        for spent in self._known:
            name = spent.cluster_queue
            totals[name] = totals.get(name, 0) + spent.lost_work
        return totals
