"""Past use of users and queues: the leader's copy, exact between two samples, and the samples to store.

An account is updated only when its use changes, when it is stored, and when it is read. Thus the cost of a commit depends on its
changes only. After a restart, database and ledger give the same numbers: a running gang counts since the last sample of its
accounts, or since its start if that is later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from queuectl.devices.shared import ClaimKey
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used, past_use
from queuectl.domain.queues import QueueConfig
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import PastUse
from queuectl.domain.workload import Placement
from queuectl.state.holdings import charged
from queuectl.state.mirror import Mirror
from queuectl.state.pod_claims import ClaimUsers

_HOLD = (State.STARTING, State.RUNNING, State.EVICTING)
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
        """Continue under this configuration with these workloads. Use before ``now`` counts under the old one."""
        if self._rule is not None:
            for account in list(self._used):
                self._advance(account, now, self._rule)
        self._config = config
        self._held.clear()
        self._holdings.clear()
        self._users = ClaimUsers()
        rule = self._rule
        if rule is None:
            return
        known = {account: used.at for account, used in self._used.items()}
        held = sorted((e for e in entries if _holds(e)), key=_since)
        for entry in held:
            self._users.put(entry, self._mirror.jobs.get(entry.uid), holds=True)
        for entry in held:
            holding = self._holding(entry)
            if holding is None:
                continue
            self._holdings[entry.uid] = holding
            for account in holding.accounts:
                if _since(entry) > known.get(account, -inf):
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
        queue = config.cluster_queue_of(entry.namespace, entry.queue)
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
    return entry.state in _HOLD and entry.placement is not None


def _since(entry: Entry) -> float:
    return entry.since if entry.started_at is None else entry.started_at
