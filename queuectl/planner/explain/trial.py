"""One question about a gang at its turn: would it fit if this or that did not count, or were otherwise?

The planner's own code answers it (options, demands, :func:`decide`), so an answer here is an answer there. Every assumption
left out or eased can only turn a "no" into a "yes".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain.diagnosis import Limit
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.snapshot import Admitted, Pending
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.node_counts import NodeCounts
from queuectl.planner.capacity.state import State
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.merge import fits_in_pieces
from queuectl.planner.explain.turn import Turn
from queuectl.planner.placement.feasible import Decision, decide, place
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.problem.topology import Mask
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.solver.solver import Status


@dataclass(frozen=True, slots=True)
class World:
    """What is assumed for one question; as it stands, everything is as it is.

    Attributes:
        workload: the gang, perhaps asking less.
        config: the queues, perhaps allowing more.
        holders: whose capacity and quota counts.
        strict: whether StrictFIFO holds it back.
        well: whether every node is healthy, uncordoned and trusted.
        whole: whether each pod must find all it asks on one node.
        moving: whether gangs that start before it in this cycle may stand elsewhere. By the time somebody goes a way out,
            they have started where they stand.
        uncounted: quota rows that do not count; None = none of them does.
        gone: running gangs that have left.
        mended: nodes that are healthy although they are not; the gang may use them besides its own.
    """

    workload: Workload
    config: QueueConfig
    holders: frozenset[Limit] = HOLDERS
    strict: bool = True
    well: bool = False
    whole: bool = True
    moving: bool = True
    uncounted: frozenset[FlavorResource] | None = frozenset()
    gone: tuple[Admitted, ...] = ()
    mended: Mask | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """FOUND with the choice of flavors it fits under; REFUTED is proved, anything else is open."""

    status: Status
    request: GangRequest | None = None
    node_counts: NodeCounts = ()
    short: Mapping[FlavorResource, int] = field(default_factory=dict)  # of quota that did not count

    @property
    def fits(self) -> bool:
        return self.status is Status.FOUND


def as_it_is(turn: Turn) -> World:
    """The world of the gang's turn, nothing changed."""
    return World(turn.pending.workload, turn.snapshot.config)


def past_heads(turn: Turn) -> World:
    """Where ways out are looked for: past the gangs that StrictFIFO keeps it behind, beside those that start before it."""
    return replace(as_it_is(turn), strict=False, moving=False)


def ask(turn: Turn, world: World) -> Verdict:
    """Whether the gang fits in this world."""
    if world.gone or world.mended is not None:
        return _answer(turn, world)
    known: Verdict | None = turn.answered.get(world)
    if known is None:
        known = turn.answered[world] = _answer(turn, world)
    return known


def _answer(turn: Turn, world: World) -> Verdict:
    state = books(turn, world)
    open_, best = False, None
    for request in requests(turn, world, state.problem):
        short = shortage(state, request)
        if world.uncounted is not None and not short.keys() <= world.uncounted:
            continue
        if best is not None and sum(short.values()) >= sum(best.short.values()):
            continue
        decision = _placed(turn, world, state, request)
        if decision.status is Status.FOUND:
            best = Verdict(Status.FOUND, request, decision.node_counts, short)
            if world.uncounted is None and short:
                continue  # another choice of flavors may be short of less
            return best
        if not world.whole and fits_in_pieces(state, request, turn.solver, well=world.well):
            return Verdict(Status.FOUND, request, (), short)
        open_ |= decision.status is not Status.REFUTED
    return best or Verdict(Status.UNKNOWN if open_ else Status.REFUTED)


def _placed(turn: Turn, world: World, state: State, request: GangRequest) -> Decision:
    """Whether it finds a place; quota and queues do not matter, so worlds that differ in no more share the answer."""

    def search() -> Decision:
        if world.moving:
            return decide(state, request, turn.solver)
        return place(request, state.free(), turn.solver)

    if world.gone:
        return search()
    key = (world.holders, world.moving, request.units, request.pending.budget)
    known = turn.shared.places.get(key)
    if known is None:
        known = search()
        if not turn.solver.cut:
            turn.shared.places[key] = known
    return known


def quota_alone(turn: Turn) -> bool:
    """Whether nothing but quota (and the order of its queue) keeps it from starting."""
    return ask(turn, replace(past_heads(turn), uncounted=None)).fits


def books(turn: Turn, world: World) -> State:
    """Capacity and quota as they are in this world."""
    if not world.gone or Limit.RUNNING not in world.holders:
        return turn.state(world.holders, world.config)
    state = turn.fresh_ledger(world.holders, world.config, world.gone)
    for gang in world.gone:
        state.forget(gang)
    return state


def requests(turn: Turn, world: World, problem: Problem) -> Iterator[GangRequest]:
    """What it asks under each choice of flavors that the world allows."""
    workload = world.workload
    queue = world.config.cluster_queue_of(workload.namespace, workload.queue)
    pending = replace(turn.pending, workload=workload)
    for choice, request in turn.window.classes_of(problem).of(pending, queue).requests:
        if not (world.strict and turn.cycle.heads.ahead(queue, choice) is not None):
            yield _healthy(replace(request, pending=pending), pending, queue, world, problem)


def _healthy(
    request: GangRequest,
    pending: Pending,
    queue: ClusterQueue | None,
    world: World,
    problem: Problem,
) -> GangRequest:
    if world.well:
        return request_of(problem, pending, queue, request.flavors, lasting=True)
    if world.mended is None:
        return request
    within = {p.podset: p.shape.eligible | world.mended for p in request.pods}
    return request_of(problem, pending, queue, request.flavors, lasting=True, within=within)


def shortage(state: State, request: GangRequest) -> dict[FlavorResource, int]:
    """Quota rows with less left than the demand charges, and how much less."""
    return {row: request.charges[row] - left for row, left in state.quota_short(request).items()}
