"""The solve every plan ends with: CP-SAT's own solution that holds every pod of every gang that starts, and quota."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, give_back
from queuectl.planner.capacity.state import State
from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import Classes
from queuectl.planner.model.quota_rows import QuotaRows
from queuectl.planner.placement.joint import per_request, place_jointly
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Model, Solver, Status


@dataclass(frozen=True, slots=True)
class Confirmed:
    """FOUND with node counts per admitted gang, or what went wrong."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    alarm: str = ""


def confirm(state: State, solver: Solver) -> Confirmed:
    """Have CP-SAT accept the placements of all admitted gangs, which it gets as a hint.

    It may use the nodes that they are on. If its solution is another one, they are placed from the model instead. Where gangs
    take no nodes, its solution also holds the quota of all gangs.
    """
    requests = [admission.request for admission in state.admissions]
    podset_groups = [podset_group for request in requests for podset_group in request.podset_groups]
    model, classes, hint = Model(), None, list[int]()
    if podset_groups:
        used = np.unique(
            np.concatenate([nodes for k in state.admissions for nodes, _ in k.node_counts])
        )
        classes = Classes(podset_groups, _free_there(state, used), used)
        built = ModelBuilder(classes, tight=False)
        model = built.model
        hint = built.values_of(
            [part for admission in state.admissions for _, part in admission.per_podset_group()]
        )
    if not all(request.podset_groups for request in requests):
        _add_quota(state, model, hint)
    if model.bounds:
        model.hint = hint
        outcome = solver.solve(model)
        if outcome.status is not Status.FOUND:
            return Confirmed(outcome.status, alarm=outcome.alarm)
        if classes is not None and list(outcome.values) != hint:
            answer = place_jointly(classes, solver)
            parts = per_request(requests, answer.node_counts)
            gangs = tuple(tuple(spot for part in each for spot in part) for each in parts)
            return Confirmed(answer.status, gangs, answer.alarm)
    return Confirmed(Status.FOUND, tuple(admission.node_counts for admission in state.admissions))


def _free_there(state: State, nodes: Ints) -> Ints:
    """(R, N) free without any admitted gang on these nodes, among which are all they are on; nothing elsewhere."""
    free = np.zeros(state.now.free.shape, dtype=np.int64)
    free[:, nodes] = state.free()[:, nodes]
    for admission in state.admissions:
        give_back(free, admission.request.pods, admission.node_counts)
    return free


def _add_quota(state: State, model: Model, hint: list[int]) -> None:
    charged = Counter(
        (admission.request.queue, tuple(sorted(admission.request.charges.items())))
        for admission in state.admissions
        if admission.request.queue is not None
    )
    rows = QuotaRows(model, state.now.quota, hint)
    for (queue, charges), gangs in sorted(charged.items()):
        rows.start(queue, dict(charges), gangs)
    rows.add()
