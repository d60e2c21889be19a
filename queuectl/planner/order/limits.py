"""The limits other than quota, as a plan goes: ResourceQuotas of namespaces, what one user may hold in a ClusterQueue, budgets, and claims.

A gang over a limit waits for that limit alone. It evicts no other gang: those of other namespaces and users would not help,
and its own free nothing before they have left. It holds no place that others could take. In a StrictFIFO ClusterQueue the
gangs that share its limit stay behind it, unless it is larger than the limit can ever be, or never fits.

A ResourceClaim that pods share serves one gang at a time. A gang that waits for it evicts no other gang either, but keeps its
place in a StrictFIFO ClusterQueue before all gangs behind it, as one that waits for nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import floor
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from queuectl.domain.accounting import UNITS
from queuectl.domain.budgets import (
    BudgetBalance,
    WhenSpent,
    gpu_hours,
    gpu_hours_text,
    least_top_up,
)
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.spending import Spending, start_cost
from queuectl.domain.words import format_time, is_or_are
from queuectl.domain.workload import Workload
from queuectl.planner.order.queue_order import StrictFifoHeads, behind
from queuectl.planner.problem.request import as_placed
from queuectl.planner.problem.usage import charges_of


class LimitRow(NamedTuple):
    """Names an amount that is limited, equal for all gangs that count against it.

    Attributes:
        code: of the reason of a gang that is over the limit.
        names: whose amount it is, and of which resource.
    """

    code: Code
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountedLimit:
    """One limit that a gang counts against. Amounts are in units of ``resource``.

    Attributes:
        most: what it allows.
        held: the use of others, and of the gangs that this plan starts.
        need: what must be left for the gang.
        adds: what the gang adds once it starts.
        state: states why a gang that is over it does not start: the sentence and the details of the reason.
    """

    row: LimitRow
    resource: str
    most: int
    held: int
    need: int
    adds: int
    state: Callable[[CountedLimit], tuple[str, dict[str, Any]]]

    @property
    def missing(self) -> int:
        """The amount by which too little is left for the gang; 0 or less = enough is left."""
        return self.held + self.need - self.most

    def exceeded(self) -> bool:
        """Whether there is too little left for the gang."""
        return self.missing > 0

    def quantity(self, amount: int) -> str:
        """An amount of the resource in words."""
        return format_quantity(self.resource, amount)

    def reason(self) -> Reason:
        """Why the gang does not start."""
        return Reason(self.row.code, *self.state(self))


SharedLimits: TypeAlias = tuple[str, Iterable[CountedLimit]]
"""The namespace, user or budget whose gangs share some limits, and these limits as one gang counts against them."""


class AmountLimit(Protocol):
    """All limits of one kind in a snapshot. They never change: :class:`GangLimits` adds what a plan takes, and what leases hold.

    Attributes:
        code: of the reasons of gangs that are over such a limit. It is in ``AT_A_LIMIT`` of :mod:`queuectl.domain.reasons`.
        waits: what the first gang over them waits for, in the sentence of those behind it.
    """

    code: ClassVar[Code]
    waits: ClassVar[str]

    def __init__(self, snapshot: Snapshot) -> None: ...

    def shared(self, workload: Workload) -> Iterator[SharedLimits]:
        """The limits that a gang counts against, without what leases hold."""

    def leased(self, pending: Pending, /) -> Mapping[LimitRow, int]:
        """The amounts of them that a gang with a lease holds."""


class ResourceQuotas:
    """The ResourceQuotas of namespaces. They count pods, so a lease holds nothing of them."""

    code: ClassVar = Code.RESOURCE_QUOTA_EXCEEDED
    waits: ClassVar = "exceeds a ResourceQuota of its namespace"

    def __init__(self, snapshot: Snapshot) -> None:
        self._allowances = snapshot.allowances

    def shared(self, workload: Workload) -> Iterator[SharedLimits]:
        if workload.namespace in self._allowances:
            yield workload.namespace, self._lines(workload)

    def leased(self, _: Pending, /) -> Mapping[LimitRow, int]:
        return {}

    def _lines(self, workload: Workload) -> Iterator[CountedLimit]:
        """Every line of a ResourceQuota that the pods of a gang count against."""
        for allowance in self._allowances[workload.namespace]:
            counted = [p for p in workload.podsets if allowance.covers(p)]
            promised = allowance.promised or (0,) * len(allowance.limits)
            for limit, coming in zip(allowance.limits, promised, strict=True):
                need = sum(p.count * limit.per_pod(p) for p in counted)
                if need:
                    row = LimitRow(self.code, (workload.namespace, allowance.name, limit.key))
                    state = partial(_quota_exceeded, workload.namespace, allowance, limit)
                    held = limit.used + coming
                    yield CountedLimit(row, limit.resource, limit.hard, held, need, need, state)


class UserCaps:
    """The use of users, by ClusterQueue (``policy.maxPerUser``). Gangs that are leaving count until their pods have ended."""

    code: ClassVar = Code.MAX_PER_USER
    waits: ClassVar = "exceeds maxPerUser of its ClusterQueue"

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._held: Counter[LimitRow] = Counter()
        if any(queue.max_per_user for queue in snapshot.config.cluster_queues.values()):
            for gang in snapshot.admitted:
                self._held.update(self._rows(gang))

    def shared(self, workload: Workload) -> Iterator[SharedLimits]:
        queue = self._capped(workload)
        if queue is not None and workload.user is not None:
            yield workload.user, self._caps(workload, queue)

    def leased(self, pending: Pending, /) -> Mapping[LimitRow, int]:
        return (
            self._rows(Admitted(pending.workload, pending.lease.placement)) if pending.lease else {}
        )

    def holders(self, workload: Workload) -> list[tuple[Admitted, dict[str, int]]]:
        """The gangs with which its user holds part of its ClusterQueue, and what each is charged, by resource."""
        queue = self._capped(workload)
        return [
            (gang, self._charged(gang))
            for gang in self._snapshot.admitted
            if queue is not None
            and gang.workload.user == workload.user
            and self._capped(gang.workload) is queue
        ]

    def _caps(self, workload: Workload, queue: ClusterQueue) -> Iterator[CountedLimit]:
        """The limit of one user for each resource that a gang asks for."""
        needs = self._asked(workload, queue)
        state = partial(_cap_exceeded, workload, queue)
        for resource, most in queue.max_per_user:
            if need := needs.get(resource, 0):
                row = self._row(queue, workload, resource)
                yield CountedLimit(row, resource, most, self._held[row], need, need, state)

    def _row(self, queue: ClusterQueue, workload: Workload, resource: str) -> LimitRow:
        return LimitRow(self.code, (queue.name, workload.user or "", resource))

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

    def _rows(self, gang: Admitted) -> dict[LimitRow, int]:
        """The amounts that a gang on its placement holds for its user."""
        queue = self._capped(gang.workload)
        if queue is None:
            return {}
        charged = self._charged(gang)
        return {
            self._row(queue, gang.workload, resource): charged.get(resource, 0)
            for resource, _ in queue.max_per_user
        }


class Budgets:
    """The amounts that gangs can still spend of budgets with ``whenSpent: Hold``, in units of the usage ledger.

    A budget counts the use in the ledger, what running gangs use until their ends, and what gangs use that a plan starts. Thus two
    gangs of one plan do not both start on the last GPU-hours.
    """

    code: ClassVar = Code.BUDGET_SPENT
    waits: ClassVar = "exceeds a Budget"

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._spending = Spending(snapshot)
        self._committed = {b.budget.name: self._spending.committed(b) for b in snapshot.budgets}
        self._past = {p.workload.uid: p.past_seconds for p in snapshot.pending if p.past_seconds}

    def shared(self, workload: Workload) -> Iterator[SharedLimits]:
        """Each budget that can hold a gang: the whole cost of its run in this month must be left, or any unit."""
        for balance in self._spending.of(workload):
            if balance.budget.when_spent is not WhenSpent.HOLD:
                continue
            if cost := start_cost(self._snapshot, balance, workload):
                name = balance.budget.name
                used = balance.used + self._committed[name]
                need = balance.budget.least_left(cost)
                past = self._past.get(workload.uid, 0.0)
                state = partial(_budget_spent, workload, balance, past)
                row = LimitRow(self.code, (name,))
                yield name, (CountedLimit(row, "", balance.granted, used, need, cost, state),)

    def leased(self, pending: Pending, /) -> Mapping[LimitRow, int]:
        if pending.lease is None:
            return {}
        held = as_placed(pending, pending.lease.placement).workload
        return {b.row: b.adds for _, bounds in self.shared(held) for b in bounds}


AMOUNT_LIMITS: Final[tuple[type[AmountLimit], ...]] = (ResourceQuotas, UserCaps, Budgets)
"""The limits other than quota, in the order in which they are stated: the only list of them in the planner."""


def share_claim(first: Workload, second: Workload) -> bool:
    """Whether two gangs use the same ResourceClaim."""
    if first.namespace != second.namespace or first.family == second.family:
        return False
    return not set(first.claims).isdisjoint(second.claims)


class SharedClaimUse:
    """The gangs that use the ResourceClaims which pods share: those that hold capacity, or have a lease.

    The pods of an elastic gang use a claim together.
    """

    def __init__(self, snapshot: Snapshot, leased: Iterable[Pending]) -> None:
        self._users: dict[tuple[str, str], dict[str, str]] = {}  # namespace/name by uid, by claim
        holding = [gang.workload for gang in snapshot.admitted]
        for workload in (*holding, *(pending.workload for pending in leased)):
            self.take(workload)

    def take(self, workload: Workload) -> None:
        """A gang starts, or waits on a lease."""
        for name in workload.claims:
            users = self._users.setdefault((workload.namespace, name), {})
            users.setdefault(workload.family, workload.ref)

    def other_users(self, workload: Workload) -> set[str]:
        """The uids of the other gangs that use its claims."""
        users = (self._users.get((workload.namespace, name), {}) for name in workload.claims)
        return {uid for each in users for uid in each} - {workload.family}

    def in_use(self, workload: Workload) -> Reason | None:
        """Why a gang waits for a ResourceClaim that another one uses; None if it does not."""
        for name in workload.claims:
            users = self._users.get((workload.namespace, name), {})
            others = sorted(ref for uid, ref in users.items() if uid != workload.family)
            if others:
                text = f"another gang uses ResourceClaim {name}: {others[0]}"
                details = {"resourceClaim": name, "usedBy": others[0]}
                return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)
        return None


class GangLimits:
    """All limits of a snapshot as a plan goes. Gangs that start, or wait on a lease, take their part."""

    def __init__(self, snapshot: Snapshot, holds: Callable[[str], bool] = lambda _: True) -> None:
        """``holds``: whether a lease is valid, by the uid of its gang."""
        valid = [p for p in snapshot.pending if p.lease is not None and holds(p.workload.uid)]
        self.claims = SharedClaimUse(snapshot, valid)
        self._kinds = [kind(snapshot) for kind in AMOUNT_LIMITS]
        self._leased: dict[str, Counter[LimitRow]] = {}  # of pending gangs, by uid
        self._taken: Counter[LimitRow] = Counter()  # by leases, and by this plan
        for pending in valid:
            leased = Counter[LimitRow]()
            for kind in self._kinds:
                leased.update(kind.leased(pending))
            self._leased[pending.workload.uid] = leased
            self._taken.update(leased)

    def refusal(
        self, workload: Workload, queue: ClusterQueue | None, heads: StrictFifoHeads
    ) -> Reason | None:
        """Why a limit keeps a gang from starting with those that this plan has started; None if no limit does."""
        for kind in self._kinds:
            for sharer, bounds in kind.shared(workload):
                limit = (kind.code, sharer)
                head = heads.ahead_at_limit(queue, limit)
                if head is not None:
                    return behind(head, kind.waits)
                over = next(self._exceeded(workload, bounds), None)
                if over is not None:
                    # A gang larger than the limit holds back no gang, and neither does a pod of an elastic one.
                    if over.need <= over.most and not workload.grows:
                        heads.wait_at_limit(queue, limit, workload.ref)
                    return over.reason()
        return None

    def short(self, workload: Workload) -> bool:
        """Whether a limit keeps a gang from starting."""
        return self.too_large(workload) or self.claims.in_use(workload) is not None

    def too_large(self, workload: Workload) -> bool:
        """Whether a gang is over a limit that one with fewer pods can meet."""
        return any(self.over(workload))

    def binds(self, workload: Workload) -> bool:
        """Whether a gang counts against a limit that one with fewer pods can meet."""
        return any(True for kind in self._kinds for _ in kind.shared(workload))

    def over(self, workload: Workload, code: Code | None = None) -> Iterator[CountedLimit]:
        """The limits that a gang is over, in the order of the table; with a code, only those of its kind."""
        for kind in self._kinds:
            if code in (None, kind.code):
                for _, bounds in kind.shared(workload):
                    yield from self._exceeded(workload, bounds)

    def take(self, workload: Workload) -> None:
        """A gang starts, or waits on a lease, which is not counted in addition to the gang itself."""
        self.claims.take(workload)
        self._taken.subtract(self._leased.pop(workload.uid, {}))
        for kind in self._kinds:
            for _, bounds in kind.shared(workload):
                for bound in bounds:
                    self._taken[bound.row] += bound.adds

    def give_up(self, uid: str) -> None:
        """The lease of a gang ends."""
        self._taken.subtract(self._leased.pop(uid, {}))

    def _exceeded(
        self, workload: Workload, bounds: Iterable[CountedLimit]
    ) -> Iterator[CountedLimit]:
        """Those that a gang is over, with what others take."""
        own = self._leased.get(workload.uid, Counter[LimitRow]())
        for bound in bounds:
            taken = self._taken[bound.row] - own[bound.row]
            limit = replace(bound, held=bound.held + taken) if taken else bound
            if limit.exceeded():
                yield limit


def _quota_exceeded(
    namespace: str, allowance: Allowance, limit: QuotaLimit, bound: CountedLimit
) -> tuple[str, dict[str, Any]]:
    coming, quantity = bound.held - limit.used, bound.quantity
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
    return text, details


def _cap_exceeded(
    workload: Workload, queue: ClusterQueue, bound: CountedLimit
) -> tuple[str, dict[str, Any]]:
    resource, most, held, need = bound.resource, bound.most, bound.held, bound.need
    quantity = bound.quantity
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
    return text, details


def _budget_spent(
    workload: Workload, balance: BudgetBalance, past: float, bound: CountedLimit
) -> tuple[str, dict[str, Any]]:
    budget, month = balance.budget, balance.month
    left, missing = max(0, bound.most - bound.held), least_top_up(bound.missing)
    details: dict[str, Any] = {
        "budget": budget.name,
        "month": month.name,
        "grantedGpuHours": gpu_hours(balance.granted),
        "spentGpuHours": gpu_hours(balance.spent),
        "leftGpuHours": gpu_hours(left),
        "costGpuHours": gpu_hours(bound.adds),
        "missingGpuHours": gpu_hours(missing),
        # The cost of a whole run in this month decreases towards the end.
        "until": month.ends - (_paid_seconds(workload, left) if budget.whole_run else 0),
    }
    where = f"{gpu_hours_text(left)} of {gpu_hours_text(balance.granted)} GPU-hours are left in Budget {budget.name}"
    until = f"or wait until {format_time(details['until'])}"
    if not budget.whole_run:
        text = f"{where} in {month.name}, after what running gangs still use; top up the Budget, {until}"
        return text, details
    text = (
        f"{gpu_hours_text(bound.adds)} GPU-hours are needed for the whole run, and {where} in {month.name}, after what "
        f"running gangs still use; top up the Budget by {gpu_hours_text(missing)} GPU-hours{_shorter(workload, left, past)}, {until}"
    )
    return text, details


def _paid_seconds(workload: Workload, left: int) -> int:
    """The whole seconds for which the rest pays for a gang."""
    return left // max(1, round(workload.gpus * UNITS))


def _shorter(workload: Workload, left: int, past: float) -> str:
    """The limit with which the rest pays for the run. It counts the seconds of earlier attempts too."""
    seconds = _paid_seconds(workload, left)
    return f", set a limit of at most {floor(past + seconds)} s" if seconds else ""
