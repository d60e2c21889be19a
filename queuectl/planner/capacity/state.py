"""Capacity and quota as the walk goes: what is free now, what will be, who was kept, what is leased.

Two views of every amount, of nodes and of quota (invariants I2, I4):

- *now*: less everything that holds capacity, leaving gangs included. What starts must fit here.
- *later*: once everything leaving has left, less the leases. A lease must fit here.

A gang that is not a lease's holder may use the smaller of the two, resource by resource, and of *now* only what is *open*:
leases are owed the rest (:mod:`queuectl.planner.capacity.credit`). What quota leaves it, through its cohorts,
:mod:`queuectl.planner.quota.tree` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from queuectl.domain.snapshot import Admitted
from queuectl.planner.capacity.node_counts import (
    LeaseCredit,
    NodeCounts,
    TentativeAdmission,
    add_at,
    give_back,
    use_of_counts,
)
from queuectl.planner.problem.problem import Problem, caps
from queuectl.planner.problem.request import GangRequest, Shape
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import FlavorResource, QuotaRow, QuotaUse, use_of


@dataclass(eq=False)
class State:
    """Starts from an arena; changed only by the walk.

    While ``now`` and ``later`` are the same they are one matrix (:attr:`one`), and nothing of this size is made that nobody asks for.
    """

    problem: Problem
    now: Ints
    later: Ints
    quota_now: QuotaUse
    quota_after: QuotaUse
    kept: list[TentativeAdmission] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)  # uids evicted or repaired by this plan
    released: list[str] = field(default_factory=list)  # ClusterQueues whose quota came free
    leaving: dict[str, Admitted] = field(
        init=False
    )  # by uid; those told to leave by this plan, too
    credits: dict[str, LeaseCredit] = field(default_factory=dict)  # by uid of the lease's holder
    owed: Ints | None = None  # (R, N) that they add up to; None = nothing is owed
    quota_open: QuotaUse = field(init=False)  # the view of now, and what promises are owed of quota
    _moved: Ints | None = None  # use of the kept gangs that may be placed anew, once asked for
    _free: Ints | None = None
    _caps: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    _log: list[Ints] = field(default_factory=list)
    _nominal: dict[str, dict[FlavorResource, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leaving = {gang.workload.uid: gang for gang in self.problem.usage.leaving}
        self.quota_open = self.quota_now

    # What is free.

    def free(self) -> Ints:
        """(R, N) free for a gang that holds no lease."""
        if self._free is None:
            if self.one and self.owed is None:
                return self.now
            self._free = np.minimum(self.open_now(slice(None)), self.later)
        return self._free

    @property
    def one(self) -> bool:
        """Whether what is free now and what will be is one matrix."""
        return self.later is self.now

    def open_now(self, nodes: Ints | slice) -> Ints:
        """(R, K) free now on these nodes and owed to nobody."""
        now: Ints = self.now[:, nodes]
        return now if self.owed is None else now - self.owed[:, nodes]

    def later_free(self) -> Ints:
        """(R, N) free once everything leaving has left; leases and kept gangs taken off."""
        return self.later

    def free_without_kept(self) -> Ints:
        """(R, N) free if the kept gangs that may be placed anew stood nowhere."""
        if self._moved is None:
            self._moved = np.zeros_like(self.now)
            for kept in self.kept:
                if not kept.fixed:
                    give_back(self._moved, kept.request.pods, kept.node_counts)
        return self.free() + self._moved

    def caps(self, shape: Shape) -> Ints:
        """Pods of a shape that fit each node of :meth:`free`; only nodes changed since the last call are counted."""
        free = self.free()
        version = len(self._log)
        known = self._caps.get(shape.key)
        if known is None:
            fits = caps(free, shape)
        else:
            seen, fits = known
            if seen < version:
                changed = np.unique(np.concatenate(self._log[seen:]))
                fits[changed] = caps(free, shape, changed)
        self._caps[shape.key] = (version, fits)
        return fits

    def nominal(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the nominal quota of a ClusterQueue."""
        if queue not in self._nominal:
            self._nominal[queue] = {
                (quotas.flavor, resource): quotas.nominal.get(resource, 0)
                for group in self.problem.snapshot.config.cluster_queues[queue].groups
                for quotas in group.flavors
                for resource in group.covered
            }
        return self._nominal[queue]

    def may_borrow(self, request: GangRequest) -> bool:
        """Whether the gang may use more than its ClusterQueue's nominal quota in this plan."""
        return request.pending.may_borrow(self.problem.snapshot.now)

    def quota_left(self, queue: str, *, borrows: bool = True) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to the quota left for a gang that holds no lease, and may borrow or not."""
        return {
            row: min(use.left(queue, row, borrows=borrows) for use in self.quota_views)
            for row in self.nominal(queue)
        }

    @property
    def quota_views(self) -> tuple[QuotaUse, QuotaUse]:
        """The views in which a gang that holds no lease must find its quota."""
        return self.quota_open, self.quota_after

    def quota_most(self, queue: str) -> Mapping[FlavorResource, int]:
        """(flavor, resource) to what a ClusterQueue could use if nobody used anything."""
        pool = self.quota_after.pools[queue]
        return {row: pool.most(row) for row in self.nominal(queue)}

    def quota_allows(self, request: GangRequest, used: QuotaUse) -> bool:
        """Whether a demand's charges fit its quota, borrowed quota if it may borrow, beside ``used`` (one of the two views)."""
        borrows = self.may_borrow(request)
        return request.queue is None or used.fits(request.queue, request.charges, borrows=borrows)

    def quota_fits(self, request: GangRequest) -> bool:
        """Whether a demand without a lease fits its quota, in both views."""
        return all(self.quota_allows(request, use) for use in self.quota_views)

    def quota_short(self, request: GangRequest) -> dict[FlavorResource, int]:
        """Of what a request without a lease has too little quota in one of the views, and how much is left of it."""
        left: dict[FlavorResource, int] = {}
        if request.queue is None:
            return left
        borrows = self.may_borrow(request)
        for use in self.quota_views:
            for row, amount in use.short(request.queue, request.charges, borrows=borrows):
                left[row] = min(amount, left.get(row, amount))
        return {row: left[row] for row in request.charges if row in left}

    def evictable(self) -> Iterator[Admitted]:
        """Gangs neither leaving, nor evicted or repaired by this plan; whether policy allows it is not judged."""
        for gang in self.problem.snapshot.admitted:
            if not gang.leaving and gang.workload.uid not in self.gone:
                yield gang

    # What changes.

    def keep(self, kept: TentativeAdmission) -> None:
        """Start a gang: it uses capacity and quota in both views."""
        self.kept.append(kept)
        self._apply(kept, -1)
        self.charge(kept.request, 1)

    def drop(self, kept: TentativeAdmission) -> None:
        """The opposite: it does not start after all."""
        self.kept.remove(kept)
        self._apply(kept, 1)
        self.charge(kept.request, -1)

    def charge(self, request: GangRequest, sign: int, *, now: bool = True) -> None:
        """Add (or take off) a demand's quota, in the later view and, unless it is a lease, in the one of now."""
        if sign < 0 and request.queue is not None:
            self.released.append(request.queue)
        for row, amount in request.rows():
            self.quota_after.add(row, sign * amount)
            if now:
                self.charge_now(row, sign * amount)

    def charge_now(self, row: QuotaRow, amount: int) -> None:
        """Add to what is used of quota now."""
        self.quota_now.add(row, amount)
        if self.quota_open is not self.quota_now:
            self.quota_open.add(row, amount)

    def reserve(self, request: GangRequest) -> list[tuple[QuotaRow, int]]:
        """Keep a ClusterQueue's own unused quota from borrowers for a gang that waits for it; what is kept."""
        if request.queue is None:
            return []
        kept: list[tuple[QuotaRow, int]] = []
        nominal, use = self.nominal(request.queue), self.quota_after
        for row, need in request.charges.items():
            unused = nominal.get(row, 0) - use.of(request.queue, row)
            amount = min(need, unused, use.left(request.queue, row))
            kept.append(((request.queue, *row), max(0, amount)))
            use.add(*kept[-1])
        return kept

    def move(self, kept: TentativeAdmission, node_counts: NodeCounts) -> None:
        """Place a kept gang anew; its quota stays as it is."""
        self.lift(kept)
        self.put(kept, node_counts)

    def lift(self, kept: TentativeAdmission) -> None:
        """A kept gang stands nowhere until it is put somewhere; till then only what is free may be asked."""
        self._apply(kept, 1)

    def put(self, kept: TentativeAdmission, node_counts: NodeCounts) -> None:
        """Where a gang that was lifted stands now."""
        kept.node_counts = node_counts
        self._apply(kept, -1)

    def hold(self, request: GangRequest, node_counts: NodeCounts, sign: int = 1) -> None:
        """Hold (or, with ``sign`` -1, give back) capacity and quota for later: leases are :mod:`queuectl.planner.capacity.credit`'s."""
        for nodes, amounts in use_of_counts(request.pods, node_counts):
            self._change_later(nodes, -sign * amounts)
        self.charge(request, sign, now=False)

    def evict(self, gang: Admitted) -> None:
        """Count a gang as leaving from here on."""
        self.gone.add(gang.workload.uid)
        self.leaving[gang.workload.uid] = gang
        nodes, amounts = self.problem.use_of(gang)
        self._change_later(nodes, amounts)
        charges = self.problem.usage.charges(gang)
        for row, amount in charges:
            self.quota_after.add(row, -amount)
        self.released.extend({row[0] for row, _ in charges})

    def spare(self, gang: Admitted) -> None:
        """The opposite: a gang that was to be evicted stays."""
        self.gone.discard(gang.workload.uid)
        del self.leaving[gang.workload.uid]
        nodes, amounts = self.problem.use_of(gang)
        self._change_later(nodes, -amounts)
        for row, amount in self.problem.usage.charges(gang):
            self.quota_after.add(row, amount)

    def credit(self, credit: LeaseCredit) -> None:
        """Keep what a lease is owed of what is free now from everybody else."""
        self.credits[credit.request.pending.workload.uid] = credit
        if self.owed is None:
            self.owed = np.zeros_like(self.now)
        if self.quota_open is self.quota_now:
            self.quota_open = self.quota_now.copy()
        self.quota_open.owe(self.quota_now, *self._charges(credit))
        self.owed[:, credit.nodes] += credit.amounts
        self._touch(credit.nodes)

    def drop_credit(self, uid: str) -> None:
        """The opposite, for the holder of a lease; nothing where nothing is owed."""
        credit = self.credits.pop(uid, None)
        if credit is None or self.owed is None:
            return
        self.owed[:, credit.nodes] -= credit.amounts
        self.quota_open = self.quota_open_to(uid)
        self._touch(credit.nodes)

    def quota_open_to(self, uid: str) -> QuotaUse:
        """What is used of quota now and owed to others than this holder of a lease."""
        others = [credit for name, credit in self.credits.items() if name != uid]
        use = self.quota_now.copy() if others else self.quota_now
        for credit in others:
            use.owe(self.quota_now, *self._charges(credit))
        return use

    def _charges(
        self, credit: LeaseCredit
    ) -> tuple[list[tuple[QuotaRow, int]], list[tuple[QuotaRow, int]]]:
        """What it will be charged, and what its victims still are."""
        still = [charge for gang in credit.victims for charge in self.problem.usage.charges(gang)]
        return list(credit.request.rows()), still

    def _apply(self, kept: TentativeAdmission, sign: int) -> None:
        matrices = (self.now,) if self.one else (self.now, self.later)
        for nodes, amounts in use_of_counts(kept.request.pods, kept.node_counts):
            for matrix in matrices:
                matrix[:, nodes] += sign * amounts
            if self._moved is not None and not kept.fixed:
                self._moved[:, nodes] -= sign * amounts
            self._touch(nodes)

    def _change_later(self, nodes: Ints, amounts: Ints) -> None:
        if self.one:
            self.later = self.now.copy()
        add_at(self.later, nodes, amounts)
        self._touch(nodes)

    def _touch(self, nodes: Ints) -> None:
        """What is free there has changed."""
        self._log.append(nodes)
        if self._free is not None:
            self._free[:, nodes] = np.minimum(self.open_now(nodes), self.later[:, nodes])


def open_state(problem: Problem) -> State:
    """The ledger at the start of a walk."""
    usage, pools = problem.usage, problem.pools
    now = problem.now.copy()
    return State(
        problem,
        now,
        now if problem.later is problem.now else problem.later.copy(),
        use_of(pools, usage.quota_held),
        use_of(pools, usage.quota_staying),
    )
