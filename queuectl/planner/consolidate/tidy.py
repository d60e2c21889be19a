"""The second solve: the gangs that start anyway, placed so that less is scattered and more is left whole.

The walk places each gang as well as it can when it is met, in queue order; those that come later get what is left. Here
the set is fixed, and CP-SAT looks for better places for a few gangs at a time: one that is scattered and those in its way,
then those that break into whole nodes without filling them (:mod:`queuectl.planner.consolidate.rounds`). A result counts if it
lowers the measure of :mod:`queuectl.planner.placement.measure`; no podset group and no gang ever gets more domains, of any level, than it had.
The deterministic limits are small, and what fails here costs tidiness alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import numpy as np

from queuectl.planner.capacity.node_counts import NodeCounts, TentativeAdmission, give_back, take
from queuectl.planner.capacity.state import State
from queuectl.planner.consolidate.bundles import Bundles, bundle, keeps_shape
from queuectl.planner.consolidate.rounds import Round, rounds
from queuectl.planner.consolidate.tidy_model import TidyModel
from queuectl.planner.model.readback import hand_out, pack_all
from queuectl.planner.placement.measure import (
    PlacedPodSetGroup,
    Wholes,
    domain_counts,
    placed_podset_groups,
    score,
)
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import PodSetGroup
from queuectl.planner.problem.topology import Ints
from queuectl.planner.solver.solver import Solver, Status

# Measured on batches of 15 and 50 gangs: two short rounds gain most of what many long ones do, at a tenth of their time.
_ROUNDS: Final = 2
LIMIT: Final = 0.0015  # deterministic time of one


def tidy(state: State, starting: Sequence[TentativeAdmission], solver: Solver) -> int:
    """Place some of the gangs that start elsewhere where that is tidier; returns how many.

    Args:
        state: with all of them in it.
        starting: the gangs this plan starts; those on a lease stay where they are.
        solver: of the plan: its limits and stop signal; a defect met here is among its alarms.
    """
    movable = [admission for admission in starting if may_move(admission)]
    if not movable or (len(movable) == 1 and not solver.calls) or solver.ended():
        return 0
    gangs = [len(admission.request.podset_groups) for admission in movable]
    work = _Consolidation(state.problem, state.free().copy(), placed_podset_groups(movable), gangs)
    limits = replace(solver.limits, deterministic_time=LIMIT, growth=1.0)
    aside = Solver(limits, solver.stop, light=True)
    for each in islice(rounds(state.problem, work.podset_groups, work.placed, work.left), _ROUNDS):
        work.improve(each, aside)
    solver.alarms.extend(aside.alarms)
    solver.cut |= aside.cut
    return _move(state, movable, work.placed)


def may_move(admission: TentativeAdmission) -> bool:
    """Whether bundles say all of where the pods of a gang may sit."""
    if admission.fixed or not admission.request.podset_groups:
        return False
    return all(
        keeps_shape(podset_group, node_counts)
        for podset_group, node_counts in admission.per_podset_group()
    )


def _move(
    state: State, movable: Sequence[TentativeAdmission], placed: Sequence[PlacedPodSetGroup]
) -> int:
    """Tell the state where the gangs are now."""
    left = iter(placed)
    moved = 0
    for admission in movable:
        parts = [next(left)[1] for _ in admission.request.podset_groups]
        node_counts: NodeCounts = tuple(spot for part in parts for spot in part)
        if any(new is not old for new, old in zip(node_counts, admission.node_counts, strict=True)):
            state.move(admission, node_counts)
            moved += 1
    return moved


@dataclass(eq=False)
class _Consolidation:
    """All podset groups of the gangs, where they stand so far, and what they leave free.

    Attributes:
        gangs: how many podset groups each gang has.
    """

    problem: Problem
    left: Ints
    placed: list[PlacedPodSetGroup]
    gangs: Sequence[int]
    podset_groups: list[Bundles] = field(init=False)

    def __post_init__(self) -> None:
        self.podset_groups = [bundle(self.problem, n, each) for n, each in enumerate(self.placed)]

    def improve(self, each: Round, solver: Solver) -> None:
        """Solve one round, and take what it finds if that is tidier."""
        chosen = [self.podset_groups[number] for number in each.podset_groups]
        before = [self.placed[number] for number in each.podset_groups]
        free = self.left.copy()
        for podset_group in chosen:
            give_back(free, podset_group.podset_group.pods, podset_group.node_counts)
        wholes = Wholes(self.problem, self._taken_by_others(each.podset_groups))
        found = _solve(TidyModel(chosen, free, each.nodes, wholes), solver)
        if found is None:
            return
        after = [
            (podset_group, u.unbundled(node_counts))
            for (podset_group, _), u, node_counts in zip(before, chosen, found, strict=True)
        ]
        if score(wholes, after) >= score(wholes, before):
            return
        if self._widens(dict(zip(each.podset_groups, after, strict=True))):
            return
        self.left = free
        for number, new in zip(each.podset_groups, after, strict=True):
            self.placed[number] = new
            self.podset_groups[number] = bundle(self.problem, number, new)
            take(
                self.left,
                self.podset_groups[number].podset_group.pods,
                self.podset_groups[number].node_counts,
            )

    def _widens(self, changed: dict[int, PlacedPodSetGroup]) -> bool:
        """Whether some gang as a whole would use more domains of any level; no podset group by itself does."""
        first = 0
        for size in self.gangs:
            numbers = range(first, first + size)
            first += size
            if size == 1 or changed.keys().isdisjoint(numbers):
                continue
            before = _counts_together([self.placed[n] for n in numbers])
            after = _counts_together([changed.get(n, self.placed[n]) for n in numbers])
            if any(new > old for new, old in zip(after, before, strict=True)):
                return True
        return False

    def _taken_by_others(self, numbers: Sequence[int]) -> np.ndarray:
        taken = np.zeros(self.problem.size, dtype=np.bool_)
        mine = set(numbers)
        for number, podset_group in enumerate(self.podset_groups):
            if number not in mine:
                taken[podset_group.nodes] = True
        return taken


def _counts_together(podset_groups: Sequence[PlacedPodSetGroup]) -> list[int]:
    """Domains that some podset groups use together, level by level of each of their topologies, nodes last."""
    by_tree: dict[int, tuple[PodSetGroup, NodeCounts]] = {}
    for podset_group, node_counts in podset_groups:
        known = by_tree.get(id(podset_group.tree), (podset_group, ()))[1]
        by_tree[id(podset_group.tree)] = (podset_group, (*known, *node_counts))
    return [
        count
        for podset_group, node_counts in by_tree.values()
        for count in domain_counts(podset_group, node_counts)
    ]


def _solve(model: TidyModel, solver: Solver) -> tuple[NodeCounts, ...] | None:
    """Spots per podset group in another solution; None when there is none, or none was found in time."""
    outcome = solver.solve(model.model)
    if outcome.status is not Status.FOUND or list(outcome.values) == model.model.hint:
        return None
    packing, failed = pack_all(model.built, outcome.values, solver)
    if failed:
        return None
    return hand_out(model.built, outcome.values, packing).node_counts
