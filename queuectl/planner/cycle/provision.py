"""Gangs for which an autoscaler makes nodes: they hold quota, and no nodes, until the nodes exist.

A gang that no node is free for gets quota if an admission check of its ClusterQueue makes nodes for the flavors of the quota. Until its
check is ready it counts like a gang that runs, but on no node. From then on it is planned in each cycle, and keeps its quota meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, needed_checks
from queuectl.domain.reasons import NEVER_FITS, Code, Reason
from queuectl.domain.snapshot import NO_END, CapacityLease, Pending
from queuectl.domain.words import format_time
from queuectl.domain.workload import Placement, PodSetPlacement, Workload
from queuectl.planner.capacity.state import CycleState
from queuectl.planner.problem.request import GangRequest, quota_only
from queuectl.planner.reasons.refusals import short_of_quota
from queuectl.planner.search.node_templates import never_fits_templates
from queuectl.planner.solver.solver import Solver

_FOR_WANT_OF_NODES: Final = frozenset({Code.TOPOLOGY_PLACEMENT_FAILED, Code.SHAPE_NEVER_FITS})


def makes_nodes(queue: ClusterQueue | None) -> bool:
    """Whether a check of the ClusterQueue makes nodes, for some flavor at least."""
    return queue is not None and any(rule.provisions for rule in queue.admission_checks)


@dataclass(frozen=True, slots=True)
class AwaitedNodes:
    """Nodes are made for a gang: the request whose quota is to be reserved, and the answer for the gang."""

    request: GangRequest
    answer: Refusal


@dataclass(frozen=True, slots=True)
class NotMade:
    """No nodes are made for a gang. ``why``: the reasons, those that can change without a new configuration first."""

    why: tuple[Reason, ...] = ()


def awaiting_nodes(
    state: CycleState,
    pending: Pending,
    queue: ClusterQueue,
    requests: Iterable[GangRequest],
    why: tuple[Reason, ...],
    solver: Solver,
) -> AwaitedNodes | NotMade:
    """Quota for a gang, under the first choice of flavors for which a check makes nodes and quota is left.

    Args:
        state: of the cycle.
        pending: the gang. It starts nowhere now.
        queue: its ClusterQueue.
        requests: what it asks under each choice of flavors, the preferred first.
        why: the reasons for which it does not start; empty if the cluster has no nodes.
        solver: of the plan.
    """
    workload = pending.workload
    if why and not any(reason.code in _FOR_WANT_OF_NODES for reason in why):
        return NotMade()
    claims = _claims(workload)
    never = []
    for request in requests:
        if request.cut is not None or len(request.flavors) != len(workload.podsets):
            continue
        placement = _without_nodes(state, pending, request)
        needed = needed_checks(queue, placement, pending.ready_checks)
        makers = [rule.name for rule in queue.admission_checks if rule.provisions]
        asked = [name for name in needed if name in makers]
        if not placement.awaits_nodes or not asked or not (why or state.quota.fits(request)):
            continue
        if claims is not None:
            return NotMade((claims,))
        made = _made(queue, request)
        reason = _unasked(state, pending, made) or never_fits_templates(
            state.problem, pending, queue, request.flavors, made, solver
        )
        reason = reason or short_of_quota(state, request)
        if reason is None:
            answer = _answer(state, pending, queue, placement, needed, asked, why)
            return AwaitedNodes(quota_only(request), answer)
        never.append(reason)
    return NotMade(tuple(sorted(never, key=lambda reason: reason.code in NEVER_FITS)))


def _claims(workload: Workload) -> Reason | None:
    """Why no nodes are requested for a gang with ResourceClaims; None for others."""
    claiming = [p.name for p in workload.podsets if p.claims or p.shape.devices is not None]
    if not claiming:
        return None
    text = f"no nodes are requested, because podset {', '.join(claiming)} requests devices by ResourceClaims"
    return Reason(Code.SHAPE_NEVER_FITS, text, {"podSets": claiming})


def _unasked(state: CycleState, pending: Pending, made: frozenset[str]) -> Reason | None:
    """Why no nodes of these flavors are requested now."""
    now = state.problem.snapshot.now
    closed = {flavor: at for flavor, at in pending.unasked if flavor in made and at > now}
    if not closed:
        return None
    parts = [f"{flavor} before {format_time(at)}" for flavor, at in closed.items()]
    text = f"no nodes are requested of flavor {' and '.join(parts)}, because its requests for them failed"
    details = {"flavors": {flavor: format_time(at) for flavor, at in closed.items()}}
    return Reason(Code.TOPOLOGY_PLACEMENT_FAILED, text, details)


def _made(queue: ClusterQueue, request: GangRequest) -> frozenset[str]:
    """The flavors of a request for which a check makes nodes."""
    names = {name for chosen in request.flavors for name in chosen.values()}
    rules = [rule for rule in queue.admission_checks if rule.provisions]
    return frozenset(name for name in names if any(rule.applies((name,)) for rule in rules))


def _without_nodes(state: CycleState, pending: Pending, request: GangRequest) -> Placement:
    known = state.problem.snapshot.config.flavors
    placed = []
    for podset, flavors in zip(pending.workload.podsets, request.flavors, strict=True):
        charged = [known[name] for name in flavors.values() if name in known]
        takes_nodes = bool(podset.count) and any(f.topology is not None for f in charged)
        pods = podset.count if podset.min_count is not None else None
        placed.append(
            PodSetPlacement(podset.name, (), dict(flavors), pods, awaits_nodes=takes_nodes)
        )
    return Placement(tuple(placed))


def _answer(
    state: CycleState,
    pending: Pending,
    queue: ClusterQueue,
    placement: Placement,
    needed: tuple[str, ...],
    asked: list[str],
    why: tuple[Reason, ...],
) -> Refusal:
    lease = pending.lease
    if lease is None or lease.placement != placement:
        lease = CapacityLease(placement, (), state.problem.snapshot.now, NO_END)
    missing = [name for name in needed if name not in pending.ready_checks]
    if missing:
        text = f"its admission checks request its nodes: {', '.join(asked)}"
    else:
        cause = why[0].message if why else "none of them is in the cluster"
        text = f"nodes were made for it, and it does not fit yet: {cause}"
    details = {"admissionChecks": missing, **queue.shown_prices}
    reason = Reason(Code.WAITING_FOR_CHECKS, text, details)
    return Refusal(pending.workload.uid, (reason,), lease, checks=needed)
