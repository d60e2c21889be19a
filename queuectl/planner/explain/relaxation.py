"""Would a gang fit if some constraints did not hold, or with something added? A relaxation as a value, and the answer.

The planner's own code answers, on the gang's requests and on a state without what is left out, so an answer here is an
answer there. Each relaxation can only turn a "no" into a "yes".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from queuectl.domain.diagnosis import Limit
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import (
    FlavorQuotas,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Workload
from queuectl.planner.capacity.state import State
from queuectl.planner.explain.context import HOLDERS, Context
from queuectl.planner.placement.feasible import Decision, decide, place
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.problem import Problem, survey
from queuectl.planner.problem.request import GangRequest, request_of
from queuectl.planner.problem.topology import Ints, Mask
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.search.gang_classes import GangClasses
from queuectl.planner.solver.solver import Solver, Status

_PLENTY: Final = 1 << 50  # of a resource that no group of the queue covers
_ANY_FLAVOR: Final = "any flavor"


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The assumptions of one question; with the defaults, all is as it is.

    Attributes:
        workload: the gang, perhaps with smaller requests.
        config: the queues, perhaps with more quota or flavors.
        holders: whose capacity and quota counts.
        strict: whether StrictFIFO holds the gang back.
        well: whether every node is healthy, uncordoned and not excluded.
        whole: whether each pod must find all that it requests on one node.
        moving: whether gangs that start before it in this cycle can be placed elsewhere. They cannot when a fix is
            applied later: they have started by then.
        uncounted: quota rows that do not count; None = no row does.
        gone: running gangs that have left.
        repaired: of nodes, (N,): those that count as healthy although they are not; the gang may use them besides its own.
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
    repaired: Mask | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """FOUND with the request of the choice of flavors that fits, and the quota that it lacks of rows that did not count.

    REFUTED is proved, any other status is open.
    """

    status: Status
    request: GangRequest | None = None
    short: Mapping[FlavorResource, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.status is Status.FOUND


def as_it_is(ctx: Context) -> Relaxation:
    """The gang's turn, nothing relaxed."""
    return Relaxation(ctx.pending.workload, ctx.snapshot.config)


def past_heads(ctx: Context) -> Relaxation:
    """The relaxation for fixes: StrictFIFO does not hold the gang back, and those that start before it stay in place."""
    return replace(as_it_is(ctx), strict=False, moving=False)


def any_quota(ctx: Context) -> Relaxation:
    """The same without quota."""
    return replace(past_heads(ctx), uncounted=None)


def quota_alone(ctx: Context) -> bool:
    """Whether only quota (and the order of its queue) keeps the gang from starting."""
    return ask(ctx, any_quota(ctx)).fits


def ask(ctx: Context, relaxed: Relaxation) -> Verdict:
    """Whether the gang fits under a relaxation."""
    if relaxed.gone or relaxed.repaired is not None:
        return _answer(ctx, relaxed)
    return ctx.once(relaxed, lambda: _answer(ctx, relaxed))


def _answer(ctx: Context, relaxed: Relaxation) -> Verdict:
    state = state_under(ctx, relaxed)
    open_, best = False, None
    for request in requests(ctx, relaxed, state.problem):
        short = shortage(state, request)
        if relaxed.uncounted is not None and not short.keys() <= relaxed.uncounted:
            continue
        if best is not None and sum(short.values()) >= sum(best.short.values()):
            continue
        decision = _decide(ctx, relaxed, state, request)
        if decision.status is Status.FOUND:
            best = Verdict(Status.FOUND, request, short)
            if relaxed.uncounted is None and short:
                continue  # another choice of flavors may lack less
            return best
        if not relaxed.whole and _fits_in_pieces(ctx, state, request, well=relaxed.well):
            return Verdict(Status.FOUND, request, short)
        open_ |= decision.status is not Status.REFUTED
    return best or Verdict(Status.UNKNOWN if open_ else Status.REFUTED)


def _decide(ctx: Context, relaxed: Relaxation, state: State, request: GangRequest) -> Decision:
    """Whether it finds a place; relaxations that differ only in quota and queues share the answer."""

    def alone(_: object, request: GangRequest, free: Ints) -> Decision | None:
        """The gang without those that can move: a small model, and often enough for a proof that it does not fit."""
        decision = place(request, free, ctx.solver)
        return decision if decision.status is Status.REFUTED else None

    def search() -> Decision:
        if relaxed.moving:
            return decide(state, request, ctx.solver, opening=alone)
        return place(request, state.free(), ctx.solver)

    if relaxed.gone:
        return search()
    key = (relaxed.holders, relaxed.moving, request.podset_groups, request.pending.budget)
    return ctx.once(key, search)


def state_under(ctx: Context, relaxed: Relaxation) -> State:
    """Capacity and quota under a relaxation."""
    if not relaxed.gone or Limit.RUNNING not in relaxed.holders:
        return ctx.state(relaxed.holders, relaxed.config)
    state = ctx.fresh_state(relaxed.holders, relaxed.config, relaxed.gone)
    for gang in relaxed.gone:
        state.forget(gang)
    return state


def requests(
    ctx: Context, relaxed: Relaxation, problem: Problem | None = None
) -> Iterator[GangRequest]:
    """The requests of the gang under each choice of flavors that the relaxation allows."""
    workload, problem = relaxed.workload, problem or ctx.problem
    queue = relaxed.config.cluster_queue_of(workload.namespace, workload.queue)
    pending = replace(ctx.pending, workload=workload)
    for choice, request in problem.once(GangClasses).of(pending, queue).requests:
        if relaxed.strict and ctx.cycle.heads.ahead(queue, choice) is not None:
            continue
        within = None
        if relaxed.repaired is not None and not relaxed.well:
            within = {p.podset: p.shape.eligible | relaxed.repaired for p in request.pods}
        if relaxed.well or within is not None:
            flavors = request.flavors
            yield request_of(problem, pending, queue, flavors, lasting=True, within=within)
        else:
            yield replace(request, pending=pending)


def shortage(state: State, request: GangRequest) -> dict[FlavorResource, int]:
    """Quota rows of which less is left than the request is charged, and how much less."""
    return {row: request.charges[row] - left for row, left in state.quota.short(request).items()}


# Without flavors.


def any_flavor(ctx: Context) -> QueueConfig:
    """The queues as if flavors had neither labels nor taints, and the gang's queue covered all that it requests."""
    config, queue = ctx.snapshot.config, ctx.queue
    if queue is None:
        return config
    flavors = {
        name: replace(flavor, node_labels=(), node_taints=())
        for name, flavor in config.flavors.items()
    }
    listed = {q.flavor for group in queue.groups for q in group.flavors}
    for name in sorted(listed - flavors.keys()):
        flavors[name] = ResourceFlavor(name)
    uncovered = options_of(ctx.pending.workload, queue, ctx.problem).uncovered
    if uncovered:
        topology = next((f.topology for n, f in sorted(flavors.items()) if n in listed), None)
        flavors[_ANY_FLAVOR] = ResourceFlavor(_ANY_FLAVOR, topology=topology)
        quotas = FlavorQuotas(_ANY_FLAVOR, dict.fromkeys(uncovered, _PLENTY))
        queue = replace(queue, groups=(*queue.groups, ResourceGroup(uncovered, (quotas,))))
    queues = {**config.cluster_queues, queue.name: queue}
    return replace(config, flavors=flavors, cluster_queues=queues)


# Without whole pods: nodes that no rule and no topology level distinguishes become one large node.


def _fits_in_pieces(ctx: Context, state: State, request: GangRequest, *, well: bool) -> bool:
    """Whether the gang would fit if pods could be cut and spread over alike nodes of one lowest domain.

    Gangs before it stay where they are. A search that ends open counts as no.
    """
    if not request.podset_groups:
        return True
    index, free = state.problem.index, np.maximum(state.free(), 0)
    groups = _alike(request)
    merged = []
    for group in np.unique(groups[groups >= 0]).tolist():
        members = np.flatnonzero(groups == group)
        amounts = free[:, members].sum(axis=1).tolist()
        room = Resources(zip(index.resources, amounts, strict=True))
        merged.append(replace(index.nodes[int(members[0])], allocatable=room))
    return place_on(merged, state.problem, request, ctx.solver, well=well) is Status.FOUND


def _alike(request: GangRequest) -> Ints:
    """A number per node, (N,): equal for nodes that nothing of the request distinguishes, -1 for nodes it cannot use."""
    shapes = [p.shape for p in request.pods]
    trees = {id(u.tree): u.tree for u in request.podset_groups}.values()
    columns = [shape.eligible.astype(np.int64) for shape in dict.fromkeys(shapes)]
    columns += [tree.domain[-1] for tree in trees if tree.depth]  # the finest implies the others
    usable = np.logical_or.reduce([shape.eligible for shape in shapes])
    group = np.zeros(len(usable), dtype=np.int64)
    for column in columns:
        paired = group * (int(column.max(initial=0)) + 2) + column + 1
        _, group = np.unique(paired, return_inverse=True)
    return np.where(usable, group, -1)


def place_on(
    nodes: Sequence[Node], problem: Problem, request: GangRequest, solver: Solver, *, well: bool
) -> Status:
    """Whether a request fits these nodes, all of them empty; quota and order do not count."""
    if not nodes:
        return Status.REFUTED  # an empty fleet would mean that nodes do not matter
    snapshot = problem.snapshot
    fleet = Fleet(tuple(sorted(nodes, key=lambda n: n.name)))
    small = survey(
        Snapshot(snapshot.now, fleet, snapshot.config, limits=snapshot.limits), problem.cache
    )
    queue = snapshot.config.cluster_queues.get(request.queue or "")
    pending = replace(request.pending, excluded=frozenset())
    asked = request_of(small, pending, queue, request.flavors, lasting=well)
    return place(asked, small.index.allocatable, solver).status
