"""Moves are allowed, each is for one named gang, and no gang is left without a place.

The named gang holds a lease, or the move empties a node that gets another MIG configuration for it.

The checks of all claims show whether all gangs fit after them, now and later, in nodes and quota: a moved gang leaves its
old place and claims its new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from queuectl.domain.plan import Move
from queuectl.domain.queues import Defragment
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.planner.verify.order import inadmissible, never, place
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.victims import protected


def check_moves(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each move by itself, then what all of them cost, then the places kept for gangs already on the move."""
    times = Counter(move.uid for move in index.plan.moved)
    for move in index.plan.moved:
        why = "moved twice" if times[move.uid] > 1 else _illegal(index, move)
        if why is not None:
            yield PlanViolation(PlanRule.MOVE, move.uid, f"for {move.beneficiary}: {why}")
    others = [move for move in index.plan.moved if not _empties(index, move)]
    if len({move.beneficiary for move in others}) > 1:
        yield PlanViolation(PlanRule.MOVE, index.plan.moved[0].uid, "moves for more than one gang")
    yield from _budgets(index)
    for uid in index.plan.returning:
        gang = index.running.get(uid)
        if gang is None or not gang.leaving or gang.lease is None:
            yield PlanViolation(PlanRule.MOVE, uid, "its place is kept, but it is not on the move")
        elif gang.lease.expires_at <= index.snapshot.now:
            yield PlanViolation(PlanRule.LEASE, uid, "its lease has ended")


def _illegal(index: PlanIndex, move: Move) -> str | None:
    gang = index.running.get(move.uid)
    if gang is None:
        return "not admitted"
    if not _empties(index, move) and (why := _without_lease(index, move)) is not None:
        return why
    if (move.cost.priority, move.cost.gpus) != (gang.workload.priority, gang.gpus):
        return "the cost is not of this gang"
    return (
        _stays(index, gang)
        or _forbidden(index, gang)
        or _cannot_restart(index, gang, move.beneficiary)
        or _other_flavors(gang, move)
    )


def _empties(index: PlanIndex, move: Move) -> bool:
    """Whether the gang leaves a node whose MIG configuration changes for the beneficiary."""
    gang = index.running.get(move.uid)
    placed = gang.placement.podsets if gang is not None else ()
    nodes = [
        index.nodes[name] for podset in placed for name, _ in podset.nodes if name in index.nodes
    ]
    changes = [node.mig for node in nodes if node.mig is not None and node.mig.phase.active]
    waits = index.refused.get(move.beneficiary)
    return waits is not None and any(mig.gang == move.beneficiary for mig in changes)


def _without_lease(index: PlanIndex, move: Move) -> str | None:
    refusal = index.refused.get(move.beneficiary)
    if move.beneficiary not in index.pending or refusal is None or refusal.lease is None:
        return "the gang it makes room for is not pending with a lease"
    return None if move.uid in refusal.lease.victims else "the lease does not name it"


def _stays(index: PlanIndex, gang: Admitted) -> str | None:
    """Why it must not be evicted at all."""
    uid = gang.workload.uid
    plan = index.plan
    if not gang.evictable:
        return "its job is not suspended by the API server"
    if index.opts_out(gang.workload):
        return "not preemptible"
    if gang.leaving or gang.lost:
        return "leaving already, or broken"
    others = [p.victim for p in plan.preempted] + [e.uid for e in plan.evicted]
    if uid in (*others, *(a.uid for a in plan.admitted)) or uid in index.refused:
        return "preempted, evicted or repaired as well"
    return protected(index, gang)


def _forbidden(index: PlanIndex, gang: Admitted) -> str | None:
    queue = index.queue_of(gang.workload)
    if index.snapshot.make_room is not None:
        return None
    if queue is None or queue.defragment is not Defragment.EXECUTE:
        return "its queue does not let its gangs be moved"
    return None


def _cannot_restart(index: PlanIndex, gang: Admitted, beneficiary: str) -> str | None:
    """Why it would not be let start again: its queues, its own request, or who waits ahead of it in a StrictFIFO queue."""
    if not gang.restartable:
        return "its job could not be admitted again"
    why = inadmissible(index, Pending(gang.workload))
    queue = index.queue_of(gang.workload)
    if why is not None or queue is None or not queue.strict:
        return why
    for entry in index.snapshot.pending:
        refusal = index.refused.get(entry.workload.uid)
        if refusal is None or refusal.lease is not None or never(refusal):
            continue
        waits = entry.blocked is None and entry.workload.uid != beneficiary
        ahead = place(entry.workload) < place(gang.workload)
        if waits and ahead and index.queue_of(entry.workload) is queue:
            return f"{entry.workload.uid} waits ahead of it in StrictFIFO {queue.name}"
    return None


def _other_flavors(gang: Admitted, move: Move) -> str | None:
    """A moved gang keeps its flavors, and with them its quota."""
    before = {p.podset: dict(p.flavors) for p in gang.placement.podsets}
    after = {p.podset: dict(p.flavors) for p in move.placement.podsets}
    return None if before == after else "its flavors change"


def _budgets(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each ClusterQueue's moves of the last day, these included, cost no more than it allows."""
    if index.snapshot.make_room is not None:
        return
    spent: dict[str, int] = {}
    for move in index.plan.moved:
        gang = index.running.get(move.uid)
        queue = index.queue_of(gang.workload) if gang is not None else None
        if queue is not None:
            spent[queue.name] = spent.get(queue.name, 0) + move.cost.lost_work
    for name, cost in sorted(spent.items()):
        before = index.snapshot.moved_work.get(name, 0)
        budget = index.snapshot.config.cluster_queues[name].defragment_budget
        if before + cost > budget:
            text = (
                f"moves cost {cost} GPU-seconds after {before} within a day, allowed are {budget}"
            )
            yield PlanViolation(PlanRule.MOVE, name, text)
