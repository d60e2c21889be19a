"""Snapshots of a larger cluster that mix all features: 8 to 20 nodes, up to 30 running and 30 pending gangs, and the cycles after them.

Each feature is on or off whatever the others are, so that each pair of features is in a tenth of the snapshots or more. A snapshot depends
on its seed alone. :func:`following` makes the snapshot of the next cycle from one and its plan: victims leave, gangs end, nodes
fail, gangs arrive, and the configuration changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuectl.domain.budgets import (
    GPU_HOUR,
    Budget,
    BudgetBalance,
    BudgetScope,
    WhenSpent,
    month_of,
)
from queuectl.domain.checks import EXTERNAL, PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.limits import Allowance, QuotaLimit
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    Cohort,
    Defragment,
    FlavorQuotas,
    IdleReclaim,
    LabelSelector,
    LocalQueue,
    OptOut,
    Protection,
    QueueConfig,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    Topology,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.reservations import AdvanceReservation, Occurrence, ReservedCapacity
from queuectl.domain.rules import FairStrategy, Rules, UsageFairness
from queuectl.domain.snapshot import Admitted, MakeRoom, Pending, Snapshot
from queuectl.domain.workload import (
    Duration,
    Growth,
    Placement,
    PodSet,
    PodSetPlacement,
    TopologyMode,
    Workload,
)
from tests.planner.build import LEVELS, NOW, RESOURCES, node, podset, resources
from tests.planner.generate import FreeNodes

HOUR: Final = 3600.0
MODELS: Final = ("h100", "a100")
FINAL, INITIAL = (
    FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
    FairStrategy.LESS_THAN_INITIAL_SHARE,
)
SWITCHES: Final = (
    *("cohort", "deep cohort", "lending", "borrowing", "fair sharing", "usage fairness"),
    *("Backfill", "Backfill cohort", "StrictFIFO", "checks", "provisioning", "budget"),
    *("reservation", "balanced", "slices", "group", "partial", "elastic", "idle", "split"),
    *("two flavors", "quota only", "leaving", "lost node", "level removed", "protection"),
    *("opt out", "time slice", "defragment", "blocked", "other pods", "durations", "max per user"),
    *("resource quota", "within nominal", "reclaim", "preempts to borrow", "preemption"),
)
"""The features that a snapshot can have."""
HINDERS: Final = frozenset(
    (
        *("level removed", "protection", "opt out", "blocked", "max per user", "resource quota"),
        *("checks", "provisioning", "budget", "reservation", "elastic"),
    )
)
"""The features with which fewer gangs start or are evicted: they are on in a third of the snapshots, the others in more than half."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds of random numbers, both included. ``hinders``: the part of the snapshots in which each feature of ``HINDERS`` is on."""

    nodes: tuple[int, int] = (8, 20)
    running: tuple[int, int] = (0, 30)
    pending: tuple[int, int] = (6, 30)
    hinders: float = 0.35


@dataclass(frozen=True, slots=True)
class _Dice:
    """The random numbers of one snapshot, and the features that are on."""

    rng: random.Random
    on: frozenset[str]
    sizes: Sizes

    def some(self, feature: str, chance: float = 0.5) -> bool:
        """Whether one object has a feature."""
        return feature in self.on and self.rng.random() < chance

    def choose(self, *options: Any) -> Any:
        return self.rng.choice(options)


def snapshot_of(seed: int, sizes: Sizes = Sizes()) -> Snapshot:
    """The first cycle of a seed."""
    rng = random.Random(f"features {seed}")
    on = [s for s in SWITCHES if rng.random() < (sizes.hinders if s in HINDERS else 0.6)]
    dice = _Dice(rng, frozenset(on), sizes)
    flavors = _flavors(dice)
    config = _config(dice, flavors)
    names = sorted(config.cluster_queues)
    fleet = _fleet(dice)
    running = _running(dice, fleet, config, names)
    pending = [_waiting(dice, f"w{i:02}", names) for i in range(rng.randint(*sizes.pending))]
    pending += _growing(dice, running)
    if "lost node" in dice.on:
        fleet, running = _lose(dice, fleet, running)
    made = Snapshot(
        NOW,
        Fleet(tuple(fleet)),
        config,
        tuple(pending),
        tuple(running),
        _other_pods(dice, fleet, running),
        {"team": {}},
        seek_room=rng.random() < 0.5,
        allowances=_allowances(dice),
        reservations=_reservations(dice, fleet, names),
    )
    made = _with_claims(random.Random(f"claims {seed}"), _with_budgets(dice, made))
    made = _with_changed_queues(random.Random(f"queues {seed}"), made, names)
    return without_level(made) if "level removed" in dice.on else made


def _with_claims(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The same, in which some gangs share a ResourceClaim, and some avoid some nodes."""
    gangs: list[Admitted | Pending] = [*snapshot.admitted, *snapshot.pending]
    shares, excludes = rng.random() < 0.3, rng.random() < 0.3
    names = sorted({gang.workload.family for gang in gangs if rng.random() < 0.3}) if shares else []
    claims = {name: (rng.choice(("data", "model")),) for name in names}
    nodes = [each.name for each in snapshot.fleet.nodes]

    def sharing(workload: Workload) -> Workload:
        return replace(workload, claims=claims.get(workload.family, ()))

    def avoided() -> frozenset[str]:
        return frozenset(rng.sample(nodes, 3) if excludes and rng.random() < 0.3 else ())

    return replace(
        snapshot,
        pending=tuple(
            replace(gang, workload=sharing(gang.workload), excluded=avoided())
            for gang in snapshot.pending
        ),
        admitted=tuple(
            replace(gang, workload=sharing(gang.workload), excluded=avoided())
            for gang in snapshot.admitted
        ),
    )


def _with_changed_queues(rng: random.Random, snapshot: Snapshot, names: Sequence[str]) -> Snapshot:
    """The same, in which LocalQueues lead to other ClusterQueues than at the start of some gangs."""
    if rng.random() < 0.7:
        return snapshot

    def started_in(gang: Admitted) -> Admitted:
        name = rng.choice(names) if rng.random() < 0.3 else None
        return replace(gang, workload=replace(gang.workload, charged_queue=name))

    return replace(snapshot, admitted=tuple(map(started_in, snapshot.admitted)))


def fragmented(seed: int, snapshot: Snapshot) -> Snapshot:
    """For a fifth of the seeds, the same with more quota, fewer large gangs that run, and larger ones that wait: gangs migrate to make room."""
    rng = random.Random(f"room {seed}")
    if rng.random() >= 0.2:
        return snapshot

    def rich(queue: ClusterQueue) -> ClusterQueue:
        groups = (
            replace(group, flavors=tuple(map(_with_more_quota, group.flavors)))
            for group in queue.groups
        )
        return replace(
            queue,
            groups=tuple(groups),
            defragment=Defragment.EXECUTE,
            defragment_budget=10**7,
        )

    def larger(gang: Pending) -> Pending:
        if gang.workload.growth is not None or rng.random() < 0.3:
            return gang
        level: dict[str, Any] = rng.choice(({}, *({"required": one} for one in LEVELS)))
        asked = podset("p0", rng.choice((1, 1, 2, 3)), gpu=rng.choice((8, 8, 4)), cpu=1, **level)
        return replace(gang, workload=replace(gang.workload, podsets=(asked,)))

    queues = {name: rich(queue) for name, queue in snapshot.config.cluster_queues.items()}
    elastic = {
        gang.workload.family for gang in snapshot.pending if gang.workload.growth is not None
    }
    stay = {
        gang.workload.uid
        for gang in snapshot.admitted
        if gang.workload.gpus <= 4 or gang.workload.uid in elastic or rng.random() < 0.3
    }
    return replace(
        snapshot,
        config=replace(snapshot.config, cluster_queues=queues),
        pending=tuple(map(larger, snapshot.pending)),
        admitted=tuple(gang for gang in snapshot.admitted if gang.workload.family in stay),
        seek_room=True,
        make_room=rng.choice((None, MakeRoom())),
    )


def _with_more_quota(quotas: FlavorQuotas) -> FlavorQuotas:
    return replace(
        quotas, nominal={name: amount + 10**6 for name, amount in quotas.nominal.items()}
    )


# Configuration.


def _flavors(dice: _Dice) -> list[ResourceFlavor]:
    found = [ResourceFlavor("default", topology="gpus")]
    if "two flavors" in dice.on:
        found = [ResourceFlavor(model, (("model", model),), topology="gpus") for model in MODELS]
    return [*found, ResourceFlavor("cloud")] if dice.some("quota only") else found


def _config(dice: _Dice, flavors: Sequence[ResourceFlavor]) -> QueueConfig:
    names = ["a", "b", "c", "d", "e"][: dice.rng.randint(2, 5)]
    known = [f.name for f in flavors]
    cohorts = _cohorts(dice, known)
    queues = {name: _queue(dice, name, known, sorted(cohorts)) for name in names}
    fair = dice.choose((FINAL, INITIAL), (FINAL,), (INITIAL,)) if "fair sharing" in dice.on else ()
    usage = UsageFairness(half_life=HOUR) if "usage fairness" in dice.on else None
    settings = ProvisioningConfig("p", "c", managed=frozenset({GPU}))
    config = QueueConfig(
        1,
        queues,
        {("team", name): LocalQueue("team", name, name) for name in names},
        {f.name: f for f in flavors},
        {"gpus": Topology("gpus", LEVELS)},
        cohorts=cohorts,
        rules=Rules(fair_sharing=fair, usage_fairness=usage),
        checks={
            "license": AdmissionCheck("license", EXTERNAL),
            "nodes": AdmissionCheck("nodes", PROVISIONING, settings="p", provisioning=settings),
        },
    )
    lines = {n: config.backfill_cohort(q) for n, q in queues.items()}
    backfill = QueueingStrategy.BACKFILL
    queues |= {n: replace(queues[n], strategy=backfill) for n, c in lines.items() if c is not None}
    return config


def _cohorts(dice: _Dice, flavors: Sequence[str]) -> dict[str, Cohort]:
    if "cohort" not in dice.on and "deep cohort" not in dice.on:
        return {}
    parents: dict[str, str | None] = {"top": None}
    if "deep cohort" in dice.on:
        parents |= dice.choose({"left": "top", "right": "top"}, {"left": "top", "low": "left"})
    return {
        name: Cohort(
            name,
            parent,
            _groups(dice, flavors, 8) if dice.rng.random() < 0.3 else (),
            dice.choose(1000, 1000, 2000, 500, 0),
            _backfill(dice) if dice.some("Backfill cohort", 0.6) else None,
        )
        for name, parent in parents.items()
    }


def _backfill(dice: _Dice) -> Backfill:
    order = dice.choose(*BackfillOrder)
    return Backfill(dice.choose(1, 1, 2, 4), order, dice.choose(0.0, 0.1, 0.5))


def _queue(dice: _Dice, name: str, flavors: Sequence[str], cohorts: Sequence[str]) -> ClusterQueue:
    strategies = [QueueingStrategy.BEST_EFFORT_FIFO]
    strategies += [QueueingStrategy.BACKFILL] * 2 if "Backfill" in dice.on else []
    strategies += [QueueingStrategy.STRICT_FIFO] if "StrictFIFO" in dice.on else []
    reclaim = dice.choose(*ReclaimWithinCohort) if "reclaim" in dice.on else None
    never = ReclaimWithinCohort.NEVER
    within = dice.choose(*WithinClusterQueue) if "preemption" in dice.on else None
    return ClusterQueue(
        name,
        _groups(dice, flavors, 24),
        dice.choose(*strategies),
        within or WithinClusterQueue.NEVER,
        namespace_selector=LabelSelector(),
        cohort=dice.choose(*cohorts, *cohorts, None) if cohorts else None,
        protection=_protection(dice),
        defragment=Defragment.EXECUTE if dice.some("defragment") else Defragment.OFF,
        defragment_budget=dice.choose(0, 10**4, 10**6),
        preempts_to_borrow=reclaim not in (None, never) and dice.some("preempts to borrow"),
        borrow_threshold=dice.choose(None, 0, 2),
        reclaim_within_cohort=reclaim or never,
        reclaim_patience=dice.choose(0.0, 30.0),
        weight=dice.choose(1000, 1000, 2000, 500, 0),
        usage_fairness="usage fairness" in dice.on and dice.rng.random() < 0.5,
        split_flavors=dice.some("split", 0.7),
        evicts_within_nominal=dice.some("within nominal"),
        idle_reclaim=IdleReclaim(dice.choose(*ReclaimMode), to_equal=dice.rng.random() < 0.5),
        max_per_user=((GPU, dice.choose(4, 8, 16)),) if dice.some("max per user") else (),
        admission_checks=_checks(dice, flavors),
        preemption_opt_out=dice.choose(*OptOut),
        backfill=_backfill(dice),
        time_slice=dice.choose(60.0, HOUR) if dice.some("time slice") else None,
    )


def _groups(dice: _Dice, flavors: Sequence[str], most: int) -> tuple[ResourceGroup, ...]:
    quotas = []
    for flavor in flavors:
        gpus = dice.rng.randint(most // 4, most)
        nominal = {GPU: gpus, "cpu": dice.choose(16, 64, 1000), "memory": 10**6, PODS: 10**6}
        borrowing = {GPU: dice.rng.randint(0, 8)} if dice.some("borrowing") else {}
        lending = {GPU: dice.rng.randint(0, gpus)} if dice.some("lending") else {}
        quotas.append(FlavorQuotas(flavor, nominal, borrowing, lending))
    return (ResourceGroup(RESOURCES, tuple(quotas)),)


def _protection(dice: _Dice) -> Protection:
    if not dice.some("protection"):
        return Protection()
    return Protection(dice.choose(0.0, 300.0), dice.choose(None, 1), dice.choose(0.0, HOUR))


def _checks(dice: _Dice, flavors: Sequence[str]) -> tuple[CheckRule, ...]:
    rules = []
    if dice.some("checks"):
        rules.append(CheckRule("license", dice.choose(frozenset(), frozenset(flavors[:1]))))
    if dice.some("provisioning"):
        rules.append(CheckRule("nodes", dice.choose(frozenset(), frozenset(flavors[-1:])), True))
    return tuple(rules)


def without_level(snapshot: Snapshot) -> Snapshot:
    """The same with a Topology that has lost the level ``rack``; gangs that run and that are pending still name it."""
    topologies = {"gpus": Topology("gpus", ("block", HOSTNAME))}
    config = replace(snapshot.config, revision=snapshot.config.revision + 1, topologies=topologies)
    return replace(snapshot, config=config)


# Nodes and gangs.


def _fleet(dice: _Dice) -> list[Node]:
    racks = ["b1/r1", "b1/r2", "b2/r3", "b2/r4"][: dice.rng.randint(2, 4)]
    return [
        node(
            f"n{i:02}",
            dice.choose(*racks),
            gpu=dice.choose(2, 4, 8, 8),
            cpu=dice.choose(8, 16, 32),
            memory=64,
            labels={"model": dice.choose(*MODELS)},
            ready=dice.rng.random() > 0.03,
        )
        for i in range(dice.rng.randint(*dice.sizes.nodes))
    ]


def _workload(
    dice: _Dice, uid: str, names: Sequence[str], podsets: Iterable[PodSet], queued_at: float
) -> Workload:
    long = dice.choose(60.0, 600.0, HOUR, 5 * HOUR)
    return Workload(
        uid,
        "Job",
        "team",
        uid,
        tuple(podsets),
        dice.choose(*names),
        dice.choose(0, 0, 0, 1, 2, 5),
        queued_at,
        preemptible=not dice.some("opt out", 0.3),
        user=dice.choose("ann", "bob", "eve"),
        duration=Duration(long, enforced=dice.rng.random() < 0.6)
        if dice.some("durations", 0.8)
        else None,
    )


def _asked(dice: _Dice) -> Iterator[PodSet]:
    """The podsets of a gang."""
    level = dice.choose("block", "rack", "rack", HOSTNAME)
    together: dict[str, Any] = dice.choose({}, {"required": level}, {"preferred": level})
    group = "g" if together and dice.some("group") else None
    for number in range(dice.choose(2, 3) if group else dice.choose(1, 1, 1, 2)):
        count = dice.choose(1, 1, 2, 3, 4, 8)
        gpu, cpu = dice.choose((1, 1), (1, 2), (2, 2), (4, 4), (8, 4), (3, 0), (0, 4))
        amounts = {"gpu": gpu, "cpu": cpu}
        sliced = group is None and dice.some("slices", 0.4)
        if sliced:
            layers = dice.choose((("rack", 2),), (("rack", 4), (HOSTNAME, 2)), ((HOSTNAME, 2),))
            required = dice.choose(None, None, "block")
            made = podset(
                f"p{number}", dice.choose(4, 8), required=required, slices=layers, **amounts
            )
        else:
            made = podset(f"p{number}", count, group=group, **together, **amounts)
        if dice.some("balanced", 0.4) and group is None and made.count > 1:
            topology = made.topology or podset(balanced=True).topology
            assert topology is not None
            made = replace(made, topology=replace(topology, balanced=True))
        if not sliced and count > 1 and dice.some("partial", 0.3):
            made = replace(made, min_count=dice.rng.randint(1, count - 1))
        yield made


def _waiting(dice: _Dice, uid: str, names: Sequence[str]) -> Pending:
    workload = _workload(dice, uid, names, _asked(dice), float(dice.rng.randint(0, 50)))
    blocked = Reason(Code.HELD, "held") if dice.some("blocked", 0.1) else None
    ready = frozenset(n for n in ("license", "nodes") if dice.rng.random() < 0.3)
    borrows_at = NOW + 60 if dice.rng.random() < 0.1 else None
    return Pending(
        workload, blocked=blocked, ready_checks=ready, borrows_at=borrows_at, reclaim_since=0.0
    )


def _running(
    dice: _Dice, fleet: Sequence[Node], config: QueueConfig, names: Sequence[str]
) -> list[Admitted]:
    room = FreeNodes(fleet)
    found = []
    for i in range(dice.rng.randint(*dice.sizes.running)):
        workload = _workload(dice, f"r{i:02}", names, _asked(dice), float(dice.rng.randint(0, 50)))
        if (gang := place_anywhere(dice.rng, workload, fleet, room, config)) is not None:
            found.append(_aged(dice, gang))
    return found


def _aged(dice: _Dice, gang: Admitted) -> Admitted:
    ran = dice.choose(10.0, 100.0, 1000.0, 20_000.0)
    run = gang.workload.duration
    return replace(
        gang,
        started_at=NOW - ran,
        leaving=dice.some("leaving", 0.2),
        idle_since=NOW - 5.0 if dice.some("idle", 0.3) else None,
        utilization=dice.choose(None, 0.0, 0.5, 1.0),
        evictions=(NOW - 2000.0,) if dice.rng.random() < 0.1 else (),
        evictable=dice.rng.random() > 0.05,
        ends_at=NOW - ran + run.seconds if run is not None else None,
        end_enforced=run is not None and run.enforced,
    )


def place_anywhere(
    rng: random.Random,
    workload: Workload,
    fleet: Sequence[Node],
    room: FreeNodes,
    config: QueueConfig,
) -> Admitted | None:
    """The gang on nodes with room, inside its levels and slices; None where no attempt of three finds any.

    Quota does not count: what runs can exceed a quota that was larger once.
    """
    for _ in range(3):
        before = dict(room.left)
        flavor = rng.choice([f for f in config.flavors.values() if f.topology is not None])
        nodes = [n for n in fleet if all(n.labels.get(k) == v for k, v in flavor.node_labels)]
        placement = _placed(rng, workload, nodes, room, flavor.name)
        if placement is not None:
            return Admitted(workload, placement)
        room.left = before
    return None


def _placed(
    rng: random.Random, workload: Workload, nodes: Sequence[Node], room: FreeNodes, flavor: str
) -> Placement | None:
    found = []
    inside: dict[str | None, list[Node]] = {None: list(nodes)}
    for made in workload.podsets:
        required = made.topology is not None and made.topology.mode is TopologyMode.REQUIRED
        level = made.topology.level if made.topology is not None and required else None
        where = _inside(rng, inside.get(made.group, inside[None]), level)
        if made.group is not None:
            inside[made.group] = where
        slices = made.topology.slices if made.topology is not None else ()
        spots: list[tuple[str, int]] = []
        size = max((layer.size for layer in slices), default=1)
        for _ in range(made.count // size):
            spots += _part(rng, made, where, room, [(s.level, s.size) for s in slices])
        if sum(count for _, count in spots) != made.count:
            return None
        flavors = dict.fromkeys(made.shape.requests, flavor)
        found.append(PodSetPlacement(made.name, tuple(spots), flavors))
    return Placement(tuple(found))


def _part(
    rng: random.Random,
    made: PodSet,
    nodes: Sequence[Node],
    room: FreeNodes,
    layers: Sequence[tuple[str, int]],
) -> list[tuple[str, int]]:
    """One slice, or one pod; empty if it has no room."""
    if layers:
        (level, size), *rest = layers
        inside = _inside(rng, nodes, level)
        step = rest[0][1] if rest else 1
        parts = [_part(rng, made, inside, room, rest) for _ in range(size // step)]
        return [spot for part in parts for spot in part] if all(parts) else []
    for candidate in rng.sample(list(nodes), len(nodes)):
        if room.take(candidate.name, made.shape.requests):
            return [(candidate.name, 1)]
    return []


def _inside(rng: random.Random, nodes: Sequence[Node], level: str | None) -> list[Node]:
    """The nodes of one domain, by its labels down to the level."""
    if level is None or not nodes:
        return list(nodes)
    keys = LEVELS[: LEVELS.index(level) + 1]
    one = rng.choice(list(nodes))
    return [n for n in nodes if all(n.labels[k] == one.labels[k] for k in keys)]


def _growing(dice: _Dice, running: Sequence[Admitted]) -> list[Pending]:
    """Pods that are to be added to gangs that run."""
    found = []
    for gang in running:
        if len(gang.workload.podsets) == 1 and dice.some("elastic", 0.2) and not gang.leaving:
            base = gang.workload
            pod = replace(base.podsets[0], count=1, min_count=None, topology=None)
            for rank in range(dice.rng.randint(1, 3)):
                uid = f"{base.uid}.{rank}"
                growth = Growth(base.uid, base.podsets[0].count + rank)
                added = replace(base, uid=uid, name=uid, podsets=(pod,), growth=growth)
                found.append(Pending(added))
    return found


def _other_pods(
    dice: _Dice, fleet: Sequence[Node], running: Sequence[Admitted]
) -> dict[str, Resources]:
    room = FreeNodes(fleet)
    for gang in running:
        for name, used in gang.placement.use(gang.workload).items():
            room.left[name] -= used
    found = {}
    for each in fleet:
        amounts = resources(cpu=dice.choose(1, 4), pods=1)
        if dice.some("other pods", 0.3) and room.take(each.name, amounts):
            found[each.name] = amounts
    return found


def _lose(
    dice: _Dice, fleet: Sequence[Node], running: Sequence[Admitted]
) -> tuple[list[Node], list[Admitted]]:
    """Some nodes with gangs fail."""
    used = sorted({n for gang in running for n in gang.placement.use(gang.workload)})
    failed = set(dice.rng.sample(used, min(len(used), dice.rng.randint(1, 3))))
    return lose_nodes(fleet, running, failed)


def lose_nodes(
    fleet: Sequence[Node], running: Sequence[Admitted], failed: Iterable[str]
) -> tuple[list[Node], list[Admitted]]:
    """These nodes fail, with the pods on them."""
    down = set(failed)
    nodes = [replace(n, ready=False) if n.name in down else n for n in fleet]
    gangs = []
    for gang in running:
        lost = [
            (placed.podset, name, count)
            for placed in gang.placement.podsets
            for name, count in placed.by_node.items()
            if name in down
        ]
        gangs.append(gang if gang.leaving else replace(gang, lost=tuple(lost)))
    return nodes, gangs


# Limits in addition to quota.


def _allowances(dice: _Dice) -> dict[str, tuple[Allowance, ...]]:
    if "resource quota" not in dice.on:
        return {}
    used = dice.rng.randint(0, 40)
    limit = QuotaLimit(f"requests.{GPU}", GPU, dice.choose(40, 60, 100), used)
    return {"team": (Allowance("gpus", (limit,)),)}


def _with_budgets(dice: _Dice, snapshot: Snapshot) -> Snapshot:
    found = []
    for name in sorted(snapshot.config.cluster_queues):
        if dice.some("budget"):
            hours = dice.choose(0, 1, 10, 100)
            budget = Budget(
                f"of-{name}",
                BudgetScope.CLUSTER_QUEUE,
                name,
                hours * GPU_HOUR,
                when_spent=WhenSpent.HOLD,
                whole_run=dice.rng.random() < 0.5,
            )
            month = month_of(snapshot.now, budget.time_zone)
            found.append(BudgetBalance(budget, month, budget.monthly, 0, 0, snapshot.now))
    config = replace(snapshot.config, budgets={b.budget.name: b.budget for b in found})
    return replace(snapshot, config=config, budgets=tuple(found))


def _reservations(
    dice: _Dice, fleet: Sequence[Node], names: Sequence[str]
) -> tuple[Occurrence, ...]:
    found = []
    for number in range(dice.rng.randint(1, 2) if "reservation" in dice.on else 0):
        begins = NOW + dice.choose(-10.0, 100.0, 1000.0, HOUR)
        nodes = tuple(n.name for n in dice.rng.sample(list(fleet), 2))
        capacity = ReservedCapacity(dice.choose(1, 2, 4), Resources({GPU: 2, PODS: 1}))
        whole = dice.rng.random() < 0.3
        reservation = AdvanceReservation(
            f"talk-{number}",
            begins,
            begins + dice.choose(100.0, HOUR, 10 * HOUR),
            cluster_queue=dice.choose(*names, None),
            capacity=None if whole else capacity,
            nodes=nodes if whole else (),
            evicts=dice.rng.random() < 0.5,
        )
        found.append(Occurrence(reservation, reservation.begins, reservation.ends))
    return tuple(sorted(found, key=lambda o: (o.begins, o.name)))
