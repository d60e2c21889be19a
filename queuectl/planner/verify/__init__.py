"""The independent check of a plan: what fails here is dropped, counted and reported, never committed.

It shares no code with the model: plain dicts and loops over what the plan touches, so that a defect of the planner is
not repeated here. It checks whether a plan is *safe*, not whether it is the best one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from queuectl.domain.plan import Plan
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Snapshot
from queuectl.planner.verify import capacity, devices, order, placement, quota, starts, victims
from queuectl.planner.verify.devices import Selects, check_devices, check_vendors
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.running_use import KnownUse

_MODULES: Final = (placement, capacity, quota, order, victims, devices, starts)

__all__ = ["KnownUse", "PlanRule", "PlanViolation", "verify"]


def verify(
    snapshot: Snapshot,
    plan: Plan,
    selects: Selects | None = None,
    known_use: KnownUse | None = None,
) -> tuple[PlanViolation, ...]:
    """Every rule that ``plan`` breaks on ``snapshot``; empty when the plan is safe to commit.

    Args:
        snapshot: with device rows, if gangs request devices.
        plan: of this snapshot.
        selects: the devices of a node, by position, that an option of a request selects; without it devices are not checked.
        known_use: of earlier plans under the same configuration.
    """
    index = PlanIndex(snapshot, plan, known_use or KnownUse())
    found = [*_partition(index), *_reasons(index)]
    for module in _MODULES:
        for check in module.CHECKS:
            found.extend(check(index))
    if selects is not None:
        found.extend(check_devices(index, selects))
        found.extend(check_vendors(index, selects))
    return tuple(found)


def _partition(index: PlanIndex) -> Iterator[PlanViolation]:
    """Each pending gang in exactly one list, each repaired or evicted gang a running one, no unknown gang."""
    plan = index.plan
    waiting_repairs = [r.uid for r in plan.pending if r.lease is not None and index.broken(r.uid)]
    waiting = [r.uid for r in plan.pending if r.uid not in waiting_repairs]
    listed = [a.uid for a in plan.admitted if not a.repaired] + waiting
    if len(listed) != len(index.pending) or set(listed) != index.pending.keys():
        seen = Counter(listed)
        for uid in listed:
            if uid not in index.pending:
                yield PlanViolation(PlanRule.PARTITION, uid, "not pending in the snapshot")
        for uid in index.pending:
            if seen[uid] != 1:
                yield PlanViolation(PlanRule.PARTITION, uid, f"is {seen[uid]} times in the plan")
    running = (
        [a.uid for a in plan.admitted if a.repaired]
        + [e.uid for e in plan.evicted]
        + waiting_repairs
    )
    for uid in sorted(set(running)):
        if uid not in index.running:
            yield PlanViolation(PlanRule.PARTITION, uid, "repaired or evicted, but not admitted")
        elif running.count(uid) > 1:
            yield PlanViolation(PlanRule.PARTITION, uid, "repaired or evicted more than once")


def _reasons(index: PlanIndex) -> Iterator[PlanViolation]:
    waits = Code.WAITING_TO_RECLAIM
    for refusal in index.plan.pending:
        if not refusal.reasons:
            yield PlanViolation(PlanRule.REASON, refusal.uid, "refused without a reason")
        elif refusal.reasons[0].code is waits and _waited(index, refusal.uid):
            text = "waits to reclaim quota longer than reclaimPatienceSeconds of its ClusterQueue"
            yield PlanViolation(PlanRule.REASON, refusal.uid, text)
    for eviction in index.plan.evicted:
        if not eviction.message:
            yield PlanViolation(PlanRule.REASON, eviction.uid, "evicted without a sentence")


def _waited(index: PlanIndex, uid: str) -> bool:
    """Whether a gang has waited as long as its ClusterQueue permits before it evicts gangs that borrow."""
    entry = index.pending.get(uid)
    queue = index.queue_of(entry.workload) if entry is not None else None
    if entry is None or queue is None:
        return True
    since = index.snapshot.now if entry.reclaim_since is None else entry.reclaim_since
    return index.snapshot.now - since >= queue.reclaim_patience
