"""Running gangs that exceed the quota of a configuration, for an administrator who wants to lower a quota."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from queuectl.domain.diagnosis import Excess
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.planner.problem.usage import charges_of
from queuectl.planner.quota import FlavorResource, QuotaNode, QuotaUse, build_pools


@dataclass(frozen=True, slots=True)
class _Charge:
    gang: Admitted
    queue: str
    row: FlavorResource
    amount: int


def over_quota(snapshot: Snapshot, config: QueueConfig) -> tuple[Excess, ...]:
    """Each quota that running gangs exceed under another configuration, by name, flavor and resource.

    Gangs that are leaving do not count.
    """
    charges = list(_charges(replace(snapshot, config=config)))
    use = QuotaUse(build_pools(config))
    for charge in charges:
        use.add((charge.queue, *charge.row), charge.amount)
    exceeded = [
        Excess(
            kind="ClusterQueue" if use.pools.get(pool.name) is pool else "Cohort",
            name=pool.name,
            flavor=row[0],
            resource=row[1],
            used=used,
            allowed=allowed,
            gangs=tuple(_youngest(pool, row, allowed, use, charges)),
        )
        for pool, rows in use.used.items()
        for row, used in rows.items()
        if (allowed := _allowed(pool, row)) is not None and used > allowed
    ]
    return tuple(sorted(exceeded, key=lambda e: (e.kind, e.name, e.flavor, e.resource)))


def _charges(snapshot: Snapshot) -> Iterator[_Charge]:
    for gang in snapshot.admitted:
        sums: dict[tuple[str, str, str], int] = {}
        for row, amount in () if gang.leaving else charges_of(gang, snapshot):
            sums[row] = sums.get(row, 0) + amount
        for (queue, flavor, resource), amount in sums.items():
            if amount:
                yield _Charge(gang, queue, (flavor, resource), amount)


def _allowed(pool: QuotaNode, row: FlavorResource) -> int | None:
    """The most that it can use by its own quota and limit; None if only its parents have a limit."""
    quota = pool.subtree.get(row, 0)
    if pool.parent is None:
        return quota
    limit = pool.borrowing.get(row)
    return None if limit is None else quota + limit


def _youngest(
    pool: QuotaNode, row: FlavorResource, allowed: int, use: QuotaUse, charges: list[_Charge]
) -> Iterator[str]:
    """The newest gangs whose end removes the excess. Gangs of queues within their own quota do not count."""
    left = QuotaUse(use.pools, {p: {row: rows.get(row, 0)} for p, rows in use.used.items()})
    inside = [c for c in charges if c.row == row and _below(use.pools[c.queue], pool)]
    inside.sort(key=lambda c: (-c.gang.started_at, c.gang.workload.uid))
    for charge in inside:
        if left.used[pool].get(row, 0) <= allowed:
            return
        own = left.pools[charge.queue]
        if left.used[own].get(row, 0) > own.subtree.get(row, 0):
            yield charge.gang.workload.ref
            left.add((charge.queue, *row), -charge.amount)


def _below(queue: QuotaNode, pool: QuotaNode) -> bool:
    node: QuotaNode | None = queue
    while node is not None and node is not pool:
        node = node.parent
    return node is pool
