"""What ResourceQuotas leave to namespaces, and ClusterQueues to users, as the walk goes.

A gang that they do not let in waits for them alone: it evicts nobody, for victims of other namespaces would not help, and
those of its own free nothing before they have left; then it is looked at again. It holds no place that other namespaces
could use. In a StrictFIFO queue gangs of its own namespace stay behind it, unless it is too large for the quota for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from queuectl.domain.allowance import Allowance, Limit
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue, QueueingStrategy
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.queueing.usercaps import UserCaps


@dataclass(slots=True)
class Allowances:
    """Starts from a snapshot; gangs that start, or are promised capacity, take their part.

    Attributes:
        users: what they may hold.
        heads: by ClusterQueue and namespace, the first gang of a StrictFIFO queue that waits for a quota.
    """

    snapshot: Snapshot
    users: UserCaps = field(init=False)
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    _taken: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users = UserCaps(self.snapshot)

    def refusal(self, workload: Workload, queue: ClusterQueue | None) -> Reason | None:
        """Why a gang may not start beside those that started before it; None when nothing of that is in its way."""
        return self._quota_refusal(workload, queue) or self.users.refusal(workload)

    def _quota_refusal(self, workload: Workload, queue: ClusterQueue | None) -> Reason | None:
        if workload.namespace not in self.snapshot.allowances:
            return None
        strict = queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO
        place = (queue.name if queue is not None else "", workload.namespace)
        if strict and place in self.heads:
            ref = self.heads[place]
            text = f"StrictFIFO: behind {ref}, which waits for a ResourceQuota of its namespace"
            return Reason(Code.WAITING_IN_ORDER, text, {"behind": ref})
        short = self.quota_short(workload)
        if strict and short is not None and short.details["needed"] <= short.details["hard"]:
            self.heads[place] = workload.ref
        return short

    def short(self, workload: Workload) -> Reason | None:
        """The first line of a quota that its pods would exceed, else what its user would hold too much of."""
        return self.quota_short(workload) or self.users.short(workload)

    def quota_short(self, workload: Workload) -> Reason | None:
        """The first line of a ResourceQuota that its pods would exceed."""
        for allowance, limit, promised, need in self._lines(workload):
            taken = self._taken.get((workload.namespace, allowance.name, limit.key), 0)
            if need > limit.hard - limit.used - promised - taken:
                return _exceeded(workload.namespace, allowance, limit, promised + taken, need)
        return None

    def take(self, workload: Workload) -> None:
        """Its pods will be created."""
        for allowance, limit, _, need in self._lines(workload):
            row = (workload.namespace, allowance.name, limit.key)
            self._taken[row] = self._taken.get(row, 0) + need
        self.users.take(workload)

    def _lines(self, workload: Workload) -> Iterator[tuple[Allowance, Limit, int, int]]:
        """Every line that its pods count against, with what is promised of it and what they need."""
        for allowance in self.snapshot.allowances.get(workload.namespace, ()):
            counted = [p for p in workload.podsets if allowance.covers(p.shape)]
            promised = allowance.promised or (0,) * len(allowance.limits)
            for limit, coming in zip(allowance.limits, promised, strict=True):
                need = sum(p.count * limit.per_pod(p) for p in counted)
                if need:
                    yield allowance, limit, coming, need


def _exceeded(namespace: str, allowance: Allowance, limit: Limit, coming: int, need: int) -> Reason:
    def say(amount: int) -> str:
        return format_quantity(limit.resource, amount)

    used = f"{say(limit.used)} of {say(limit.hard)} in use"
    if coming:
        used += f", {say(coming)} promised to gangs that start"
    if need > limit.hard:
        used = f"it never allows more than {say(limit.hard)}"
    text = f"ResourceQuota {allowance.name} of namespace {namespace}: needs {say(need)} {limit.key}, {used}"
    details: dict[str, Any] = {
        "namespace": namespace,
        "resourceQuota": allowance.name,
        "resource": limit.key,
        "hard": limit.hard,
        "used": limit.used,
        "promised": coming,
        "needed": need,
    }
    return Reason(Code.RESOURCE_QUOTA_EXCEEDED, text, details)
