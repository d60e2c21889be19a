"""Would a gang fit with something added or without some holders? A search for the size of a fix, before a plan checks the fix.

The planner's own code answers, on the gang's requests and on a state without what is left out. Gangs that start before it stay
where they are: when a fix is applied they have started. Each relaxation can only turn a "no" into a "yes".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from queuectl.domain.diagnosis import Limit
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.explain.context import HOLDERS, GangContext
from queuectl.planner.placement.feasible import Feasibility, place
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.quota import FlavorResource
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver import Solver, Status


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The assumptions of one question; with the defaults, all is as it is.

    Attributes:
        workload: the gang, perhaps with smaller requests.
        config: the queues, perhaps with more quota or flavors.
        holders: whose capacity and quota counts.
        strict: whether StrictFIFO holds the gang back.
        well: whether every node is healthy, uncordoned and not excluded.
        any_quota: whether no quota counts.
        gone: running gangs that have left.
        repaired: of nodes, (N,): those that count as healthy although they are not; the gang may use them besides its own.
    """

    workload: Workload
    config: QueueConfig
    holders: frozenset[Limit] = HOLDERS
    strict: bool = True
    well: bool = False
    any_quota: bool = False
    gone: tuple[Admitted, ...] = ()
    repaired: Mask | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """SOLVED with the request of the choice of flavors that fits, and the quota that it lacks of rows that did not count.

    REFUTED is proved, any other status is open.
    """

    status: Status
    request: GangRequest | None = None
    short: Mapping[FlavorResource, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.status is Status.SOLVED


def as_it_is(ctx: GangContext) -> Relaxation:
    """The gang's turn, nothing relaxed."""
    return Relaxation(ctx.pending.workload, ctx.snapshot.config)


def past_heads(ctx: GangContext) -> Relaxation:
    """The relaxation for fixes: StrictFIFO does not hold the gang back, and those that start before it stay in place."""
    return replace(as_it_is(ctx), strict=False)


def any_quota(ctx: GangContext) -> Relaxation:
    """The same without quota."""
    return replace(past_heads(ctx), any_quota=True)


def quota_alone(ctx: GangContext) -> bool:
    """Whether only quota (and the order of its queue) keeps the gang from starting."""
    return ask(ctx, any_quota(ctx)).fits


def ask(ctx: GangContext, relaxed: Relaxation) -> Verdict:
    """Whether the gang fits under a relaxation."""
    if relaxed.gone or relaxed.repaired is not None:
        return _answer(ctx, relaxed)
    return ctx.once(relaxed, lambda: _answer(ctx, relaxed))


def _answer(ctx: GangContext, relaxed: Relaxation) -> Verdict:
    state = state_under(ctx, relaxed)
    open_, best = False, None
    for request in requests(ctx, relaxed, state.problem):
        short = shortage(state, request)
        if short and not relaxed.any_quota:
            continue
        if best is not None and sum(short.values()) >= sum(best.short.values()):
            continue
        decision = _decide(ctx, relaxed, state, request)
        if decision.status is Status.SOLVED:
            best = Verdict(Status.SOLVED, request, short)
            if short:
                continue  # another choice of flavors may lack less
            return best
        open_ |= decision.status is not Status.REFUTED
    return best or Verdict(Status.UNKNOWN if open_ else Status.REFUTED)


def _decide(
    ctx: GangContext, relaxed: Relaxation, state: CycleState, request: GangRequest
) -> Feasibility:
    """Whether it finds a place; relaxations that differ only in quota and queues share the answer."""

    def search() -> Feasibility:
        return place(request, _free(ctx, relaxed, state), ctx.solver)

    if relaxed.gone or relaxed.repaired is not None:
        return search()
    key = (relaxed.holders, relaxed.well, request.podset_groups, request.pending.budget)
    return ctx.once(key, search)


def _free(ctx: GangContext, relaxed: Relaxation, state: CycleState) -> Ints:
    """The free capacity of the nodes, with the failed devices of those that count as healthy."""
    if relaxed.well:
        return state.free() + failed_devices(ctx)
    if relaxed.repaired is not None:
        return state.free() + failed_devices(ctx) * relaxed.repaired
    return state.free()


def failed_devices(ctx: GangContext) -> Ints:
    """The devices of nodes that are unhealthy. Shape (R, N)."""

    def found() -> Ints:
        index = ctx.problem.index
        failed = np.zeros_like(index.allocatable)
        for at, node in enumerate(index.nodes):
            vector = index.vector(node.failed) if node.failed else None
            if vector is not None:
                failed[:, at] = vector
        return failed

    return ctx.once(failed_devices, found)


def state_under(ctx: GangContext, relaxed: Relaxation) -> CycleState:
    """Capacity and quota under a relaxation."""
    if not relaxed.gone or Limit.RUNNING not in relaxed.holders:
        return ctx.state(relaxed.holders, relaxed.config)
    state = ctx.fresh_state(relaxed.holders, relaxed.config, relaxed.gone)
    for gang in relaxed.gone:
        state.forget(gang)
    return state


def requests(
    ctx: GangContext, relaxed: Relaxation, problem: Problem | None = None
) -> Iterator[GangRequest]:
    """The requests of the gang under each choice of flavors that the relaxation allows."""
    workload, problem = relaxed.workload, problem or ctx.problem
    queue = relaxed.config.cluster_queue_of(workload.namespace, workload.queue)
    pending = replace(ctx.pending, workload=workload)
    for choice, request in GangClasses(problem).of(pending, queue).requests:
        if relaxed.strict and ctx.cycle.heads.ahead(queue, choice.values()) is not None:
            continue
        within = None
        if relaxed.repaired is not None and not relaxed.well:
            within = {p.podset: p.shape.eligible | relaxed.repaired for p in request.pods}
        if relaxed.well or within is not None:
            flavors = request.flavors
            yield request_of(problem, pending, queue, flavors, lasting=True, within=within)
        else:
            yield replace(request, pending=pending)


def shortage(state: CycleState, request: GangRequest) -> dict[FlavorResource, int]:
    """Quota rows of which less is left than the request is charged, and how much less."""
    return {row: request.charges[row] - left for row, left in state.quota.short(request).items()}


def place_on(
    nodes: Sequence[Node], problem: Problem, request: GangRequest, solver: Solver
) -> Status:
    """Whether a request fits these nodes, all of them empty; quota and order do not count."""
    if not nodes:
        return Status.REFUTED  # an empty fleet would mean that nodes do not matter
    snapshot = problem.snapshot
    fleet = Fleet(tuple(sorted(nodes, key=lambda n: n.name)))
    empty = Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits)
    small = survey(empty, problem.cache.fork())
    queue = snapshot.config.cluster_queues.get(request.queue or "")
    pending = replace(request.pending, excluded=frozenset())
    asked = request_of(small, pending, queue, request.flavors)
    return place(asked, small.index.allocatable, solver).status
