"""Gangs placed together by the model: whether all fit, and where each is placed; and the final check of each plan.

A solution of the aggregated model is packed node by node; a node class that does not pack gets exact rows
(:mod:`queuectl.planner.model.patterns`) and the model is solved again. So the answer is never wrong: FOUND means placed on real
amounts, REFUTED means that no placement exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np

from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    fits,
    give_back,
    take,
)
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import PlacementClasses
from queuectl.planner.model.readback import Placed, hand_out, pack_all, values_of
from queuectl.planner.placement import several
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import FlavorResource, QuotaNode, QuotaUse
from queuectl.planner.solver.solver import Model, Solution, Solver, Status

T = TypeVar("T")
_Terms: TypeAlias = dict[int, int]  # variable to coefficient


def place_jointly(classes: PlacementClasses, solver: Solver, budget: int = 0) -> Placed:
    """Whether all podset groups of the classes fit together, and where."""
    exact: set[int] = set()
    while True:
        built = ModelBuilder(classes, exact)
        outcome = solver.solve(built.model, budget)
        if outcome.status is not Status.FOUND:
            return Placed(outcome.status, alarm=outcome.alarm)
        packing, failed = pack_all(built, outcome.values, solver, budget)
        if isinstance(failed, Solution):
            return Placed(failed.status, alarm=failed.alarm)
        if not failed:
            return hand_out(built, outcome.values, packing)
        exact |= failed


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Whether all gangs fit together; when FOUND, the node counts of the movable ones and of the new ones, in order."""

    status: Status
    moved: tuple[NodeCounts, ...] = ()
    new: tuple[NodeCounts, ...] = ()
    alarm: str = ""


def arrange(
    movable: Sequence[TentativeAdmission],
    new: Sequence[GangRequest],
    free: Ints,
    solver: Solver,
    budget: int,
    *,
    roughly: bool = False,
) -> Arrangement:
    """Place all of them on what is free without any of them.

    The model chooses the domains. Admitted gangs that can stay where they are do.

    Args:
        movable: gangs admitted so far that can be placed elsewhere.
        new: gangs to be placed besides.
        free: (R, N).
        solver: of the plan.
        budget: raises the solver's limits.
        roughly: the others are placed where the model puts them, not where each is best in the domains chosen for it.
    """
    requests = [*(k.request for k in movable), *new]
    answer = place_jointly(
        PlacementClasses([u for r in requests for u in r.podset_groups], free), solver, budget
    )
    if answer.status is not Status.FOUND:
        return Arrangement(answer.status, alarm=answer.alarm)
    found = [_joined(parts) for parts in per_request(requests, answer.node_counts)]
    left = free.copy()
    for request, node_counts in zip(requests, found, strict=True):
        take(left, request.pods, node_counts)
    for at, domains in enumerate(per_request(requests, answer.domains)):
        request = requests[at]
        give_back(left, request.pods, found[at])
        if at < len(movable) and fits(left, request.pods, movable[at].node_counts):
            found[at] = movable[at].node_counts
        elif not roughly:
            within = [_inside(u, d) for u, d in zip(request.podset_groups, domains, strict=True)]
            found[at] = several.first(request, left, within) or found[at]
        take(left, request.pods, found[at])
    return Arrangement(Status.FOUND, tuple(found[: len(movable)]), tuple(found[len(movable) :]))


def per_request(
    requests: Sequence[GangRequest], per_podset_group: Sequence[T]
) -> Iterator[Sequence[T]]:
    """The items of each podset group, gang by gang."""
    at = 0
    for request in requests:
        yield per_podset_group[at : at + len(request.podset_groups)]
        at += len(request.podset_groups)


def _joined(parts: Sequence[NodeCounts]) -> NodeCounts:
    return tuple(pods for part in parts for pods in part)


def _inside(podset_group: PodSetGroup, domain: int) -> Mask | None:
    """The nodes of the domain chosen for a podset group; None without a required level."""
    if domain == ANYWHERE:
        return None
    inside: Mask = podset_group.tree.domain[podset_group.required] == domain
    return inside


# The solve that every plan ends with.


@dataclass(frozen=True, slots=True)
class Confirmed:
    """FOUND with node counts per admitted gang, or what went wrong."""

    status: Status
    node_counts: tuple[NodeCounts, ...] = ()
    alarm: str = ""


def confirm(state: CycleState, solver: Solver) -> Confirmed:
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
        classes = PlacementClasses(podset_groups, _free_there(state, used), used)
        built = ModelBuilder(classes, tight=False)
        model = built.model
        hint = values_of(
            built,
            [part for admission in state.admissions for _, part in admission.per_podset_group()],
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
            return Confirmed(answer.status, tuple(map(_joined, parts)), answer.alarm)
    return Confirmed(Status.FOUND, tuple(admission.node_counts for admission in state.admissions))


def _free_there(state: CycleState, nodes: Ints) -> Ints:
    """(R, N) free without any admitted gang on these nodes, among which are all they are on; nothing elsewhere."""
    free = np.zeros(state.now.free.shape, dtype=np.int64)
    free[:, nodes] = state.free()[:, nodes]
    for admission in state.admissions:
        give_back(free, admission.request.pods, admission.node_counts)
    return free


def _add_quota(state: CycleState, model: Model, hint: list[int]) -> None:
    """Variables for the gangs that start, and rows of the quota that all of them need, members before their cohorts.

    With u(X) what a pool uses of one flavor and resource, and over(X) what it passes up:

        over(X) >= u(X) - local(X),   0 <= over(X) <= subtree(X) - local(X) + borrowing(X),   u(root) <= subtree(root)

    The use of the rest of a tree is a constant. A pool that is over its limit before can stay so, but nothing must be added to it.
    """
    rows = _QuotaRows(model, state.now.quota, hint)
    charged = Counter(
        (admission.request.queue, tuple(sorted(admission.request.charges.items())))
        for admission in state.admissions
        if admission.request.queue is not None
    )
    touched: dict[FlavorResource, dict[QuotaNode, _Terms]] = {}
    for (queue, charges), gangs in sorted(charged.items()):
        number = rows.var(gangs, gangs, gangs, before=0)
        for row, amount in charges:
            if amount:
                touched.setdefault(row, {}).setdefault(rows.use.pools[queue], {})[number] = amount
    for row, waiting in touched.items():
        while waiting:
            pool = min(waiting, key=lambda p: (p.height, p.name))
            over = rows.passed_up(pool, row, waiting.pop(pool))
            if pool.parent is not None:
                waiting.setdefault(pool.parent, {})[over] = 1


@dataclass(eq=False, slots=True)
class _QuotaRows:
    """Rows of quota in a model.

    Attributes:
        use: with all gangs that start.
        hint: of every variable of the model.
        before: of every variable added here, its value if no gang started.
    """

    model: Model
    use: QuotaUse
    hint: list[int]
    before: dict[int, int] = field(default_factory=dict)

    def passed_up(self, pool: QuotaNode, row: FlavorResource, terms: _Terms) -> int:
        """The use that a pool passes up, as a variable; at the root, where nothing is passed up, -1."""
        used = self.use.used_of(pool, row)
        others = used - sum(c * self.hint[v] for v, c in terms.items())
        brought = sum(c * self.before[v] for v, c in terms.items())
        subtree, local = pool.subtree.get(row, 0), pool.local.get(row, 0)
        if pool.parent is None:
            most = max(subtree - others, brought)
            self.model.at_most(list(terms), list(terms.values()), most)
            return -1
        now, before = pool.passed_up(row, used), pool.passed_up(row, others + brought)
        limit = pool.borrowing.get(row)
        most = now if limit is None else max(before, min(now, subtree - local + limit))
        over = self.var(0, most, now, before)
        self.model.at_most([*terms, over], [*terms.values(), -1], local - others)
        return over

    def var(self, low: int, high: int, hint: int, before: int) -> int:
        """A new variable with its hint."""
        number = self.model.var(low, high)
        self.hint.append(hint)
        self.before[number] = before
        return number
