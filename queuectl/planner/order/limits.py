"""The limits other than quota, as a plan goes: ResourceQuotas of namespaces, what one user may hold in a ClusterQueue, budgets, and claims.

A gang over a limit waits for that limit alone. It evicts no other gang: those of other namespaces and users would not help,
and its own free nothing before they have left. It holds no place that others could take. In a StrictFIFO ClusterQueue the
gangs that share its limit stay behind it, unless it is larger than the limit can ever be, or never fits.

A ResourceClaim that pods share serves one gang at a time. A gang that waits for it evicts no other gang either, but keeps its
place in a StrictFIFO ClusterQueue before all gangs behind it, as one that waits for nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from queuectl.domain.accounting import UNITS
from queuectl.domain.budgets import BudgetBalance, WhenSpent, gpu_hours
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.spending import Spending, start_cost
from queuectl.domain.words import format_time, is_or_are
from queuectl.domain.workload import Workload
from queuectl.planner.order.queue_order import StrictFifoHeads, behind
from queuectl.planner.problem.usage import charges_of

Row: TypeAlias = tuple[str, ...]
"""Names an amount that is limited: by what, for whom, of which resource."""


@dataclass(frozen=True, slots=True)
class CountedLimit:
    """One limit that a gang counts against. Amounts are in units of ``resource``.

    Attributes:
        row: equal for all gangs that count against it.
        most: what it allows.
        held: the use of others, and of the gangs that this plan starts.
        need: what must be left for the gang.
        adds: what the gang adds once it starts.
        make_reason: makes the reason of a gang that is over it.
    """

    row: Row
    resource: str
    most: int
    held: int
    need: int
    adds: int
    make_reason: Callable[[CountedLimit], Reason]

    @property
    def missing(self) -> int:
        """The amount by which too little is left for the gang; 0 or less = enough is left."""
        return self.held + self.need - self.most

    def exceeded(self) -> bool:
        """Whether there is too little left for the gang."""
        return self.missing > 0

    def reason(self) -> Reason:
        """Why the gang does not start."""
        return self.make_reason(self)


class _Shared(NamedTuple):
    """The limits of one kind that a gang counts against.

    Attributes:
        waits: what the first gang over them waits for, in the sentence of those behind it.
        sharer: the namespace, or the user, whose gangs all count against them.
    """

    waits: str
    sharer: str
    bounds: Iterator[CountedLimit]


class UserCaps:
    """The use of users, by ClusterQueue (``policy.maxPerUser``). Gangs that are leaving count until their pods have ended."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._held: Counter[Row] = Counter()
        self._leased: dict[str, dict[str, int]] = {}  # of pending gangs, by uid
        if not any(queue.max_per_user for queue in snapshot.config.cluster_queues.values()):
            return
        for gang in snapshot.admitted:
            self._add(gang.workload, self._charged(gang), 1)
        for pending in snapshot.pending:
            if pending.lease is not None:
                leased = self._charged(Admitted(pending.workload, pending.lease.placement))
                self._leased[pending.workload.uid] = leased
                self._add(pending.workload, leased, 1)

    def bounds(self, workload: Workload) -> Iterator[CountedLimit]:
        """The limit of one user for each resource that a gang asks for."""
        queue = self._capped(workload)
        if queue is None:
            return
        needs = self._asked(workload, queue)
        own = self._leased.get(workload.uid, {})
        make_reason = partial(_cap_exceeded, workload, queue)
        for resource, most in queue.max_per_user:
            if need := needs.get(resource, 0):
                row = _row(queue, workload, resource)
                held = self._held[row] - own.get(resource, 0)
                yield CountedLimit(row, resource, most, held, need, need, make_reason)

    def user(self, workload: Workload) -> str | None:
        """The user of a gang, if its ClusterQueue has a limit per user."""
        return workload.user if self._capped(workload) is not None else None

    def claim(self, workload: Workload) -> None:
        """The lease of a gang is not counted in addition to the gang itself."""
        self._add(workload, self._leased.pop(workload.uid, {}), -1)

    def of_user(self, workload: Workload) -> list[tuple[Admitted, dict[str, int]]]:
        """The gangs with which its user holds part of its ClusterQueue, and what each is charged, by resource."""
        queue = self._capped(workload)
        return [
            (gang, self._charged(gang))
            for gang in self._snapshot.admitted
            if queue is not None
            and gang.workload.user == workload.user
            and self._capped(gang.workload) is queue
        ]

    def _capped(self, workload: Workload) -> ClusterQueue | None:
        """The ClusterQueue that caps its user, if one does."""
        if workload.user is None:
            return None
        queue = self._snapshot.queue_of(workload)
        return queue if queue is not None and queue.max_per_user else None

    def _asked(self, workload: Workload, queue: ClusterQueue) -> dict[str, int]:
        """Its charges, by resource."""
        covered = {resource for group in queue.groups for resource in group.covered}
        amounts: dict[str, int] = {}
        for podset in workload.podsets:
            per_pod = self._snapshot.config.rules.charged(podset.shape.requests)
            for resource in covered:
                amounts[resource] = amounts.get(resource, 0) + per_pod[resource] * podset.count
        return amounts

    def _charged(self, gang: Admitted) -> dict[str, int]:
        """The charges of a gang on its placement, by resource."""
        amounts: dict[str, int] = {}
        for (_, _, resource), amount in charges_of(gang, self._snapshot):
            amounts[resource] = amounts.get(resource, 0) + amount
        return amounts

    def _add(self, workload: Workload, amounts: dict[str, int], sign: int) -> None:
        queue = self._capped(workload)
        if queue is not None:
            for resource, _ in queue.max_per_user:
                row = _row(queue, workload, resource)
                self._held[row] += sign * amounts.get(resource, 0)


def _row(queue: ClusterQueue, workload: Workload, resource: str) -> Row:
    return "maxPerUser", queue.name, workload.user or "", resource


class SharedClaimUse:
    """The gangs that use the ResourceClaims which pods share: those that hold capacity, or have a lease."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._users: dict[tuple[str, str], dict[str, str]] = {}  # namespace/name by uid, by claim
        for gang in snapshot.admitted:
            self.take(gang.workload)
        for pending in snapshot.pending:
            if pending.lease is not None:
                self.take(pending.workload)

    def take(self, workload: Workload) -> None:
        """A gang starts, or waits on a lease."""
        for name in workload.claims:
            self._users.setdefault((workload.namespace, name), {})[workload.uid] = workload.ref

    def in_use(self, workload: Workload) -> Reason | None:
        """Why a gang waits for a ResourceClaim that another one uses; None if it does not."""
        for name in workload.claims:
            users = self._users.get((workload.namespace, name), {})
            others = sorted(ref for uid, ref in users.items() if uid != workload.uid)
            if others:
                text = f"another gang uses ResourceClaim {name}: {others[0]}"
                details = {"resourceClaim": name, "usedBy": others[0]}
                return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)
        return None


@dataclass(slots=True)
class GangLimits:
    """Starts from a snapshot; gangs that start, or wait on a lease, take their part."""

    snapshot: Snapshot
    users: UserCaps = field(init=False)
    budgets: BudgetUse = field(init=False)
    claims: SharedClaimUse = field(init=False)
    _taken: Counter[Row] = field(default_factory=Counter)  # by this plan

    def __post_init__(self) -> None:
        self.users = UserCaps(self.snapshot)
        self.budgets = BudgetUse(self.snapshot)
        self.claims = SharedClaimUse(self.snapshot)

    def refusal(
        self, workload: Workload, queue: ClusterQueue | None, heads: StrictFifoHeads
    ) -> Reason | None:
        """Why a limit keeps a gang from starting with those that this plan has started; None if no limit does."""
        for waits, sharer, bounds in self._shared(workload):
            limit = (waits, sharer)
            head = heads.ahead_at_limit(queue, limit)
            if head is not None:
                return behind(head, waits)
            over = next(filter(CountedLimit.exceeded, bounds), None)
            if over is not None:
                if over.need <= over.most:  # a gang larger than the limit holds back no gang
                    heads.wait_at_limit(queue, limit, workload.ref)
                return over.reason()
        return None

    def short(self, workload: Workload) -> bool:
        """Whether a limit keeps a gang from starting."""
        return self.too_large(workload) or self.claims.in_use(workload) is not None

    def too_large(self, workload: Workload) -> bool:
        """Whether a gang is over a limit that one with fewer pods can meet."""
        over = (self.over_quotas(workload), self.over_caps(workload), self.over_budgets(workload))
        return any(chain.from_iterable(over))

    def over_quotas(self, workload: Workload) -> Iterator[CountedLimit]:
        """The lines of ResourceQuotas that a gang is over."""
        return filter(CountedLimit.exceeded, self._quotas(workload))

    def over_caps(self, workload: Workload) -> Iterator[CountedLimit]:
        """The resources of which its user would hold too much with a gang."""
        return filter(CountedLimit.exceeded, self._caps(workload))

    def over_budgets(self, workload: Workload) -> Iterator[CountedLimit]:
        """The budgets that cannot pay a gang."""
        return filter(CountedLimit.exceeded, self._budgets(workload))

    def stated_in_full(self, workload: Workload) -> bool:
        """Whether a limit holds a gang whose reason has all that there is to say about it."""
        return any(self.over_quotas(workload)) or self.claims.in_use(workload) is not None

    def take(self, workload: Workload) -> None:
        """A gang starts, or waits on a lease."""
        self.users.claim(workload)
        self.budgets.claim(workload)
        self.claims.take(workload)
        for _, _, bounds in self._shared(workload):
            for bound in bounds:
                self._taken[bound.row] += bound.adds

    def _shared(self, workload: Workload) -> Iterator[_Shared]:
        if workload.namespace in self.snapshot.allowances:
            waits = "exceeds a ResourceQuota of its namespace"
            yield _Shared(waits, workload.namespace, self._quotas(workload))
        if (user := self.users.user(workload)) is not None:
            yield _Shared("exceeds maxPerUser of its ClusterQueue", user, self._caps(workload))
        for bound in self._budgets(workload):
            yield _Shared("exceeds a Budget", bound.row[1], iter((bound,)))

    def _quotas(self, workload: Workload) -> Iterator[CountedLimit]:
        return self._beside(_of_namespace(self.snapshot, workload))

    def _caps(self, workload: Workload) -> Iterator[CountedLimit]:
        return self._beside(self.users.bounds(workload))

    def _budgets(self, workload: Workload) -> Iterator[CountedLimit]:
        return self._beside(self.budgets.bounds(workload))

    def _beside(self, bounds: Iterable[CountedLimit]) -> Iterator[CountedLimit]:
        """With what this plan has added."""
        for bound in bounds:
            taken = self._taken[bound.row]
            yield replace(bound, held=bound.held + taken) if taken else bound


def _of_namespace(snapshot: Snapshot, workload: Workload) -> Iterator[CountedLimit]:
    """Every line of a ResourceQuota that the pods of a gang count against."""
    for allowance in snapshot.allowances.get(workload.namespace, ()):
        counted = [p for p in workload.podsets if allowance.covers(p.shape)]
        promised = allowance.promised or (0,) * len(allowance.limits)
        for limit, coming in zip(allowance.limits, promised, strict=True):
            need = sum(p.count * limit.per_pod(p) for p in counted)
            if need:
                row = ("ResourceQuota", workload.namespace, allowance.name, limit.key)
                make_reason = partial(_quota_exceeded, workload.namespace, allowance, limit)
                held = limit.used + coming
                yield CountedLimit(row, limit.resource, limit.hard, held, need, need, make_reason)


def _quota_exceeded(
    namespace: str, allowance: Allowance, limit: QuotaLimit, bound: CountedLimit
) -> Reason:
    def quantity(amount: int) -> str:
        return format_quantity(limit.resource, amount)

    coming = bound.held - limit.used
    quota = f"ResourceQuota {allowance.name} of namespace {namespace}"
    text = (
        f"{quantity(bound.need)} {limit.key} {is_or_are(limit.resource, bound.need)} needed, "
        f"{quantity(bound.need - limit.hard)} more than {quota} can ever allow (hard limit {quantity(limit.hard)})"
    )
    if bound.need <= limit.hard:
        text = (
            f"{quantity(bound.missing)} more {limit.key} {is_or_are(limit.resource, bound.missing)} needed in {quota}: "
            f"{quantity(bound.need)} requested, "
            f"{quantity(limit.used)} of {quantity(limit.hard)} in use"
        )
        text += f", {quantity(coming)} reserved for gangs that start" if coming else ""
    details: dict[str, Any] = {
        "namespace": namespace,
        "resourceQuota": allowance.name,
        "resource": limit.key,
        "hard": limit.hard,
        "used": limit.used,
        "promised": coming,
        "needed": bound.need,
    }
    return Reason(Code.RESOURCE_QUOTA_EXCEEDED, text, details)


def _cap_exceeded(workload: Workload, queue: ClusterQueue, bound: CountedLimit) -> Reason:
    resource, most, held, need = bound.resource, bound.most, bound.held, bound.need

    def quantity(amount: int) -> str:
        return format_quantity(resource, amount)

    user = f"user {workload.user}"
    text = (
        f"{quantity(need)} {resource} {is_or_are(resource, need)} needed, "
        f"{quantity(need - most)} more than {user} may ever hold in ClusterQueue {queue.name} (maxPerUser {quantity(most)})"
    )
    if need <= most:
        text = (
            f"{quantity(bound.missing)} more {resource} {is_or_are(resource, bound.missing)} needed for {user} "
            f"in ClusterQueue {queue.name}: "
            f"{quantity(need)} requested, {quantity(held)} held, maxPerUser {quantity(most)}"
        )
    details: dict[str, Any] = {
        "clusterQueue": queue.name,
        "user": workload.user,
        "resource": resource,
        "most": most,
        "held": held,
        "needed": need,
    }
    return Reason(Code.MAX_PER_USER, text, details)


# ---- Budgets
#
# The amounts that gangs can still spend of their budgets, as a plan goes.
#
# A budget with ``whenSpent: Hold`` counts the use in the ledger, what running gangs use until their ends, and what gangs use that
# this plan starts. Thus two gangs of one plan do not both start on the last GPU-hours.


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
                leased = {bound.row[1]: bound.adds for bound in self.bounds(pending.workload)}
                self._leased[pending.workload.uid] = leased
        for leased in self._leased.values():
            self._held.update(leased)

    def bounds(self, workload: Workload) -> Iterator[CountedLimit]:
        """Each budget that can hold a gang, without the part that its own lease keeps, in units of the usage ledger.

        The whole cost of its run in this month must be left, or any unit.
        """
        own = self._leased.get(workload.uid, {})
        for balance in self._spending.of(workload) if self.snapshot.budgets else ():
            if balance.budget.when_spent is not WhenSpent.HOLD:
                continue
            if cost := start_cost(self.snapshot, balance, workload):
                name = balance.budget.name
                used = balance.used + self._held[name] - own.get(name, 0)
                need = cost if balance.budget.whole_run else 1
                make_reason = partial(_budget_spent, workload, balance)
                yield CountedLimit(
                    ("Budget", name), "", balance.granted, used, need, cost, make_reason
                )

    def claim(self, workload: Workload) -> None:
        """The lease of a gang is not counted in addition to the gang itself."""
        self._held.subtract(self._leased.pop(workload.uid, {}))


def _budget_spent(workload: Workload, balance: BudgetBalance, bound: CountedLimit) -> Reason:
    budget, month = balance.budget, balance.month
    left = max(0, bound.most - bound.held)
    details: dict[str, Any] = {
        "budget": budget.name,
        "month": month.name,
        "grantedGpuHours": gpu_hours(balance.granted),
        "spentGpuHours": gpu_hours(balance.spent),
        "leftGpuHours": gpu_hours(left),
        "costGpuHours": gpu_hours(bound.adds),
        "missingGpuHours": gpu_hours(bound.missing),
        "until": month.ends,
    }
    where = f"{gpu_hours(left):g} of {gpu_hours(balance.granted):g} GPU-hours are left in Budget {budget.name}"
    until = f"or wait until {format_time(month.ends)}"
    if not budget.whole_run:
        text = f"{where} in {month.name}, after what running gangs still use; top up the Budget, {until}"
        return Reason(Code.BUDGET_SPENT, text, details)
    text = (
        f"{gpu_hours(bound.adds):g} GPU-hours are needed for the whole run, and {where} in {month.name}, after what "
        f"running gangs still use; top up the Budget by {gpu_hours(bound.missing):g} GPU-hours{_shorter(workload, left)}, {until}"
    )
    return Reason(Code.BUDGET_SPENT, text, details)


def _shorter(workload: Workload, left: int) -> str:
    """The limit with which the rest pays for the run."""
    seconds = left // max(1, round(workload.gpus * UNITS))
    return f", set a limit of at most {seconds} s" if seconds else ""
