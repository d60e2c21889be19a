"""Who may start at all, and that nobody is passed in a StrictFIFO queue by one who uses what he could have used."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.plan import Refusal
from queuectl.domain.queues import ClusterQueue, QueueingStrategy, ResourceGroup, StopPolicy
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, PodSet, Workload
from queuectl.planner.verify.books import Books
from queuectl.planner.verify.quota import flavor_refusal
from queuectl.planner.verify.report import Rule, Violation

# A gang that could not start on the empty cluster, or in its queue ever, cannot have used what others take.
_NEVER = frozenset(
    {Code.SHAPE_NEVER_FITS, Code.EXCEEDS_MAX_QUOTA, Code.NO_MATCHING_FLAVOR, Code.UNSUPPORTED}
)


def check_order(books: Books) -> Iterator[Violation]:
    """Admissible gangs only, and StrictFIFO per ClusterQueue."""
    for uid in sorted(books.started):
        entry = books.pending.get(uid)
        if entry is not None and (why := inadmissible(books, entry)) is not None:
            yield Violation(Rule.INADMISSIBLE, uid, why)
    by_queue: dict[str, list[Pending]] = {}
    for entry in books.snapshot.pending:
        queue = books.queue_of(entry.workload)
        if queue is not None and queue.strategy is QueueingStrategy.STRICT_FIFO:
            by_queue.setdefault(queue.name, []).append(entry)
    for name, entries in sorted(by_queue.items()):
        queue = books.snapshot.config.cluster_queues[name]
        yield from _strict(books, queue, sorted(entries, key=lambda entry: place(entry.workload)))


def place(workload: Workload) -> tuple[int, float, str]:
    """Its place in the order of its ClusterQueue."""
    return -workload.priority, workload.queued_at, workload.uid


def inadmissible(books: Books, entry: Pending) -> str | None:
    """Why it may not start at all, whatever is free."""
    workload = entry.workload
    if entry.blocked is not None:
        return f"blocked: {entry.blocked.code}"
    if workload.queue is None:
        return None
    queue = books.queue_of(workload)
    local = books.snapshot.config.local_queues.get((workload.namespace, workload.queue))
    if queue is None or local is None:
        return f"queue {workload.queue} does not lead to a ClusterQueue"
    if {queue.stop_policy, local.stop_policy} != {StopPolicy.NONE}:
        return f"queue {workload.queue} or {queue.name} is stopped"
    labels = books.snapshot.namespaces.get(workload.namespace, {})
    if queue.namespace_selector is None or not queue.namespace_selector.matches(labels):
        return f"{queue.name} does not select namespace {workload.namespace}"
    return None


def _strict(books: Books, queue: ClusterQueue, entries: list[Pending]) -> Iterator[Violation]:
    preemptors = {p.preemptor for p in books.plan.preempted}
    preemptors |= {m.beneficiary for m in books.plan.moved}
    waiting: list[tuple[str, frozenset[str]]] = []
    for entry in entries:
        uid = entry.workload.uid
        if uid in books.started or uid in preemptors:
            taken = _flavors_taken(books, uid)
            for head, wanted in waiting:
                if wanted & taken:
                    text = f"passes {head} in StrictFIFO {queue.name} on {sorted(wanted & taken)}"
                    yield Violation(Rule.ORDER, uid, text)
        refusal = books.refused.get(uid)
        if refusal is not None and entry.blocked is None and not never(refusal):
            waiting.append((uid, _could_use(books, queue, entry.workload)))


def never(refusal: Refusal) -> bool:
    """Whether it was refused for good, and so holds nobody back."""
    return bool(refusal.reasons) and refusal.reasons[0].code in _NEVER


def _flavors_taken(books: Books, uid: str) -> frozenset[str]:
    placements: list[Placement] = [a.placement for a in books.plan.admitted if a.uid == uid]
    refusal = books.refused.get(uid)
    if refusal is not None and refusal.lease is not None:
        placements.append(refusal.lease.placement)
    return frozenset(
        f for placement in placements for p in placement.podsets for f in p.flavors.values()
    )


def _could_use(books: Books, queue: ClusterQueue, workload: Workload) -> frozenset[str]:
    """Flavors of the queue that some podset could be charged to, with all of its group: they share one."""
    wanted: set[str] = set()
    for group in queue.groups:
        for podset in workload.podsets:
            if not _asked(group, podset):
                continue
            shared = [
                p for p in workload.podsets if p.group is not None and p.group == podset.group
            ]
            for quotas in group.flavors:
                together = shared or [podset]
                if all(_may_use(books, queue, group, quotas.flavor, p) for p in together):
                    wanted.add(quotas.flavor)
    return frozenset(wanted)


def _asked(group: ResourceGroup, podset: PodSet) -> dict[str, int]:
    """What the fewest pods it may start with ask of a resource group."""
    pods = podset.count if podset.min_count is None else podset.min_count
    return {r: v * pods for r, v in podset.shape.requests.items() if r in group.covered}


def _may_use(
    books: Books, queue: ClusterQueue, group: ResourceGroup, name: str, podset: PodSet
) -> bool:
    """By taints, labels and all the queue could ever borrow; a podset that asks nothing of the group minds nothing."""
    asked = _asked(group, podset)
    flavor = books.snapshot.config.flavors.get(name)
    if not asked or flavor is None:
        return flavor is not None
    member = books.members[queue.name]
    fits = all(v <= member.most(name, r) for r, v in asked.items())
    return fits and flavor_refusal(group, flavor, podset, books) is None
