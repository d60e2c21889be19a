"""Invariants of every history. Each one yields its violations; a correct history has none.

The invariants are computed from the recorded events, with their own sums and small searches; nothing here uses the planner.
The verifier is used only to judge plans that the planner did *not* make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Final

from queuectl.domain.plan import Admission, Plan, PreemptionReason, Refusal
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    QueueConfig,
    QueueingStrategy,
    ReclaimMode,
    ResourceGroup,
)
from queuectl.domain.reasons import BY_POLICY, Code, Reason
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement, Workload
from queuectl.planner.verify import verify
from queuectl.planner.verify.cohorts import members_of
from queuectl.planner.verify.order import place
from tests.planner.build import FLAVOR
from tests.planner.story import (
    Cycle,
    Evicted,
    History,
    Idles,
    IsDeleted,
    NodeFails,
    Outside,
    QuotaIs,
    Stops,
    Works,
)

DAY: Final = 86_400.0

Complaints = Iterator[str]


def no_preemption_without_a_start(history: History) -> Complaints:
    """Every eviction names a gang that starts before its lease ends.

    Unless that gang was deleted or its queue stopped in the meantime, a node was lost or a quota changed, a gang that leaves
    takes longer to end than the lease lasts, or an earlier gang of its StrictFIFO queue is pending now.
    """
    for eviction in history.preempted:
        winner = eviction.preemptor
        begins = [s.at for s in history.started if s.uid == winner and s.at >= eviction.at]
        ends = _lease_end(history, eviction)
        if begins and begins[0] <= ends:
            continue
        if _slowest(history, ends) >= ends:
            continue  # a victim takes longer to end than the lease lasts: the capacity is then unreserved
        if any(_excuses(o, winner, history) for o in _between(history, eviction, ends)):
            continue
        if any(_overtaken(c, winner) for c in history.cycles if eviction.at <= c.now <= ends):
            continue  # and may use what was freed
        yield f"{eviction.uid} left for {winner}, which did not start by {ends}: {begins}"


def no_victim_evicts_its_preemptor(history: History) -> Complaints:
    """Without an event from outside, a victim never evicts its preemptor, and no gang is evicted twice for the same gang."""
    edges: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for eviction in history.preempted:
        evicts = edges[eviction.outside]
        if eviction.preemptor in _reached(evicts, eviction.uid):
            yield f"{eviction.preemptor} evicts {eviction.uid}, which evicted it before"
        if eviction.uid in evicts[eviction.preemptor]:
            yield f"{eviction.preemptor} evicts {eviction.uid} again"
        evicts[eviction.preemptor].add(eviction.uid)


def protections_hold(history: History) -> Complaints:
    """No gang is preempted, or evicted for idleness, more often in 24 hours, or sooner after a start or eviction, than its queue allows."""
    queues = {q.name: q for q in history.scene.queues}
    by_uid: dict[str, list[Evicted]] = defaultdict(list)
    for eviction in history.evicted:
        if eviction.code not in BY_POLICY:
            continue
        by_uid[eviction.uid].append(eviction)
    for uid, evictions in by_uid.items():
        policy = queues[history.queue_of(uid)].protection
        for number, eviction in enumerate(evictions):
            if eviction.at - eviction.ran_since < policy.min_runtime:
                yield f"{uid} ran only {eviction.at - eviction.ran_since} s"
            if number and eviction.at - evictions[number - 1].at < policy.cooldown:
                yield f"{uid} was evicted again within its cool-down"
            within = [e for e in evictions[: number + 1] if e.at > eviction.at - DAY]
            if len(within) > (policy.max_evictions_per_day or len(within)):
                yield f"{uid} was evicted {len(within)} times in a day"


def own_quota_is_kept(history: History) -> Complaints:
    """Another queue loses only its use beyond its own quota or, where a policy allows it, gangs of lower priority for capacity."""
    for cycle in history.cycles:
        gangs = {a.workload.uid: a for a in cycle.snapshot.admitted}
        takes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for preemption in cycle.made.preempted:
            winner, victim = preemption.preemptor, preemption.victim
            home = history.queue_of(victim)
            if home == history.queue_of(winner) or preemption.reason == PreemptionReason.IDLE:
                continue  # an idle gang yields from any quota: the next invariant
            if preemption.reason == PreemptionReason.IN_COHORT_ROOM:
                yield from _for_nodes(cycle, history, winner, gangs[victim].workload)
            else:
                takes[winner, home].append(victim)
        for (winner, home), victims in takes.items():
            sizes = [gangs[v].workload.gpus for v in victims]
            queue = cycle.snapshot.config.cluster_queues[home]
            before_last = _most_used(cycle.snapshot, cycle.made, home) - (sum(sizes) - max(sizes))
            if before_last <= nominal(queue.groups):
                yield f"{victims} of {home} leave for {winner}, though it used no more than its own"


def only_idle_gangs_are_evicted_for_idleness(history: History) -> Complaints:
    """An idle victim was idle since before the first of two warnings, its grace is over, and the policy of its queue allows it.

    In mode OnDemand it yields to a gang of higher priority, or of equal priority where the policy allows that too.
    """
    priorities = {uid: w.priority for c in history.cycles for uid, w in _known(c.snapshot).items()}
    for eviction in history.idle_ones:
        rule = {q.name: q for q in history.scene.queues}[
            history.queue_of(eviction.uid)
        ].idle_reclaim
        known = [o for o in history.outside[: eviction.outside] if o.uid == eviction.uid]
        seen = [o for o in known if isinstance(o.event, Idles | Works)]
        since = seen[-1].at if seen and isinstance(seen[-1].event, Idles) else None
        if since is None or since < eviction.ran_since:
            yield f"{eviction.uid} was not idle at {eviction.at}"
            continue
        warnings = (w.at for w in history.warned if w.uid == eviction.uid)
        warned = [at for at in warnings if since <= at <= eviction.at]
        if not warned or eviction.at < warned[0] + rule.grace:
            yield f"{eviction.uid} went before its grace was over: warned at {warned}"
        if eviction.preemptor:
            own, taker = priorities[eviction.uid], priorities[eviction.preemptor]
            if rule.mode not in (ReclaimMode.ON_DEMAND, ReclaimMode.ALWAYS):
                yield f"{eviction.uid} went, though its queue is {rule.mode}"
            if taker < own + (not rule.to_equal):
                yield f"{eviction.uid} of priority {own} went for {eviction.preemptor} of {taker}"
        elif rule.mode is not ReclaimMode.ALWAYS or len(warned) != 2:
            yield f"{eviction.uid} was evicted in mode {rule.mode}, warned at {warned}"


def no_gang_is_passed(history: History) -> Complaints:
    """No cycle starts, or clears room for, a later gang of a ClusterQueue where an earlier one could have started instead."""
    for cycle in history.cycles:
        chosen = {a.uid for a in cycle.made.admitted} | {p.preemptor for p in cycle.made.preempted}
        new = [p for p in cycle.snapshot.pending if p.lease is None and p.workload.uid in chosen]
        for pending in _refused(cycle):
            later = {
                p.workload.uid
                for p in new
                if p.workload.queue == pending.workload.queue
                and place(p.workload) > place(pending.workload)
            }
            if (
                later
                and not _needs_kept_quota(cycle, pending, later)
                and could_start(cycle.snapshot, cycle.made, pending, without=later)
            ):
                yield f"at {cycle.now} {pending.workload.uid} is passed by {sorted(later)}"
            elif not _held_back(cycle.snapshot, pending) and could_start(
                cycle.snapshot, cycle.made, pending
            ):
                yield f"at {cycle.now} {pending.workload.uid} could start and does not"


def no_work_is_left(history: History) -> Complaints:
    """At the end no gang leaves, and each gang that fits the free capacity, in an order that allows it, runs."""
    assert history.last is not None
    if leaving := [a.workload.uid for a in history.last.admitted if a.leaving]:
        yield f"still leaving: {leaving}"
    if leased := [p.workload.uid for p in history.last.pending if p.lease is not None]:
        yield f"still waiting for victims: {leased}"
    made = Plan(pending=history.unasked.pending)
    for pending in history.last.pending:
        if not _held_back(history.last, pending) and could_start(history.last, made, pending):
            yield f"{pending.workload.uid} could run"


def no_trigger_is_missed(history: History) -> Complaints:
    """At the end one more cycle, without any trigger, would change nothing."""
    if history.unasked.admitted or history.unasked.preempted or history.unasked.evicted:
        starts = [a.uid for a in history.unasked.admitted]
        leaves = [(p.victim, p.preemptor) for p in history.unasked.preempted]
        yield f"only another cycle would start {starts} and evict {leaves}"


def whole_and_never_over(history: History) -> Complaints:
    """All pods of a gang have a place; no node is over, no queue or cohort tree goes further over."""
    for cycle in history.cycles:
        snapshot = cycle.snapshot
        for admission in cycle.made.admitted:
            workload = _known(snapshot)[admission.uid]
            for podset, placed in zip(workload.podsets, admission.placement.podsets, strict=True):
                if history.scene.nodes and placed.count != podset.count:
                    yield f"{admission.uid} starts with {placed.count} of {podset.count} pods"
        used: dict[str, int] = defaultdict(int)
        for gang in snapshot.admitted:
            for node, amounts in gang.placement.use(gang.workload).items():
                used[node] += amounts[GPU]
        for machine in snapshot.fleet.nodes:
            if used[machine.name] > machine.allocatable[GPU]:
                yield f"at {cycle.now} {machine.name} is over: {used[machine.name]}"
        yield from _over_quota(cycle, history)


def no_user_exceeds_the_cap(history: History) -> Complaints:
    """No start brings a user over the cap of one user in the queue, gangs that are leaving included."""
    for cycle in history.cycles:
        queues = cycle.snapshot.config.cluster_queues
        held: dict[tuple[str, str], int] = defaultdict(int)
        for gang in cycle.snapshot.admitted:
            held[gang.workload.queue or "", gang.workload.user or ""] += _held(gang)
        for admission in cycle.made.admitted:
            workload = _known(cycle.snapshot)[admission.uid]
            most = dict(queues[workload.queue or ""].max_per_user).get(GPU)
            if admission.repaired or most is None or workload.user is None:
                continue
            whose = workload.queue or "", workload.user
            held[whose] += int(workload.gpus)
            if held[whose] > most:
                yield f"at {cycle.now} {workload.uid} brings {whose} to {held[whose]} of {most}"


INVARIANTS: Final[tuple[Callable[[History], Complaints], ...]] = (
    no_preemption_without_a_start,
    no_victim_evicts_its_preemptor,
    protections_hold,
    own_quota_is_kept,
    only_idle_gangs_are_evicted_for_idleness,
    no_gang_is_passed,
    no_work_is_left,
    no_trigger_is_missed,
    whole_and_never_over,
    no_user_exceeds_the_cap,
)


def _needs_kept_quota(cycle: Cycle, pending: Pending, without: AbstractSet[str]) -> bool:
    """Whether it would borrow while a StrictFIFO queue of its cohort has a head, which keeps the quota of that queue."""
    config, known = cycle.snapshot.config, _known(cycle.snapshot)
    queue = config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    assert queue is not None
    starts = [known[a.uid] for a in cycle.made.admitted if not a.repaired and a.uid not in without]
    coming = sum(int(w.gpus) for w in (*starts, pending.workload) if w.queue == queue.name)
    if _use(cycle.snapshot.admitted)[queue.name] + coming <= nominal(queue.groups):
        return False
    heads = (_strict(config, other) for other in _refused(cycle))
    return any(head is not None and head is not queue for head in heads)


def could_start(
    snapshot: Snapshot, made: Plan, pending: Pending, without: AbstractSet[str] = frozenset()
) -> bool:
    """Whether the verifier accepts that this gang starts with the plan when the gangs of ``without`` stay pending instead."""
    uid = pending.workload.uid
    admitted = tuple(a for a in made.admitted if a.uid not in without)
    refused = tuple(
        _not_now(r.uid) if r.uid in without else r for r in made.pending if r.uid != uid
    )
    refused += tuple(_not_now(a.uid) for a in made.admitted if a.uid in without)
    preempted = tuple(p for p in made.preempted if p.preemptor not in without)
    base = replace(made, admitted=admitted, pending=refused, preempted=preempted, uneven=())
    return any(
        not verify(snapshot, replace(base, admitted=(*admitted, Admission(uid, place))))
        for place in _places(snapshot, base, pending)
    )


def _places(snapshot: Snapshot, made: Plan, pending: Pending) -> Iterator[Placement]:
    """Everywhere its pods fit alongside the gangs that are there now or start."""
    (podset,) = pending.workload.podsets
    queue = snapshot.config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    assert queue is not None
    (flavor,) = (f.flavor for group in queue.groups for f in group.flavors)
    charged = {GPU: flavor}
    if not snapshot.fleet.nodes:
        yield Placement((PodSetPlacement("w", (), charged),))
        return
    free = {n.name: n.allocatable[GPU] if n.ready else 0 for n in snapshot.fleet.nodes}
    known = _known(snapshot)
    placed = [(a.workload, a.placement) for a in snapshot.admitted]
    placed += [(known[a.uid], a.placement) for a in made.admitted if not a.repaired]
    for workload, placement in placed:
        for node, use in placement.use(workload).items():
            free[node] -= use[GPU]
    size = podset.shape.requests[GPU]
    slots = [n for n, amount in free.items() if amount >= size]
    for chosen in combinations_with_replacement(slots, podset.count):
        counts = {n: chosen.count(n) for n in chosen}
        if all(counts[n] * size <= free[n] for n in counts):
            yield Placement((PodSetPlacement("w", tuple(counts.items()), charged),))


def _not_now(uid: str) -> Refusal:
    return Refusal(uid, (Reason(Code.PENDING_EVALUATION, "supposed to wait"),))


def _known(snapshot: Snapshot) -> dict[str, Workload]:
    known = {p.workload.uid: p.workload for p in snapshot.pending}
    return known | {a.workload.uid: a.workload for a in snapshot.admitted}


def _refused(cycle: Cycle) -> Iterator[Pending]:
    waiting = {r.uid for r in cycle.made.pending if r.lease is None}
    return (p for p in cycle.snapshot.pending if p.workload.uid in waiting and p.blocked is None)


# Quota, in GPUs.


def nominal(groups: tuple[ResourceGroup, ...]) -> int:
    return sum(f.nominal.get(GPU, 0) for group in groups for f in group.flavors)


def _use(gangs: Iterable[Admitted]) -> dict[str, int]:
    used: dict[str, int] = defaultdict(int)
    for gang in gangs:
        used[gang.workload.queue or ""] += _held(gang)
    return used


def _held(gang: Admitted) -> int:
    """The quota charged to it; for a gang that leaves its nodes, only the part still in use there."""
    (podset,), (placed,) = gang.workload.podsets, gang.placement.podsets
    pods = placed.count if gang.leaving and placed.pods is None else placed.pods_of(podset)
    return pods * podset.shape.requests[GPU]


def _most_used(snapshot: Snapshot, made: Plan, queue: str) -> int:
    """The most that the queue uses when all starts and reservations of the cycle count as running."""
    known = _known(snapshot)
    uids = [a.uid for a in made.admitted if not a.repaired]
    uids += [r.uid for r in made.pending if r.lease is not None]
    coming = sum(int(known[uid].gpus) for uid in uids if known[uid].queue == queue)
    return coming + _use(a for a in snapshot.admitted if not a.leaving)[queue]


def _for_nodes(cycle: Cycle, history: History, winner: str, victim: Workload) -> Complaints:
    config, home = cycle.snapshot.config, history.queue_of(winner)
    workload = _known(cycle.snapshot)[winner]
    if not config.cluster_queues[home].evicts_within_nominal:
        yield f"{victim.uid} makes room for {winner}, whose queue does not ask for that"
    if victim.priority >= workload.priority:
        yield f"{victim.uid} makes room for {winner}, which is no higher"
    leaves = {p.victim for p in cycle.made.preempted}
    stays = [a for a in cycle.snapshot.admitted if a.workload.uid not in leaves and not a.leaving]
    if _use(stays)[home] + workload.gpus > nominal(config.cluster_queues[home].groups):
        yield f"{victim.uid} makes room for {winner}, which borrows"


def _over_quota(cycle: Cycle, history: History) -> Complaints:
    config = cycle.snapshot.config
    known = _known(cycle.snapshot)
    before = _use(cycle.snapshot.admitted)
    after = defaultdict(int, before)
    for admission in cycle.made.admitted:
        if not admission.repaired:
            after[known[admission.uid].queue or ""] += int(known[admission.uid].gpus)
    for name, queue in config.cluster_queues.items():
        limits = [f.borrowing.get(GPU) for group in queue.groups for f in group.flavors]
        most = None if None in limits else nominal(queue.groups) + sum(n or 0 for n in limits)
        if most is not None and after[name] > max(most, before[name]):
            yield f"at {cycle.now} {name} uses {after[name]}, {most} allowed"
    all_of_it = sum(nominal(q.groups) for q in config.cluster_queues.values())
    all_of_it += sum(nominal(c.groups) for c in config.cohorts.values())
    if sum(after.values()) > max(all_of_it, sum(before.values())):
        yield f"at {cycle.now} all use {sum(after.values())}, there are {all_of_it}"


def _held_back(snapshot: Snapshot, pending: Pending) -> bool:
    """Blocked by a victim that will be ahead of it in its StrictFIFO queue, or a gang of its own user there; by the head of another
    queue for which quota of the cohort is kept; or by use of other queues beyond their quota.
    """
    config = snapshot.config
    queue = config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    assert queue is not None
    if queue.strategy is QueueingStrategy.STRICT_FIFO and any(
        gang.returns
        and gang.workload.queue == queue.name
        and place(gang.workload) < place(pending.workload)
        for gang in snapshot.admitted
    ):
        return True
    if _any_over(snapshot) or _behind_its_user(snapshot, queue, pending):
        return True
    heads = (_strict(snapshot.config, p) for p in snapshot.pending)
    return any(head is not None and head is not queue for head in heads)


def _behind_its_user(snapshot: Snapshot, queue: ClusterQueue, pending: Pending) -> bool:
    """Whether an earlier gang of its user is pending in its StrictFIFO queue, where one user has a cap."""
    if queue.strategy is not QueueingStrategy.STRICT_FIFO or not queue.max_per_user:
        return False
    mine = (p.workload for p in snapshot.pending if p.workload.user == pending.workload.user)
    same = (w for w in mine if w.user is not None and w.queue == queue.name)
    return any(place(w) < place(pending.workload) for w in same)


def _any_over(snapshot: Snapshot) -> bool:
    """Whether a lowered quota left a queue or cohort over it."""
    members = members_of(snapshot.config)
    use = {(name, FLAVOR, GPU): n for name, n in _use(snapshot.admitted).items()}
    found = [m for queue in members.values() for m in queue.up()]
    limits = [(m.uses(use, FLAVOR, GPU), m.limit(FLAVOR, GPU)) for m in found]
    return any(limit is not None and used > limit for used, limit in limits)


def _strict(config: QueueConfig, pending: Pending) -> ClusterQueue | None:
    queue = config.cluster_queue_of(pending.workload.namespace, pending.workload.queue)
    if queue is None or pending.blocked is not None:
        return None
    return queue if queue.strategy is QueueingStrategy.STRICT_FIFO else None


# Leases.


def _lease_end(history: History, eviction: Evicted) -> float:
    """The end of the lease for which the victim left."""
    pair = (eviction.uid, eviction.preemptor)
    cycle = next(
        c
        for c in history.cycles
        if c.now == eviction.at and pair in {(p.victim, p.preemptor) for p in c.made.preempted}
    )
    leases = {r.uid: r.lease for r in cycle.made.pending}
    lease = leases[eviction.preemptor]
    assert lease is not None
    return lease.expires_at


def _slowest(history: History, until: float) -> float:
    """The time at which all gangs that leave by then have ended."""
    return max(e.at + history.drain_of(e.uid) for e in history.evicted if e.at <= until)


def _between(history: History, eviction: Evicted, until: float) -> Iterator[Outside]:
    return (o for o in history.outside[eviction.outside :] if o.at <= until)


def _excuses(outside: Outside, winner: str, history: History) -> bool:
    """Whether a gang need not start after this."""
    match outside.event:
        case IsDeleted():
            return outside.uid == winner
        case Stops(queue=queue):
            return queue == history.queue_of(winner)
        case NodeFails() | QuotaIs():
            return True
        case _:
            return False


def _overtaken(cycle: Cycle, winner: str) -> bool:
    """Whether an earlier gang of its StrictFIFO queue is pending that was not pending at the eviction."""
    pending = {p.workload.uid: p for p in cycle.snapshot.pending}
    mine = pending.get(winner)
    queue = _strict(cycle.snapshot.config, mine) if mine is not None else None
    return mine is not None and any(
        place(other.workload) < place(mine.workload)
        for other in pending.values()
        if queue is not None and _strict(cycle.snapshot.config, other) is queue
    )


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        for uid in edges.get(todo.pop(), ()):
            if uid not in found:
                found.add(uid)
                todo.append(uid)
    return found
