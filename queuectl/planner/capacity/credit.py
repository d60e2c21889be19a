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
from queuectl.planner.capacity.node_counts import (
    LeaseCredit,
    NodeCounts,
    add_at,
    fits,
    use_of_counts,
)
from queuectl.planner.capacity.state import State
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import QuotaUse


def lease(
    state: State, request: GangRequest, node_counts: NodeCounts, victims: Iterable[str]
) -> None:
    """Hold capacity and quota for a gang: all of it for later, and now what it is owed.

    ``victims`` are the uids of those whose leaving it waits for; who of them is not leaving (any more) holds nothing.
    """
    state.hold(request, node_counts)
    still = [state.leaving[uid] for uid in dict.fromkeys(victims) if uid in state.leaving]
    if _enough(state, request, node_counts, still):
        state.credit(credit_of(state.problem, request, node_counts, still))


def release(state: State, request: GangRequest, node_counts: NodeCounts) -> None:
    """Give a lease back."""
    state.hold(request, node_counts, -1)
    state.drop_credit(request.pending.workload.uid)


def credit_of(
    problem: Problem, request: GangRequest, node_counts: NodeCounts, victims: Sequence[Admitted]
) -> LeaseCredit:
    """What a lease is owed while these victims still hold what they hold."""
    nodes, need, held = _on_nodes(problem, request, node_counts, victims)
    return LeaseCredit(request, node_counts, tuple(victims), nodes, np.maximum(need - held, 0))


def claimable(state: State, request: GangRequest, node_counts: NodeCounts) -> bool:
    """Whether a lease's holder can start now, beside what is used and what other leases are owed."""
    uid = request.pending.workload.uid
    if not (
        fits(state.now, request.pods, node_counts) and state.quota_allows(request, state.quota_now)
    ):
        return False
    if not state.credits.keys() - {uid}:
        return True
    nodes, need, _ = _on_nodes(state.problem, request, node_counts, ())
    own = state.credits.get(uid)
    free = state.open_now(nodes) + (own.amounts if own is not None else 0)
    return _covers(free, need) and state.quota_allows(request, state.quota_open_to(uid))


def awaited(
    state: State, request: GangRequest, node_counts: NodeCounts, evicted: Sequence[Admitted]
) -> tuple[str, ...]:
    """The victims of a new lease: those evicted for it, and those who are leaving already whose room it needs besides.

    No more of the latter than it takes, and first those whom no other lease waits for.
    """
    named = tuple(gang.workload.uid for gang in evicted)
    more: list[Admitted] = []
    for gang in _others(state, request, node_counts, named):
        if _enough(state, request, node_counts, [*evicted, *more]):
            break
        more.append(gang)
    for gang in more[-2::-1]:
        fewer = [other for other in more if other is not gang]
        if _enough(state, request, node_counts, [*evicted, *fewer]):
            more = fewer
    return (*named, *(gang.workload.uid for gang in more))


def _others(
    state: State, request: GangRequest, node_counts: NodeCounts, named: tuple[str, ...]
) -> Iterator[Admitted]:
    """Gangs on their way out that hold something of what a lease needs."""
    usage, nodes = state.problem.usage, _nodes(node_counts)
    rows = {row for row, amount in request.charges.items() if amount and request.queue is not None}
    taken = {g.workload.uid for credit in state.credits.values() for g in credit.victims}
    for uid in sorted(state.leaving.keys() - named, key=lambda uid: (uid in taken, uid)):
        gang = state.leaving[uid]
        charged = any(row[1:] in rows for row, _ in usage.charges(gang))
        if charged or np.isin(usage.slots(gang)[0], nodes).any():
            yield gang


def _enough(
    state: State, request: GangRequest, node_counts: NodeCounts, victims: Sequence[Admitted]
) -> bool:
    """Whether a lease can start once these have left, beside all that is used now and owed to others.

    Of quota this is judged as :meth:`QuotaUse.owe` does: beside what is owed, and beside what is used alone.
    """
    nodes, need, held = _on_nodes(state.problem, request, node_counts, victims)
    if not _covers(state.open_now(nodes) + held, need):
        return False
    views = {id(use): use for use in (state.quota_open, state.quota_now)}
    return all(_allowed_without(state, request, use, victims) for use in views.values())


def _allowed_without(
    state: State, request: GangRequest, use: QuotaUse, victims: Sequence[Admitted]
) -> bool:
    usage = state.problem.usage
    charges = [charge for gang in victims for charge in usage.charges(gang)]
    with use.hypothetically(charges, -1):
        return state.quota_allows(request, use)


def _on_nodes(
    problem: Problem, request: GangRequest, node_counts: NodeCounts, victims: Sequence[Admitted]
) -> tuple[Ints, Ints, Ints]:
    """The nodes of a lease (K,), what it needs there (R, K), and what these victims hold there (R, K)."""
    nodes = _nodes(node_counts)
    need = np.zeros((len(problem.resources), len(nodes)), dtype=np.int64)
    held = np.zeros_like(need)
    for at, used in use_of_counts(request.pods, node_counts):
        add_at(need, np.searchsorted(nodes, at), used)
    for gang in victims:
        at, used = problem.use_of(gang)
        inside = np.isin(at, nodes)
        add_at(held, np.searchsorted(nodes, at[inside]), used[:, inside])
    return nodes, need, held


def _nodes(node_counts: NodeCounts) -> Ints:
    """Indexes of the nodes it is on, each once."""
    if not node_counts:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([nodes for nodes, _ in node_counts]))


def _covers(free: Ints, need: Ints) -> bool:
    return bool(np.all((need <= free) | (need == 0)))
