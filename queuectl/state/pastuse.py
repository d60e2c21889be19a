"""Past use of users and queues, and the use of budgets: the leader's copies.

An account of past use is updated only when its use changes, when it is stored, and when it is read. Thus the cost of a commit depends on
its changes only. After a restart, database and ledger give the same numbers: a running gang counts since the last sample of its
accounts, or since its start if that is later.

The sums of budgets are read once for each budget and month. From then on each folding of the ledger adds its hours, so the copy is equal
to the ledger at each time, and no sum over a month is computed in a cycle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from queuectl.devices.shared import ClaimKey
from queuectl.domain.budgets import (
    Budget,
    BudgetBalance,
    BudgetsByHolder,
    Spender,
    SpentUnits,
    TopUp,
)
from queuectl.domain.estimates import DAY
from queuectl.domain.folding import Fold
from queuectl.domain.gpus import Gpus
from queuectl.domain.ledger import HOLDING, Entry, EntryChange, MigrationCost
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used, past_use
from queuectl.domain.queues import QueueConfig
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import PastUse, Pending, Snapshot
from queuectl.domain.spending import Spending, lowered_priorities, with_priority
from queuectl.domain.workload import Placement
from queuectl.state.holdings import charged
from queuectl.state.marking import holds
from queuectl.state.mirror import Mirror
from queuectl.state.pod_claims import ClaimUsers

# ---- Past use

_FORGET_AFTER = 30  # half-lives: a factor of 1e-9 remains


@dataclass(frozen=True, slots=True)
class _Holding:
    """The charge of one gang, and the accounts. ``elsewhere``: claims that count for other gangs."""

    queue: str
    placement: Placement
    elsewhere: frozenset[ClaimKey]
    accounts: tuple[PastUseAccount, ...]
    amounts: Mapping[str, int]


class PastUseSums:
    """Past use of all accounts. It is empty unless the configuration uses fair sharing by past use."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._used: dict[PastUseAccount, Used] = {}
        self._held: dict[PastUseAccount, dict[str, int]] = {}
        self._holdings: dict[str, _Holding] = {}
        self._users = ClaimUsers()
        self._unwritten: set[PastUseAccount] = set()
        self._config = QueueConfig()
        self._sampled_at = 0.0

    @property
    def _rule(self) -> UsageFairness | None:
        return self._config.rules.usage_fairness

    def configure(self, config: QueueConfig, entries: Iterable[Entry], now: float) -> None:
        """Continue under this configuration with these workloads. Use before ``now`` counts under the old one.

        Under the same rule, an account without current use stays as it is: its time shows when nothing is left of it.
        """
        before = self._rule
        if before is not None:
            same = before == config.rules.usage_fairness
            for account in list(self._held if same else self._used):
                self._advance(account, now, before)
        self._config = config
        self._held.clear()
        self._holdings.clear()
        self._users = ClaimUsers()
        rule = self._rule
        if rule is None:
            return
        counted_until = {a: used.at if before is None else now for a, used in self._used.items()}
        held = sorted((e for e in entries if _holds(e)), key=_since)
        for entry in held:
            self._users.put(entry, self._mirror.jobs.get(entry.uid), holds=True)
        for entry in held:
            holding = self._holding(entry)
            if holding is None:
                continue
            self._holdings[entry.uid] = holding
            for account in holding.accounts:
                if before is not None and account in counted_until:
                    self._advance(account, now, before)
                if _since(entry) > counted_until.get(account, -inf):
                    self._enter(account, holding.amounts, _since(entry), rule)
                self._hold(account, holding.amounts, 1)

    def learn(self, stored: Iterable[Used]) -> None:
        """Load accounts from the database that are not in this copy yet."""
        self._used = {used.account: used for used in stored} | self._used

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes."""
        rule = self._rule
        if rule is None:
            return
        for change in changes:
            entry = change.after
            job = self._mirror.jobs.get(entry.uid)
            others = self._users.put(entry, job, holds=_holds(entry))
            for one in (entry, *(self._users.entry(uid) for uid in sorted(others))):
                self._note(one, change.at, rule)

    def past_use(self, now: float) -> PastUse:
        """Past use for the planner, at ``now`` (unix seconds)."""
        rule = self._rule
        if rule is None:
            return PastUse()
        held = self._held
        current = (used.later(now, held.get(a, {}), rule) for a, used in self._used.items())
        return past_use(current, self._config)

    def due(self, now: float) -> bool:
        """Whether a sample is due."""
        rule = self._rule
        return rule is not None and not 0 <= now - self._sampled_at < rule.sampling

    def current(self, now: float) -> tuple[Used, ...]:
        """The samples to store, at ``now``, in the order of accounts."""
        rule = self._rule
        self._sampled_at = now
        if rule is None:
            return ()
        for account in self._held:
            self._advance(account, now, rule)
        return tuple(self._used[account] for account in sorted(self._unwritten))

    def written(self, rows: Iterable[Used]) -> None:
        """Record that a sample is in the database."""
        self._unwritten -= {row.account for row in rows if self._used.get(row.account) is row}

    def forget(self, now: float) -> float:
        """Drop accounts whose use has decayed to nothing."""
        rule = self._rule
        before = now - _FORGET_AFTER * rule.half_life if rule is not None else 0.0
        for account in [a for a, used in self._used.items() if used.at < before]:
            if account not in self._held:
                del self._used[account]
                self._unwritten.discard(account)
        return before

    def _note(self, entry: Entry, at: float, rule: UsageFairness) -> None:
        before = self._holdings.get(entry.uid)
        if before is None and not _holds(entry):
            return
        if before is not None and self._same(before, entry):
            return
        after = self._holding(entry) if _holds(entry) else None
        self._replace(entry.uid, before, after, at, rule)

    def _same(self, holding: _Holding, entry: Entry) -> bool:
        return (
            _holds(entry)
            and holding.placement is entry.placement
            and holding.queue == entry.queue
            and holding.elsewhere == self._users.not_charged(entry.uid)
        )

    def _holding(self, entry: Entry) -> _Holding | None:
        job, config = self._mirror.jobs.get(entry.uid), self._config
        queue = config.cluster_queues.get(entry.cluster_queue)
        if job is None or queue is None or entry.placement is None:
            return None
        amounts: dict[str, int] = {}
        elsewhere = self._users.not_charged(entry.uid)
        rows = charged(entry, job, entry.placement, config, self._mirror, elsewhere)
        for (_, _, resource), amount in rows:
            amounts[resource] = amounts.get(resource, 0) + amount
        accounts = [
            PastUseAccount.of_local_queue(entry.namespace, entry.queue),
            PastUseAccount(AccountScope.CLUSTER_QUEUE, queue.name),
        ]
        user = job.user(config.rules.user_label, config.rules.trusted_submitters)
        if user is not None:
            accounts.append(PastUseAccount(AccountScope.USER, user))
        return _Holding(entry.queue, entry.placement, elsewhere, tuple(accounts), amounts)

    def _replace(
        self,
        uid: str,
        before: _Holding | None,
        after: _Holding | None,
        at: float,
        rule: UsageFairness,
    ) -> None:
        if before is not None:
            del self._holdings[uid]
            for account in before.accounts:
                self._advance(account, at, rule)
                self._hold(account, before.amounts, -1)
        if after is not None:
            self._holdings[uid] = after
            for account in after.accounts:
                if before is None:
                    self._enter(account, after.amounts, at, rule)
                else:
                    self._advance(account, at, rule)
                self._hold(account, after.amounts, 1)

    def _enter(
        self, account: PastUseAccount, amounts: Mapping[str, int], at: float, rule: UsageFairness
    ) -> None:
        self._advance(account, at, rule)
        self._used[account] = self._used[account].entered(amounts, rule)

    def _advance(self, account: PastUseAccount, at: float, rule: UsageFairness) -> None:
        used = self._used.get(account) or Used(account, at)
        self._used[account] = used.later(at, self._held.get(account, {}), rule)
        self._unwritten.add(account)

    def _hold(self, account: PastUseAccount, amounts: Mapping[str, int], sign: int) -> None:
        held = self._held.setdefault(account, {})
        for name, amount in amounts.items():
            held[name] = held.get(name, 0) + sign * amount
        if not any(held.values()):
            del self._held[account]


def _holds(entry: Entry) -> bool:
    return entry.state in HOLDING and entry.placement is not None


def _since(entry: Entry) -> float:
    return entry.since if entry.started_at is None else entry.started_at


# ---- Sums of the usage ledger


@dataclass(frozen=True, slots=True)
class _Ended:
    """The use of a gang from its start, or from the time that the ledger has counted, to its end."""

    spender: Spender
    gpus: Gpus
    begins: float
    ends: float


class BudgetSums:
    """The amounts that budgets have spent, as one process knows them.

    Attributes:
        counted: unix seconds before which everything is in the sums of the ledger; 0 = not known.
    """

    def __init__(self) -> None:
        self._budgets: Mapping[str, Budget] = {}
        self._by_holder = BudgetsByHolder(())
        self._spent: dict[tuple[str, int], int] = {}  # by budget and begin of the month
        self.counted = 0.0
        self._ended: list[_Ended] = []
        self._lowered: dict[str, tuple[Pending, Pending]] = {}

    def knows(self, config: QueueConfig) -> bool:
        """Whether the sums of all budgets of a configuration are known."""
        return config.budgets == self._budgets

    def learn(self, budgets: Mapping[str, Budget], spent: SpentUnits) -> None:
        """Replace all sums by those of the ledger."""
        self._budgets, self._spent = dict(budgets), dict(spent.units)
        self._by_holder = BudgetsByHolder(budgets.values())
        self._advance(spent.until or 0.0)

    def add(self, fold: Fold, until: float) -> None:
        """Add the hours of a folding that is written. ``until``: everything before is counted then."""
        added: Counter[tuple[int, Spender]] = Counter()
        for hour, spender, units in fold.spent():
            added[hour, spender] += units
        for (hour, spender), units in added.items():
            for budget in self._by_holder.of(spender):
                key = (budget.name, budget.month(hour).begins)
                self._spent[key] = self._spent.get(key, 0) + units
        self._advance(until)

    def note(self, changes: Iterable[EntryChange]) -> None:
        """Apply committed changes: gangs that end. A Budget that is created before the next folding pays for them too."""
        for change in changes:
            before = change.before
            if before is None or not holds(before.state) or holds(change.after.state):
                continue
            if change.at > self.counted:
                began = before.started_at if before.started_at is not None else before.since
                begins = max(began, self.counted)
                self._ended.append(_Ended(_spender(before), before.gpus, begins, change.at))

    def settle(self) -> None:
        """Count all gangs that have ended as spent. Only for a process that writes no usage ledger."""
        for one in self._ended:
            for budget in self._by_holder.of(one.spender):
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
        """The budgets in the current month, by name."""
        top_ups: defaultdict[str, list[TopUp]] = defaultdict(list)
        for top_up in config.top_ups.values():
            top_ups[top_up.budget].append(top_up)
        ended: defaultdict[str, list[_Ended]] = defaultdict(list)
        for one in self._ended:
            for budget in self._by_holder.of(one.spender):
                ended[budget.name].append(one)
        return tuple(
            self._balance(budget, top_ups[name], ended[name], now)
            for name, budget in sorted(config.budgets.items())
        )

    def applied(self, snapshot: Snapshot, never_fit: Iterable[str] = ()) -> Snapshot:
        """The snapshot with the budgets, and with lower priorities where they are spent; the same objects as last time.

        ``never_fit``: uids of the pending gangs that never fit, as the last plan has found.
        """
        if not snapshot.config.budgets:
            self._lowered = {}
            return snapshot
        snapshot = replace(snapshot, budgets=self.balances(snapshot.config, snapshot.now))
        lowered = lowered_priorities(Spending(snapshot), frozenset(never_fit))
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

    def _balance(
        self, budget: Budget, top_ups: Iterable[TopUp], ended: Iterable[_Ended], now: float
    ) -> BudgetBalance:
        month = budget.month(now)
        balance = BudgetBalance(
            budget,
            month,
            budget.granted(month, top_ups),
            self._spent.get((budget.name, month.begins), 0),
            counted=max(self.counted, month.begins),
        )
        return replace(
            balance, ended=sum(balance.cost(one.gpus, one.begins, one.ends) for one in ended)
        )

    def _advance(self, until: float) -> None:
        self.counted = until
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
