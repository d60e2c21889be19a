"""The part of a snapshot that belongs to one cohort: a plan of it passes whatever is wrong with the gangs of other cohorts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from queuectl.domain.fleet import Fleet
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, Workload


def cohorts_with_pending(snapshot: Snapshot) -> list[str]:
    """The cohorts, each by the name of its root, and the ClusterQueues without a cohort that have pending gangs, in order."""
    waiting = (_root_of(snapshot, p.workload) for p in snapshot.pending if p.blocked is None)
    return sorted({root for root in waiting if root is not None})


def one_cohort(snapshot: Snapshot, root: str) -> Snapshot:
    """A snapshot with the gangs of one cohort.

    The nodes that gangs of other cohorts hold, or that are leased to them, offer nothing. No Budget pays for a gang, because a
    Budget can belong to several cohorts. Thus a plan of this snapshot takes nothing from others.

    Args:
        snapshot: with all gangs.
        root: as :func:`cohorts_with_pending` names it.
    """
    pending = tuple(p for p in snapshot.pending if _root_of(snapshot, p.workload) == root)
    admitted = tuple(a for a in snapshot.admitted if _root_of(snapshot, a.workload) == root)
    ours = {p.workload.uid for p in pending} | {a.workload.uid for a in admitted}
    gangs: list[Pending | Admitted] = [*snapshot.pending, *snapshot.admitted]
    held = {
        node
        for gang in gangs
        if gang.workload.uid not in ours
        for placement in _placements(gang)
        for node in placement.use(gang.workload)
    }
    nodes = tuple(
        replace(node, ready=False) if node.name in held else node for node in snapshot.fleet.nodes
    )
    return replace(
        snapshot,
        pending=pending,
        admitted=admitted,
        fleet=Fleet(nodes),
        budgets=tuple(replace(balance, granted=0) for balance in snapshot.budgets),
    )


def _root_of(snapshot: Snapshot, workload: Workload) -> str | None:
    """None for a gang without a ClusterQueue."""
    queue = snapshot.queue_of(workload)
    if queue is None:
        return None
    root = snapshot.config.root_cohort(queue)
    return f"cohort {root}" if root is not None else f"queue {queue.name}"


def _placements(gang: Pending | Admitted) -> Iterator[Placement]:
    if isinstance(gang, Admitted):
        yield gang.placement
    if gang.lease is not None:
        yield gang.lease.placement
