"""The gangs that can start at all, and the gangs that no later gang of their ClusterQueue must pass.

In a StrictFIFO queue no gang is passed by one that uses capacity that it could have used. Under any strategy no gang is passed by one
that asks exactly the same and starts: that start is the proof that it could have. Among ClusterQueues the order is a rule of
thumb, not a guarantee. Nor is it checked where past use alone decides, for that changes with every start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import product
from typing import Final, TypeAlias

from queuectl.domain.checks import CONTROLLERS, PROVISIONING
from queuectl.domain.plan import Proof, Refusal
from queuectl.domain.queues import ClusterQueue, ResourceGroup, StopPolicy
from queuectl.domain.reasons import AT_A_LIMIT, NEVER_FITS, Code
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import PodSet, PodSetPlacement, Workload
from queuectl.planner.verify.plan_index import PlanIndex, PlanRule, PlanViolation
from queuectl.planner.verify.quota import flavor_refusal

# A gang that could not start on the empty cluster, or in its queue ever, cannot have used what others take. Nor could one
# that a limit other than quota keeps out.
_NEVER = NEVER_FITS | AT_A_LIMIT

Account: TypeAlias = tuple[str, str | None, str | None]
"""Namespace, LocalQueue and user."""
Podsets: TypeAlias = tuple[PodSet, ...]


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


class FirstGangs:
    """The first gangs that wait for a flavor of a ClusterQueue: of all accounts, and of each account."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, Account | None], Workload] = {}

    def add(self, queue: ClusterQueue, flavors: Iterable[str], workload: Workload) -> None:
        """Count a gang that waits."""
        for flavor, whose in product(flavors, (None, account(workload))):
            known = self._first.setdefault((queue.name, flavor, whose), workload)
            self._first[queue.name, flavor, whose] = min(known, workload, key=place)

    def before(
        self, index: PlanIndex, queue: ClusterQueue, flavors: Iterable[str], workload: Workload
    ) -> Workload | None:
        """A gang that waits for one of these and is surely considered before another gang of the queue."""
        for flavor in sorted(flavors):
            # The first of all accounts has the highest priority: it is surely before the gang if any of another account is.
            for whose in (None, account(workload)):
                first = self._first.get((queue.name, flavor, whose))
                if first is None or place(first) > place(workload):
                    continue
                if surely_before(index, queue, first, workload):
                    return first
        return None


def _overtaken(index: PlanIndex) -> Iterator[PlanViolation]:
    """A gang that is refused for sure although a later one that asks the same starts."""
    now = index.snapshot.now
    requests = _Requests()
    # By account, and whether the gang that is refused may borrow: the last gang that starts, of each request.
    last: dict[tuple[Account, bool], dict[Hashable, Workload]] = {}
    for uid in sorted(index.started):
        entry = index.pending.get(uid)
        if entry is None or entry.lease is not None or entry.workload.queue is None:
            continue
        for borrows in {True, entry.may_borrow(now)}:
            of_account = last.setdefault((account(entry.workload), borrows), {})
            known = of_account.setdefault(requests.of(entry), entry.workload)
            of_account[requests.of(entry)] = max(known, entry.workload, key=place)
    for entry in index.snapshot.pending:
        workload = entry.workload
        later = last.get((account(workload), entry.may_borrow(now)))
        if later is None or entry.blocked is not None or workload.grows:
            continue
        refusal = index.refused.get(workload.uid)
        if refusal is None or refusal.lease is not None or refusal.proof is Proof.UNDECIDED:
            continue
        other = later.get(requests.of(entry))
        if other is not None and place(workload) < place(other):
            text = f"asks what {other.uid} starts with, and is before it"
            yield PlanViolation(PlanRule.ORDER, workload.uid, text)


class _Requests:
    """Equal gangs share their podsets, so each is hashed once."""

    def __init__(self) -> None:
        self._first: dict[Podsets, Podsets] = {}
        self._equal: dict[int, Podsets] = {}

    def of(self, entry: Pending) -> Hashable:
        """The request of a gang; a shorter gang can start where a longer one, or one held for its checks, delays a planned start."""
        podsets = entry.workload.podsets
        if id(podsets) not in self._equal:
            self._equal[id(podsets)] = self._first.setdefault(podsets, podsets)
        same = id(self._equal[id(podsets)])
        workload = entry.workload
        return same, entry.excluded, entry.ready_checks, workload.claims, workload.duration


def _grown_first(index: PlanIndex) -> Iterator[PlanViolation]:
    """A pod that is added to an elastic gang although a gang before it waits for what it takes."""
    grown = [e.workload for e in index.snapshot.pending if e.workload.growth is not None]
    added = [workload for workload in grown if workload.uid in index.started]
    left_out, waiting = _least_ranks(index, grown), _first_that_wait(index, added)
    for workload in added:
        queue = index.queue_of(workload)
        if queue is None or workload.growth is None:
            continue
        lower = left_out.get(workload.growth.base)
        if lower is not None and lower[0] < workload.growth.rank:
            text = f"is added to its gang before {lower[1]} of a lower rank"
            yield PlanViolation(PlanRule.ORDER, workload.uid, text)
        taken = _flavors_taken(index, workload.uid)
        first = waiting.before(index, queue, taken, workload)
        if first is not None:
            text = f"is added to its gang while {first.uid} is before it and waits"
            yield PlanViolation(PlanRule.ORDER, workload.uid, text)


def _least_ranks(index: PlanIndex, grown: list[Workload]) -> dict[str, tuple[int, str]]:
    """By elastic gang, the lowest rank of its pods that are not added to it, and the uid of that pod."""
    least: dict[str, tuple[int, str]] = {}
    for workload in grown:
        growth = workload.growth
        if growth is not None and workload.uid in index.refused:
            rank = growth.rank, workload.uid
            least[growth.base] = min(least.get(growth.base, rank), rank)
    return least


def _first_that_wait(index: PlanIndex, added: Sequence[Workload]) -> FirstGangs:
    """The gangs that wait for room in the ClusterQueues of the pods that are added to elastic gangs."""
    first, names = FirstGangs(), {queue.name for queue in map(index.queue_of, added) if queue}
    for entry in index.snapshot.pending if names else ():
        workload, queue = entry.workload, index.queue_of(entry.workload)
        if workload.grows or queue is None or queue.name not in names:
            continue
        if _waits_for_room(index, entry):
            first.add(queue, _could_use(index, queue, workload), workload)
    return first


def _waits_for_room(index: PlanIndex, entry: Pending) -> bool:
    """Whether a gang waits for capacity that is not held for it."""
    refusal = index.refused.get(entry.workload.uid)
    if refusal is None or entry.blocked is not None or inadmissible(index, entry) is not None:
        return False
    behind = refusal.reasons[0].code is Code.WAITING_IN_ORDER if refusal.reasons else False
    return refusal.lease is None and not refusal.checks and not behind and not never(refusal)


def never(refusal: Refusal) -> bool:
    """Whether it was refused for good, and so holds no other gang back."""
    return bool(refusal.reasons) and refusal.reasons[0].code in _NEVER


def _flavors_taken(index: PlanIndex, uid: str) -> frozenset[str]:
    return frozenset(flavor for placed in _placed(index, uid) for flavor in placed.charged)


def _placed(index: PlanIndex, uid: str) -> list[PodSetPlacement]:
    placement = index.placements.get(uid)
    refusal = index.refused.get(uid)
    if placement is None and refusal is not None and refusal.lease is not None:
        placement = refusal.lease.placement
    return list(placement.podsets) if placement is not None else []


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
