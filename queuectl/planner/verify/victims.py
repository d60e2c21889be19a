"""Preemptions are legal and each is for a named gang that holds a lease; whether it fits, the capacity checks say.

:mod:`queuectl.planner.verify.exits` has the rules for victims of other ClusterQueues.
"""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.plan import Preemption, PreemptionReason
from queuectl.domain.queues import ClusterQueue, OptOut, ReclaimMode, WithinClusterQueue
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Workload
from queuectl.planner.verify.exits import across_queues, against_cohort_policy
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation

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


def _illegal(index: PlanIndex, preemption: Preemption, seen: dict[str, str]) -> str | None:
    victim = index.running.get(preemption.victim)
    preemptor: Pending | Admitted | None = index.pending.get(preemption.preemptor)
    if preemptor is None and index.broken(preemption.preemptor):
        preemptor = index.running[preemption.preemptor]
    if victim is None or preemptor is None:
        return "victim is not admitted or preemptor neither pending nor broken"
    if preemption.victim in seen:
        return f"already the victim of {seen[preemption.victim]}"
    if preemption.cost.priority != victim.workload.priority:
        return f"cost states priority {preemption.cost.priority}, it is {victim.workload.priority}"
    return (
        _without_lease(index, preemption)
        or shielded(index, victim, preemption.reason)
        or _against_policy(index, preemption, preemptor.workload, victim)
        or _before_higher_ranks(index, preemption, preemptor.workload, victim)
    )


def _before_higher_ranks(
    index: PlanIndex, preemption: Preemption, preemptor: Workload, victim: Admitted
) -> str | None:
    """The pod of a higher rank of its elastic job that the same policy allows to evict, and that stays."""
    if preemption.reason != PreemptionReason.IN_CLUSTER_QUEUE:
        return None
    base, rank = _family(victim.workload)
    for uid, other in index.running.items():
        family = _family(other.workload)
        if family[0] != base or family[1] <= rank or uid in index.gone_after:
            continue
        stays = shielded(index, other, preemption.reason)
        if stays is None and _against_policy(index, preemption, preemptor, other) is None:
            return f"{uid} of a higher rank stays"
    return None


def _family(workload: Workload) -> tuple[str, int]:
    """The uid of the gang of an elastic job, and its rank: that gang is before all pods that were added to it."""
    growth = workload.growth
    return (workload.uid, -1) if growth is None else (growth.base, growth.rank)


def _without_lease(index: PlanIndex, preemption: Preemption) -> str | None:
    refusal = index.refused.get(preemption.preemptor)
    if refusal is None or refusal.lease is None:
        return "the preemptor is not pending with a lease"
    if preemption.victim not in refusal.lease.victims:
        return "the preemptor's lease does not name it"
    return None


def shielded(index: PlanIndex, victim: Admitted, reason: str) -> str | None:
    """Why a gang must stay, whichever gang it would leave for; ``reason``: the rule that the plan names."""
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
    if min(victim.started_at, now) + policy.min_runtime > now:
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
    if victim.priority < preemptor.priority:
        return None
    newer_equal = victim.priority == preemptor.priority and victim.queued_at > preemptor.queued_at
    if policy is WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY and newer_equal:
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
    ran = index.snapshot.now - victim.started_at
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
