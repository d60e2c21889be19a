"""Correct plans made wrong, each in one way, with the rule that the verifier must name.

Where the plan itself cannot be made wrong in some way, the snapshot is: a quota one lower than the plan uses, a
victim that turns out to be protected. Nothing of the planner or the verifier is used to make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from queuectl.domain.fleet import HOSTNAME, Fleet
from queuectl.domain.plan import Admission, Plan, Preemption, Refusal
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import Defragment, Protection, ReclaimWithinCohort
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import (
    Placement,
    PodSet,
    PodSetPlacement,
    TopologyMode,
    Workload,
)
from queuectl.planner.verify import PlanRule
from tests.planner.oracle_fit import Oracle

SHARED = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}


class Mutant(NamedTuple):
    """A plan that breaks ``rule`` on this snapshot."""

    rule: PlanRule
    snapshot: Snapshot
    plan: Plan


Maker = Callable[[Snapshot, Plan], Iterator[Mutant]]


class Slot(NamedTuple):
    """One podset of one gang that the plan starts."""

    number: int  # of the admission
    workload: Workload
    podset: PodSet
    placed: PodSetPlacement


def slots(snapshot: Snapshot, plan: Plan) -> Iterator[Slot]:
    """Podsets on nodes, of gangs that start."""
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    for number, admission in enumerate(plan.admitted):
        workload = waiting[admission.uid]
        for podset, placed in zip(workload.podsets, admission.placement.podsets, strict=True):
            if placed.nodes:
                yield Slot(number, workload, podset, placed)


def elsewhere(plan: Plan, slot: Slot, nodes: tuple[tuple[str, int], ...]) -> Plan:
    """The plan with this podset on other nodes."""
    admission = plan.admitted[slot.number]
    podsets = tuple(
        replace(p, nodes=nodes) if p.podset == slot.placed.podset else p
        for p in admission.placement.podsets
    )
    changed = replace(admission, placement=Placement(podsets))
    return replace(
        plan,
        admitted=(*plan.admitted[: slot.number], changed, *plan.admitted[slot.number + 1 :]),
    )


def without_last(slot: Slot) -> tuple[tuple[str, int], ...]:
    """Its nodes without the last pod."""
    *rest, (name, count) = slot.placed.nodes
    return (*rest, (name, count - 1)) if count > 1 else tuple(rest)


# Whole gangs.


def drop_a_pod(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for slot in slots(snapshot, plan):
        yield Mutant(PlanRule.WHOLE, snapshot, elsewhere(plan, slot, without_last(slot)))


def add_a_pod(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for slot in slots(snapshot, plan):
        *rest, (name, count) = slot.placed.nodes
        yield Mutant(PlanRule.WHOLE, snapshot, elsewhere(plan, slot, (*rest, (name, count + 1))))


def start_with_too_few(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """Even where a part of the gang may start, this part is too small."""
    for slot in slots(snapshot, plan):
        least = slot.podset.min_count
        if least is not None and least > 1:
            admission = plan.admitted[slot.number]
            name = slot.placed.nodes[0][0]
            podsets = tuple(
                replace(p, nodes=((name, least - 1),), pods=least - 1)
                if p.podset == slot.placed.podset
                else p
                for p in admission.placement.podsets
            )
            changed = replace(admission, placement=Placement(podsets))
            rest = [a for a in plan.admitted if a is not admission]
            yield Mutant(PlanRule.WHOLE, snapshot, replace(plan, admitted=(*rest, changed)))


def forget_a_podset(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for number, admission in enumerate(plan.admitted):
        if len(admission.placement.podsets) > 1:
            changed = replace(admission, placement=Placement(admission.placement.podsets[1:]))
            rest = (*plan.admitted[:number], changed, *plan.admitted[number + 1 :])
            yield Mutant(PlanRule.WHOLE, snapshot, replace(plan, admitted=rest))


# Nodes.


def crowd_a_node(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """One pod more than fits, now or after all leaving gangs have left, on a node that holds pods of the plan."""
    oracle = Oracle(snapshot)
    views = [oracle.view(number)[0] for number in (0, 1)]
    for slot in slots(snapshot, plan):
        taken: dict[str, int] = {}
        for other in slots(snapshot, plan):
            for name, count in other.placed.nodes:
                amount = other.podset.shape.requests[GPU] * count
                taken[name] = taken.get(name, 0) + amount
        need = slot.podset.shape.requests[GPU]
        for name in sorted(snapshot.fleet.by_name):
            free = min(view[name].get(GPU, 0) for view in views) - taken.get(name, 0)
            *rest, (last, count) = slot.placed.nodes
            if need > max(0, free) and name != last:
                less = [(last, count - 1)] if count > 1 else []
                moved = (*rest, *less, (name, 1))
                yield Mutant(PlanRule.CAPACITY, snapshot, elsewhere(plan, slot, moved))


def share_the_gpus_of_a_node(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """Each GPU of a node with several GPUs of a gang turns out to be offered several times."""
    for slot in slots(snapshot, plan):
        amount = slot.podset.shape.requests[GPU]
        for name, count in slot.placed.nodes if amount else ():
            if amount * count > 1:
                nodes = tuple(
                    replace(n, labels={**n.labels, **SHARED}) if n.name == name else n
                    for n in snapshot.fleet.nodes
                )
                yield Mutant(PlanRule.SHARED_GPUS, replace(snapshot, fleet=Fleet(nodes)), plan)


def use_a_node_that_is_out(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The node fails, or kube-scheduler has refused it for this gang before."""
    for slot in slots(snapshot, plan):
        name = slot.placed.nodes[0][0]
        nodes = tuple(
            replace(n, ready=False) if n.name == name else n for n in snapshot.fleet.nodes
        )
        fleet = type(snapshot.fleet)(nodes)
        yield Mutant(PlanRule.ELIGIBLE, replace(snapshot, fleet=fleet), plan)
        pending = tuple(
            replace(p, excluded=p.excluded | {name}) if p.workload.uid == slot.workload.uid else p
            for p in snapshot.pending
        )
        yield Mutant(PlanRule.ELIGIBLE, replace(snapshot, pending=pending), plan)


def break_a_domain(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """One of several pods leaves the domain that all must share."""
    for slot in slots(snapshot, plan):
        topology = slot.podset.topology
        if topology is None or topology.mode is not TopologyMode.REQUIRED or topology.level is None:
            continue
        if slot.placed.count > 1:
            for name in _outside(snapshot, slot, topology.level):
                moved = (*without_last(slot), (name, 1))
                yield Mutant(PlanRule.TOPOLOGY, snapshot, elsewhere(plan, slot, moved))


def break_a_slice(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The last pod leaves the domain of its slice."""
    for slot in slots(snapshot, plan):
        for layer in slot.podset.topology.slices if slot.podset.topology is not None else ():
            if layer.size > 1:
                for name in _outside(snapshot, slot, layer.level):
                    moved = (*without_last(slot), (name, 1))
                    yield Mutant(PlanRule.TOPOLOGY, snapshot, elsewhere(plan, slot, moved))


def _outside(snapshot: Snapshot, slot: Slot, level: str) -> list[str]:
    """Nodes outside the domain of the podset's last pod; none of its own nodes."""
    nodes = snapshot.fleet.by_name

    def path(name: str) -> tuple[str, ...]:
        labels = nodes[name].labels
        levels = ("block", "rack", HOSTNAME)
        return tuple(labels[at] for at in levels[: levels.index(level) + 1])

    home = path(slot.placed.nodes[-1][0])
    own = {name for name, _ in slot.placed.nodes}
    return [name for name in sorted(nodes) if path(name) != home and name not in own]


# Quota.


def exceed_quota(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The quota of a queue that starts a gang is one GPU too small, with no queue to borrow from."""
    config = snapshot.config
    starts = {slot.workload.queue for slot in slots(snapshot, plan)}
    for name, queue in config.cluster_queues.items():
        used = _gpus_used(snapshot, plan, name)
        if name not in starts or not any(used.values()):
            continue
        flavor = max(sorted(used), key=lambda f: used[f])
        groups = tuple(
            replace(
                group,
                flavors=tuple(
                    replace(q, nominal={**q.nominal, GPU: used[flavor] - 1})
                    if q.flavor == flavor
                    else q
                    for q in group.flavors
                ),
            )
            for group in queue.groups
        )
        alone = replace(queue, groups=groups, cohort=None)
        if _starts_gpus(snapshot, plan, name, flavor):
            changed = replace(config, cluster_queues={**config.cluster_queues, name: alone})
            yield Mutant(PlanRule.QUOTA, replace(snapshot, config=changed), plan)


def _gpus_used(snapshot: Snapshot, plan: Plan, queue: str) -> dict[str, int]:
    """Flavor to GPUs of all gangs that hold capacity or start."""
    used: dict[str, int] = {}
    held = [(a.workload, a.placement) for a in snapshot.admitted]
    waiting = {p.workload.uid: p.workload for p in snapshot.pending}
    held += [(waiting[a.uid], a.placement) for a in plan.admitted]
    for workload, placement in held:
        for podset, placed in zip(workload.podsets, placement.podsets, strict=True):
            flavor = placed.flavors.get(GPU)
            if workload.queue == queue and flavor is not None:
                amount = podset.shape.requests[GPU] * placed.count
                used[flavor] = used.get(flavor, 0) + amount
    return used


def _starts_gpus(snapshot: Snapshot, plan: Plan, queue: str, flavor: str) -> bool:
    return any(
        slot.workload.queue == queue
        and slot.placed.flavors.get(GPU) == flavor
        and slot.podset.shape.requests[GPU]
        for slot in slots(snapshot, plan)
    )


def charge_nothing(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for number, admission in enumerate(plan.admitted):
        podsets = tuple(replace(p, flavors={}) for p in admission.placement.podsets)
        changed = replace(admission, placement=Placement(podsets))
        rest = (*plan.admitted[:number], changed, *plan.admitted[number + 1 :])
        yield Mutant(PlanRule.FLAVOR, snapshot, replace(plan, admitted=rest))


# Victims.


def protect_a_victim(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """It is not preemptible, is protected after a recent start, or costs more than the preemptor."""
    config = snapshot.config
    for preemption in plan.preempted:
        victim = next(a for a in snapshot.admitted if a.workload.uid == preemption.victim)
        shielded = replace(victim, workload=replace(victim.workload, preemptible=False))
        dear = replace(victim, workload=replace(victim.workload, priority=1000))
        for other in (shielded, dear):
            admitted = tuple(other if a is victim else a for a in snapshot.admitted)
            yield Mutant(PlanRule.VICTIM, replace(snapshot, admitted=admitted), plan)
        spared = {
            name: replace(queue, protection=Protection(min_runtime=1e9))
            for name, queue in config.cluster_queues.items()
        }
        sparing = replace(config, cluster_queues=spared)
        yield Mutant(PlanRule.VICTIM, replace(snapshot, config=sparing), plan)


def evict_without_a_preemptor(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The preemptor's lease is lost: its victims would leave in vain."""
    for preemption in plan.preempted:
        yield Mutant(PlanRule.VICTIM, snapshot, _without_lease(plan, preemption.preemptor))


def _without_lease(plan: Plan, uid: str) -> Plan:
    pending = tuple(replace(r, lease=None) if r.uid == uid else r for r in plan.pending)
    return replace(plan, pending=pending)


def lease_a_part(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for number, refusal in enumerate(plan.pending):
        if refusal.lease is None or not refusal.lease.placement.podsets[0].nodes:
            continue
        first, *rest = refusal.lease.placement.podsets
        less = replace(first, nodes=first.nodes[1:])
        lease = replace(refusal.lease, placement=Placement((less, *rest)))
        waits = (*plan.pending[:number], replace(refusal, lease=lease), *plan.pending[number + 1 :])
        yield Mutant(PlanRule.WHOLE, snapshot, replace(plan, pending=waits))


# Victims of other ClusterQueues.


def _across(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[int, Preemption, str, str]]:
    """Each victim of another queue: its place in the plan, and the names of its queue and the preemptor's."""
    gangs = [*(p.workload for p in snapshot.pending), *(a.workload for a in snapshot.admitted)]
    queue_of = {workload.uid: workload.queue or "" for workload in gangs}
    for number, preemption in enumerate(plan.preempted):
        theirs, ours = queue_of[preemption.victim], queue_of[preemption.preemptor]
        if theirs != ours:
            yield number, preemption, theirs, ours


def _with_queue(snapshot: Snapshot, name: str, **changes: object) -> Snapshot:
    queues = dict(snapshot.config.cluster_queues)
    queues[name] = replace(queues[name], **changes)  # type: ignore[arg-type]
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=queues))


def forbid_to_reclaim(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for _, _, _, ours in _across(snapshot, plan):
        never = _with_queue(snapshot, ours, reclaim_within_cohort=ReclaimWithinCohort.NEVER)
        yield Mutant(PlanRule.VICTIM, never, plan)


def reclaim_from_an_equal(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The policy names lower priorities only, and the victim has the preemptor's."""
    priority = {p.workload.uid: p.workload.priority for p in snapshot.pending}
    for number, preemption, _, ours in _across(snapshot, plan):
        lower = _with_queue(
            snapshot, ours, reclaim_within_cohort=ReclaimWithinCohort.LOWER_PRIORITY
        )
        equal = priority[preemption.preemptor]
        admitted = tuple(
            replace(a, workload=replace(a.workload, priority=equal))
            if a.workload.uid == preemption.victim
            else a
            for a in snapshot.admitted
        )
        changed = replace(preemption, cost=replace(preemption.cost, priority=equal))
        victims = (*plan.preempted[:number], changed, *plan.preempted[number + 1 :])
        yield Mutant(
            PlanRule.VICTIM, replace(lower, admitted=admitted), replace(plan, preempted=victims)
        )


def reclaim_what_is_not_borrowed(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The victim's queue has more nominal quota than it could use."""
    for _, _, theirs, _ in _across(snapshot, plan):
        groups = tuple(
            replace(
                group,
                flavors=tuple(
                    replace(q, nominal=dict.fromkeys(group.covered, 10**6), lending={})
                    for q in group.flavors
                ),
            )
            for group in snapshot.config.cluster_queues[theirs].groups
        )
        if groups:
            yield Mutant(PlanRule.VICTIM, _with_queue(snapshot, theirs, groups=groups), plan)


def reclaim_from_another_cohort(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for _, _, theirs, _ in _across(snapshot, plan):
        yield Mutant(PlanRule.VICTIM, _with_queue(snapshot, theirs, cohort=None), plan)


def give_another_reason(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for number, preemption, _, _ in _across(snapshot, plan):
        for reason in ("InClusterQueue", "InCohortRoom", "because"):
            changed = replace(preemption, reason=reason)
            victims = (*plan.preempted[:number], changed, *plan.preempted[number + 1 :])
            yield Mutant(PlanRule.VICTIM, snapshot, replace(plan, preempted=victims))


# Moves.


def move_a_protected_gang(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """The moved gang is not preemptible, or is in a queue that does not allow moves."""
    config = replace(
        snapshot.config,
        cluster_queues={
            name: replace(queue, defragment=Defragment.OFF)
            for name, queue in snapshot.config.cluster_queues.items()
        },
    )
    for move in plan.moved:
        asked = replace(snapshot, make_room=None)
        yield Mutant(PlanRule.MOVE, replace(asked, config=config), plan)
        admitted = tuple(
            replace(a, workload=replace(a.workload, preemptible=False))
            if a.workload.uid == move.uid
            else a
            for a in snapshot.admitted
        )
        yield Mutant(PlanRule.MOVE, replace(snapshot, admitted=admitted), plan)


def move_without_a_preemptor(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for move in plan.moved:
        yield Mutant(PlanRule.MOVE, snapshot, _without_lease(plan, move.beneficiary))


def move_onto_the_same_spot(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """Its new placement is its current one: the capacity that the move was to free is not there."""
    held = {a.workload.uid: a.placement for a in snapshot.admitted}
    for number, move in enumerate(plan.moved):
        stays = replace(move, placement=held[move.uid])
        moved = (*plan.moved[:number], stays, *plan.moved[number + 1 :])
        yield Mutant(PlanRule.CAPACITY, snapshot, replace(plan, moved=moved))


# Capacity that is kept for leases.


def after(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The next cycle: its starts run, of its victims every other has left, leases wait for the others."""
    placed = {a.uid: a.placement for a in plan.admitted}
    victims = [p.victim for p in plan.preempted]
    leases = {r.uid: r.lease for r in plan.pending}
    running = tuple(
        replace(gang, leaving=gang.leaving or gang.workload.uid in victims)
        for gang in snapshot.admitted
        if gang.workload.uid not in victims[::2]
    )
    started = tuple(
        Admitted(p.workload, placed[p.workload.uid])
        for p in snapshot.pending
        if p.workload.uid in placed
    )
    waiting = tuple(
        replace(p, lease=leases[p.workload.uid])
        for p in snapshot.pending
        if p.workload.uid not in placed
    )
    return replace(snapshot, admitted=running + started, pending=waiting)


def take_what_is_kept_for_a_lease(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    """One GPU more starts on a node than the first lease in order can spare once its victims have left."""
    waiting = {p.workload.uid: p for p in snapshot.pending}
    kept = [r for r in plan.pending if r.lease is not None and waiting[r.uid].lease == r.lease]
    for refusal in sorted(kept, key=lambda r: _in_line(waiting[r.uid].workload))[:1]:
        assert refusal.lease is not None
        workload = waiting[refusal.uid].workload
        needs = refusal.lease.placement.use(workload)
        others = [
            (g.workload, g.placement)
            for g in snapshot.admitted
            if g.workload.uid not in refusal.lease.victims
        ]
        others += [(waiting[a.uid].workload, a.placement) for a in plan.admitted if not a.repaired]
        for name, need in needs.items():
            used = [placement.use(gang).get(name) for gang, placement in others]
            used.append(snapshot.other_pods.get(name))
            free = snapshot.fleet.by_name[name].allocatable[GPU]
            free -= sum(use[GPU] for use in used if use is not None)
            if 0 < need[GPU] <= free:
                taker = _joined(snapshot, plan, workload, name, free - need[GPU] + 1)
                yield Mutant(PlanRule.LEASE, *taker)


def _joined(
    snapshot: Snapshot, plan: Plan, like: Workload, name: str, gpus: int
) -> tuple[Snapshot, Plan]:
    """With one more gang, of one pod, that starts on a node."""
    first = like.podsets[0]
    shape = replace(first.shape, requests=type(first.shape.requests)({GPU: gpus}))
    podset = PodSet(first.name, 1, shape)
    gang = replace(like, uid="taker", name="taker", podsets=(podset,))
    flavors = _flavors_of(plan, like)
    placement = Placement((PodSetPlacement(first.name, ((name, 1),), flavors),))
    joined = replace(snapshot, pending=(*snapshot.pending, Pending(gang)))
    return joined, replace(plan, admitted=(*plan.admitted, Admission("taker", placement)))


def _flavors_of(plan: Plan, workload: Workload) -> dict[str, str]:
    """Of the first podset of a gang that holds a lease."""
    (lease,) = (r.lease for r in plan.pending if r.uid == workload.uid)
    assert lease is not None
    return dict(lease.placement.podsets[0].flavors)


def _in_line(workload: Workload) -> tuple[int, float, str]:
    return -workload.priority, workload.queued_at, workload.uid


# Gangs on nodes.


def forget_a_gang(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for refusal in plan.pending:
        rest = tuple(r for r in plan.pending if r is not refusal)
        yield Mutant(PlanRule.PARTITION, snapshot, replace(plan, pending=rest))


def start_twice(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for admission in plan.admitted:
        twice = replace(plan, admitted=(*plan.admitted, admission))
        yield Mutant(PlanRule.PARTITION, snapshot, twice)


def start_an_unknown_gang(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    unknown = Admission("unknown-gang", Placement(()))
    yield Mutant(PlanRule.PARTITION, snapshot, replace(plan, admitted=(*plan.admitted, unknown)))


def refuse_without_a_reason(snapshot: Snapshot, plan: Plan) -> Iterator[Mutant]:
    for number, refusal in enumerate(plan.pending):
        mute = Refusal(refusal.uid, (), refusal.lease)
        waits = (*plan.pending[:number], mute, *plan.pending[number + 1 :])
        yield Mutant(PlanRule.REASON, snapshot, replace(plan, pending=waits))


MAKERS: tuple[Maker, ...] = (
    drop_a_pod,
    add_a_pod,
    start_with_too_few,
    forget_a_podset,
    crowd_a_node,
    share_the_gpus_of_a_node,
    use_a_node_that_is_out,
    break_a_domain,
    break_a_slice,
    exceed_quota,
    charge_nothing,
    protect_a_victim,
    evict_without_a_preemptor,
    lease_a_part,
    forget_a_gang,
    start_twice,
    start_an_unknown_gang,
    refuse_without_a_reason,
)
RECLAIMERS: tuple[Maker, ...] = (
    forbid_to_reclaim,
    reclaim_from_an_equal,
    reclaim_what_is_not_borrowed,
    reclaim_from_another_cohort,
    give_another_reason,
)
MOVERS: tuple[Maker, ...] = (
    move_a_protected_gang,
    move_without_a_preemptor,
    move_onto_the_same_spot,
)
