"""Previews of what people do by hand to a gang that runs, or to a queue whose gangs run.

An action on a gang is planned twice on a snapshot of now, with and without the gang, by the planner of the control loop.
Nothing of these plans is committed. Draining a queue is not planned: its price is the work that its gangs lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from queuectl.control.checked_plan import DeviceRows
from queuectl.control.contained_plan import planned_around
from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView
from queuectl.domain.commands import Action
from queuectl.domain.diagnosis import Leave
from queuectl.domain.errors import TookTooLong
from queuectl.domain.gpus import summed
from queuectl.domain.ledger import Entry
from queuectl.domain.plan import Cost, Plan
from queuectl.domain.queries import DocumentKey
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot, added_pods
from queuectl.domain.what_if import DrainCost, Preview
from queuectl.lifecycle.transitions import notice
from queuectl.planner import StopSignal
from queuectl.planner.cache import PlannerCache
from queuectl.planner.preempt.cost import costs, sizes_of

TIMEOUT_SECONDS: Final = 5.0  # then the gangs that start are left open; clients wait no longer


def taken_down(snapshot: Snapshot, gang: Admitted, action: Action) -> Snapshot:
    """The snapshot after its pods have ended: it is pending at its old place or behind the others, is held, or has ended.

    All pods of an elastic gang end with it, and none is added while it does not run.
    """
    uid = gang.workload.uid
    ending = (gang, *added_pods(snapshot).get(uid, ()))
    gone = Leave(tuple(each.workload.uid for each in ending)).apply(snapshot)
    waiting = tuple(p for p in gone.pending if not (p.workload.grows and p.workload.family == uid))
    gone = replace(gone, pending=waiting)
    if action not in (Action.REQUEUE, Action.PREEMPT) or gang.final:
        return gone
    workload = gang.queued_again
    if action is Action.PREEMPT:
        workload = replace(workload, queued_at=snapshot.now)
    return replace(gone, pending=(*gone.pending, Pending(workload)))


def eviction_costs(snapshot: Snapshot, gangs: Iterable[Admitted]) -> Mapping[str, Cost]:
    """The cost of evicting each of these running gangs now, by uid, with the pods that were added to it."""
    added = added_pods(snapshot)
    ending = {
        gang.workload.uid: [gang, *(p for p in added.get(gang.workload.uid, ()) if not p.leaving)]
        for gang in gangs
    }
    every = {gang.workload.uid: gang for together in ending.values() for gang in together}
    if not every:
        return {}
    parts = costs(list(every.values()), snapshot.now, sizes_of(snapshot))
    return {
        uid: _sum([parts[gang.workload.uid] for gang in together])
        for uid, together in ending.items()
    }


def _sum(parts: Sequence[Cost]) -> Cost:
    """The cost of several gangs that end together; the first one has their priority."""
    return Cost(
        parts[0].priority,
        sum(part.lost_work for part in parts),
        summed(part.gpus for part in parts),
        sum(part.further_gpus for part in parts),
    )


def starters(before: Plan, after: Plan) -> tuple[str, ...]:
    """Uids that only ``after`` starts, in its order."""
    known = {admission.uid for admission in before.admitted}
    return tuple(a.uid for a in after.admitted if a.uid not in known and not a.repaired)


def drain_cost(snapshot: Snapshot, queue: DocumentKey) -> DrainCost:
    """The cost of ``stopPolicy: HoldAndDrain`` for a ClusterQueue or a LocalQueue."""
    gangs = [
        gang for gang in snapshot.admitted if not gang.leaving and _is_of(gang, queue, snapshot)
    ]
    prices = costs(gangs, snapshot.now, sizes_of(snapshot)).values()
    return DrainCost(
        gangs=len(gangs),
        pods=sum(gang.workload.pods for gang in gangs),
        gpus=summed(price.gpus for price in prices),
        lost_work=sum(price.lost_work for price in prices),
    )


def _is_of(gang: Admitted, queue: DocumentKey, snapshot: Snapshot) -> bool:
    home = (gang.workload.namespace, gang.workload.queue or "")
    if queue.kind == "LocalQueue":
        return home == (queue.namespace, queue.name)
    local = snapshot.config.local_queues.get(home)
    return local is not None and local.cluster_queue == queue.name


class Previewer:
    """The previews of one process; it plans for one question at a time."""

    def __init__(
        self,
        read_view: Callable[[], Awaitable[ClusterView | None]],
        throttle: PlannerThrottle,
        cache: PlannerCache,
    ) -> None:
        """``read_view``: returns a view that is not older than the call."""
        self._read_view = read_view
        self._throttle = throttle
        self._cache = cache
        self._devices = DeviceRows.of(cache)

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        """The effect of this action, one of EVICTING, on a gang. May raise StoreUnavailable.

        Returns:
            None while this process does not know the gang, and while too many other questions wait.
        """
        if not entry.state.live:
            return Preview(None, 0.0)
        try:
            async with self._throttle.turn(wait=TIMEOUT_SECONDS):
                return await self._answer(entry, action)
        except TookTooLong:
            return None

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        """The cost of draining a queue now; None while this process does not know the cluster. May raise StoreUnavailable."""
        seen = await self._read_view()
        if seen is None:
            return None
        return drain_cost(await asyncio.to_thread(self._devices.added, seen.snapshot), queue)

    async def eviction_costs(self, uids: Collection[str]) -> Mapping[str, Cost]:
        """The cost of evicting each of these gangs now, by uid; without those that leave, or that this process does not know.

        May raise StoreUnavailable.
        """
        seen = await self._read_view()
        if seen is None:
            return {}
        counted = await asyncio.to_thread(self._devices.added, seen.snapshot)
        wanted = frozenset(uids)
        gangs = [g for g in counted.admitted if g.workload.uid in wanted and not g.leaving]
        return eviction_costs(counted, gangs)

    async def _answer(self, entry: Entry, action: Action) -> Preview | None:
        seen = await self._read_view()
        if seen is None:
            return None
        snapshot, uid = seen.snapshot, entry.uid
        gang = next((a for a in snapshot.admitted if a.workload.uid == uid), None)
        # The watch does not show it yet, or its eviction has begun.
        if gang is None or gang.leaving:
            return None
        counted = await asyncio.to_thread(self._devices.added, snapshot)
        cost = eviction_costs(counted, counted.admitted_of([uid]))[uid]
        reason = notice(entry, Code.PREEMPTED, snapshot.config.rules)
        work = partial(_planned, snapshot, gang, action, self._cache)
        return Preview(cost, reason, await self._throttle.work_out(work, TIMEOUT_SECONDS))


def _planned(
    snapshot: Snapshot, gang: Admitted, action: Action, cache: PlannerCache, stop: StopSignal
) -> tuple[str, ...] | None:
    """Uids of the gangs that start; None without a complete and correct plan."""
    cache = cache.fork()
    before = planned_around(snapshot, stop, cache)
    after = planned_around(taken_down(snapshot, gang, action), stop, cache)
    return starters(before.plan, after.plan) if before.usable and after.usable else None
