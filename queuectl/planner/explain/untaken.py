"""Whether what a way out adds or frees is left alone by those before the gang: a proof by counting, without another walk.

Room is counted as if nobody stood where this cycle puts him. Who has too little of it even then, in every domain and with all
that is added, goes on waiting; and while all of them do, whoever starts before the gang starts as he does now. Where counting
does not tell, the walk is done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from queuectl.domain.changes import AddNodes, AddQuota, Change, Leave
from queuectl.domain.fleet import Node
from queuectl.domain.plan import Refusal
from queuectl.domain.queues import QueueingStrategy
from queuectl.domain.snapshot import Pending
from queuectl.planner.capacity.node_counts import add_at
from queuectl.planner.explain.turn import Turn, least_of, unsteady, wants
from queuectl.planner.order.order import NEVER
from queuectl.planner.placement.cells import asked_pods
from queuectl.planner.placement.feasible import place
from queuectl.planner.preempt.idle import may_evict
from queuectl.planner.problem.problem import Shape, caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Unit
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Status

_COUNTED: Final = (AddNodes, AddQuota, Leave)


@dataclass(frozen=True, slots=True)
class _Room:
    """What there could be at most after a change: (R, N) free on nodes there are, and new nodes with nobody on them."""

    free: Ints
    new: tuple[Node, ...] = ()


def untaken(turn: Turn, changes: Sequence[Change]) -> bool:
    """Whether it is proved that who waits before the gang waits after these changes too. No = not known."""
    if unsteady(turn.cycle) or not all(isinstance(change, _COUNTED) for change in changes):
        return False
    room = _room(turn, changes)
    return all(_waits_on(turn, *waiting, room, changes) for waiting in _waiting(turn))


def _waiting(turn: Turn) -> Iterator[tuple[Pending, Refusal]]:
    """Those before it that would take what they can get."""
    refused = turn.cycle.refused
    for pending in turn.snapshot.pending:
        refusal = refused.get(pending.workload.uid)
        if refusal is not None and wants(refusal) and pending.workload.uid != turn.uid:
            yield pending, refusal


def _room(turn: Turn, changes: Sequence[Change]) -> _Room:
    """Beside what runs alone: not more is free for anybody in this cycle."""
    free, new = turn.problem.now.copy(), list[Node]()
    for change in changes:
        if isinstance(change, AddNodes):
            new += change.nodes(turn.snapshot.fleet.by_name[change.like])
        elif isinstance(change, Leave):
            gone = frozenset(change.uids)
            for gang in turn.snapshot.admitted:
                if gang.workload.uid in gone:
                    nodes, amounts = turn.problem.use_of(gang)
                    add_at(free, nodes, amounts)
    return _Room(free, tuple(new))


def _waits_on(
    turn: Turn, pending: Pending, refusal: Refusal, room: _Room, changes: Sequence[Change]
) -> bool:
    """Whether one of them finds no place, and means to those behind it what it means now."""
    workload = pending.workload
    queue = turn.snapshot.config.cluster_queue_of(workload.namespace, workload.queue)
    if refusal.lease is not None:
        return False
    if may_evict(turn.problem, workload, queue) or (queue is not None and queue.split_flavors):
        return False
    if queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO:
        # It may begin to hold back those behind it, or come to do so in more flavors.
        quota = any(isinstance(change, AddQuota) for change in changes)
        if quota or refusal.reasons[0].code in NEVER:
            return False
    requests = turn.window.classes_of(turn.problem).of(least_of(pending), queue).requests
    return bool(requests) and all(_finds_no_place(turn, request, room) for _, request in requests)


def _finds_no_place(turn: Turn, request: GangRequest, room: _Room) -> bool:
    """By counting, or by a search among all that is free; new nodes are counted only."""
    if any(_finds_no_domain(turn, unit, room) for unit in request.units):
        return True
    if room.new or not request.units:
        return False
    return place(request, room.free, turn.solver).status is Status.REFUTED


def _finds_no_domain(turn: Turn, unit: Unit, room: _Room) -> bool:
    """Whether every domain lacks room for all pods of some shape."""
    counts: dict[Shape, int] = {}
    for pods in asked_pods(unit):
        counts[pods.shape] = counts.get(pods.shape, 0) + pods.count
    enough = [_held(turn, unit, shape, room) >= count for shape, count in counts.items()]
    return bool(enough) and not np.logical_and.reduce(enough).any()


def _held(turn: Turn, unit: Unit, shape: Shape, room: _Room) -> Ints:
    """Pods that fit each domain, by the sums of its nodes; then those that fit new nodes in domains that there are not yet."""
    on_new = _on_empty(turn, shape, room.new)
    per_node = caps(room.free, shape)
    if unit.required == ANYWHERE or unit.on_one_node:
        return np.array([per_node.sum() + sum(on_new)])
    tree, level = unit.tree, unit.required
    held = tree.sums(level, per_node)
    known = {path: domain for domain, path in enumerate(tree.names[level])}
    beside = 0
    for node, pods in zip(room.new, on_new, strict=True):
        path = tuple(node.labels.get(label, "") for label in tree.levels[: level + 1])
        if path in known:
            held[known[path]] += pods
        else:
            beside += pods
    return np.append(held, beside)


def _on_empty(turn: Turn, shape: Shape, nodes: Sequence[Node]) -> list[int]:
    """Pods of a shape that fit each of these nodes with nobody on it."""
    fits = []
    for node in nodes:
        vector = turn.problem.index.vector(node.allocatable)
        assert vector is not None, "a new node is like one there is"
        takes = shape.rules.refusal(node) is None
        fits.append(
            min((int(vector[c] // shape.vector[c]) for c in shape.columns), default=0)
            if takes
            else 0
        )
    return fits
