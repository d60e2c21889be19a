"""Gangs placed together by the model: whether all fit, and where each is placed.

A solution of the aggregated model is packed node by node; a node class that does not pack gets exact rows
(:mod:`queuectl.planner.model.patterns`) and the model is solved again. So the answer is never wrong: FOUND means placed on real
amounts, REFUTED means that no placement exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from queuectl.planner.capacity.node_counts import (
    NodeCounts,
    TentativeAdmission,
    fits,
    give_back,
    take,
)
from queuectl.planner.model.builder import ModelBuilder
from queuectl.planner.model.classes import Classes
from queuectl.planner.model.readback import Placed, hand_out, pack_all
from queuectl.planner.placement import several
from queuectl.planner.problem.request import ANYWHERE, GangRequest, PodSetGroup
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.solver.solver import Outcome, Solver, Status

T = TypeVar("T")


def place_jointly(classes: Classes, solver: Solver, budget: int = 0) -> Placed:
    """Whether all podset groups of the classes fit together, and where."""
    exact: set[int] = set()
    while True:
        built = ModelBuilder(classes, exact)
        outcome = solver.solve(built.model, budget)
        if outcome.status is not Status.FOUND:
            return Placed(outcome.status, alarm=outcome.alarm)
        packing, failed = pack_all(built, outcome.values, solver, budget)
        if isinstance(failed, Outcome):
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
        movable: gangs admitted so far that may be placed elsewhere.
        new: gangs to be placed besides.
        free: (R, N).
        solver: of the plan.
        budget: raises the solver's limits.
        roughly: the others are placed where the model puts them, not where each is best in the domains chosen for it.
    """
    requests = [*(k.request for k in movable), *new]
    answer = place_jointly(
        Classes([u for r in requests for u in r.podset_groups], free), solver, budget
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
    """What there is for each podset group, gang by gang."""
    at = 0
    for request in requests:
        yield per_podset_group[at : at + len(request.podset_groups)]
        at += len(request.podset_groups)


def _joined(parts: Sequence[NodeCounts]) -> NodeCounts:
    return tuple(spot for part in parts for spot in part)


def _inside(podset_group: PodSetGroup, domain: int) -> Mask | None:
    """The nodes of the domain chosen for a podset group; None without a required level."""
    if domain == ANYWHERE:
        return None
    inside: Mask = podset_group.tree.domain[podset_group.required] == domain
    return inside
