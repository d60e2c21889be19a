"""What leases are owed of what is free now.

A lease names its victims: all whose leaving it waits for. Once they have left it can start, whoever else still leaves. So
what it needs beyond what they still hold is its own by now, on every node and in every pool of quota. If only what is free
in the end were kept for it, a start by others could take what its victims have left, and it would wait for the slowest of
all that leave.

A lease that its victims' leaving would not let start, because something outside changed, is owed nothing now: it waits
until everybody has left. Among leases the one before in line is owed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from queuectl.domain.snapshot import Admitted
from queuectl.planner.arena import Arena
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.queueing.quota import QuotaUse
from queuectl.planner.spots import Promise, Spots, add_at, fits, use_of_spots
from queuectl.planner.topology import Ints


def lease(ledger: Ledger, demand: Demand, spots: Spots, victims: Iterable[str]) -> None:
    """Hold capacity and quota for a gang: all of it for later, and now what it is owed.

    ``victims`` are the uids of those whose leaving it waits for; who of them is not leaving (any more) holds nothing.
    """
    ledger.hold(demand, spots)
    still = [ledger.leaving[uid] for uid in dict.fromkeys(victims) if uid in ledger.leaving]
    if _enough(ledger, demand, spots, still):
        ledger.promise(promise_of(ledger.arena, demand, spots, still))


def release(ledger: Ledger, demand: Demand, spots: Spots) -> None:
    """Give a lease back."""
    ledger.hold(demand, spots, -1)
    ledger.unpromise(demand.pending.workload.uid)


def promise_of(arena: Arena, demand: Demand, spots: Spots, victims: Sequence[Admitted]) -> Promise:
    """What a lease is owed while these victims still hold what they hold."""
    nodes, need, held = _on_nodes(arena, demand, spots, victims)
    return Promise(demand, spots, tuple(victims), nodes, np.maximum(need - held, 0))


def claimable(ledger: Ledger, demand: Demand, spots: Spots) -> bool:
    """Whether a lease's holder can start now, beside what is used and what other leases are owed."""
    uid = demand.pending.workload.uid
    if not (fits(ledger.now, demand.pods, spots) and ledger.quota_allows(demand, ledger.quota_now)):
        return False
    if not ledger.promises.keys() - {uid}:
        return True
    nodes, need, _ = _on_nodes(ledger.arena, demand, spots, ())
    own = ledger.promises.get(uid)
    free = ledger.open_now(nodes) + (own.amounts if own is not None else 0)
    return _covers(free, need) and ledger.quota_allows(demand, ledger.quota_open_to(uid))


def awaited(
    ledger: Ledger, demand: Demand, spots: Spots, evicted: Sequence[Admitted]
) -> tuple[str, ...]:
    """The victims of a new lease: those evicted for it, and those who are leaving already whose room it needs besides.

    No more of the latter than it takes, and first those whom no other lease waits for.
    """
    named = tuple(gang.workload.uid for gang in evicted)
    more: list[Admitted] = []
    for gang in _others(ledger, demand, spots, named):
        if _enough(ledger, demand, spots, [*evicted, *more]):
            break
        more.append(gang)
    for gang in more[-2::-1]:
        fewer = [other for other in more if other is not gang]
        if _enough(ledger, demand, spots, [*evicted, *fewer]):
            more = fewer
    return (*named, *(gang.workload.uid for gang in more))


def _others(
    ledger: Ledger, demand: Demand, spots: Spots, named: tuple[str, ...]
) -> Iterator[Admitted]:
    """Gangs on their way out that hold something of what a lease needs."""
    usage, nodes = ledger.arena.usage, _nodes(spots)
    rows = {row for row, amount in demand.charges.items() if amount and demand.queue is not None}
    taken = {g.workload.uid for promise in ledger.promises.values() for g in promise.victims}
    for uid in sorted(ledger.leaving.keys() - named, key=lambda uid: (uid in taken, uid)):
        gang = ledger.leaving[uid]
        charged = any(row[1:] in rows for row, _ in usage.charges(gang))
        if charged or np.isin(usage.slots(gang)[0], nodes).any():
            yield gang


def _enough(ledger: Ledger, demand: Demand, spots: Spots, victims: Sequence[Admitted]) -> bool:
    """Whether a lease can start once these have left, beside all that is used now and owed to others.

    Of quota this is judged as :meth:`QuotaUse.owe` does: beside what is owed, and beside what is used alone.
    """
    nodes, need, held = _on_nodes(ledger.arena, demand, spots, victims)
    if not _covers(ledger.open_now(nodes) + held, need):
        return False
    views = {id(use): use for use in (ledger.quota_open, ledger.quota_now)}
    return all(_allowed_without(ledger, demand, use, victims) for use in views.values())


def _allowed_without(
    ledger: Ledger, demand: Demand, use: QuotaUse, victims: Sequence[Admitted]
) -> bool:
    usage = ledger.arena.usage
    charges = [charge for gang in victims for charge in usage.charges(gang)]
    for row, amount in charges:
        use.add(row, -amount)
    allowed = ledger.quota_allows(demand, use)
    for row, amount in charges:
        use.add(row, amount)
    return allowed


def _on_nodes(
    arena: Arena, demand: Demand, spots: Spots, victims: Sequence[Admitted]
) -> tuple[Ints, Ints, Ints]:
    """The nodes of a lease (K,), what it needs there (R, K), and what these victims hold there (R, K)."""
    nodes = _nodes(spots)
    need = np.zeros((len(arena.resources), len(nodes)), dtype=np.int64)
    held = np.zeros_like(need)
    for at, used in use_of_spots(demand.pods, spots):
        add_at(need, np.searchsorted(nodes, at), used)
    for gang in victims:
        at, used = arena.use_of(gang)
        inside = np.isin(at, nodes)
        add_at(held, np.searchsorted(nodes, at[inside]), used[:, inside])
    return nodes, need, held


def _nodes(spots: Spots) -> Ints:
    """Indexes of the nodes it is on, each once."""
    if not spots:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([nodes for nodes, _ in spots]))


def _covers(free: Ints, need: Ints) -> bool:
    return bool(np.all((need <= free) | (need == 0)))
