"""Who is looked at before whom, who may be looked at, and whom a StrictFIFO queue holds back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Workload
from queuectl.objects.standing import standing
from queuectl.planner.arena import Arena
from queuectl.planner.flavors import Choice

# A gang that could not start on the empty cluster, or in its queue ever, could not have used what others take.
NEVER: Final = frozenset({Code.SHAPE_NEVER_FITS, Code.EXCEEDS_MAX_QUOTA, Code.NO_MATCHING_FLAVOR})


def queue_order(pending: Iterable[Pending]) -> list[Pending]:
    """Priority first, then time queued, then uid: over all ClusterQueues."""
    return sorted(pending, key=lambda p: place(p.workload))


Place: TypeAlias = tuple[int, float, str]


def place(workload: Workload) -> Place:
    """Sort key of the queue order."""
    return -workload.priority, workload.queued_at, workload.uid


def barred(snapshot: Snapshot, pending: Pending) -> Reason | None:
    """Why a gang must not be planned, whatever is free; None when it may."""
    workload = pending.workload
    if pending.blocked is not None or workload.queue is None:
        return pending.blocked
    labels = snapshot.namespaces.get(workload.namespace, {})
    return standing(workload.namespace, workload.queue, snapshot.config, labels)


@dataclass(frozen=True, slots=True)
class Head:
    """A gang of a StrictFIFO queue that waits: later ones must leave it the flavors it could use."""

    ref: str
    flavors: frozenset[str]
    leased: bool


@dataclass(slots=True)
class StrictOrder:
    """The waiting heads of every StrictFIFO queue so far.

    Attributes:
        returning: evicted gangs that will queue again at their old places, by ClusterQueue, the first of them last.
    """

    arena: Arena
    heads: dict[str, list[Head]] = field(default_factory=dict)
    returning: dict[str, list[Admitted]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        leaving = [gang for gang in self.arena.snapshot.admitted if gang.returns]
        for gang in sorted(leaving, key=lambda gang: place(gang.workload), reverse=True):
            queue = self._queue_of(gang.workload)
            if queue is not None:
                self.returning.setdefault(queue.name, []).append(gang)

    def come_to(self, pending: Pending) -> None:
        """Note whoever has a place before this gang in its ClusterQueue and is not there yet."""
        queue = self._queue_of(pending.workload)
        returning = self.returning.get(queue.name, []) if queue is not None else []
        while returning and place(returning[-1].workload) < place(pending.workload):
            self.keep_place(returning.pop())

    def wait(self, queue: ClusterQueue | None, head: Head) -> None:
        """Note a gang that was looked at and does not start."""
        if queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO:
            heads = self.heads.setdefault(queue.name, [])
            if not any(head.flavors <= known.flavors for known in heads):
                heads.append(head)

    def keep_place(self, gang: Admitted) -> None:
        """Note an evicted gang that will queue again before those looked at from here on."""
        workload = gang.workload
        queue = self._queue_of(workload)
        flavors = {name for p in gang.placement.podsets for name in p.flavors.values()}
        self.wait(queue, Head(workload.ref, frozenset(flavors), gang.lease is not None))

    def ahead(self, queue: ClusterQueue | None, choice: Choice) -> Head | None:
        """The first waiting head that could use what this choice of flavors takes."""
        if queue is None:
            return None
        taken = frozenset(choice.values())
        for head in self.heads.get(queue.name, ()):
            if not taken or not head.flavors or self._overlap(taken, head.flavors):
                return head
        return None

    def _queue_of(self, workload: Workload) -> ClusterQueue | None:
        return self.arena.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)

    def _overlap(self, ours: frozenset[str], theirs: frozenset[str]) -> bool:
        """Whether two sets of flavors share one, or share nodes."""
        return bool(ours & theirs) or any(
            self._share_nodes(a, b) for a in sorted(ours) for b in sorted(theirs)
        )

    def _share_nodes(self, one: str, other: str) -> bool:
        flavors = self.arena.snapshot.config.flavors
        a, b = flavors.get(one), flavors.get(other)
        if a is None or b is None or a.topology is None or b.topology is None:
            return False
        index = self.arena.index
        masks = [index.labelled(f.node_labels) for f in (a, b)]
        return bool((masks[0] & masks[1]).any())
