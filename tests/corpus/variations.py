"""Rules that the generators of tests/planner leave out, put on what they draw: one function a rule, each from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    ClusterQueue,
    Defragment,
    FlavorPreference,
    Fungibility,
    IdleReclaim,
    Protection,
    QueueingStrategy,
    ReclaimMode,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import Admitted, MakeRoom, PastUse, Pending, Snapshot, SolverLimits
from queuectl.domain.workload import TopologyMode, TopologyRequest, Workload
from tests.corpus.events import broken_nodes, moving, one_cycle_later

USERS: Final = ("ann", "bob", None)

Variation = Callable[[Snapshot, random.Random], Snapshot]


def _queues(snapshot: Snapshot, change: Callable[[ClusterQueue], ClusterQueue]) -> Snapshot:
    changed = {name: change(queue) for name, queue in snapshot.config.cluster_queues.items()}
    return replace(snapshot, config=replace(snapshot.config, cluster_queues=changed))


def _workloads(snapshot: Snapshot, change: Callable[[Workload], Workload]) -> Snapshot:
    return replace(
        snapshot,
        pending=tuple(replace(p, workload=change(p.workload)) for p in snapshot.pending),
        admitted=tuple(replace(a, workload=change(a.workload)) for a in snapshot.admitted),
    )


def resource_quota(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """The namespace has a ResourceQuota for GPUs, and sometimes one for pods."""
    used = sum(int(a.gpus) for a in snapshot.admitted)
    limits = [QuotaLimit(f"requests.{GPU}", GPU, used + rng.randint(0, 6), used)]
    if rng.random() < 0.5:
        pods = sum(a.workload.pods for a in snapshot.admitted)
        limits.append(QuotaLimit("pods", "pods", pods + rng.randint(1, 5), pods))
    limits.sort(key=lambda limit: limit.key)
    return replace(snapshot, allowances={"team": (Allowance("team", tuple(limits)),)})


def max_per_user(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs have users, and most ClusterQueues a limit for each."""
    limited = _queues(
        snapshot, lambda q: replace(q, max_per_user=((GPU, rng.choice((1, 2, 4, 6))),))
    )
    rules = replace(snapshot.config.rules, usage_fairness=UsageFairness(user_label="user"))
    limited = replace(limited, config=replace(limited.config, rules=rules))
    return _workloads(limited, lambda w: replace(w, user=rng.choice(USERS)))


def borrow_backoff(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Some pending gangs were evicted for others and must not borrow yet."""

    def held(pending: Pending) -> Pending:
        return replace(pending, borrows_at=snapshot.now + rng.choice((-5.0, 60.0, 600.0)))

    return replace(snapshot, pending=tuple(map(held, snapshot.pending)))


def reclaim_wait(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs wait a while before they take back what others borrow."""

    def waits(pending: Pending) -> Pending:
        since = rng.choice((None, 0.0, snapshot.now - 5.0, snapshot.now - 500.0))
        return replace(pending, reclaim_since=since)

    waiting = replace(snapshot, pending=tuple(map(waits, snapshot.pending)))
    return _queues(waiting, lambda q: replace(q, reclaim_patience=rng.choice((0.0, 60.0, 600.0))))


def partial(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs may start with fewer pods, where their topology lets them."""

    def elastic(workload: Workload) -> Workload:
        podsets = tuple(
            replace(p, min_count=rng.randint(1, p.count - 1))
            if p.count > 1
            and (p.topology is None or not (p.topology.slices or p.topology.balanced))
            and rng.random() < 0.8
            else p
            for p in workload.podsets
        )
        return replace(workload, podsets=podsets)

    pending = tuple(replace(p, workload=elastic(p.workload)) for p in snapshot.pending)
    return replace(snapshot, pending=pending)


def split_flavors(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """A podset may use several flavors, where its topology lets it."""
    return _queues(snapshot, lambda q: replace(q, split_flavors=True))


def fungible(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Flavors stand in for each other in any of the ways there are."""

    def how(queue: ClusterQueue) -> ClusterQueue:
        borrow, preempt = (rng.choice(list(WhenCan)) for _ in range(2))
        preference = rng.choice(list(FlavorPreference))
        return replace(queue, fungibility=Fungibility(borrow, preempt, preference))

    return _queues(snapshot, how)


def idle(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Some running gangs leave their GPUs idle."""

    def rest(gang: Admitted) -> Admitted:
        return replace(gang, idle_since=snapshot.now - 60.0 if rng.random() < 0.5 else None)

    resting = replace(snapshot, admitted=tuple(map(rest, snapshot.admitted)))
    modes = (ReclaimMode.ON_DEMAND, ReclaimMode.ON_DEMAND, ReclaimMode.DRY_RUN, ReclaimMode.ALWAYS)
    return _queues(
        resting,
        lambda q: replace(
            q, idle_reclaim=IdleReclaim(mode=rng.choice(modes), to_equal=rng.random() < 0.4)
        ),
    )


def defragment(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Running gangs can be migrated, within the budget of their ClusterQueues or at an administrator's request."""
    if rng.random() < 0.3:
        return replace(snapshot, make_room=MakeRoom())
    return _queues(
        snapshot,
        lambda q: replace(
            q,
            defragment=rng.choice((Defragment.EXECUTE, Defragment.EXECUTE, Defragment.PLAN)),
            defragment_budget=rng.choice((600, 10_000, 1 << 40)),
        ),
    )


def protected(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs that started or were evicted lately are shielded."""

    def shield(queue: ClusterQueue) -> ClusterQueue:
        return replace(
            queue,
            protection=Protection(rng.choice((0.0, 30.0)), rng.choice((None, 1, 2)), rng.choice((0.0, 900.0))),
        )  # fmt: skip

    def evicted(gang: Admitted) -> Admitted:
        earlier = tuple(snapshot.now - age for age in (5000.0, 400.0)[: rng.randint(0, 2)])
        return replace(gang, evictions=earlier)

    return _queues(replace(snapshot, admitted=tuple(map(evicted, snapshot.admitted))), shield)


def strict(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Queues are StrictFIFO."""
    return _queues(snapshot, lambda q: replace(q, strategy=QueueingStrategy.STRICT_FIFO))


def past_use(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Gangs of queues with less past use are first."""
    queues = sorted(snapshot.config.cluster_queues)
    used = PastUse(
        {local: rng.uniform(0, 9) for local in sorted(snapshot.config.local_queues)},
        {name: rng.uniform(0, 9) for name in queues},
        {user: rng.uniform(0, 9) for user in USERS if user is not None},
    )
    fairness = UsageFairness(
        half_life=3600.0, before_priority=rng.random() < 0.5, user_label=rng.choice((None, "user"))
    )
    rules = replace(snapshot.config.rules, usage_fairness=fairness)
    fair = _queues(snapshot, lambda q: replace(q, usage_fairness=rng.random() < 0.8))
    fair = replace(fair, past_use=used, config=replace(fair.config, rules=rules))
    return _workloads(fair, lambda w: replace(w, user=rng.choice(USERS)))


def preferred(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Pending gangs require the topology level that they only preferred, some of them spread evenly."""

    def milder(workload: Workload) -> Workload:
        podsets = tuple(
            replace(
                p,
                topology=replace(
                    p.topology,
                    mode=TopologyMode.PREFERRED,
                ),
            )
            if p.topology is not None and p.topology.mode is TopologyMode.REQUIRED
            else p
            for p in workload.podsets
        )
        return replace(workload, podsets=podsets)

    pending = tuple(replace(p, workload=milder(p.workload)) for p in snapshot.pending)
    return replace(snapshot, pending=pending)


def balanced(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Pending gangs of one podset spread evenly over the racks of a block."""
    request = TopologyRequest(TopologyMode.REQUIRED, "block", balanced=True)

    def even(workload: Workload) -> Workload:
        (podset, *more) = workload.podsets
        if more or podset.min_count is not None:
            return workload
        count = podset.count if podset.count > 1 else rng.randint(3, 6)
        return replace(workload, podsets=(replace(podset, count=count, topology=request, group=None),))  # fmt: skip

    pending = tuple(replace(p, workload=even(p.workload)) for p in snapshot.pending)
    return replace(snapshot, pending=pending)


def idle_dry_run(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """The reclaim of idle gangs is a dry run."""
    modes = (ReclaimMode.DRY_RUN, ReclaimMode.DRY_RUN, ReclaimMode.ON_DEMAND)
    return _queues(
        idle(snapshot, rng),
        lambda q: replace(
            q,
            idle_reclaim=IdleReclaim(mode=rng.choice(modes), to_equal=True),
            within_cluster_queue=rng.choice((WithinClusterQueue.NEVER, q.within_cluster_queue)),
        ),
    )


def evicts_within_nominal(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Nodes are scarce and quota is not: gangs of other ClusterQueues use the nodes."""

    def plenty(queue: ClusterQueue) -> ClusterQueue:
        groups = tuple(
            replace(g, flavors=tuple(replace(f, nominal=dict.fromkeys(f.nominal, 10**6)) for f in g.flavors))
            for g in queue.groups
        )  # fmt: skip
        return replace(queue, groups=groups, evicts_within_nominal=rng.random() < 0.9)

    raised = _workloads(snapshot, lambda w: replace(w, priority=w.priority + rng.randint(3, 9)))
    return _queues(replace(snapshot, pending=raised.pending), plenty)


def short_search(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """The solver's limit ends most searches first."""
    least = SolverLimits(deterministic_time=rng.choice((1e-9, 1e-5, 1e-4)), max_budget=0)
    return replace(snapshot, limits=least)


VARIATIONS: Final[tuple[Variation, ...]] = (
    resource_quota,
    max_per_user,
    borrow_backoff,
    reclaim_wait,
    partial,
    split_flavors,
    fungible,
    idle,
    defragment,
    protected,
    strict,
    past_use,
    preferred,
    balanced,
    idle_dry_run,
    evicts_within_nominal,
    short_search,
    broken_nodes,
    one_cycle_later,
    moving,
)
