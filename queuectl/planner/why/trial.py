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
from queuectl.planner.arena import Arena
from queuectl.planner.asking import demand_of
from queuectl.planner.decide import Decision, decide, place
from queuectl.planner.demand import Demand
from queuectl.planner.ledger import Ledger
from queuectl.planner.queueing.quota import FlavorResource
from queuectl.planner.solve import Status
from queuectl.planner.spots import Spots, add_at
from queuectl.planner.topology import Mask
from queuectl.planner.why.held import HOLDERS
from queuectl.planner.why.merge import fits_in_pieces
from queuectl.planner.why.turn import Turn


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
    demand: Demand | None = None
    spots: Spots = ()
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
    ledger = books(turn, world)
    open_, best = False, None
    for demand in demands(turn, world, ledger.arena):
        short = shortage(ledger, demand)
        if world.uncounted is not None and not short.keys() <= world.uncounted:
            continue
        if best is not None and sum(short.values()) >= sum(best.short.values()):
            continue
        decision = _placed(turn, world, ledger, demand)
        if decision.status is Status.FOUND:
            best = Verdict(Status.FOUND, demand, decision.spots, short)
            if world.uncounted is None and short:
                continue  # another choice of flavors may be short of less
            return best
        if not world.whole and fits_in_pieces(ledger, demand, turn.solver, well=world.well):
            return Verdict(Status.FOUND, demand, (), short)
        open_ |= decision.status is not Status.REFUTED
    return best or Verdict(Status.UNKNOWN if open_ else Status.REFUTED)


def _placed(turn: Turn, world: World, ledger: Ledger, demand: Demand) -> Decision:
    """Whether it finds a place; quota and queues do not matter, so worlds that differ in no more share the answer."""

    def search() -> Decision:
        if world.moving:
            return decide(ledger, demand, turn.solver)
        return place(demand, ledger.free(), turn.solver)

    if world.gone:
        return search()
    key = (world.holders, world.moving, demand.units, demand.pending.budget)
    known = turn.shared.places.get(key)
    if known is None:
        known = search()
        if not turn.solver.cut:
            turn.shared.places[key] = known
    return known


def quota_alone(turn: Turn) -> bool:
    """Whether nothing but quota (and the order of its queue) keeps it from starting."""
    return ask(turn, replace(past_heads(turn), uncounted=None)).fits


def books(turn: Turn, world: World) -> Ledger:
    """Capacity and quota as they are in this world."""
    if not world.gone or Limit.RUNNING not in world.holders:
        return turn.ledger(world.holders, world.config)
    ledger = turn.fresh_ledger(world.holders, world.config, world.gone)
    for gang in world.gone:
        _release(ledger, gang)
    return ledger


def demands(turn: Turn, world: World, arena: Arena) -> Iterator[Demand]:
    """What it asks under each choice of flavors that the world allows."""
    workload = world.workload
    queue = world.config.cluster_queue_of(workload.namespace, workload.queue)
    pending = replace(turn.pending, workload=workload)
    for choice, demand in turn.window.classes_of(arena).of(pending, queue).demands:
        if not (world.strict and turn.walk.strict.ahead(queue, choice) is not None):
            yield _healthy(replace(demand, pending=pending), pending, queue, world, arena)


def _healthy(
    demand: Demand, pending: Pending, queue: ClusterQueue | None, world: World, arena: Arena
) -> Demand:
    if world.well:
        return demand_of(arena, pending, queue, demand.flavors, lasting=True)
    if world.mended is None:
        return demand
    within = {p.podset: p.shape.eligible | world.mended for p in demand.pods}
    return demand_of(arena, pending, queue, demand.flavors, lasting=True, within=within)


def shortage(ledger: Ledger, demand: Demand) -> dict[FlavorResource, int]:
    """Quota rows with less left than the demand charges, and how much less."""
    if demand.queue is None:
        return {}
    left = ledger.quota_left(demand.queue, borrows=ledger.may_borrow(demand))
    return {
        row: need - left.get(row, 0)
        for row, need in demand.charges.items()
        if need and need > left.get(row, 0)
    }


def _release(ledger: Ledger, gang: Admitted) -> None:
    """Take a running gang off the books."""
    usage = ledger.arena.usage
    nodes, amounts = usage.slots(gang)
    staying = not gang.leaving and gang.workload.uid not in ledger.gone
    for matrix in (ledger.now, ledger.later) if staying else (ledger.now,):
        add_at(matrix, nodes, amounts)
    for row, amount in usage.charges(gang):
        ledger.charge_now(row, -amount)
        if staying:
            ledger.quota_after.add(row, -amount)
