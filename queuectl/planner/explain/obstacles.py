"""The members of a conflict in plain words, each with the numbers that make it one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from queuectl.domain.changes import is_cordoned
from queuectl.domain.diagnosis import Limit, Obstacle
from queuectl.domain.fleet import PASSING_TAINTS
from queuectl.domain.quantity import format_quantity
from queuectl.domain.words import counted, format_time
from queuectl.planner.explain.conflict import Member, world_of
from queuectl.planner.explain.held import HOLDERS
from queuectl.planner.explain.trial import World, as_it_is, books, requests
from queuectl.planner.explain.turn import Turn
from queuectl.planner.problem.flavors import options_of
from queuectl.planner.problem.problem import caps
from queuectl.planner.problem.request import ANYWHERE, GangRequest, Pods, Unit
from queuectl.planner.problem.topology import Mask
from queuectl.planner.quota.tree import FlavorResource
from queuectl.planner.reasons.room import room_of, scarcest
from queuectl.planner.reasons.words import amount, asked_by, requests_of, some


def obstacle_of(turn: Turn, member: Member) -> Obstacle:
    """One member, said."""
    if member.row is not None:
        return _quota(turn, member.row)
    return _SAY[member.limit](turn)


def _quota(turn: Turn, row: FlavorResource) -> Obstacle:
    flavor, resource = row
    assert turn.queue is not None
    state = books(turn, as_it_is(turn))
    need = max((d.charges.get(row, 0) for d in _demands(turn)), default=0)
    borrows = turn.pending.may_borrow(turn.snapshot.now)
    left = max(0, state.quota_left(turn.queue.name, borrows=borrows).get(row, 0))
    most = state.quota_most(turn.queue.name).get(row, 0)
    cohort = f" and its cohort {turn.queue.cohort}" if turn.queue.cohort is not None else ""
    text = (
        f"quota: it needs {amount(resource, need)} of flavor {flavor}; ClusterQueue {turn.queue.name}{cohort} "
        f"can give at most {amount(resource, most)}, {amount(resource, left)} now"
    )
    details: dict[str, Any] = {
        "clusterQueue": turn.queue.name,
        "flavor": flavor,
        "resource": resource,
        "needs": need,
        "left": left,
        "most": most,
    }
    if turn.queue.cohort is not None:
        details["cohort"] = turn.queue.cohort
    if turn.pending.borrows_at is not None and not borrows:
        at = format_time(turn.pending.borrows_at)
        text += f"; it was evicted and does not borrow before {at}"
        details["borrowsAt"] = at
    return Obstacle(Limit.QUOTA, text, details)


def _flavor(turn: Turn) -> Obstacle:
    assert turn.queue is not None
    options = options_of(turn.pending.workload, turn.queue, turn.problem)
    details: dict[str, Any] = {"clusterQueue": turn.queue.name}
    if options.uncovered:
        names = ", ".join(options.uncovered)
        details["uncovered"] = list(options.uncovered)
        return Obstacle(Limit.FLAVOR, f"ClusterQueue {turn.queue.name} covers no {names}", details)
    listed = list(dict.fromkeys(q.flavor for g in turn.queue.groups for q in g.flavors))
    details |= {"flavors": listed, "refused": dict(sorted(options.refused.items()))}
    why = [f"{name} ({options.refused[name]})" for name in listed if name in options.refused]
    text = f"flavors: ClusterQueue {turn.queue.name} has only the nodes of {', '.join(listed)}"
    if why:
        text += f", and it cannot use {', '.join(why)}"
    return Obstacle(Limit.FLAVOR, text, details)


def _rules(turn: Turn) -> Obstacle:
    rules = {p.shape.rules for p in turn.pending.workload.podsets}
    parts = [f"node selector {k}={v}" for k, v in sorted({s for r in rules for s in r.selector})]
    if any(r.affinity is not None for r in rules):
        parts.append("required node affinity")
    if any(t.key not in PASSING_TAINTS for n in turn.snapshot.fleet.nodes for t in n.taints):
        parts.append("tolerations")
    usable, size = _count(_usable(turn, as_it_is(turn))), turn.problem.size
    verb = "leaves" if len(parts) == 1 and parts != ["tolerations"] else "leave"
    text = f"node rules: its {' and '.join(parts) or 'flavors'} {verb} it {usable} of {counted(size, 'node')}"
    return Obstacle(Limit.RULES, text, {"usable": usable, "nodes": size, "rules": parts})


def _topology(turn: Turn) -> Obstacle:
    request = next(iter(_demands(turn)), None)
    bound = [u for u in request.units if u.required != ANYWHERE or _sliced(u)] if request else []
    if not bound:
        levels = sorted(
            {x for p in turn.pending.workload.podsets if p.topology for x in p.topology.levels}
        )
        text = f"topology: it asks for {', '.join(levels) or 'one domain'}"
        return Obstacle(Limit.TOPOLOGY, text, {"levels": levels})
    free = books(turn, as_it_is(turn)).free()
    rooms = [room_of(unit, free) for unit in bound]
    tight = next((room for room in rooms if room.short), rooms[0])
    text = f"topology: it {asked_by(tight.unit)}; {tight.sentence}"
    return Obstacle(Limit.TOPOLOGY, text, tight.details)


def _sliced(unit: Unit) -> bool:
    return any(p.slices or p.size > 1 for p in unit.pods)


def _shape(turn: Turn) -> Obstacle:
    request = next(iter(_demands(turn)), None)
    pods = _largest(request) if request is not None else None
    if pods is None:
        return Obstacle(Limit.SHAPE, "shape: its pods do not fit the nodes", {})
    free = books(turn, as_it_is(turn)).free()
    fits = int(caps(free, pods.shape).sum())
    column = pods.shape.columns[0] if pods.shape.columns else None
    room = np.maximum(free[column], 0)[pods.shape.eligible] if column is not None else np.zeros(0)
    name = scarcest(pods) or ""
    most = int(room.max(initial=0))
    text = (
        f"shape: one node must hold {requests_of(pods.shape.requests)} for each pod, all at once; "
        f"{amount(name, int(room.sum()))} are free on the nodes it may use, at most {amount(name, most)} "
        f"on one, room for {counted(fits, 'such pod')}"
    )
    return Obstacle(
        Limit.SHAPE,
        text,
        {
            "requests": dict(sorted(pods.shape.requests.items())),
            "free": int(room.sum()),
            "largest": most,
            "fits": fits,
        },
    )


def _largest(request: GangRequest) -> Pods | None:
    pods = [p for p in request.pods if p.shape.columns]
    return max(pods, key=lambda p: int(p.shape.vector[p.shape.columns[0]]), default=None)


def _order(turn: Turn) -> Obstacle:
    kept = turn.cycle.state.kept
    promised = [uid for uid, r in turn.cycle.refused.items() if r.lease is not None]
    heads = turn.cycle.heads.heads.get(turn.queue.name, []) if turn.queue is not None else []
    refs = {p.workload.uid: p.workload.ref for p in turn.snapshot.pending}
    names = [k.request.pending.workload.ref for k in kept]
    names += [refs[uid] for uid in promised]
    parts = []
    if heads:
        parts.append(f"StrictFIFO keeps it behind {some([h.ref for h in heads])}")
    if names:
        parts.append(f"{some(names)} before it in line start{'s' * (len(names) == 1)} first")
    text = f"order: {'; '.join(parts) or 'gangs before it'}"
    return Obstacle(Limit.ORDER, text, {"before": names, "behind": [h.ref for h in heads]})


def _lease(turn: Turn) -> Obstacle:
    uid = turn.uid
    refs = {p.workload.uid: p.workload.ref for p in turn.snapshot.pending}
    refs |= {a.workload.uid: a.workload.ref for a in turn.snapshot.admitted}
    names = [refs.get(u, u) for u, _, _ in turn.cycle.leases.held() if u != uid]
    text = f"leases: freed capacity is held for {some(names)}"
    return Obstacle(Limit.LEASE, text, {"heldFor": names})


def _health(turn: Turn) -> Obstacle:
    nodes = {}
    for name in out_of_service(turn):
        node = turn.snapshot.fleet.by_name[name]
        nodes[name] = (
            "not ready"
            if not node.ready
            else "cordoned"
            if is_cordoned(node)
            else "refused by kube-scheduler"
            if name in turn.pending.excluded
            else "not well"
        )
    names = [f"{name} ({why})" for name, why in nodes.items()]
    text = f"node health: {counted(len(nodes), 'node')} it could use {'is' if len(nodes) == 1 else 'are'} out: {some(names)}"
    return Obstacle(Limit.HEALTH, text, {"nodes": nodes})


def out_of_service(turn: Turn) -> list[str]:
    """Nodes that it could use if they were well."""
    as_is = as_it_is(turn)
    well = world_of(turn, tuple(Member(x) for x in Limit if x is not Limit.HEALTH))
    out = _usable(turn, well) & ~_usable(turn, as_is)
    return [turn.problem.index.nodes[i].name for i in np.flatnonzero(out).tolist()]


def _running(turn: Turn) -> Obstacle:
    request = next(iter(_demands(turn)), None)
    gangs = turn.snapshot.admitted
    leaving = sum(a.leaving for a in gangs)
    holders = [counted(len(gangs), "gang")] if gangs else []
    holders += ["other pods"] if turn.snapshot.strangers else []
    verb = "holds" if holders == ["1 gang"] else "hold"
    text = f"what runs: {' and '.join(holders) or 'evicted gangs'} {verb}"
    details: dict[str, Any] = {"gangs": len(gangs), "leaving": leaving}
    pods = _largest(request) if request is not None else None
    name = scarcest(pods) if pods is not None else None
    if pods is not None and name is not None:
        column = pods.shape.columns[0]
        total = int(turn.problem.index.allocatable[column][pods.shape.eligible].sum())
        held = int(turn.held[Limit.RUNNING].now[column][pods.shape.eligible].sum())
        text += f" {format_quantity(name, held)} of {amount(name, total)} on the nodes it may use"
        details |= {"resource": name, "held": held, "of": total}
    else:
        text += " quota of the queue and its cohort"
    if leaving:
        text += f"; {leaving} of them {'is' if leaving == 1 else 'are'} leaving"
    return Obstacle(Limit.RUNNING, text, details)


def _fleet(turn: Turn) -> Obstacle:
    asked = turn.pending.workload.requests
    size = turn.problem.size
    sums = dict(
        zip(
            turn.problem.resources, turn.problem.index.allocatable.sum(axis=1).tolist(), strict=True
        )
    )
    short = [(n, v, sums.get(n, 0)) for n, v in sorted(asked.items()) if v > sums.get(n, 0)]
    details: dict[str, Any] = {
        "nodes": size,
        "short": [{"resource": n, "needs": v, "has": has} for n, v, has in short],
    }
    if short:
        parts = [
            f"it needs {amount(n, v)}, all {counted(size, 'node')} have {amount(n, has)}"
            for n, v, has in short
        ]
        return Obstacle(Limit.FLEET, f"fleet: {'; '.join(parts)}", details)
    seen = [len(u.tree.order) for d in _demands(turn) for u in d.units]
    if seen and max(seen) < size:
        details["inTopology"] = max(seen)
        text = (
            f"fleet: only {max(seen)} of {counted(size, 'node')} carry every label of the topology"
        )
        return Obstacle(Limit.FLEET, text, details)
    text = f"fleet: even empty, with no rule or level, {counted(size, 'node')} cannot hold it"
    return Obstacle(Limit.FLEET, text, details)


def _demands(turn: Turn) -> list[GangRequest]:
    """What it asks, under each choice of flavors; with rules of flavors left out if there is no choice."""
    as_is = as_it_is(turn)
    loose = world_of(turn, tuple(Member(x) for x in Limit if x is not Limit.FLAVOR))
    for world in (as_is, loose):
        found = list(requests(turn, _open(world), books(turn, world).problem))
        if found:
            return found
    return []


def _open(world: World) -> World:
    return World(world.workload, world.config, HOLDERS, strict=False, well=world.well)


def _usable(turn: Turn, world: World) -> Mask:
    """Nodes that some of its pods may use under some choice of flavors."""
    usable = np.zeros(turn.problem.size, dtype=np.bool_)
    for request in requests(turn, _open(world), books(turn, world).problem):
        for pods in request.pods:
            usable |= pods.shape.eligible
    return usable


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


_SAY: Final[Mapping[Limit, Callable[[Turn], Obstacle]]] = {
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
