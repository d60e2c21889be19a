"""Random snapshots of several ClusterQueues in cohort trees, small enough to try every victim set."""

from __future__ import annotations

import random
from dataclasses import replace

from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import GPU, PODS
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    OptOut,
    QueueConfig,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.domain.rules import FairStrategy, Rules
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from tests.planner.build import FLAVOR, LEVELS, NOW, node, podset, resources

FLAVORS = {GPU: FLAVOR, "cpu": FLAVOR}
BOTH = (FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE, FairStrategy.LESS_THAN_INITIAL_SHARE)
STRATEGIES = (BOTH, BOTH, BOTH[:1], BOTH[1:])


def cohorts(
    seed: int, *, fair: bool = False, nodes: bool = False, gangs: int = 6, opting_out: bool = False
) -> Snapshot:
    """One blocked gang of queue ``a`` among running gangs of up to four queues; ``opting_out``: some are not preemptible."""
    rng = random.Random(seed)
    config = _config(rng, fair=fair, nodes=nodes)
    names = sorted(config.cluster_queues)
    racks = [node(f"n{i}", f"r{i % 2}", gpu=4, cpu=6) for i in range(4)] if nodes else []
    running = _running(rng, names, gangs, [n.name for n in racks])
    gpu, cpu = rng.choice((1, 2, 3, 4)), rng.choice((0, 0, 1, 2))
    pods = rng.choice((1, 1, 2)) if nodes else 1
    required = rng.choice((None, "rack")) if nodes else None
    wanted = podset("w", pods, required=required, gpu=gpu)
    if cpu:
        wanted = podset("w", pods, required=required, gpu=gpu, cpu=cpu)
    blocked = _workload("blocked", "a", wanted, rng.choice((1, 2, 5)), 10.0)
    made = Snapshot(
        NOW,
        Fleet(tuple(racks)),
        config,
        (Pending(blocked),),
        running,
        {},
        {"team": {}},
    )
    return _opting_out(made, random.Random(f"opt out {seed}")) if opting_out else made


def _opting_out(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    """Some gangs are not preemptible; the policy of their ClusterQueue decides the effect."""
    queues = {
        name: replace(queue, preemption_opt_out=rng.choice(list(OptOut)))
        for name, queue in snapshot.config.cluster_queues.items()
    }

    def some(workload: Workload) -> Workload:
        return replace(workload, preemptible=rng.random() > 0.2)

    return replace(
        snapshot,
        config=replace(snapshot.config, cluster_queues=queues),
        admitted=tuple(replace(g, workload=some(g.workload)) for g in snapshot.admitted),
        pending=tuple(replace(g, workload=some(g.workload)) for g in snapshot.pending),
    )


def contest(
    seed: int, *, fair: bool = False, nodes: bool = False, opting_out: bool = False
) -> Snapshot:
    """The same with several pending gangs, in any of the queues."""
    snapshot = cohorts(seed, fair=fair, nodes=nodes)
    rng = random.Random(-seed - 1)
    more = [
        Pending(
            _workload(
                f"w{i}",
                rng.choice(sorted(snapshot.config.cluster_queues)),
                podset("w", 1, gpu=rng.choice((1, 2, 3))),
                rng.choice((0, 1, 2, 4)),
                float(i),
            )
        )
        for i in range(rng.randint(1, 4))
    ]
    made = replace(snapshot, pending=(*snapshot.pending, *more))
    return _opting_out(made, random.Random(f"opt out {seed}")) if opting_out else made


def _config(rng: random.Random, *, fair: bool, nodes: bool) -> QueueConfig:
    names = ["a", "b", "c", "d"][: rng.choice((2, 3, 3, 4))]
    shape = rng.choice(("flat", "flat", "two", "deep"))
    parents = {
        "flat": {},
        "two": {"left": "top", "right": "top"},
        "deep": {"left": "top", "low": "left"},
    }[shape]
    homes = {"flat": ["top"], "two": ["left", "right"], "deep": ["top", "left", "low"]}[shape]
    known = {"top": None} | parents
    trees = {
        name: Cohort(name, parent, _groups(rng, 3, chance=0.3), _weight(rng, fair=fair))
        for name, parent in known.items()
    }
    queues = {
        name: ClusterQueue(
            name,
            _groups(rng, 4),
            within_cluster_queue=rng.choice(list(WithinClusterQueue)),
            namespace_selector=LabelSelector(),
            victim_order=rng.choice(
                (
                    (VictimKey.MAX_PRIORITY, VictimKey.LOST_WORK, VictimKey.COUNT),
                    (VictimKey.MAX_PRIORITY, VictimKey.COUNT, VictimKey.LOST_WORK),
                    (VictimKey.COUNT, VictimKey.LOST_WORK, VictimKey.MAX_PRIORITY),
                )
            ),
            cohort=rng.choice(homes),
            preempts_to_borrow=not fair and rng.random() < 0.4,
            reclaim_within_cohort=rng.choice(
                (
                    ReclaimWithinCohort.NEVER,
                    *[ReclaimWithinCohort.LOWER_PRIORITY, ReclaimWithinCohort.ANY] * 2,
                )
            ),
            borrow_threshold=rng.choice((None, 0, 1)),
            weight=_weight(rng, fair=fair),
        )
        for name in names
    }
    a = queues["a"]
    if a.reclaim_within_cohort is ReclaimWithinCohort.NEVER:
        queues["a"] = replace(a, preempts_to_borrow=False)
    return QueueConfig(
        1,
        queues,
        {("team", name): LocalQueue("team", name, name) for name in names},
        {FLAVOR: ResourceFlavor(FLAVOR, topology="gpus" if nodes else None)},
        {"gpus": Topology("gpus", LEVELS)},
        cohorts=trees,
        rules=Rules(fair_sharing=rng.choice(STRATEGIES) if fair else ()),
    )


def _weight(rng: random.Random, *, fair: bool) -> int:
    return rng.choice((1000, 1000, 2000, 500, 0)) if fair else 1000


def _groups(rng: random.Random, most: int, chance: float = 1.0) -> tuple[ResourceGroup, ...]:
    if rng.random() >= chance:
        return ()
    nominal = {GPU: rng.randint(0, most), "cpu": rng.choice((2, 4, 50))}
    borrowing = {GPU: rng.randint(0, 4)} if rng.random() < 0.3 else {}
    lending = {r: rng.randint(0, nominal[r]) for r in nominal if rng.random() < 0.25}
    quotas = FlavorQuotas(FLAVOR, nominal, borrowing, lending)
    return (ResourceGroup((GPU, "cpu"), (quotas,)),)


def _workload(uid: str, queue: str, podset: PodSet, priority: int, queued_at: float) -> Workload:
    return Workload(uid, "Job", "team", uid, (podset,), queue, priority, queued_at)


def _running(
    rng: random.Random, names: list[str], count: int, nodes: list[str]
) -> tuple[Admitted, ...]:
    left = {name: {GPU: 4, "cpu": 6} for name in nodes}
    found = []
    for i in range(rng.randint(2, count)):
        need = {GPU: rng.choice((1, 1, 2, 3)), "cpu": rng.choice((0, 0, 1, 2))}
        where = [n for n in nodes if all(left[n][r] >= k for r, k in need.items())]
        if nodes and not where:
            continue
        shape = PodShape(
            resources(**{"gpu" if r == GPU else r: k for r, k in need.items() if k} | {PODS: 1})
        )
        spots: tuple[tuple[str, int], ...] = ()
        if nodes:
            at = rng.choice(where)
            spots = ((at, 1),)
            for r, k in need.items():
                left[at][r] -= k
        workload = _workload(
            f"g{i}",
            rng.choice(names),
            PodSet("w", 1, shape),
            rng.choice((0, 0, 1, 2, 3)),
            rng.choice((5.0, 20.0)),
        )
        flavors = {r: f for r, f in FLAVORS.items() if need[r]}
        placement = Placement((PodSetPlacement("w", spots, flavors, 1),))
        found.append(Admitted(workload, placement, started_at=NOW - rng.choice((10, 100, 1000))))
    return tuple(found)
