"""The gangs that can start at all, and the gangs that no later gang of their ClusterQueue must pass.

In a StrictFIFO queue no gang is passed by one that uses capacity that it could have used. Under any strategy no gang is passed by one
that asks exactly the same and starts: that start is the proof that it could have. Among ClusterQueues the order is a rule of
thumb, not a guarantee. Nor is it checked where past use alone decides, for that changes with every start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from queuectl.domain.checks import CONTROLLERS, PROVISIONING
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.queues import ClusterQueue, ResourceGroup, StopPolicy
from queuectl.domain.reasons import AT_A_LIMIT, NEVER_FITS, Code
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, Workload
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.quota import flavor_refusal

# A gang that could not start on the empty cluster, or in its queue ever, cannot have used what others take. Nor could one
# that a limit other than quota keeps out.
_NEVER = NEVER_FITS | AT_A_LIMIT

Account: TypeAlias = tuple[str, str | None, str | None]
"""Namespace, LocalQueue and user."""


def check_order(index: PlanIndex) -> Iterator[PlanViolation]:
    """Admissible gangs only, and StrictFIFO per ClusterQueue."""
    for uid in sorted(index.started):
        entry = index.pending.get(uid)
        if entry is None:
            continue
        why = inadmissible(index, entry) or _unready_check(index, entry)
        if why is not None:
            yield PlanViolation(PlanRule.INADMISSIBLE, uid, why)
    for name, entries in sorted(_in_strict_queues(index).items()):
        queue = index.snapshot.config.cluster_queues[name]
        yield from _strict(index, queue, sorted(entries, key=lambda entry: place(entry.workload)))
    yield from _overtaken(index)
    yield from _grown_first(index)


def _in_strict_queues(index: PlanIndex) -> dict[str, list[Pending]]:
    queues = index.snapshot.config.cluster_queues.values()
    found: dict[str, list[Pending]] = {}
    if any(queue.strict for queue in queues):
        for entry in index.snapshot.pending:
            queue = index.queue_of(entry.workload)
            if queue is not None and queue.strict:
                found.setdefault(queue.name, []).append(entry)
    return found


def place(workload: Workload) -> tuple[int, float, str]:
    """Its place in the order of its ClusterQueue."""
    return -workload.priority, workload.queued_at, workload.uid


def inadmissible(index: PlanIndex, entry: Pending) -> str | None:
    """Why it may not start at all, whatever is free."""
    workload = entry.workload
    if entry.blocked is not None:
        return f"blocked: {entry.blocked.code}"
    if workload.queue is None:
        return None
    queue = index.queue_of(workload)
    local = index.snapshot.config.local_queues.get((workload.namespace, workload.queue))
    if queue is None or local is None:
        return f"queue {workload.queue} does not lead to a ClusterQueue"
    if {queue.stop_policy, local.stop_policy} != {StopPolicy.NONE}:
        return f"queue {workload.queue} or {queue.name} is stopped"
    for rule in queue.admission_checks:
        known = index.snapshot.config.checks.get(rule.name)
        if known is None or known.controller not in CONTROLLERS:
            return f"no controller answers check {rule.name} of {queue.name}"
    labels = index.snapshot.namespaces.get(workload.namespace, {})
    if queue.namespace_selector is None or not queue.namespace_selector.matches(labels):
        return f"{queue.name} does not select namespace {workload.namespace}"
    return None


def _unready_check(index: PlanIndex, entry: Pending) -> str | None:
    """The admission check without which it must not start on the placement of the plan, or None."""
    queue = index.queue_of(entry.workload)
    if queue is None or not queue.admission_checks:
        return None
    taken = _flavors_taken(index, entry.workload.uid)
    on_nodes = any(p.nodes for p in _placed(index, entry.workload.uid))
    for rule in queue.admission_checks:
        needs = not rule.on_flavors or bool(rule.on_flavors & taken)
        known = index.snapshot.config.checks.get(rule.name)
        makes_nodes = known is not None and known.controller == PROVISIONING
        for_it = known is not None and known.makes_nodes_for(entry.workload.podsets)
        if for_it and needs and not on_nodes and _wants_nodes(index, taken):
            return f"check {rule.name} of {queue.name} makes nodes, and it is on none"
        if needs and rule.name not in entry.ready_checks and not (makes_nodes and on_nodes):
            return f"check {rule.name} of {queue.name} is not ready"
    return None


def _wants_nodes(index: PlanIndex, flavors: frozenset[str]) -> bool:
    """Whether one of these flavors has a topology, so that pods are placed."""
    known = index.snapshot.config.flavors
    return any(name in known and known[name].topology is not None for name in flavors)


def _strict(
    index: PlanIndex, queue: ClusterQueue, entries: list[Pending]
) -> Iterator[PlanViolation]:
    preemptors = {p.preemptor for p in index.plan.preempted}
    preemptors |= {m.beneficiary for m in index.plan.moved}
    waiting: list[tuple[Workload, frozenset[str]]] = []
    limited = _limited(index, entries)
    for entry in entries:
        uid = entry.workload.uid
        if uid in index.started or uid in preemptors:
            taken = _flavors_taken(index, uid)
            for head, wanted in waiting:
                if wanted & taken and surely_before(index, queue, head, entry.workload):
                    text = (
                        f"passes {head.uid} in StrictFIFO {queue.name} on {sorted(wanted & taken)}"
                    )
                    yield PlanViolation(PlanRule.ORDER, uid, text)
        refusal = index.refused.get(uid)
        if refusal is None:
            continue
        if inadmissible(index, entry) is not None and not entry.returns(index.snapshot.now):
            continue
        if refusal.checks and not _awaits_made_nodes(index, entry, refusal):
            continue  # it has its capacity
        if entry.workload.ref not in limited and not entry.workload.grows:
            waiting.append((entry.workload, _could_use(index, queue, entry.workload)))


def _limited(index: PlanIndex, entries: list[Pending]) -> set[str]:
    """Gangs that wait for what their namespaces or users may use, and those behind them, which can be before them by time. They hold back none."""
    limited: set[str] = set()
    behind: dict[str, str] = {}
    for entry in entries:
        refusal = index.refused.get(entry.workload.uid)
        if refusal is not None and never(refusal):
            limited.add(entry.workload.ref)
        elif refusal is not None and refusal.reasons:
            behind[entry.workload.ref] = refusal.reasons[0].details.get("behind", "")
    while more := {ref for ref, head in behind.items() if head in limited} - limited:
        limited |= more
    return limited


def _awaits_made_nodes(index: PlanIndex, entry: Pending, refusal: Refusal) -> bool:
    """Whether nodes were made for a gang, and it waits for them."""
    if refusal.lease is None or not refusal.lease.placement.awaits_nodes:
        return False
    ready = (index.snapshot.config.checks.get(n) for n in entry.ready_checks & {*refusal.checks})
    return any(one is not None and one.makes_nodes_for(entry.workload.podsets) for one in ready)


def surely_before(index: PlanIndex, queue: ClusterQueue, first: Workload, later: Workload) -> bool:
    """Whether a gang whose place by priority and time is ahead is considered first, whatever was used lately."""
    rule = index.snapshot.config.rules.usage_fairness
    if rule is None or not queue.usage_fairness or account(first) == account(later):
        return True
    return not rule.before_priority and first.priority > later.priority


def account(workload: Workload) -> Account:
    """On whose account past use is counted."""
    return workload.namespace, workload.queue, workload.user


def _overtaken(index: PlanIndex) -> Iterator[PlanViolation]:
    """A gang that is refused for sure although a later one that asks the same starts."""
    started: dict[Account, list[Pending]] = {}
    for uid in sorted(index.started):
        entry = index.pending.get(uid)
        if entry is not None and entry.lease is None and entry.workload.queue is not None:
            started.setdefault(account(entry.workload), []).append(entry)
    if not started:
        return
    now = index.snapshot.now
    last = {a: max(place(e.workload) for e in entries) for a, entries in started.items()}
    for entry in index.snapshot.pending:
        workload = entry.workload
        whose = account(workload)
        latest = last.get(whose)
        if latest is None or -workload.priority > latest[0] or place(workload) > latest:
            continue
        if entry.blocked is not None or workload.grows:
            continue
        refusal = index.refused.get(workload.uid)
        if refusal is None or refusal.lease is not None or refusal.proof is Proof.UNDECIDED:
            continue
        for other in started[whose]:
            if not entry.may_borrow(now) and other.may_borrow(now):
                continue
            if place(workload) < place(other.workload) and _ask_the_same(entry, other):
                text = f"asks what {other.workload.uid} starts with, and is before it"
                yield PlanViolation(PlanRule.ORDER, workload.uid, text)
                break


def _grown_first(index: PlanIndex) -> Iterator[PlanViolation]:
    """A pod that is added to an elastic gang although a gang before it waits for what it takes."""
    grown = [e for e in index.snapshot.pending if e.workload.growth is not None]
    for entry in grown:
        queue = index.queue_of(entry.workload)
        if entry.workload.uid not in index.started or queue is None:
            continue
        if (lower := _lower_rank(index, entry.workload, grown)) is not None:
            text = f"is added to its gang before {lower} of a lower rank"
            yield PlanViolation(PlanRule.ORDER, entry.workload.uid, text)
        taken = _flavors_taken(index, entry.workload.uid)
        for first in index.snapshot.pending:
            ahead = first.workload
            if ahead.grows or place(ahead) > place(entry.workload):
                continue
            if index.queue_of(ahead) is not queue or not _waits_for_room(index, first):
                continue
            if not surely_before(index, queue, ahead, entry.workload):
                continue
            if _could_use(index, queue, ahead) & taken:
                text = f"is added to its gang while {ahead.uid} is before it and waits"
                yield PlanViolation(PlanRule.ORDER, entry.workload.uid, text)
                break


def _lower_rank(index: PlanIndex, workload: Workload, grown: list[Pending]) -> str | None:
    """A pod of a lower rank of the same elastic gang that is not added to it."""
    growth = workload.growth
    for entry in grown:
        other = entry.workload.growth
        if growth is None or other is None or other.base != growth.base:
            continue
        if other.rank < growth.rank and entry.workload.uid in index.refused:
            return entry.workload.uid
    return None


def _waits_for_room(index: PlanIndex, entry: Pending) -> bool:
    """Whether a gang waits for capacity that is not held for it."""
    refusal = index.refused.get(entry.workload.uid)
    if refusal is None or entry.blocked is not None or inadmissible(index, entry) is not None:
        return False
    behind = refusal.reasons[0].code is Code.WAITING_IN_ORDER if refusal.reasons else False
    return refusal.lease is None and not refusal.checks and not behind and not never(refusal)


def _ask_the_same(first: Pending, second: Pending) -> bool:
    """Whether they have the same request; a shorter gang can start where a longer one, or one held for its checks, delays a planned start."""
    ours, theirs = first.workload.podsets, second.workload.podsets
    same = first.excluded == second.excluded and (ours is theirs or ours == theirs)
    same = same and first.ready_checks == second.ready_checks
    same = same and first.workload.claims == second.workload.claims
    return same and first.workload.duration == second.workload.duration


def never(refusal: Refusal) -> bool:
    """Whether it was refused for good, and so holds no other gang back."""
    return bool(refusal.reasons) and refusal.reasons[0].code in _NEVER


def _flavors_taken(index: PlanIndex, uid: str) -> frozenset[str]:
    return frozenset(flavor for placed in _placed(index, uid) for flavor in placed.charged)


def _placed(index: PlanIndex, uid: str) -> list[PodSetPlacement]:
    placements: list[Placement] = [a.placement for a in index.plan.admitted if a.uid == uid]
    refusal = index.refused.get(uid)
    if refusal is not None and refusal.lease is not None:
        placements.append(refusal.lease.placement)
    return [placed for placement in placements for placed in placement.podsets]


def _could_use(index: PlanIndex, queue: ClusterQueue, workload: Workload) -> frozenset[str]:
    """Flavors of the queue that some podset could be charged to, with all of its group: they share one."""
    usable: set[str] = set()
    for group in queue.groups:
        for podset in workload.podsets:
            if not _asked(group, podset):
                continue
            shared = [
                p for p in workload.podsets if p.group is not None and p.group == podset.group
            ]
            for quotas in group.flavors:
                together = shared or [podset]
                if all(_may_use(index, queue, group, quotas.flavor, p) for p in together):
                    usable.add(quotas.flavor)
    return frozenset(usable)


def _asked(group: ResourceGroup, podset: PodSet) -> dict[str, int]:
    """The request of its smallest part to a resource group."""
    pods = podset.count if podset.min_count is None else podset.min_count
    return {r: v * pods for r, v in podset.shape.requests.items() if r in group.covered}


def _may_use(
    index: PlanIndex, queue: ClusterQueue, group: ResourceGroup, name: str, podset: PodSet
) -> bool:
    """By taints, labels and all the queue could ever borrow; a podset that asks nothing of the group minds nothing."""
    asked = _asked(group, podset)
    flavor = index.snapshot.config.flavors.get(name)
    if not asked or flavor is None:
        return flavor is not None
    member = index.members[queue.name]
    fits = all(v <= member.most(name, r) for r, v in asked.items())
    return fits and flavor_refusal(group, flavor, podset, index) is None


CHECKS: Final = (check_order,)
"""The checks of this module that need only the plan."""
