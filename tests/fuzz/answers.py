"""Statements about the plan and the explanations for a small cluster, whatever shape its work has.

The verifier and the judge accept the plan. A gang is refused for good if, and only if, it fits no state of the cluster in which all that
passes has ended. Gangs that never fit, and the order of the input, change nothing. Of equal losses the newest gang is evicted. Pods without devices
leave nodes with devices to others. Each limit that a reason counts is short. An explanation is the same with and without a
plan, and each fix starts the gang.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from queuectl.control.checked_plan import checked_plan
from queuectl.domain.diagnosis import apply_all
from queuectl.domain.fleet import Node
from queuectl.domain.plan import Admission, Plan, Refusal
from queuectl.domain.reasons import NEVER_FITS, Code
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner.explain import diagnose
from tests.fuzz.ever import fewest, fits_ever, room
from tests.fuzz.figures import Result
from tests.fuzz.judge import complaints
from tests.fuzz.shapes import SHAPES, Shaped, lasting, shaped, shapes_of
from tests.planner.feature_counts import FEATURES as GENERATED
from tests.planner.feature_counts import features_of, outcomes_of

FEATURES: Final = SHAPES | GENERATED - {"lease", "planned start"}
"""Leases and planned starts are of the cycles after the first one."""
_DECIDED_BEFORE: Final = frozenset(
    {
        *(Code.UNDECIDED, Code.PENDING_EVALUATION, Code.TOO_MANY_PENDING, Code.WAITING_IN_ORDER),
    }
)
"""Reasons for which a gang is not searched for."""
_EXPLAINED: Final = 3
"""One gang of each third snapshot is explained."""

Complaints = Iterator[str]


class Answers:
    """The stage."""

    def __call__(self, seed: int) -> Result:
        made, rng, result = shaped(seed), random.Random(f"answers {seed}"), Result()
        checked = checked_plan(made.snapshot)
        decided = checked.decided
        result.features = frozenset((*shapes_of(made), *features_of(made.snapshot)))
        result.counted.update(outcomes_of(made.snapshot, decided))
        result.defects += [f"verifier: {one}" for one in checked.violations]
        result.defects += [f"alarm: {one}" for one in decided.alarms]
        result.defects += [f"judge: {one}" for one in complaints(made.snapshot, decided)]
        ever = _ever(made, decided)
        result.counted.update(f"fits in some state: {fits}" for fits in ever.values())
        result.defects += _never(made.snapshot, decided, ever)
        never = {uid for uid, fits in ever.items() if fits is False}
        if never:
            result.defects += _changed(made.snapshot, decided, never)
        result.defects += _shuffled(rng, made.snapshot, decided)
        result.defects += _not_the_newest(made.snapshot, decided)
        result.defects += _on_devices(made.snapshot, decided)
        result.defects += _not_short(made.snapshot, decided)
        if seed % _EXPLAINED == 0 and decided.pending:
            uid = rng.choice(decided.pending).uid
            result.defects += _explained(made.snapshot, decided, uid, result.counted)
        return result


# ---- never, and for a time


def _ever(made: Shaped, plan: Plan) -> dict[str, bool | None]:
    """Of the gangs that wait: whether each fits once nothing that passes is left."""
    refused = {refusal.uid: refusal for refusal in plan.pending}
    states = list(lasting(made))
    return {
        entry.workload.uid: fits_ever(states, entry)
        for entry in made.snapshot.pending
        if entry.workload.uid in refused
        and entry.blocked is None
        and entry.workload.growth is None
        and refused[entry.workload.uid].lease is None
        and not _makes_nodes(made.snapshot, entry)
    }


def _makes_nodes(snapshot: Snapshot, entry: Pending) -> bool:
    queue = snapshot.queue_of(entry.workload)
    return queue is not None and any(rule.provisions for rule in queue.admission_checks)


def _never(snapshot: Snapshot, plan: Plan, ever: Mapping[str, bool | None]) -> Complaints:
    for refusal in plan.pending:
        fits, reason = ever.get(refusal.uid), refusal.reasons[0]
        never = reason.code in NEVER_FITS
        if never and fits:
            yield f"never: {refusal.uid} fits once all that passes has ended: {reason}"
        if fits is False and not never and reason.code not in _DECIDED_BEFORE:
            yield f"never: {refusal.uid} fits no state: {reason}"


def _changed(snapshot: Snapshot, plan: Plan, never: set[str]) -> Complaints:
    """Gangs that never fit change nothing."""
    left = tuple(e for e in snapshot.pending if e.workload.uid not in never)
    after = checked_plan(replace(snapshot, pending=left)).decided
    yield from _differences(f"without {sorted(never)}", plan, after, never)


def _shuffled(rng: random.Random, snapshot: Snapshot, plan: Plan) -> Complaints:
    """The order of the input changes nothing."""

    def some(given: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(rng.sample(list(given.items()), len(given)))

    config = replace(
        snapshot.config,
        cluster_queues=some(snapshot.config.cluster_queues),
        local_queues=some(snapshot.config.local_queues),
        flavors=some(snapshot.config.flavors),
        cohorts=some(snapshot.config.cohorts),
        checks=some(snapshot.config.checks),
    )
    other = replace(
        snapshot,
        config=config,
        pending=tuple(rng.sample(snapshot.pending, len(snapshot.pending))),
        admitted=tuple(rng.sample(snapshot.admitted, len(snapshot.admitted))),
        other_pods=some(snapshot.other_pods),
        budgets=tuple(rng.sample(snapshot.budgets, len(snapshot.budgets))),
    )
    yield from _differences("in another order", plan, checked_plan(other).decided, set())


def _differences(what: str, before: Plan, after: Plan, without: set[str]) -> Complaints:
    old, new = _decisions(before, without), _decisions(after, without)
    for name, decided in old.items():
        if decided != new[name]:
            yield f"{what}, {name} {decided} become {new[name]}"


def _decisions(plan: Plan, without: set[str]) -> dict[str, object]:
    others: list[Refusal] = [one for one in plan.pending if one.uid not in without]
    return {
        "starts": [(a.uid, a.placement) for a in plan.admitted],
        "victims": [(gone.victim, gone.preemptor) for gone in plan.preempted],
        "evictions": [gone.uid for gone in plan.evicted],
        "moves": [(moved.uid, moved.placement) for moved in plan.moved],
        "leases": {refusal.uid: refusal.lease for refusal in others},
        "planned starts": [(one.uid, one.start) for one in plan.planned if one.is_current],
        "reasons": {refusal.uid: refusal.reasons for refusal in others},
    }


# ---- victims


def _not_the_newest(snapshot: Snapshot, plan: Plan) -> Complaints:
    """A gang is evicted, and an equal one that started later, with the same loss, stays.

    A repair takes its victims before any pending gang. If a repair is undone for a pending gang that may evict its gang, the gangs before
    it keep the victims that they have chosen among the others.
    """
    if any(one.code is Code.NODE_FAILURES for one in plan.evicted):
        return
    gone = {one.victim for one in plan.preempted}
    gone |= {one.uid for one in plan.moved} | {one.uid for one in plan.evicted}
    running = {held.workload.uid: held for held in snapshot.admitted}
    for preemption in plan.preempted:
        victim = running[preemption.victim]
        for other in snapshot.admitted:
            newer = other.started_at > victim.started_at
            if newer and other.workload.uid not in gone and _alike(snapshot, victim, other):
                yield f"victim: {preemption.victim}, and {other.workload.uid} is newer"


def _alike(snapshot: Snapshot, one: Admitted, other: Admitted) -> bool:
    """Whether two gangs differ in their names and starts only, and lose nothing but their starts."""

    def of(held: Admitted) -> object:
        workload = replace(held.workload, uid="", name="")
        return replace(held, workload=workload, started_at=0.0)

    queue = snapshot.queue_of(one.workload)
    if queue is None or queue.protection.min_runtime or queue.time_slice is not None:
        return False
    return of(one) == of(other) and one.utilization == 0.0 and one.workload.gpus > 0


# ---- devices


def _on_devices(snapshot: Snapshot, plan: Plan) -> Complaints:
    """Pods without devices are on a node with devices, and a node of its rack without devices has room for them."""
    if not _starts_alone(snapshot, plan) or plan.stats["consolidated"]:
        return  # gangs that start together are on fewest nodes first
    entries = {entry.workload.uid: entry for entry in snapshot.pending}
    free = _free(snapshot, plan)
    for admission in plan.admitted:
        entry = entries[admission.uid]
        if len(entry.workload.podsets) == 1 and entry.workload.growth is None:
            yield from _instead(snapshot, entry, admission, free)


def _instead(
    snapshot: Snapshot, entry: Pending, admission: Admission, free: Mapping[str, Counter[str]]
) -> Complaints:
    [pods], [placed] = entry.workload.podsets, admission.placement.podsets
    plain = not pods.topology or not (pods.topology.slices or pods.topology.balanced)
    if _devices(pods.shape.requests) or not plain or placed.shares:
        return
    nodes, used = snapshot.fleet.by_name, placed.by_node
    for name, count in used.items():
        if not _devices(nodes[name].allocatable):
            continue
        for other in snapshot.fleet.nodes:
            equal = _rack(other) == _rack(nodes[name]) and other.name not in used
            spared = equal and not _devices(other.allocatable) and not _devices(other.failed)
            usable = spared and _usable(snapshot, entry, pods, other, admission)
            if usable and room(pods.shape.requests, free[other.name]) >= count:
                yield f"devices: {entry.workload.uid} is on {name}, and {other.name} has room"


def _devices(amounts: Mapping[str, int]) -> bool:
    return any(amount for name, amount in amounts.items() if "/" in name)


def _rack(node: Node) -> tuple[str | None, ...]:
    return node.labels.get("block"), node.labels.get("rack")


def _usable(
    snapshot: Snapshot, entry: Pending, pods: PodSet, node: Node, admission: Admission | None
) -> bool:
    """Whether pods of a gang can be on a node; by the flavors of its start, or by some flavor of its ClusterQueue."""
    queue = snapshot.queue_of(entry.workload)
    assert queue is not None
    names = {quotas.flavor for group in queue.groups for quotas in group.flavors}
    if admission is not None:
        names = {name for placed in admission.placement.podsets for name in placed.charged}
    flavors = [snapshot.config.flavors[name] for name in names]
    found = [f.tolerations for f in flavors if f.topology and node.has_labels(f.node_labels)]
    if admission is not None and len(found) < len(flavors):
        return False
    for more in found:
        rules = replace(pods.shape.rules, tolerations=(*pods.shape.rules.tolerations, *more))
        if node.ready and node.name not in entry.excluded and rules.refusal(node) is None:
            return True
    return False


def _starts_alone(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether the plan only starts gangs, and keeps nothing for others."""
    held = plan.planned or snapshot.reservations or any(r.lease for r in plan.pending)
    leave = plan.preempted or plan.moved or plan.evicted
    return not (held or leave or any(a.repaired for a in plan.admitted))


def _free(snapshot: Snapshot, plan: Plan) -> dict[str, Counter[str]]:
    """The free amounts of each node once the gangs of a plan have started and none has left."""
    free = {node.name: Counter(node.allocatable) for node in snapshot.fleet.nodes}
    entries = {entry.workload.uid: entry.workload for entry in snapshot.pending}
    held = [(one.workload, one.placement) for one in snapshot.admitted]
    held += [(entries[a.uid], a.placement) for a in plan.admitted if not a.repaired]
    used: list[tuple[str, Mapping[str, int]]] = list(snapshot.other_pods.items())
    for workload, placement in held:
        used += placement.use(workload).items()
    for name, amounts in used:
        if name in free:
            free[name].subtract(amounts)
    return free


# ---- reasons


def _not_short(snapshot: Snapshot, plan: Plan) -> Complaints:
    """A reason counts more nodes that lack a resource than there are."""
    if not _starts_alone(snapshot, plan):
        return
    entries = {entry.workload.uid: entry for entry in snapshot.pending}
    free = _free(snapshot, plan)
    for refusal in plan.pending:
        entry = entries[refusal.uid]
        for limit in _limits(refusal):
            yield from _counted(snapshot, entry, limit, free)


def _limits(refusal: Refusal) -> Iterator[Mapping[str, Any]]:
    for reason in refusal.reasons:
        yield from reason.details.get("limits", ())


def _counted(
    snapshot: Snapshot, entry: Pending, limit: Mapping[str, Any], free: Mapping[str, Counter[str]]
) -> Complaints:
    """``limit``: the nodes that lack its resources. Without ``of``, they are too small if they are empty."""
    [first, *_], needs = limit["resources"], limit["needs"]
    asked = {name for pods in entry.workload.podsets for name in pods.shape.requests}
    if limit["most"] >= needs or not asked.issuperset(limit["resources"]):
        return  # each has room for a pod and for no more, or a Reservation keeps the nodes
    if limit.get("before"):
        return  # gangs before it can get other nodes at the end of the plan
    here = [
        (node, need)
        for node in snapshot.fleet.nodes
        for pods in entry.workload.podsets
        for need in _needs(entry.workload, pods)
        if need.get(first, 0) == needs and _selected(snapshot, entry, pods, node)
    ]
    for name in limit["resources"]:
        short = {
            node.name for node, need in here if _left(node, name, limit, free) < need.get(name, 0)
        }
        if len(short) < limit["nodes"]:
            yield (
                f"limits: {entry.workload.uid}: {limit['nodes']} nodes lack {name}, "
                f"and {sorted(short)} do: {limit}"
            )


def _needs(workload: Workload, pods: PodSet) -> Iterator[Mapping[str, int]]:
    """The amounts that a node must have: for one pod, for a slice, or for all pods of its podset group, or the fewest of them."""
    yield pods.shape.requests
    for layer in pods.topology.slices if pods.topology is not None else ():
        yield pods.shape.requests * layer.size
    unit = [
        one for one in workload.podsets if one is pods or (one.group and one.group == pods.group)
    ]
    for counts in ([one.count for one in unit], [fewest(one).count for one in unit]):
        found: Counter[str] = Counter()
        for one, count in zip(unit, counts, strict=True):
            found.update(one.shape.requests * count)
        yield found


def _left(node: Node, name: str, limit: Mapping[str, Any], free: Mapping[str, Counter[str]]) -> int:
    if "of" in limit:
        return free[node.name][name]
    return node.allocatable.get(name, 0) + node.failed.get(name, 0)


def _selected(snapshot: Snapshot, entry: Pending, pods: PodSet, node: Node) -> bool:
    """Whether pods could be on a node if nothing that passes kept them off."""
    healthy = replace(node.recovered, ready=True)
    return _usable(snapshot, replace(entry, excluded=frozenset()), pods, healthy, None)


# ---- explanations


def _explained(snapshot: Snapshot, plan: Plan, uid: str, counted: Counter[str]) -> Complaints:
    found, known = diagnose(snapshot, uid), diagnose(snapshot, uid, plan=plan)
    counted["diagnoses"] += 1
    if found != known:
        yield f"explain: {uid} without a plan {found}, with it {known}"
    for fix in known.suggested_fixes:
        counted["fixes"] += 1
        made = checked_plan(apply_all(fix.changes, snapshot))
        if made.violations:
            yield f"explain: {uid} after {fix.changes}: {made.violations}"
        starts = any(a.uid == uid for a in made.decided.admitted)
        helped = any(r.uid == uid and r.lease is not None for r in made.decided.pending)
        if not (starts or helped):
            yield f"explain: {uid} waits after {fix.message}: {fix.changes}"
