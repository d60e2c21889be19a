"""Previews of what people do by hand to a gang that runs, or to a queue whose gangs run.

An action on a gang is planned twice on a snapshot of now, with and without the gang, by the planner of the control loop.
Nothing of these plans is committed. Draining a queue is not planned: its price is the work that its gangs lose.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView
from queuectl.domain.changes import Leave
from queuectl.domain.commands import Action
from queuectl.domain.errors import TookTooLong
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Plan
from queuectl.domain.preview import DrainCost, Preview
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.lifecycle.transitions import notice
from queuectl.planner import StopSignal, plan
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.cost import costs

PATIENCE_SECONDS: Final = 5.0  # then who starts is left open; clients wait no longer


def taken_down(snapshot: Snapshot, gang: Admitted, action: Action) -> Snapshot:
    """The world when its pods are gone: it is back in the queue, at its old place or behind the others, or parked."""
    gone = Leave((gang.workload.uid,)).apply(snapshot)
    if action not in (Action.REQUEUE, Action.PREEMPT):
        return gone
    workload = gang.workload
    if action is Action.PREEMPT:
        workload = replace(workload, queued_at=snapshot.now)
    return replace(gone, pending=(*gone.pending, Pending(workload)))


def starters(before: Plan, after: Plan) -> tuple[str, ...]:
    """Uids that only ``after`` starts, in its order."""
    known = {admission.uid for admission in before.admitted}
    return tuple(a.uid for a in after.admitted if a.uid not in known and not a.repaired)


def drain_cost(snapshot: Snapshot, queue: DocumentKey) -> DrainCost:
    """What ``stopPolicy: HoldAndDrain`` would evict of a ClusterQueue or a LocalQueue."""
    gangs = [
        gang for gang in snapshot.admitted if not gang.leaving and _is_of(gang, queue, snapshot)
    ]
    prices = costs(gangs, snapshot.now).values()
    return DrainCost(
        gangs=len(gangs),
        pods=sum(gang.workload.pods for gang in gangs),
        gpus=sum(price.gpus for price in prices),
        lost_work=sum(price.lost_work for price in prices),
    )


def _is_of(gang: Admitted, queue: DocumentKey, snapshot: Snapshot) -> bool:
    home = (gang.workload.namespace, gang.workload.queue or "")
    if queue.kind == "LocalQueue":
        return home == (queue.namespace, queue.name)
    local = snapshot.config.local_queues.get(home)
    return local is not None and local.cluster_queue == queue.name


class Previewer:
    """Of one process; plans for one question at a time."""

    def __init__(
        self,
        look: Callable[[], Awaitable[ClusterView | None]],
        throttle: PlannerThrottle,
        cache: PlannerCache,
    ) -> None:
        """``look``: what there is now, not before."""
        self._look = look
        self._throttle = throttle
        self._cache = cache

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """What this action, one of EVICTING, does to a gang; None while this process cannot tell.

        That is while it does not see the gang, or while too many ask. May raise StoreUnavailable.
        """
        if not entry.state.live:
            return Preview(None, 0.0)
        try:
            async with self._throttle.turn(wait=PATIENCE_SECONDS):
                return await self._answer(entry, action)
        except TookTooLong:
            return None

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """What draining a queue would evict now; None while this process cannot tell. May raise StoreUnavailable."""
        seen = await self._look()
        return drain_cost(seen.snapshot, queue) if seen is not None else None

    async def _answer(self, entry: Entry, action: Action) -> Preview | None:
        seen = await self._look()
        if seen is None:
            return None
        snapshot, uid = seen.snapshot, entry.uid
        gang = next((a for a in snapshot.admitted if a.workload.uid == uid), None)
        # Our watch does not show it yet, or it has just been told to go.
        if gang is None or gang.leaving:
            return None
        cost = costs([gang], snapshot.now)[uid]
        reason = notice(entry, Code.PREEMPTED, snapshot.config.rules)
        work = partial(_planned, snapshot, gang, action, self._cache)
        return Preview(cost, reason, await self._throttle.work_out(work, PATIENCE_SECONDS))


def _planned(
    snapshot: Snapshot, gang: Admitted, action: Action, cache: PlannerCache, stop: StopSignal
) -> tuple[str, ...] | None:
    """Who starts; None when that was cut."""
    before = plan(snapshot, stop, cache)
    after = plan(taken_down(snapshot, gang, action), stop, cache)
    return None if before.cut or after.cut else starters(before, after)
