"""No node over its allocatable, in both views of time, and no start on capacity that is kept for a lease.

- *now*: allocatable less all admitted (leaving ones included) less other pods. Everything that starts must fit here.
- *after*: the same less only those that stay. Everything that starts and every lease must fit here together.

Only the nodes and resources the plan adds to are checked: an excess from outside is not the plan's doing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from queuectl.domain.snapshot import Admitted
from queuectl.planner.verify.cohorts import CohortMember, Row, add_rows
from queuectl.planner.verify.order import place
from queuectl.planner.verify.plan_index import PlacedGang, PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.running_use import Use, add_use


def check_capacity(index: PlanIndex) -> Iterator[PlanViolation]:
    """Node by node over what the plan touches."""
    now, after = asked_of(index)
    touched = now.keys() | after.keys()
    used_now, used_after = held_of(index, touched)
    yield from _compare(index, now, used_now, "now")
    added = _added(index)
    beyond = {
        name: {resource: amount for resource, amount in row.items() if added[name].get(resource)}
        for name, row in after.items()
        if name in added
    }
    yield from _compare(index, beyond, used_after, "after the victims left")


def _added(index: PlanIndex) -> Use:
    """The amounts that the plan adds to each node, now and after: of repaired gangs, what the node gains."""
    added: Use = {}
    for claim in index.claims:
        if claim.running is None:
            add_use(added, claim.workload, claim.placement)
        else:
            add_gained(added, claim)
    return added


def asked_of(index: PlanIndex) -> tuple[Use, Use]:
    """The amounts that the plan adds to each node now, and that its claims hold of it after."""
    now: Use = {}
    after: Use = {}
    for claim in index.claims:
        add_use(after, claim.workload, claim.placement)
        if claim.now and claim.running is None:
            add_use(now, claim.workload, claim.placement)
        elif claim.now:
            add_gained(now, claim)
    return now, after


def add_gained(use: Use, claim: PlacedGang) -> None:
    """Of a repaired gang, only what a node gains: what stays is already counted as admitted."""
    assert claim.running is not None
    before: Use = {}
    behind: Use = {}
    add_use(before, claim.workload, claim.running.placement)
    add_use(behind, claim.workload, claim.placement)
    for name, row in behind.items():
        for resource, amount in row.items():
            gained = amount - before.get(name, {}).get(resource, 0)
            if gained > 0:
                into = use.setdefault(name, {})
                into[resource] = into.get(resource, 0) + gained


def held_of(index: PlanIndex, touched: set[str]) -> tuple[Use, Use]:
    """Use of the touched nodes by admitted gangs and other pods, now and after."""
    now: Use = {name: dict(index.snapshot.other_pods.get(name, {})) for name in touched}
    for name, row in now.items():
        for resource, amount in index.running_use.nodes.get(name, {}).items():
            row[resource] = row.get(resource, 0) + amount
    after: Use = {name: dict(row) for name, row in now.items()}
    gone = {c.workload.uid for c in index.claims if c.running is not None} | index.gone_after
    for uid in gone & index.running.keys():
        gang = index.running[uid]
        add_use(after, gang.workload, gang.placement, touched, -1)
    return now, after


def _compare(
    index: PlanIndex, added: Use, used: Mapping[str, Mapping[str, int]], when: str
) -> Iterator[PlanViolation]:
    for name in sorted(added):
        node = index.nodes.get(name)
        if node is None:
            continue  # reported as not eligible
        for resource, amount in sorted(added[name].items()):
            free = node.allocatable[resource] - used[name].get(resource, 0)
            if amount > free:
                text = f"{resource}: asks {amount}, free {free} {when}"
                yield PlanViolation(PlanRule.CAPACITY, name, text)


# ---- Capacity that is kept for leases
#
# Once the victims of a lease have left it can be claimed, whatever else still leaves.
#
# The leases of the snapshot are checked in queue order. Each must find room alongside all that is held now without its victims,
# and alongside the kept part of those before it: of every node and every quota, the need of a lease beyond what its victims
# still hold there. If it does, it must still find it alongside all that the plan starts. If not, a cause outside the plan
# blocks it, and nothing is kept for it. Leases that the plan gives come last, and nothing is kept alongside them.


Pool: TypeAlias = tuple[CohortMember, str, str]  # of one flavor and resource
Amounts: TypeAlias = list[tuple[Row, int]]


@dataclass(frozen=True)
class _Lease:
    """``victims``: its own victims that still hold something; ``new``: given by this plan; ``stays``: it is valid after the plan."""

    claim: PlacedGang
    victims: list[Admitted]
    new: bool
    stays: bool


def check_kept(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each valid lease, if the plan starts any gang."""
    if not any(claim.now for claim in index.claims):
        return
    leases = [*_existing(index), *_given(index)]
    if not any(lease.stays for lease in leases):
        return
    held = _HeldCapacity(index, leases)
    for lease in leases:
        if lease.new:
            held.forget_kept()
        if not held.has_room(lease):
            continue
        if lease.stays and (short := held.short_of(lease)) is not None:
            yield PlanViolation(
                PlanRule.LEASE,
                lease.claim.workload.uid,
                f"capacity that is kept for it is taken: {short}",
            )
        held.keep(lease)


def _existing(index: PlanIndex) -> Iterator[_Lease]:
    now, running = index.snapshot.now, index.running
    waiting = [
        (p.workload, p.lease, p.excluded) for p in index.snapshot.pending if p.lease is not None
    ]
    moving = [(a.workload, a.lease, a.excluded) for a in index.snapshot.admitted if a.leaving]
    for workload, lease, excluded in sorted([*waiting, *moving], key=lambda w: place(w[0])):
        if lease is None or lease.expires_at <= now:
            continue
        uid = workload.uid
        named = dict.fromkeys((*lease.victims, uid))
        victims = [running[v] for v in named if v in running and running[v].leaving]
        refusal = index.refused.get(uid)
        stays = uid in index.plan.returning or (refusal is not None and refusal.lease == lease)
        yield _Lease(PlacedGang(workload, lease.placement, False, excluded), victims, False, stays)


def _given(index: PlanIndex) -> Iterator[_Lease]:
    for claim in index.claims:
        uid = claim.workload.uid
        refusal = index.refused.get(uid)
        if claim.now or refusal is None or refusal.lease is None:
            continue
        waiting = index.pending.get(uid)
        if waiting is None or waiting.lease != refusal.lease:
            named = (v for v in dict.fromkeys(refusal.lease.victims) if v in index.running)
            victims = [index.running[v] for v in named if v in index.gone_after]
            yield _Lease(claim, victims, True, True)


@dataclass
class _HeldCapacity:
    """All capacity that is held now, and that is kept for leases."""

    index: PlanIndex
    leases: list[_Lease]
    nodes: Use = field(init=False)  # held on the nodes of the leases
    quota: Mapping[Row, int] = field(init=False)
    started: Use = field(init=False)
    charged: Amounts = field(init=False)  # to quota, for those who start
    kept: Use = field(default_factory=dict)
    pools: dict[Pool, int] = field(default_factory=dict)  # kept quota
    _used: dict[Pool, int] = field(default_factory=dict)  # of pools that were asked

    def __post_init__(self) -> None:
        index = self.index
        names = {n for lease in self.leases for _, p in lease.claim.parts() for n, _ in p.nodes}
        self.nodes, _ = held_of(index, names)
        self.started, _ = asked_of(index)
        self.quota = index.running_use.quota
        starts = [claim for claim in index.claims if claim.now and claim.running is None]
        self.charged = [c for s in starts for c in index.charges(s.workload, s.placement)]

    def forget_kept(self) -> None:
        self.kept.clear()
        self.pools.clear()

    def has_room(self, lease: _Lease) -> bool:
        """Whether its victims' leaving would let it start, if no other gang left."""
        return all(self._short(lease, self.kept, [], p) is None for p in (self.pools, {}))

    def short_of(self, lease: _Lease) -> str | None:
        """The amounts that it would lack alongside those that start."""
        return self._short(lease, self.started, self.charged, {})

    def keep(self, lease: _Lease) -> None:
        """Count what it needs beyond what its victims hold."""
        still = self._held(lease)
        for name, row in _needed(lease).items():
            kept = self.kept.setdefault(name, {})
            for resource, amount in row.items():
                more = amount - still.get(name, {}).get(resource, 0)
                kept[resource] = kept.get(resource, 0) + max(0, more)
        change = self._change(lease)
        beside, alone = self._shifts(change, self.pools), self._shifts(change, {})
        for pool, shift in beside.items():
            self.pools[pool] = self.pools.get(pool, 0) + max(0, shift, alone[pool])

    def _short(
        self, lease: _Lease, taken_by_starts: Use, rows: Amounts, pools: Mapping[Pool, int]
    ) -> str | None:
        still = self._held(lease)
        for name, row in sorted(_needed(lease).items()):
            node = self.index.nodes.get(name)
            if node is None:
                return f"no node {name}"
            for resource, amount in sorted(row.items()):
                free = node.allocatable[resource] + still.get(name, {}).get(resource, 0)
                free -= self.nodes[name].get(resource, 0) + taken_by_starts.get(name, {}).get(
                    resource, 0
                )
                if 0 < amount > free:
                    return f"{amount} {resource} on {name}, {free} are left"
        shifts = self._shifts([*rows, *self._change(lease)], pools)
        for (queue, flavor, resource), amount in self._charged(lease):
            for member in self.index.members[queue].up() if amount else ():
                pool, limit = (member, flavor, resource), member.limit(flavor, resource)
                use = self._use(pool, pools) + shifts[pool]
                if limit is not None and use > limit:
                    return f"{use} {resource} of {flavor} in {member.name}, {limit} allowed"
        return None

    def _held(self, lease: _Lease) -> Use:
        held: Use = {}
        for gang in lease.victims:
            add_use(held, gang.workload, gang.placement)
        return held

    def _charged(self, lease: _Lease) -> Amounts:
        claim = lease.claim
        if claim.running is not None:
            return []  # one that is repaired is charged already
        return list(self.index.charges(claim.workload, claim.placement))

    def _change(self, lease: _Lease) -> Amounts:
        """Of quota, when its victims have left and it starts."""
        back = [
            (row, -amount)
            for gang in lease.victims
            for row, amount in self.index.charges(gang.workload, gang.placement)
        ]
        return [*back, *self._charged(lease)]

    def _use(self, pool: Pool, more: Mapping[Pool, int]) -> int:
        if pool not in self._used:
            member, flavor, resource = pool
            self._used[pool] = member.uses(self.quota, flavor, resource)
        return self._used[pool] + more.get(pool, 0)

    def _shifts(self, rows: Iterable[tuple[Row, int]], more: Mapping[Pool, int]) -> dict[Pool, int]:
        """By how much the use of each pool changes with these rows: what a member does not lend is used first."""
        shifts: dict[Pool, int] = {}
        sums: dict[Row, int] = {}
        add_rows(sums, rows)
        for (queue, flavor, resource), amount in sums.items():
            change = amount
            for member in self.index.members[queue].up():
                pool = member, flavor, resource
                before = self._use(pool, more) + shifts.get(pool, 0)
                shifts[pool] = shifts.get(pool, 0) + change
                kept = member.quota(flavor, resource) - member.lends(flavor, resource)
                change = max(0, before + change - kept) - max(0, before - kept)
        return shifts


def _needed(lease: _Lease) -> Use:
    need: Use = {}
    if lease.claim.running is not None:
        add_gained(need, lease.claim)
    else:
        add_use(need, lease.claim.workload, lease.claim.placement)
    return need


CHECKS: Final = (
    check_capacity,
    check_kept,
)
"""The checks of this module that need only the plan."""
