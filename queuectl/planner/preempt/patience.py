"""How long a gang waits before it takes quota back by evicting gangs that borrow.

An eviction loses the victims' work, and the next one may find them done. So a gang evicts gangs that borrow, and whose priority is not
lower, only once its own wait has cost as much as the eviction loses, in GPU-seconds, and at the latest after
``reclaimWaitSeconds`` of its ClusterQueue. This rule loses at most twice what the best decision loses, although it does not
know when work ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queuectl.domain.plan import Plan, Preemption, PreemptionReason
from queuectl.domain.queues import ClusterQueue
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.planner.preempt.cost import RESTART_COST
from queuectl.planner.preempt.shield import next_change

_TAKES_BACK: Final = frozenset(
    (PreemptionReason.IN_COHORT_RECLAMATION, PreemptionReason.IN_COHORT_FAIR_SHARING)
)


def reclaim_wait(
    pending: Pending, queue: ClusterQueue, victims: Sequence[Preemption], now: float
) -> Reason | None:
    """Why a gang does not evict these victims yet; None = it does.

    The details: ``since`` when it could have evicted gangs, ``until`` when it waits at most if nothing changes (both unix
    seconds), ``lostGpuSeconds`` of the victims and how many they are (``victims``).
    """
    priority = pending.workload.priority
    if not any(v.reason in _TAKES_BACK and v.cost.priority >= priority for v in victims):
        return None
    since = now if pending.reclaim_since is None else pending.reclaim_since
    lost = sum(v.cost.lost_work - RESTART_COST for v in victims)
    gpus = pending.workload.gpus
    short = lost - gpus * (now - since)
    if short <= 0 or now - since >= queue.reclaim_wait:
        return None
    until = since + queue.reclaim_wait
    grows = sum(v.cost.gpus for v in victims)  # what the victims hold is lost with every second
    if gpus > grows:
        until = min(until, now + short / (gpus - grows))
    workloads = f"{len(victims)} workload{'s' if len(victims) != 1 else ''}"
    text = (
        f"waits up to {queue.reclaim_wait:g} s for quota that others have borrowed; "
        f"then it evicts {workloads}, which loses {lost} GPU-seconds of work now"
    )
    details = {"since": since, "until": until, "lostGpuSeconds": lost, "victims": len(victims)}
    return Reason(Code.WAITING_TO_RECLAIM, text, details)


def next_turn(snapshot: Snapshot, plan: Plan) -> float | None:
    """When time alone lets the next plan do more than this one (unix seconds); None = it does not.

    The first such wait ends, or what ``next_change`` names.
    """
    reasons = (refusal.reasons[0] for refusal in plan.pending)
    turns = [float(r.details["until"]) for r in reasons if r.code is Code.WAITING_TO_RECLAIM]
    change = next_change(snapshot)
    return min(turns if change is None else (*turns, change), default=None)
