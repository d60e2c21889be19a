"""The constraints that block a gang in words, with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, compress
from typing import Any, Final

import numpy as np

from queuectl.domain.diagnosis import Limit, Obstacle
from queuectl.domain.fleet import is_passing
from queuectl.domain.quantity import format_quantity
from queuectl.domain.reasons import Reason
from queuectl.domain.words import counted, format_time, is_or_are, some
from queuectl.planner.explain.context import GangContext
from queuectl.planner.explain.left_out import ConstraintGroup, any_flavor
from queuectl.planner.explain.relaxation import Relaxation, as_it_is, requests, state_under
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.fleet import Mask
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, ShapePods
from queuectl.planner.quota import FlavorResource
from queuectl.planner.reasons.lacks import (
    Lack,
    holders_of,
    in_words,
    lacks_of,
    largest_fit,
    scarcest,
)
from queuectl.planner.reasons.refusals import (
    gaining,
    held_devices,
    lost_devices,
    unavailable_because,
    uncovered,
)
from queuectl.planner.reasons.words import (
    amount,
    devices_asked,
    is_row,
    joined,
    requests_of,
    shown,
    without_devices,
)


def sentence(ctx: GangContext, constraint: ConstraintGroup) -> Obstacle:
    """A blocking constraint in words, with the numbers that make it one."""
    if constraint.row is not None:
        text, details = _quota(ctx, constraint.row)
    else:
        text, details = _SENTENCES[constraint.limit](ctx)
    return Obstacle(constraint.limit, text, details)


_Description = tuple[str, dict[str, Any]]


def _quota(ctx: GangContext, row: FlavorResource) -> _Description:
    flavor, resource = row
    assert ctx.queue is not None
    state, queue = state_under(ctx, as_it_is(ctx)), ctx.queue
    need = max((request.charges.get(row, 0) for request in _requests(ctx)), default=0)
    borrows = ctx.pending.may_borrow(ctx.snapshot.now)
    left = max(0, state.quota.left(queue.name, borrows=borrows).get(row, 0))
    most = state.quota.most(queue.name).get(row, 0)
    cohort = f" with cohort {queue.cohort}" if queue.cohort is not None else " in total"
    text = (
        f"quota: {amount(resource, need)} of flavor {flavor} {is_or_are(resource, need)} needed in "
        f"ClusterQueue {queue.name}; {format_quantity(resource, left)} {is_or_are(resource, left)} available "
        f"now, at most {format_quantity(resource, most)}{cohort}"
    )
    details: dict[str, Any] = {"clusterQueue": queue.name, "flavor": flavor, "resource": resource}
    details |= {"needs": need, "left": left, "most": most}
    if queue.cohort is not None:
        details["cohort"] = queue.cohort
    if ctx.pending.borrows_at is not None and not borrows:
        details["borrowsAt"] = format_time(ctx.pending.borrows_at)
        text += f"; no borrowing before {details['borrowsAt']} because it was evicted"
    return text, details


def _flavor(ctx: GangContext) -> _Description:
    assert ctx.queue is not None
    options = options_of(ctx.pending.workload, ctx.queue, ctx.problem)
    details: dict[str, Any] = {"clusterQueue": ctx.queue.name}
    if options.uncovered:
        details["uncovered"] = list(options.uncovered)
        return f"flavors: {uncovered(ctx.queue, options)}", details
    listed = ctx.queue.flavors
    details |= {"flavors": list(listed), "refused": dict(sorted(options.refused.items()))}
    why = [f"{name} ({options.refused[name]})" for name in listed if name in options.refused]
    flavors = f"flavor{'s' * (len(listed) != 1)} {', '.join(listed)}"
    text = f"flavors: ClusterQueue {ctx.queue.name} has only the nodes of {flavors}"
    return text + (f"; not admissible: {', '.join(why)}" if why else ""), details


def _rules(ctx: GangContext) -> _Description:
    rules = {p.shape.rules for p in ctx.pending.workload.podsets}
    parts = [f"node selector {k}={v}" for k, v in sorted({s for r in rules for s in r.selector})]
    if any(r.affinity is not None for r in rules):
        parts.append("required node affinity")
    if any(not is_passing(t.key) for n in ctx.snapshot.fleet.nodes for t in n.taints):
        parts.append("tolerations")
    usable, size = int(_usable(ctx, as_it_is(ctx)).sum()), ctx.problem.size
    verb = "leaves" if len(parts) == 1 and parts != ["tolerations"] else "leave"
    text = f"node rules: {' and '.join(parts) or 'flavors'} {verb} {usable} of {counted(size, 'node')} eligible"
    return text, {"usable": usable, "nodes": size, "rules": parts}


def _topology(ctx: GangContext) -> _Description:
    request = next(iter(_requests(ctx)), None)
    bound = (
        [
            u
            for u in request.podset_groups
            if u.required != ANYWHERE or u.sliced or any(p.size > 1 for p in u.pods)
        ]
        if request
        else []
    )
    if not bound:
        podsets = ctx.pending.workload.podsets
        levels = sorted({level for p in podsets if p.topology for level in p.topology.levels})
        return f"topology: one {' and one '.join(levels) or 'domain'} is requested", {
            "levels": levels
        }
    state = state_under(ctx, as_it_is(ctx))
    fits = [largest_fit(podset_group, state.free(), state) for podset_group in bound]
    tight = next((fit for fit in fits if fit.short), fits[0])
    return f"topology: {tight.sentence}", tight.details


def _shape(ctx: GangContext) -> _Description:
    pods = _largest(ctx)
    if pods is None:
        return "pod size: its pods do not fit on the nodes", {}
    free = state_under(ctx, as_it_is(ctx)).free()
    fits, lacks = int(caps(free, pods.shape).sum()), _lacks(ctx, pods)
    short = {name for lack in lacks for name in lack.names}
    needed = f"one node with {requests_of(pods.shape.requests, short)} is needed for each pod"
    room = np.maximum(free[pods.shape.columns[0]], 0)[pods.shape.eligible]
    name, total, most = scarcest(pods) or "", int(room.sum()), int(room.max(initial=0))
    details: dict[str, Any] = {"requests": shown(pods.shape.requests), "fits": fits}
    details |= {"limits": [lack.details for lack in lacks], "free": total, "largest": most}
    if short - {name}:
        text = f"eligible nodes have room for {counted(fits, 'pod')} in total: {in_words(lacks)}"
        return f"pod size: {needed}; {text}", details
    text = (
        f"{amount(name, total)} {is_or_are(name, total)} free on eligible nodes, at most "
        f"{format_quantity(name, most)} on one node, with room for {counted(fits, 'pod')} in total"
    )
    return f"pod size: {needed}; {text}", details


def _lacks(ctx: GangContext, pods: ShapePods) -> tuple[Lack, ...]:
    """The resources that its eligible nodes lack for these pods."""
    state = state_under(ctx, as_it_is(ctx))
    return lacks_of(state, pods, np.flatnonzero(pods.shape.eligible), state.free())


def _largest(ctx: GangContext) -> ShapePods | None:
    """Of its pods that take nodes, those that request most of the scarcest resource."""
    request = next(iter(_requests(ctx)), None)
    pods = [p for p in request.pods if p.shape.columns] if request is not None else []
    return max(pods, key=lambda p: int(p.shape.vector[p.shape.columns[0]]), default=None)


def _order(ctx: GangContext) -> _Description:
    heads = ctx.cycle.heads.heads.get(ctx.queue.name, []) if ctx.queue is not None else []
    behind = [head.ref for head in heads]
    names = [admission.request.pending.workload.ref for admission in ctx.cycle.state.admissions]
    names += [ctx.refs[uid] for uid in ctx.cycle.leased]
    parts = [f"StrictFIFO keeps it behind {some(behind)}"] if behind else []
    if names:
        parts.append(f"{some(names)} get{'s' * (len(names) == 1)} capacity first")
    text = f"queue order: {'; '.join(parts) or 'gangs before it get capacity first'}"
    return text, {"before": names, "behind": behind}


def in_order(reason: Reason) -> Obstacle:
    """The constraint that the reason of the planner states: a planned start, or the order in which an elastic gang grows."""
    details = {**reason.details, "before": [], "behind": [reason.details["behind"]]}
    return Obstacle(Limit.ORDER, f"queue order: {reason.message}", details)


def _lease(ctx: GangContext) -> _Description:
    names = [ctx.refs.get(u, u) for u, _, _ in ctx.cycle.leases.held() if u != ctx.uid]
    return f"reservations: freed capacity is reserved for {some(names)}", {"heldFor": names}


def _health(ctx: GangContext) -> _Description:
    whole = unhealthy(ctx)
    parts: list[str] = []
    listed: dict[str, str] = {}
    for how, mask in (("unavailable", whole), ("unavailable in part", _lost_in_part(ctx) & ~whole)):
        names = [node.name for node in compress(ctx.problem.index.nodes, mask)]
        nodes = {name: why_unavailable(ctx, name) for name in names}
        verb = "is" if len(nodes) == 1 else "are"
        named = some([f"{name} ({why})" for name, why in nodes.items()])
        found = f"{counted(len(nodes), 'otherwise eligible node')} {verb} {how}: {named}"
        parts += [found] if nodes else []
        listed |= nodes
    return f"node health: {'; '.join(parts)}", {"nodes": listed}


def _lost_in_part(ctx: GangContext) -> Mask:
    """Nodes that would have room for more of its pods with the devices that are out of use. Shape (N,)."""
    more = np.zeros(ctx.problem.size, dtype=np.bool_)
    for request in _open(ctx, replace(as_it_is(ctx), well=True)):
        more |= gaining(ctx.problem, request)
    for at in np.flatnonzero(more).tolist():
        more[at] = any(lost_devices(ctx.snapshot, ctx.problem.index.nodes[at]))
    return more


def unhealthy(ctx: GangContext) -> Mask:
    """Nodes that it could use if they were healthy, uncordoned and not refused to it. Shape (N,)."""
    well = replace(as_it_is(ctx), well=True)
    return _usable(ctx, well) & ~_usable(ctx, as_it_is(ctx))


def why_unavailable(ctx: GangContext, name: str) -> str:
    """Why the gang cannot use a node that it could use otherwise."""
    node = ctx.snapshot.fleet.by_name[name]
    return unavailable_because(ctx.snapshot, node, ctx.pending.excluded) or "tainted"


def _running(ctx: GangContext) -> _Description:
    gangs, leaving, pods = len(ctx.snapshot.admitted), len(ctx.leaving), _largest(ctx)
    daemons, unmanaged, names = False, bool(ctx.snapshot.other_pods), ""
    devices: list[str] = []
    details: dict[str, Any] = {}
    what = "quota of the ClusterQueue and its cohort"
    if pods is not None and (name := _held_resource(ctx, pods)) is not None:
        held = holders_of(
            state_under(ctx, as_it_is(ctx)),
            ctx.problem.index.column[name],
            np.flatnonzero(pods.shape.eligible),
            ctx.problem.now,
        )
        gangs, daemons, unmanaged = len(held.gangs), held.daemons > 0, held.other_pods > 0
        value = held.running + held.daemons + held.other_pods
        what = f"{format_quantity(name, value)} of {amount(name, held.total)} on eligible nodes"
        names = f": {some(held.gangs)}" if held.gangs else ""
        details = {"resource": name, "held": value, **held.details}
        devices = _devices_of_others(ctx, pods)
    holders = [counted(gangs, "gang")] if gangs else []
    holders += ["DaemonSets"] * daemons + ["pods without a queue"] * unmanaged
    verb = "holds" if holders == ["1 gang"] else "hold"
    parts = [f"{joined(holders or ['evicted gangs'])} {verb} {what}{names}"]
    if leaving:
        parts.append(f"{counted(leaving, 'gang')} {'is' if leaving == 1 else 'are'} being evicted")
    if devices:
        parts = [*(parts if holders or leaving else []), some(devices)]
    return f"running: {'; '.join(parts)}", {"gangs": gangs, "leaving": leaving, **details}


def _devices_of_others(ctx: GangContext, pods: ShapePods) -> list[str]:
    """The devices on its eligible nodes that pods of no gang hold."""
    nodes = compress(ctx.problem.index.nodes, pods.shape.eligible)
    return list(chain.from_iterable(held_devices(ctx.snapshot, node) for node in nodes))


def _held_resource(ctx: GangContext, pods: ShapePods) -> str | None:
    """The resource that running gangs and other pods hold on most nodes that lack it; otherwise the one that is likely short."""
    held = (lack.names[0] for lack in _lacks(ctx, pods) if lack.held is not None)
    known = next((name for name in held if not is_row(name)), scarcest(pods))
    return None if known is None or is_row(known) else known


def _fleet(ctx: GangContext) -> _Description:
    size, index = ctx.problem.size, ctx.problem.index
    sums = dict(zip(index.resources, index.allocatable.sum(axis=1).tolist(), strict=True))
    asked = sorted(ctx.pending.workload.requests.items())
    short = [(name, need, sums.get(name, 0)) for name, need in asked if need > sums.get(name, 0)]
    rows = [{"resource": name, "needs": need, "has": has} for name, need, has in short]
    details: dict[str, Any] = {"nodes": size, "short": rows}
    if short:
        parts = [
            without_devices(requested, "enough ")
            if (requested := devices_asked(name))
            else f"{amount(name, need)} {is_or_are(name, need)} needed, "
            f"{counted(size, 'node')} {'has' if size == 1 else 'have'} {format_quantity(name, has)}"
            for name, need, has in short
        ]
        return f"cluster size: {'; '.join(parts)}", details
    seen = max((len(u.tree.order) for r in _requests(ctx) for u in r.podset_groups), default=size)
    if seen < size:
        details["inTopology"] = seen
        text = f"cluster size: only {seen} of {counted(size, 'node')} {'has' if seen == 1 else 'have'} all labels of the topology"
        return text, details
    text = f"cluster size: the gang does not fit on {counted(size, 'empty node')}, even without node rules and topology"
    return text, details


def _requests(ctx: GangContext) -> list[GangRequest]:
    """Its requests under each choice of flavors, the ones with eligible nodes first. If no choice exists, the rules of flavors do not count."""
    any_ = replace(as_it_is(ctx), config=ctx.once(any_flavor, lambda: any_flavor(ctx)))
    for relaxed in (as_it_is(ctx), any_):
        found = list(_open(ctx, relaxed))
        if found:
            return sorted(found, key=lambda request: not _nodes(ctx, [request]).any())
    return []


def _open(ctx: GangContext, relaxed: Relaxation) -> Iterator[GangRequest]:
    """Its requests if it is not held back and all of the nodes are whole."""
    relaxed = replace(relaxed, strict=False)
    return requests(ctx, relaxed, state_under(ctx, relaxed).problem)


def _usable(ctx: GangContext, relaxed: Relaxation) -> Mask:
    """Nodes that some of its pods may use under some choice of flavors."""
    return _nodes(ctx, _open(ctx, relaxed))


def _nodes(ctx: GangContext, among: Iterable[GangRequest]) -> Mask:
    """Nodes that some pods of these requests may use."""
    usable = np.zeros(ctx.problem.size, dtype=np.bool_)
    for request in among:
        for pods in request.pods:
            usable |= pods.shape.eligible
    return usable


_SENTENCES: Final[Mapping[Limit, Callable[[GangContext], _Description]]] = {
    Limit.FLAVOR: _flavor,
    Limit.RULES: _rules,
    Limit.TOPOLOGY: _topology,
    Limit.SHAPE: _shape,
    Limit.ORDER: _order,
    Limit.LEASE: _lease,
    Limit.HEALTH: _health,
    Limit.RUNNING: _running,
    Limit.FLEET: _fleet,
}
