"""Whole free nodes that a gang with a learned end must leave to a planned start on several nodes.

Only what is certain in each order of the decisions is checked: a gang that is alone on its node, and a planned start of its own ClusterQueue
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuectl.domain.plan import Planned
from queuectl.domain.quantity import CPU, MEMORY, PODS, Resources
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.order import place, surely_before
from queuectl.planner.verify.plan_index import PlanIndex, Rule, Violation

_MARGIN: Final = 4.0  # of the longest run of earlier gangs
_NO_DEVICES: Final = frozenset({CPU, MEMORY, PODS, "ephemeral-storage"})


def check_whole_nodes(index: PlanIndex) -> Iterator[Violation]:
    """Gangs with a learned end that start on a whole free node, although a planned start on several nodes can need it."""
    wide = [p for p in index.planned if len(_nodes(p.start.placement)) > 1]
    if not wide:
        return
    holders = _holders(index)
    for admission in index.plan.admitted:
        uid, entry = admission.uid, index.pending.get(admission.uid)
        nodes = _nodes(admission.placement)
        if entry is None or entry.lease is not None or len(nodes) != 1:
            continue
        node = nodes.pop()
        if holders.get(node) != {uid}:
            continue
        first = next((p for p in wide if _passes(index, entry, p)), None)
        if first is not None:
            text = f"takes the whole free node {node} before {first.uid} has started"
            yield Violation(Rule.PLANNED_START, uid, text)


def _passes(index: PlanIndex, entry: Pending, planned: Planned) -> bool:
    """Whether a gang is behind a planned start, and its end is not early enough for it."""
    workload, first = entry.workload, index.pending[planned.uid].workload
    queue = index.queue_of(workload)
    if queue is None or queue is not index.queue_of(first) or place(workload) < place(first):
        return False
    if not surely_before(index, queue, first, workload):
        return False
    longest = workload.duration.longest if workload.duration is not None else None
    return longest is not None and index.snapshot.now + _MARGIN * longest > planned.start.at


def _holders(index: PlanIndex) -> dict[str, set[str]]:
    """Node to the gangs with devices there, now or from now on, and "" for other pods."""
    found: dict[str, set[str]] = {}
    for name, amounts in index.snapshot.other_pods.items():
        if _devices(amounts):
            found.setdefault(name, set()).add("")
    for gang in index.snapshot.admitted:
        for node in _device_nodes(gang.workload, gang.placement):
            found.setdefault(node, set()).add(gang.workload.uid)
    for claim in index.claims:
        for node in _device_nodes(claim.workload, claim.placement) if claim.now else ():
            found.setdefault(node, set()).add(claim.workload.uid)
    return found


def _device_nodes(workload: Workload, placement: Placement) -> Iterator[str]:
    for podset in workload.podsets:
        placed = placement.of(podset.name)
        if placed is not None and _devices(podset.shape.requests):
            yield from (name for name, _ in placed.nodes)


def _devices(amounts: Resources) -> bool:
    return any(amount for name, amount in amounts.items() if name not in _NO_DEVICES)


def _nodes(placement: Placement) -> set[str]:
    return {name for placed in placement.podsets for name, _ in placed.nodes}
