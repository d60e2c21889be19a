"""The question without some constraints: the planner decides the gang on a snapshot in which they do not hold.

The snapshot is the one of the gang's turn: what the plan has decided for the gangs before it is carried out, and no other gang is
pending. Gangs that run or start stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_

import numpy as np

from queuectl.domain.diagnosis import (
    AddQuota,
    Limit,
    RelaxLevel,
    RelaxRules,
    SuggestedChange,
    apply_all,
)
from queuectl.domain.fleet import Fleet, Node, NodeRules, Toleration, is_passing
from queuectl.domain.plan import Proof
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.cycle.cycle import AdmissionCycle
from queuectl.planner.explain.context import GangContext, evicted_by, least_of
from queuectl.planner.explain.relaxation import place_on
from queuectl.planner.model.classes import labels_of
from queuectl.planner.plan_cycle import begin
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.fleet import Ints
from queuectl.planner.problem.problem import survey
from queuectl.planner.problem.request import GangRequest, as_placed
from queuectl.planner.quota import FlavorResource
from queuectl.planner.reasons.refusals import held_devices, lost_devices
from queuectl.planner.search.flavor_choice import FlavorChooser
from queuectl.planner.solver import Status

_PLENTY = 1 << 50  # of quota that does not count
_ANY_FLAVOR = "any flavor"
_NOWHERE = Reason(Code.TOPOLOGY_PLACEMENT_FAILED, "")


@dataclass(frozen=True, slots=True)
class ConstraintGroup:
    """A group of constraints of one kind; ``row``: the quota row, of kind ``QUOTA``."""

    limit: Limit
    row: FlavorResource | None = None


def status_with(ctx: GangContext, constraints: Collection[ConstraintGroup]) -> Status:
    """SOLVED if the gang starts when these constraints hold and no other does; REFUTED if it is proved that it does not."""
    limits = frozenset(c.limit for c in constraints)
    rows = frozenset(c.row for c in constraints if c.row is not None)
    return ctx.once((limits, rows), lambda: _status(ctx, limits, rows))


def _status(ctx: GangContext, limits: frozenset[Limit], rows: frozenset[FlavorResource]) -> Status:
    cycle, pending = turn(ctx, limits, rows)
    status = _decided(ctx, cycle, pending)
    if status is not Status.REFUTED:
        return status
    if Limit.SHAPE not in limits:
        cycle.state.quota.stop_withholding(ctx.uid)
        queue = cycle.problem.snapshot.queue_of(pending.workload)
        for choice, request in cycle.classes.of(pending, queue).requests:
            held = cycle.heads.ahead(
                queue, choice.values()
            ) is not None or not cycle.state.quota.fits(request)
            if not held and _fits_in_pieces(ctx, cycle.state, request):
                return Status.SOLVED
    return Status.REFUTED


def _decided(ctx: GangContext, cycle: AdmissionCycle, pending: Pending) -> Status:
    cycle.consider(pending)
    ctx.solver.count(cycle.solver)
    refusal = cycle.refused.get(ctx.uid)
    if refusal is None or refusal.lease is not None:
        return Status.SOLVED
    return Status.REFUTED if refusal.proof is Proof.OPTIMAL else Status.UNKNOWN


def too_little(ctx: GangContext, changes: Sequence[SuggestedChange]) -> bool:
    """Whether it is proved that the gang neither starts nor evicts others after these changes."""
    if ctx.movable:  # a gang before it could move for it
        return ctx.checks.refuses(changes)
    snapshot = apply_all(changes, ctx.once(_settled, lambda: _settled(ctx)))
    cycle, pending = _cycle(ctx, snapshot)
    _keep_order(ctx, cycle)
    return _decided(ctx, cycle, pending) is Status.REFUTED


def quota_rows(ctx: GangContext) -> list[FlavorResource]:
    """The quota rows that are short for the gang, under some choice of flavors."""
    kinds = frozenset(Limit)
    short = set[FlavorResource]()
    for limits in (kinds, kinds - {Limit.FLAVOR}):
        cycle, pending = turn(ctx, limits, frozenset(), as_is=True)
        queue = cycle.problem.snapshot.queue_of(pending.workload)
        for _, request in cycle.classes.of(pending, queue).requests:
            short.update(cycle.state.quota.short(request))
    return sorted(short)


def turn(
    ctx: GangContext,
    limits: frozenset[Limit],
    rows: frozenset[FlavorResource],
    *,
    as_is: bool = False,
) -> tuple[AdmissionCycle, Pending]:
    """The cycle in which only the gang is to be decided, with these constraints.

    Args:
        ctx: the gang.
        limits: the kinds that hold.
        rows: the quota rows that hold.
        as_is: all quota rows hold.
    """
    snapshot = _snapshot(ctx, limits)
    queue = ctx.queue
    if queue is not None and not as_is:
        changed = snapshot.config.cluster_queues[queue.name]
        free = [AddQuota(queue.name, *row, _PLENTY) for row in _rows(changed) if row not in rows]
        snapshot = apply_all(free, snapshot)
    cycle, pending = _cycle(ctx, snapshot)
    cycle.sizing.chooser = _NoVictims(cycle.problem, cycle.state, cycle.solver)
    if Limit.ORDER in limits:
        _keep_order(ctx, cycle)
    return cycle, pending


def _cycle(ctx: GangContext, snapshot: Snapshot) -> tuple[AdmissionCycle, Pending]:
    """A cycle in which no gang is decided yet, and the gang."""
    cycle = begin(survey(snapshot, _cache(ctx).fork()), ctx.solver.stop).cycle
    [pending] = [p for p in snapshot.pending if p.workload.uid == ctx.uid]
    return cycle, pending


class _NoVictims(FlavorChooser):
    """A chooser that evicts no gang and gives no reasons: whether the gang starts is all that is asked."""

    def clear(self, *_: object) -> None:
        return None

    def why_nowhere(self, *_: object) -> Reason:
        return _NOWHERE

    def ever(self, *_: object) -> Reason:
        return _NOWHERE


def _keep_order(ctx: GangContext, cycle: AdmissionCycle) -> None:
    """Keep the flavors and the quota that gangs before it in the queue order wait for."""
    known = ctx.cycle
    cycle.heads.heads = {name: list(heads) for name, heads in known.heads.heads.items()}
    cycle.heads.of_accounts = {
        account: list(heads) for account, heads in known.heads.of_accounts.items()
    }
    cycle.heads.waiting = {name: dict(heads) for name, heads in known.heads.waiting.items()}
    for uid, quota in known.state.quota.withheld.items():
        if uid != ctx.uid:
            cycle.state.quota.keep_back(quota)


def _rows(queue: ClusterQueue) -> Iterator[FlavorResource]:
    for group in queue.groups:
        for quotas in group.flavors:
            yield from ((quotas.flavor, resource) for resource in group.covered)


def _snapshot(ctx: GangContext, limits: frozenset[Limit]) -> Snapshot:
    """The snapshot of the gang's turn without the constraints of other kinds, with all quota."""
    snapshot = ctx.once(_settled, lambda: _settled(ctx))
    starting, uid = ctx.cycle.starting, ctx.uid
    given = {p.workload.uid for p in ctx.checks.snapshot.pending if p.lease is not None}
    if Limit.ORDER not in limits:
        admitted = tuple(a for a in snapshot.admitted if a.workload.uid not in starting)
        pending = tuple(p for p in snapshot.pending if p.workload.uid in {uid, *given})
        snapshot = replace(snapshot, admitted=admitted, pending=pending)
    if Limit.LEASE not in limits:
        pending = tuple(p for p in snapshot.pending if p.workload.uid not in given - {uid})
        admitted = tuple(replace(a, lease=None) if a.lease else a for a in snapshot.admitted)
        snapshot = replace(snapshot, admitted=admitted, pending=pending)
    if Limit.RUNNING not in limits:
        admitted = tuple(a for a in snapshot.admitted if a.workload.uid in starting)
        snapshot = replace(snapshot, admitted=admitted, other_pods={}, of_daemons={})
    if Limit.HEALTH not in limits:
        none = tuple(replace(p, excluded=frozenset()) for p in snapshot.pending)
        snapshot = replace(snapshot, pending=none)
    snapshot = replace(snapshot, fleet=whole_fleet(ctx, limits))
    podsets = ctx.pending.workload.podsets
    if Limit.TOPOLOGY not in limits:
        snapshot = RelaxLevel(uid, {p.name: None for p in podsets}).apply(snapshot)
    if Limit.RULES not in limits:
        tolerated = tuple(Toleration(key, "Exists") for key in taints(ctx))
        rules = {
            p.name: NodeRules(tolerations=p.shape.rules.tolerations + tolerated) for p in podsets
        }
        snapshot = RelaxRules(uid, rules).apply(snapshot)
    if Limit.FLAVOR not in limits:
        snapshot = replace(snapshot, config=ctx.once(any_flavor, lambda: any_flavor(ctx)))
    return snapshot


def taints(ctx: GangContext) -> list[str]:
    """Keys of all taints, of nodes and of flavors, but those that mean that a node is not healthy."""
    found = {t.key for node in ctx.snapshot.fleet.nodes for t in node.taints}
    found |= {t.key for f in ctx.snapshot.config.flavors.values() for t in f.node_taints}
    return sorted(key for key in found if not is_passing(key))


def whole_fleet(ctx: GangContext, limits: Collection[Limit]) -> Fleet:
    """The fleet with all nodes healthy if health is not among these, and with the devices that others hold if running pods are not."""
    left_out = frozenset({Limit.HEALTH, Limit.RUNNING}.difference(limits))

    def made() -> Fleet:
        snapshot = ctx.checks.snapshot
        nodes = tuple(_without(snapshot, node, left_out) for node in snapshot.fleet.nodes)
        if all(map(is_, nodes, snapshot.fleet.nodes)):
            return snapshot.fleet
        snapshot = replace(snapshot, fleet=Fleet(nodes))
        survey(snapshot, _cache(ctx))  # counted once for all questions
        return snapshot.fleet

    return ctx.once((whole_fleet, left_out), made)


def _without(snapshot: Snapshot, node: Node, left_out: Collection[Limit]) -> Node:
    """The node without what keeps its devices, or all of it, from new pods."""
    devices = node.occupied
    if devices:
        causes = {Limit.HEALTH} if any(lost_devices(snapshot, node)) else {Limit.RUNNING}
        if any(held_devices(snapshot, node)):
            causes.add(Limit.RUNNING)
        devices = devices if causes.issubset(left_out) else NOTHING
    if Limit.HEALTH in left_out:
        own = replace(node, occupied=devices) if devices is not node.occupied else node
        return node if own.recovered is own else own.recovered
    return (
        replace(node, allocatable=node.allocatable + devices, occupied=NOTHING) if devices else node
    )


def _cache(ctx: GangContext) -> PlannerCache:
    return ctx.once(PlannerCache, ctx.checks.cache.fork)


def _settled(ctx: GangContext) -> Snapshot:
    """The snapshot with what the plan has decided for the gangs before this one."""
    cycle, snapshot, placed = ctx.cycle, ctx.checks.snapshot, ctx.checks.known_answers.placed
    leaving, leased = {gang.workload.uid for gang in evicted_by(cycle)}, cycle.leased

    def running(gang: Admitted) -> Admitted:
        uid = gang.workload.uid
        if uid in leaving:
            return replace(gang, leaving=True)
        return replace(gang, placement=placed[uid], lost=()) if uid in placed else gang

    starting, pending = [], []
    for gang in snapshot.pending:
        uid = gang.workload.uid
        if uid == ctx.uid:
            pending.append(least_of(gang))
        elif uid in cycle.starting and uid in placed:
            workload = as_placed(gang, placed[uid]).workload
            starting.append(
                Admitted(workload, placed[uid], started_at=snapshot.now, evictable=False)
            )
        elif uid in leased:
            pending.append(replace(gang, lease=leased[uid]))
        elif cycle.leases.holds(uid):
            pending.append(gang)
    admitted = (*map(running, snapshot.admitted), *starting)
    placed_in_advance = ctx.checks.known_answers.reserved
    reservations = (
        replace(each, placed=placed_in_advance.get(each.name, each.placed))
        for each in snapshot.reservations
    )
    return replace(
        snapshot,
        admitted=admitted,
        pending=tuple(pending),
        reservations=tuple(reservations),
        make_room=None,
    )


def any_flavor(ctx: GangContext) -> QueueConfig:
    """The queues as if flavors had neither labels nor taints, and the gang's queue covered all that it requests."""
    config, queue = ctx.snapshot.config, ctx.queue
    if queue is None:
        return config
    flavors = {
        name: replace(flavor, node_labels=(), node_taints=())
        for name, flavor in config.flavors.items()
    }
    listed = queue.flavors
    for name in sorted(set(listed) - flavors.keys()):
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


def _fits_in_pieces(ctx: GangContext, state: CycleState, request: GangRequest) -> bool:
    """Whether the gang would fit if pods could be cut and spread over alike nodes of one lowest domain.

    A search that ends open counts as no.
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
    return place_on(merged, state.problem, request, ctx.solver) is Status.SOLVED


def _alike(request: GangRequest) -> Ints:
    """A number per node, (N,): equal for nodes that nothing of the request distinguishes, -1 for nodes it cannot use."""
    shapes = [p.shape for p in request.pods]
    trees = {id(u.tree): u.tree for u in request.podset_groups}.values()
    columns = [shape.eligible.astype(np.int64) for shape in dict.fromkeys(shapes)]
    columns += [tree.domain[-1] for tree in trees if tree.depth]  # the finest implies the others
    usable = np.logical_or.reduce([shape.eligible for shape in shapes])
    return np.where(usable, labels_of(columns, len(usable)), -1)
