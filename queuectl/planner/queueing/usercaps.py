"""What one user may hold in a ClusterQueue at once (``policy.maxPerUser``), as the walk goes.

A gang over it waits for its own user's gangs alone: it evicts nobody and holds no place that other users could take. In a
StrictFIFO queue gangs of its own user stay behind it, unless it is larger than the cap for ever. Gangs that are leaving
count until their pods are gone, and a lease counts like a start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.usage import charges_of


@dataclass(frozen=True, slots=True)
class Over:
    """``held`` and ``need`` are together more of a resource than the ``most`` that one user may hold."""

    resource: str
    most: int
    held: int
    need: int


@dataclass(slots=True)
class UserCaps:
    """Starts from a snapshot; gangs that start, or are promised capacity, take their part.

    Attributes:
        heads: by ClusterQueue and user, the first gang of a StrictFIFO queue that waits for its user's cap.
    """

    snapshot: Snapshot
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    _held: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _leased: dict[str, dict[str, int]] = field(default_factory=dict)  # of pending gangs, by uid

    def __post_init__(self) -> None:
        if not any(queue.max_per_user for queue in self.snapshot.config.cluster_queues.values()):
            return
        for gang in self.snapshot.admitted:
            self._add(gang.workload, self._charged(gang))
        for pending in self.snapshot.pending:
            if pending.lease is not None:
                promised = self._charged(Admitted(pending.workload, pending.lease.placement))
                self._leased[pending.workload.uid] = promised
                self._add(pending.workload, promised)

    def refusal(self, workload: Workload) -> Reason | None:
        """Why a gang may not start beside what its user holds and those that started before it."""
        queue = self._capped(workload)
        if queue is None:
            return None
        strict = queue.strategy is QueueingStrategy.STRICT_FIFO
        place = (queue.name, workload.user or "")
        if strict and place in self.heads:
            ref = self.heads[place]
            text = f"StrictFIFO: behind {ref}, whose user holds all that one user may"
            return Reason(Code.WAITING_IN_ORDER, text, {"behind": ref})
        short = self.short(workload)
        if strict and short is not None and short.details["needed"] <= short.details["most"]:
            self.heads[place] = workload.ref
        return short

    def short(self, workload: Workload) -> Reason | None:
        """The first resource, by name, of which its user would hold too much."""
        queue = self._capped(workload)
        first = next(self.over(workload), None)
        return None if queue is None or first is None else _reason(workload, queue, first)

    def over(self, workload: Workload) -> Iterator[Over]:
        """Each resource, by name, of which its user would hold too much."""
        queue = self._capped(workload)
        if queue is None:
            return
        needs = self._asked(workload, queue)
        own = self._leased.get(workload.uid, {})
        for resource, most in queue.max_per_user:
            need = needs.get(resource, 0)
            held = self._held.get((queue.name, workload.user or "", resource), 0)
            held -= own.get(resource, 0)
            if need and held + need > most:
                yield Over(resource, most, held, need)

    def of_user(self, workload: Workload) -> list[tuple[Admitted, dict[str, int]]]:
        """The gangs with which its user holds part of its ClusterQueue, and what each is charged, by resource."""
        queue = self._capped(workload)
        return [
            (gang, self._charged(gang))
            for gang in self.snapshot.admitted
            if queue is not None
            and gang.workload.user == workload.user
            and self._capped(gang.workload) is queue
        ]

    def take(self, workload: Workload) -> None:
        """It starts, or waits for capacity that is leased to it."""
        queue = self._capped(workload)
        if queue is not None:
            promised = self._leased.pop(workload.uid, {})  # by the lease it came with
            self._add(workload, {resource: -amount for resource, amount in promised.items()})
            self._add(workload, self._asked(workload, queue))

    def _capped(self, workload: Workload) -> ClusterQueue | None:
        """The ClusterQueue that caps its user, if one does."""
        if workload.user is None:
            return None
        queue = self.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
        return queue if queue is not None and queue.max_per_user else None

    def _asked(self, workload: Workload, queue: ClusterQueue) -> dict[str, int]:
        """What it will be charged, by resource."""
        covered = {resource for group in queue.groups for resource in group.covered}
        amounts: dict[str, int] = {}
        for podset in workload.podsets:
            per_pod = self.snapshot.config.rules.charged(podset.shape.requests)
            for resource in covered:
                amounts[resource] = amounts.get(resource, 0) + per_pod[resource] * podset.count
        return amounts

    def _charged(self, gang: Admitted) -> dict[str, int]:
        """What a gang is charged where it sits, by resource."""
        amounts: dict[str, int] = {}
        for (_, _, resource), amount in charges_of(gang, self.snapshot):
            amounts[resource] = amounts.get(resource, 0) + amount
        return amounts

    def _add(self, workload: Workload, amounts: Mapping[str, int]) -> None:
        queue = self._capped(workload)
        if queue is not None:
            for resource, _ in queue.max_per_user:
                row = (queue.name, workload.user or "", resource)
                self._held[row] = self._held.get(row, 0) + amounts.get(resource, 0)


def _reason(workload: Workload, queue: ClusterQueue, over: Over) -> Reason:
    resource, most, held, need = over.resource, over.most, over.held, over.need

    def say(amount: int) -> str:
        return format_quantity(resource, amount)

    now = f"of which {say(held)} are held" if need <= most else "which is less than this gang alone"
    text = (
        f"user {workload.user} may hold {say(most)} {resource} in ClusterQueue {queue.name} at once,"
        f" {now}: needs {say(need)}"
    )
    details: dict[str, Any] = {
        "clusterQueue": queue.name,
        "user": workload.user,
        "resource": resource,
        "most": most,
        "held": held,
        "needed": need,
    }
    return Reason(Code.MAX_PER_USER, text, details)
