"""The request of a gang beside other Reservations in advance than those of its podsets: at another time, or without some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from queuectl.domain.quantity import Resources
from queuectl.domain.reservations import Occurrence
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, PodSetGroup, ShapePods
from queuectl.planner.problem.reserved_rows import (
    beside,
    plain,
    reservation_of_row,
    rows_beside,
)


def starting_at(problem: Problem, request: GangRequest, at: float) -> GangRequest:
    """The request of a gang that starts at a time, in unix seconds."""
    snapshot = problem.snapshot
    if not snapshot.reservations:
        return request
    workload = request.pending.workload
    until = inf if workload.duration is None else at + workload.duration.seconds
    return beside_these(problem, request, beside(snapshot, workload, until, at))


def ahead_of(problem: Problem, request: GangRequest) -> Iterator[Occurrence]:
    """The Reservations beside which it must find its place."""
    names = {reservation_of_row(name) for pods in request.pods for name in pods.shape.requests}
    return (each for each in problem.snapshot.reservations if each.name in names)


def beside_these(
    problem: Problem, request: GangRequest, among: Iterable[Occurrence]
) -> GangRequest:
    """The request beside these Reservations alone; the same one if they are those of its podsets."""
    these = tuple(among)
    if {each.name for each in these} == {each.name for each in ahead_of(problem, request)}:
        return request
    groups = tuple(_group(problem, group, these) for group in request.podset_groups)
    return replace(request, podset_groups=groups)


def _group(problem: Problem, group: PodSetGroup, these: tuple[Occurrence, ...]) -> PodSetGroup:
    pods = tuple(_pods(problem, p, these) for p in group.pods)
    bundle = _pods(problem, group.bundle, these) if group.bundle is not None else None
    return replace(group, pods=pods, bundle=bundle)


def _pods(problem: Problem, pods: ShapePods, these: tuple[Occurrence, ...]) -> ShapePods:
    shape = pods.shape
    alone: Resources = plain(shape.requests)
    made = problem.shape(
        alone + rows_beside(alone, these), shape.rules, within=shape.eligible, slices=shape.slices
    )
    return replace(pods, shape=made)
