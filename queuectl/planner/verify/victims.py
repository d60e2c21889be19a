"""Gangs leave only where policies allow it, and each for a named gang that holds a lease; whether it fits, the capacity checks say.

Preemptions are legal, and moves are allowed and leave no gang without a place. :mod:`queuectl.planner.verify.exits` has the rules for
victims of other ClusterQueues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from queuectl.domain.plan import Move, Preemption, PreemptionReason
from queuectl.domain.queues import ClusterQueue, Defragment, OptOut, ReclaimMode, WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Workload
from queuectl.planner.verify.exits import across_queues, against_cohort_policy, evicts_within
from queuectl.planner.verify.order import inadmissible, never, place
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation

# ---- Preemptions


_DAY = 86_400.0  # seconds


def check_victims(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each preemption by the policy of the preemptor's ClusterQueue, and each lease by its dates."""
    seen: dict[str, str] = {}
    for preemption in index.plan.preempted:
        why = _illegal(index, preemption, seen)
        seen.setdefault(preemption.victim, preemption.preemptor)
        if why is not None:
            text = f"for {preemption.preemptor}: {why}"
            yield PlanViolation(PlanRule.VICTIM, preemption.victim, text)
    for uid in dict.fromkeys(p.preemptor for p in index.plan.preempted):
        why = across_queues(index, uid)
        if why is not None:
            yield PlanViolation(PlanRule.VICTIM, uid, why)
    for refusal in index.plan.pending:
        if refusal.lease is not None and refusal.lease.expires_at <= index.snapshot.now:
            yield PlanViolation(PlanRule.LEASE, refusal.uid, "its lease has ended")


def _illegal(index: PlanIndex, preemption: Preemption, named_before: dict[str, str]) -> str | None:
    victim = index.running.get(preemption.victim)
    preemptor: Pending | Admitted | None = index.pending.get(preemption.preemptor)
    if preemptor is None and index.broken(preemption.preemptor):
        preemptor = index.running[preemption.preemptor]
    if victim is None or preemptor is None:
        return "victim is not admitted or preemptor neither pending nor broken"
    if preemption.victim in named_before:
        return f"already the victim of {named_before[preemption.victim]}"
    if preemption.cost.priority != victim.workload.priority:
        return f"cost states priority {preemption.cost.priority}, it is {victim.workload.priority}"
    return (
        (inadmissible(index, preemptor) if isinstance(preemptor, Pending) else None)
        or _without_lease(index, preemption)
        or shielded(index, victim, preemption.reason)
        or _against_policy(index, preemption, preemptor.workload, victim)
        or _before_higher_ranks(index, preemption, preemptor.workload, victim)
    )


def _before_higher_ranks(
    index: PlanIndex, preemption: Preemption, preemptor: Workload, victim: Admitted
) -> str | None:
    """The pod of a higher rank of its elastic job that would end with it, or that the same policy allows to evict, and that stays."""
    base, rank = _family(victim.workload)
    for uid, other in index.running.items():
        family = _family(other.workload)
        if family[0] != base or family[1] <= rank or uid in index.gone_after:
            continue
        if not victim.workload.grows:
            return f"{uid} would end with it"
        if preemption.reason != PreemptionReason.IN_CLUSTER_QUEUE:
            continue
        stays = shielded(index, other, preemption.reason)
        if stays is None and _against_policy(index, preemption, preemptor, other) is None:
            return f"{uid} of a higher rank stays"
    return None


def _family(workload: Workload) -> tuple[str, int]:
    """The uid of the gang of an elastic job, and its rank: that gang is before all pods that were added to it."""
    return workload.family, -1 if workload.growth is None else workload.growth.rank


def _without_lease(index: PlanIndex, preemption: Preemption) -> str | None:
    refusal = index.refused.get(preemption.preemptor)
    if refusal is None or refusal.lease is None:
        return "the preemptor is not pending with a lease"
    if preemption.victim not in refusal.lease.victims:
        return "the preemptor's lease does not name it"
    return None


def shielded(index: PlanIndex, victim: Admitted, reason: str = "") -> str | None:
    """Why a gang must stay, whichever gang it would leave for; ``reason``: the rule that the plan names for its eviction."""
    uid = victim.workload.uid
    if not victim.evictable:
        return "its job is not suspended by the API server"
    if index.opts_out(victim.workload) and not _gives_back(index, victim, reason):
        return "not preemptible"
    if (why := protected(index, victim)) is not None:
        return why
    if victim.leaving:
        return "leaving already"
    if any(e.uid == uid for e in index.plan.evicted):
        return "evicted as well"
    if any(a.uid == uid for a in index.plan.admitted) or uid in index.refused:
        return "repaired as well"
    return None


_GIVEN_BACK = frozenset(
    (
        PreemptionReason.IN_COHORT_RECLAMATION,
        PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
        PreemptionReason.IN_COHORT_FAIR_SHARING,
    )
)


def _gives_back(index: PlanIndex, victim: Admitted, reason: str) -> bool:
    """Whether another ClusterQueue reclaims what the gang's own borrows, and that one spares no gang then."""
    queue = index.queue_of(victim.workload)
    spares = queue is None or queue.preemption_opt_out is OptOut.ALWAYS
    return reason in _GIVEN_BACK and not spares


def protected(index: PlanIndex, victim: Admitted) -> str | None:
    """The protections of its own ClusterQueue that an eviction now would break."""
    queue = index.queue_of(victim.workload)
    if queue is None:
        return None
    policy, now = queue.protection, index.snapshot.now
    if not victim.held and min(victim.started_at, now) + policy.min_runtime > now:
        return f"started at {victim.started_at:.0f}, {queue.name} lets it run {policy.min_runtime:.0f} s"
    last = max((min(at, now) for at in victim.evictions), default=None)
    if last is not None and last + policy.cooldown > now:
        return f"evicted at {last:.0f}, {queue.name} spares it for {policy.cooldown:.0f} s"
    most = policy.max_evictions_per_day
    today = sum(at + _DAY > now for at in victim.evictions)
    if most is not None and today >= most:
        return f"evicted {today} times within a day, {queue.name} allows {most}"
    return None


def _against_policy(
    index: PlanIndex, preemption: Preemption, preemptor: Workload, running: Admitted
) -> str | None:
    if preemption.reason == PreemptionReason.IDLE:
        return not_idle(index, preemption, running)
    if not preemptor.evicts:
        return "the preemptor evicts no gang"
    victim = running.workload
    queue = index.queue_of(preemptor)
    other = index.queue_of(victim)
    if queue is None or other is None:
        return "preemptor or victim is in no ClusterQueue"
    if queue.name != other.name:
        return against_cohort_policy(index, preemption, preemptor, victim)
    if preemption.reason == PreemptionReason.TIME_SLICE:
        return _out_of_turn(index, queue, preemptor, running)
    if preemption.reason != PreemptionReason.IN_CLUSTER_QUEUE:
        return f"the reason {preemption.reason} is not that of its own ClusterQueue"
    policy = queue.within_cluster_queue
    if policy is WithinClusterQueue.NEVER:
        return f"{queue.name} forbids preemption"
    if evicts_within(queue, preemptor, victim):
        return None
    return f"priority {victim.priority} against {preemptor.priority} under {policy}"


def _out_of_turn(
    index: PlanIndex, queue: ClusterQueue, preemptor: Workload, victim: Admitted
) -> str | None:
    """Why a gang is not evicted in turn."""
    if queue.time_slice is None:
        return f"{queue.name} has no time slices"
    if preemptor.uid not in index.pending:
        return "the other runs"
    if victim.workload.priority > preemptor.priority:
        return f"priority {victim.workload.priority} against {preemptor.priority} in turn"
    ran = 0.0 if victim.held else index.snapshot.now - victim.started_at
    if ran < queue.time_slice:
        return f"it ran {ran:.0f} s of its time slice of {queue.time_slice:.0f} s"
    return None


def check_spared(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each gang that a dry run names: it runs and stays, is idle, and is named once, for a gang that stays pending."""
    seen: set[str] = set()
    for spared in index.plan.spared:
        why = _not_spared(index, spared)
        if why is None and spared.victim in seen:
            why = "named twice"
        seen.add(spared.victim)
        if why is not None:
            text = f"named as spared by {spared.preemptor}: {why}"
            yield PlanViolation(PlanRule.VICTIM, spared.victim, text)


def _not_spared(index: PlanIndex, spared: Preemption) -> str | None:
    victim = index.running.get(spared.victim)
    taker = index.pending.get(spared.preemptor)
    if victim is None or spared.victim in index.gone_after:
        return "it does not run, or leaves"
    refusal = index.refused.get(spared.preemptor)
    if taker is None or refusal is None or refusal.lease is not None:
        return "the other does not go on waiting"
    queue = index.queue_of(victim.workload)
    if queue is not None and queue.idle_reclaim.mode is ReclaimMode.OFF:
        return f"idleReclaim of {queue.name} is Off"
    if spared.reason != PreemptionReason.IDLE:
        return f"the reason is {spared.reason}"
    return shielded(index, victim, spared.reason) or does_not_yield(index, taker.workload, victim)


# ---- Idle gangs
#
# Gangs that leave for not using their GPUs: each was seen idle, and yields to the gang that gets them.


def not_idle(index: PlanIndex, preemption: Preemption, victim: Admitted) -> str | None:
    """Why a gang must not be evicted for idleness; ``preemption`` names the gang for which it is."""
    taker = index.pending.get(preemption.preemptor)
    if taker is None:
        return "only a pending gang can evict an idle one"
    queue = index.queue_of(victim.workload)
    if queue is not None and queue.idle_reclaim.mode in (ReclaimMode.OFF, ReclaimMode.DRY_RUN):
        return f"idleReclaim of {queue.name} is {queue.idle_reclaim.mode}"
    return does_not_yield(index, taker.workload, victim)


def does_not_yield(index: PlanIndex, taker: Workload, victim: Admitted) -> str | None:
    """Why an idle gang would not yield to another one, were its queue to take idle gangs at all."""
    queue, theirs = index.queue_of(taker), index.queue_of(victim.workload)
    if queue is None or theirs is None:
        return "preemptor or victim is in no ClusterQueue"
    if victim.idle_since is None:
        return "it is not known to be idle"
    equal = victim.workload.priority == taker.priority
    if queue is theirs and equal and _goes_first(queue, victim.workload, taker):
        return f"as the older one it would come back before {taker.ref}"
    roots = [list(index.members[name].up())[-1] for name in (queue.name, theirs.name)]
    if roots[0] is not roots[1]:
        return f"{theirs.name} shares no cohort with {queue.name}"
    priorities = f"idle at priority {victim.workload.priority} against {taker.priority}"
    if victim.workload.priority > taker.priority:
        return priorities
    if equal and not theirs.idle_reclaim.to_equal:
        return f"{priorities}, and {theirs.name} does not let it yield to its equal"
    return None


def _goes_first(queue: ClusterQueue, evicted: Workload, taker: Workload) -> bool:
    """Whether the one that leaves, queued again, evicts an equal that took its place, or is before it as head."""
    if evicted.queued_at > taker.queued_at:
        return False
    evicts = queue.within_cluster_queue is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY
    return evicts or queue.strict


# ---- Moves
#
# The named gang holds a lease, or the move empties a node that gets another MIG configuration for it. The checks of all claims show whether
# all gangs fit after the moves, now and later, in nodes and quota: a moved gang leaves its old place and claims its new one.


def check_moves(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each move by itself, then what all of them cost, then the places kept for gangs already on the move."""
    times = Counter(move.uid for move in index.plan.moved)
    for move in index.plan.moved:
        why = "moved twice" if times[move.uid] > 1 else _illegal_move(index, move)
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


def _illegal_move(index: PlanIndex, move: Move) -> str | None:
    gang = index.running.get(move.uid)
    if gang is None:
        return "not admitted"
    if not _empties(index, move) and (why := _move_without_lease(index, move)) is not None:
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


def _move_without_lease(index: PlanIndex, move: Move) -> str | None:
    refusal = index.refused.get(move.beneficiary)
    if move.beneficiary not in index.pending or refusal is None or refusal.lease is None:
        return "the gang it makes room for is not pending with a lease"
    return None if move.uid in refusal.lease.victims else "the lease does not name it"


def _stays(index: PlanIndex, gang: Admitted) -> str | None:
    """Why it must not be evicted at all."""
    if gang.lost:
        return "broken"
    if any(p.victim == gang.workload.uid for p in index.plan.preempted):
        return "preempted as well"
    return shielded(index, gang)


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
        if entry.workload.grows:
            continue  # it holds back no gang
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


CHECKS: Final = (
    check_victims,
    check_moves,
    check_spared,
)
"""The checks of this module that need only the plan."""
