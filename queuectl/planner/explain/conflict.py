"""The irreducible conflict of a gang, found by deletion: each member is dropped for good if the gang still does not fit.

What is left cannot be reduced: together the members keep the gang out, and without any one of them it fits. The order of
deletion decides which of several such sets is told: what passes by itself is dropped first, so that a gang that could never
start is told why it never could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from queuectl.domain.diagnosis import Limit
from queuectl.domain.fleet import PASSING_TAINTS, NodeRules, Toleration
from queuectl.domain.queues import QueueConfig
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.trial import World, as_it_is, ask, books, requests, shortage
from queuectl.planner.explain.turn import Turn
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.solver.solver import Status

_ORDER: Final = (
    Limit.HEALTH,
    Limit.LEASE,
    Limit.ORDER,
    Limit.RUNNING,
    Limit.FLAVOR,
    Limit.RULES,
    Limit.SHAPE,
    Limit.TOPOLOGY,
)


_PASSING: Final = frozenset({Limit.HEALTH, Limit.LEASE, Limit.ORDER})


@dataclass(frozen=True, slots=True)
class Member:
    """One thing that may stand in the way; ``row`` says which quota."""

    limit: Limit
    row: FlavorResource | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """``proved``: every member was shown to be needed, and all of them together to be enough."""

    members: tuple[Member, ...]
    proved: bool = True


def conflict_of(turn: Turn) -> Conflict:
    """The members; none when nothing here is in the gang's way, or nothing could be proved."""
    members = tuple(_members(turn))
    if not turn.refused:
        verdict = ask(turn, world_of(turn, members))
        if verdict.status is not Status.REFUTED:
            return Conflict((), verdict.fits)
    if ask(turn, world_of(turn, ())).status is Status.REFUTED:
        return Conflict((Member(Limit.FLEET),))
    proved = True
    left = list(members)
    for group in _at_once(members):
        without = [m for m in left if m not in group]
        status = ask(turn, world_of(turn, tuple(without))).status
        if status is Status.REFUTED:
            left = without
        elif len(group) == 1:
            proved &= status is Status.FOUND
    return Conflict(tuple(reversed(left)), proved)


def _at_once(members: tuple[Member, ...]) -> Iterator[tuple[Member, ...]]:
    """What passes by itself all at once, which settles most conflicts by one search; then one by one, as far as that is left."""
    passing = tuple(m for m in members if m.limit in _PASSING)
    if len(passing) > 1:
        yield passing
    yield from ((member,) for member in members)


def _members(turn: Turn) -> Iterator[Member]:
    """Everything that could be in its way, in order of deletion; what obviously is not, is left out."""
    idle = set(_idle(turn))
    yield from (Member(limit) for limit in _ORDER if limit not in idle)
    yield from (Member(Limit.QUOTA, row) for row in _short_rows(turn))


def _idle(turn: Turn) -> Iterator[Limit]:
    podsets = turn.pending.workload.podsets
    if turn.problem.index.ready.all() and not turn.pending.excluded and not _ailing(turn):
        yield Limit.HEALTH
    if not turn.held[Limit.LEASE].later.any() and not turn.held[Limit.LEASE].quota_after:
        yield Limit.LEASE
    if all(p.topology is None and p.group is None for p in podsets):
        yield Limit.TOPOLOGY
    if turn.queue is None:
        yield Limit.FLAVOR


def _ailing(turn: Turn) -> bool:
    """Whether some node is cordoned or carries a taint, of the node life cycle or not."""
    return any(node.unschedulable or node.taints for node in turn.snapshot.fleet.nodes)


def _short_rows(turn: Turn) -> list[FlavorResource]:
    """Quota rows that some choice of flavors finds short."""
    world = world_of(turn, tuple(map(Member, _ORDER)))
    short: dict[FlavorResource, None] = {}
    for relaxed in (
        world,
        world_of(turn, tuple(Member(x) for x in _ORDER if x is not Limit.FLAVOR)),
    ):
        state = books(turn, relaxed)
        for request in requests(turn, replace(relaxed, strict=False), state.problem):
            short.update(dict.fromkeys(shortage(state, request)))
    return sorted(short)


def world_of(turn: Turn, members: tuple[Member, ...]) -> World:
    """The world in which these members count and nothing else does."""
    limits = {m.limit for m in members}
    counted = {m.row for m in members if m.row is not None}
    as_is = as_it_is(turn)
    config = as_is.config if Limit.FLAVOR in limits else turn.any_flavor
    uncounted = frozenset(row for row in _all_rows(turn, config) if row not in counted)
    return World(
        _eased(turn, limits),
        config,
        HOLDERS & limits,
        strict=Limit.ORDER in limits,
        well=Limit.HEALTH not in limits,
        whole=Limit.SHAPE in limits,
        uncounted=uncounted,
    )


def _all_rows(turn: Turn, config: QueueConfig) -> Iterator[FlavorResource]:
    if turn.queue is not None:
        for group in config.cluster_queues[turn.queue.name].groups:
            for quotas in group.flavors:
                yield from ((quotas.flavor, resource) for resource in group.covered)


def _eased(turn: Turn, limits: set[Limit]) -> Workload:
    workload = turn.pending.workload
    if {Limit.TOPOLOGY, Limit.RULES} <= limits:
        return workload
    tolerations = () if Limit.RULES in limits else _tolerate_all(turn)

    def eased(podset: PodSet) -> PodSet:
        if Limit.TOPOLOGY not in limits:
            podset = replace(podset, topology=None, group=None)
        if Limit.RULES not in limits:
            rules = NodeRules(tolerations=podset.shape.rules.tolerations + tolerations)
            podset = replace(podset, shape=replace(podset.shape, rules=rules))
        return podset

    return replace(workload, podsets=tuple(map(eased, workload.podsets)))


def _tolerate_all(turn: Turn) -> tuple[Toleration, ...]:
    """Every taint of the fleet and of the flavors, but those that say that a node is not well."""
    taints = [t for node in turn.snapshot.fleet.nodes for t in node.taints]
    taints += [t for f in turn.snapshot.config.flavors.values() for t in f.node_taints]
    keys = sorted({t.key for t in taints if t.key not in PASSING_TAINTS})
    return tuple(Toleration(key, "Exists") for key in keys)
