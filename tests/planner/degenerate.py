"""Small clusters in which something is missing that the other generators always give: labels, levels, nodes, quota, requests, objects.

Each of these is an ordinary situation: a node group that is scaled to zero, an agent that has not labeled its nodes yet, a misspelled level,
a job without requests, a ResourceFlavor that was deleted while gangs use it. Drawn evenly from a seed. Each snapshot comes with the
names of what is missing in it, so that a test can show that nothing is rare.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from queuectl.domain.checks import CheckRule
from queuectl.domain.devices import (
    ClaimSpec,
    Device,
    DeviceClass,
    DeviceId,
    DeviceInventory,
    DeviceKind,
    DeviceOption,
    DeviceRequest,
    NodeDevices,
    PodDevices,
)
from queuectl.domain.fleet import HOSTNAME, Effect, Fleet, Node, NodeRules, NodeTemplate, Taint
from queuectl.domain.quantity import GPU, PODS, Resources
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    Cohort,
    Defragment,
    FlavorQuotas,
    Fungibility,
    IdleReclaim,
    LabelSelector,
    LocalQueue,
    Protection,
    QueueConfig,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Topology,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.reservations import AdvanceReservation, Occurrence, ReservedCapacity
from queuectl.domain.rules import FairStrategy, Rules, UsageFairness
from queuectl.domain.snapshot import (
    Admitted,
    CapacityLease,
    Pending,
    PlannedStart,
    Snapshot,
    SolverLimits,
)
from queuectl.domain.workload import (
    Duration,
    Growth,
    Placement,
    PodSet,
    PodSetPlacement,
    PodShape,
    Slice,
    TopologyMode,
    TopologyRequest,
    Workload,
)
from tests.planner.build import LEVELS, NOW

MISSPELLED: Final = "rak"
GONE: Final = "gone"  # the name of whatever does not exist
QUEUES: Final = ("red", "blue", "green")
DRIVER: Final = "gpu.example.com"
T = TypeVar("T")


@dataclass
class Draw:
    """One snapshot while it is made, and the names of what is missing in it."""

    rng: random.Random
    missing: set[str] = field(default_factory=set)

    def lacks(self, what: str, chance: float) -> bool:
        """Whether something is missing; its name is noted."""
        if self.rng.random() < chance:
            self.missing.add(what)
            return True
        return False

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def one(self, *choices: T) -> T:
        return self.rng.choice(choices)


def degenerate(seed: int) -> tuple[Snapshot, frozenset[str]]:
    """Up to six nodes, five running gangs and ten pending ones in three queues, and the names of what is missing."""
    draw = Draw(random.Random(seed))
    fleet = _fleet(draw)
    config = _config(draw)
    admitted = _admitted(draw, fleet, config)
    pending = _pending(draw, fleet, admitted, config)
    limits = SolverLimits(
        deterministic_time=draw.one(0.25, 0.25, 1e-9), window=draw.one(1000, 1000, 2)
    )
    snapshot = Snapshot(
        NOW,
        Fleet(tuple(fleet)),
        config,
        tuple(pending),
        tuple(admitted),
        _other_pods(draw, fleet),
        namespaces={"team": {}},
        limits=limits,
        devices=_devices(draw, fleet),
        reservations=_reservations(draw, fleet),
    )
    return snapshot, frozenset(draw.missing)


# Nodes.


def _fleet(draw: Draw) -> list[Node]:
    if draw.lacks("all nodes", 0.04):
        return []
    nowhere = [label for label in ("block", "rack") if draw.lacks("a level on all nodes", 0.12)]
    if draw.lacks("host names", 0.08):
        nowhere.append(HOSTNAME)
    racks = ("b1/r1", "b1/r2", "b2/r3", "b2/r4")[: draw.rng.randint(1, 4)]
    number = draw.rng.randint(1, 6)
    return [_node(draw, f"n{i}", draw.one(*racks), nowhere) for i in range(number)]


def _node(draw: Draw, name: str, where: str, nowhere: Sequence[str]) -> Node:
    block, rack = where.split("/")
    labels = {"block": block, "rack": rack, HOSTNAME: name, "model": draw.one("h100", "a100")}
    amounts = {GPU: draw.one(2, 4, 8), "cpu": draw.one(4, 16), "memory": 64, PODS: 110}
    if draw.lacks("devices of a node", 0.15):
        del amounts[GPU]
    if draw.lacks("all capacity of a node", 0.05):
        amounts = {}
    tainted = draw.maybe(0.06)
    return Node(
        name,
        {
            label: value
            for label, value in labels.items()
            if label not in nowhere
            and not (label in LEVELS and draw.lacks("a level of a node", 0.06))
        },
        Resources(amounts),
        (Taint("example.com/maintenance", Effect.NO_SCHEDULE),) if tainted else (),
        ready=not draw.lacks("readiness of a node", 0.08),
        unschedulable=draw.maybe(0.06),
    )


def _other_pods(draw: Draw, fleet: Sequence[Node]) -> dict[str, Resources]:
    pod = Resources({PODS: 1, GPU: 1})
    found = {node.name: pod for node in fleet if draw.maybe(0.15)}
    return found | ({GONE: pod} if draw.lacks("the node of another pod", 0.1) else {})


def _devices(draw: Draw, fleet: Sequence[Node]) -> DeviceInventory:
    kind = DeviceKind(DRIVER)

    def of(node: Node) -> NodeDevices:
        ids = (DeviceId(DRIVER, node.name, f"d{i}") for i in range(draw.one(0, 1, 4)))
        return NodeDevices(tuple(Device(one, kind) for one in ids))

    nodes = {node.name: of(node) for node in fleet if draw.maybe(0.4)}
    return DeviceInventory(nodes, {DRIVER: DeviceClass(DRIVER)})


# Configuration.


def _config(draw: Draw) -> QueueConfig:
    topologies = {"gpus": Topology("gpus", LEVELS), "flat": Topology("flat", (HOSTNAME,))}
    if draw.lacks("a level of a topology on all nodes", 0.15):
        topologies["gpus"] = Topology("gpus", ("block", MISSPELLED, HOSTNAME))
    if draw.lacks("host names in a topology", 0.15):
        topologies["gpus"] = Topology("gpus", ("block", "rack"))
    if draw.lacks("all topologies", 0.06):
        topologies = {}
    flavors = _flavors(draw)
    names = [flavor.name for flavor in flavors]
    if draw.lacks("a flavor of a queue", 0.1):
        names.insert(draw.rng.randint(0, len(names)), GONE)
    queues = {name: _queue(draw, name, names) for name in QUEUES[: draw.rng.randint(1, 3)]}
    cohorts: dict[str, Cohort] = {}
    if not draw.lacks("the document of a cohort", 0.3):
        line = Backfill(order=draw.one(*BackfillOrder)) if draw.maybe(0.25) else None
        cohorts = {"all": Cohort("all", backfill=line)}
        for name, queue in list(queues.items()):
            if line is not None and queue.cohort == "all":
                queues[name] = replace(queue, strategy=QueueingStrategy.BACKFILL)
    leading = {name: name for name in queues}
    if draw.lacks("the ClusterQueue of a LocalQueue", 0.06):
        leading["red"] = GONE
    fair = (FairStrategy.LESS_THAN_INITIAL_SHARE,)
    rules = Rules(
        fair_sharing=draw.one((), (), tuple(FairStrategy), fair),
        usage_fairness=draw.one(None, None, UsageFairness(before_priority=True)),
        ignore_undeclared=draw.maybe(0.3),
    )
    return QueueConfig(
        1,
        queues,
        {("team", name): LocalQueue("team", name, queue) for name, queue in leading.items()},
        {flavor.name: flavor for flavor in flavors},
        topologies,
        cohorts=cohorts,
        rules=rules,
    )


def _flavors(draw: Draw) -> list[ResourceFlavor]:
    models = [["h100", "a100"], ["default"]][draw.maybe(0.5)]
    if len(models) > 1 and draw.lacks("all nodes of a flavor", 0.4):
        models[draw.rng.randint(0, 1)] = "b200"

    def flavor(name: str) -> ResourceFlavor:
        topology: str | None = draw.one("gpus", "gpus", "gpus", "flat")
        if draw.lacks("the topology of a flavor, which names none", 0.1):
            topology = None
        elif draw.lacks("the topology that a flavor names", 0.06):
            topology = GONE
        labels = (("model", name),) if name != "default" else ()
        template = NodeTemplate(Resources({GPU: 4, "cpu": 8, PODS: 110}), 2)
        made = None if draw.lacks("the node template of a flavor", 0.7) else template
        return ResourceFlavor(name, labels, topology=topology, node_template=made)

    return [flavor(name) for name in models]


def _queue(draw: Draw, name: str, flavors: Sequence[str]) -> ClusterQueue:
    checks = (CheckRule("nodes", provisions=True),) if draw.maybe(0.08) else ()
    return ClusterQueue(
        name,
        _groups(draw, flavors),
        draw.one(*QueueingStrategy),
        draw.one(*WithinClusterQueue),
        StopPolicy.HOLD if draw.maybe(0.04) else StopPolicy.NONE,
        LabelSelector(),
        cohort=draw.one("all", "all", "all", None),
        fungibility=Fungibility(draw.one(*WhenCan), draw.one(*WhenCan)),
        protection=Protection(min_runtime=draw.one(0.0, 0.0, 20.0)),
        defragment=draw.one(*Defragment),
        defragment_budget=draw.one(0, 10**6),
        preempts_to_borrow=draw.maybe(0.3),
        reclaim_within_cohort=draw.one(*ReclaimWithinCohort),
        split_flavors=draw.maybe(0.2),
        evicts_within_nominal=draw.maybe(0.2),
        usage_fairness=draw.maybe(0.5),
        time_slice=draw.one(None, None, None, 10.0),
        idle_reclaim=IdleReclaim(mode=draw.one(ReclaimMode.DRY_RUN, ReclaimMode.ON_DEMAND)),
        backfill=Backfill(planned_starts=draw.one(1, 2), order=draw.one(*BackfillOrder)),
        weight=draw.one(0, 1000, 1000, 2000),
        reclaim_patience=0.0,
        admission_checks=checks,
    )


def _groups(draw: Draw, flavors: Sequence[str]) -> tuple[ResourceGroup, ...]:
    if draw.lacks("the resource groups of a queue", 0.05):
        return ()
    covered = [GPU, "cpu", "memory", PODS]
    if draw.lacks("a resource of a queue", 0.25):
        covered.remove(draw.one(*covered))

    def quotas(flavor: str, resources: Sequence[str]) -> FlavorQuotas:
        nominal = dict.fromkeys(resources, 1000) | {resources[0]: draw.one(4, 8, 16, 1000)}
        if draw.lacks("the quota of a flavor", 0.1):
            nominal = dict.fromkeys(resources, 0)
        limited = [resource for resource in resources if draw.maybe(0.2)]
        limit = dict.fromkeys(limited, draw.one(0, 4))
        return FlavorQuotas(flavor, nominal, limit, limit if draw.maybe(0.3) else {})

    if len(flavors) > 1 and draw.maybe(0.15):
        parts = zip((covered[:1], covered[1:]), flavors, strict=False)
        return tuple(ResourceGroup(tuple(part), (quotas(name, part),)) for part, name in parts)
    names = draw.rng.sample(list(flavors), draw.rng.randint(1, len(flavors)))
    return (ResourceGroup(tuple(covered), tuple(quotas(name, covered) for name in names)),)


def _reservations(draw: Draw, fleet: Sequence[Node]) -> tuple[Occurrence, ...]:
    if not draw.maybe(0.2):
        return ()
    begins = NOW + draw.one(-50.0, 900.0)
    names = tuple(node.name for node in fleet[:1])
    if draw.lacks("the nodes of a reservation", 0.4):
        names = (GONE,)
    capacity = None
    if draw.maybe(0.5):
        flavor = GONE if draw.lacks("the flavor of a reservation", 0.4) else None
        level = MISSPELLED if draw.lacks("the level of a reservation", 0.3) else "rack"
        together = TopologyRequest(TopologyMode.REQUIRED, level)
        capacity = ReservedCapacity(
            2, Resources({PODS: 1, GPU: 1}), flavor, topology=draw.one(None, together)
        )
    kept = AdvanceReservation(
        "kept",
        begins,
        begins + 3600.0,
        draw.one("red", None),
        capacity=capacity,
        nodes=() if capacity is not None else names,
        evicts=draw.maybe(0.3),
    )
    placed = ((names[0], 2),) if capacity is not None and names and draw.maybe(0.5) else ()
    return (Occurrence(kept, begins, begins + 3600.0, placed),)


# Gangs.


def _topology(draw: Draw, levels: Sequence[str]) -> TopologyRequest | None:
    if draw.maybe(0.35):
        return None

    def level(what: str) -> str:
        return MISSPELLED if draw.lacks(what, 0.12) else draw.one(*levels)

    mode = draw.one(*TopologyMode)
    slices: tuple[Slice, ...] = ()
    if draw.maybe(0.3):
        slices = (Slice(level("the level of slices"), draw.one(1, 2)),)
    own = None if mode is TopologyMode.UNCONSTRAINED else level("the level of a request")
    return TopologyRequest(mode, own, slices, balanced=draw.maybe(0.15))


def _podset(draw: Draw, name: str, topology: TopologyRequest | None, group: str | None) -> PodSet:
    amounts = {PODS: 1}
    if not draw.lacks("requests", 0.2):
        asked = {GPU: draw.one(0, 1, 2, 4, 8), "cpu": draw.one(0, 1, 4)}
        amounts |= {resource: amount for resource, amount in asked.items() if amount}
    if draw.lacks("a resource on all nodes", 0.06):
        amounts["example.com/card"] = 1
    if draw.lacks("a node that is large enough", 0.06):
        amounts[GPU] = 100
    selector: tuple[tuple[str, str], ...] = (("model", "h100"),) if draw.maybe(0.1) else ()
    if draw.lacks("a node that a selector matches", 0.06):
        selector = (("model", MISSPELLED),)
    count, least = draw.one(1, 2, 2, 4), None
    if topology is not None and topology.slices:
        count = max(count, topology.slices[0].size)
    elif count > 1 and draw.maybe(0.15):
        least = draw.rng.randint(1, count - 1)
    shape = PodShape(Resources(amounts), NodeRules(selector), devices=_claims(draw))
    return PodSet(name, count, shape, topology, group, least)


def _claims(draw: Draw) -> PodDevices | None:
    if draw.lacks("the requests of a claim", 0.05):
        return PodDevices((ClaimSpec(()),))
    if not draw.maybe(0.1):
        return None
    name = GONE if draw.lacks("the class of a claim", 0.3) else DRIVER
    return PodDevices((ClaimSpec((DeviceRequest("gpu", (DeviceOption(name),)),)),))


def _gang(draw: Draw, uid: str) -> Workload:
    group, shared = ("g" if draw.maybe(0.2) else None), _topology(draw, LEVELS)
    podsets = tuple(
        _podset(draw, f"p{i}", shared if group else _topology(draw, LEVELS), group)
        for i in range(draw.one(1, 1, 2, 3))
    )
    queue = None if draw.lacks("the queue of a gang", 0.05) else draw.one(*QUEUES)
    return Workload(
        uid,
        "Job",
        "team",
        uid,
        podsets,
        queue,
        draw.rng.randint(0, 4),
        float(draw.rng.randint(0, 5)),
        duration=draw.one(None, Duration(600.0), Duration(3600.0, enforced=True)),
    )


def _pending(
    draw: Draw, fleet: Sequence[Node], admitted: Sequence[Admitted], config: QueueConfig
) -> list[Pending]:
    gangs = [_gang(draw, f"w{i}") for i in range(draw.rng.randint(1, 5))]
    gangs += [
        replace(gang, uid=f"{gang.uid}-like", name=f"{gang.uid}-like", priority=draw.one(0, 4))
        for gang in gangs
        if draw.maybe(0.25)
    ]
    if draw.maybe(0.1):
        base = GONE if not admitted or draw.lacks("the base of a pod", 0.3) else "r0"
        grown = replace(_podset(draw, "p0", None, None), count=1, min_count=None)
        gangs.append(replace(gangs[0], uid="w-grow", podsets=(grown,), growth=Growth(base, 3)))
    draw.rng.shuffle(gangs)
    return [_entry(draw, gang, fleet, admitted, list(config.flavors)) for gang in gangs]


def _entry(
    draw: Draw,
    gang: Workload,
    fleet: Sequence[Node],
    admitted: Sequence[Admitted],
    flavors: Sequence[str],
) -> Pending:
    """A pending gang with what earlier cycles have left."""
    entry = Pending(gang, borrows_at=draw.one(None, None, NOW + 60.0))
    if draw.maybe(0.03):
        return replace(entry, blocked=Reason(Code.HELD, "held"))
    if draw.lacks("an excluded node", 0.05):
        entry = replace(entry, excluded=frozenset({"n0", GONE}))
    if gang.growth is not None or not draw.maybe(0.15):
        return entry
    names = [node.name for node in fleet[:1]]
    if not names or draw.lacks("the node of a lease or planned start", 0.4):
        names = [GONE]
    if draw.maybe(0.5):
        start = PlannedStart(NOW + 60.0, _all_on(names[0], gang), NOW + 60.0, ((GONE, NOW + 50.0),))
        return replace(entry, planned_start=start)
    flavor = GONE if draw.lacks("the flavor of a lease", 0.2) else draw.one(*flavors)
    placement = _all_on(names[0], gang, flavor)
    victims = tuple(one.workload.uid for one in admitted if one.leaving)
    if draw.lacks("a victim of a lease", 0.4):
        victims = (GONE,)
    return replace(entry, lease=CapacityLease(placement, victims, NOW - 5.0, NOW + 60.0))


def _all_on(node: str, gang: Workload, flavor: str | None = None) -> Placement:
    """All pods on one node."""
    return Placement(
        tuple(
            PodSetPlacement(
                podset.name,
                ((node, podset.count),),
                dict.fromkeys(podset.shape.requests, flavor) if flavor is not None else {},
            )
            for podset in gang.podsets
        )
    )


def _admitted(draw: Draw, fleet: Sequence[Node], config: QueueConfig) -> list[Admitted]:
    left = {node.name: node.allocatable for node in fleet}
    drawn = (_running(draw, f"r{i}", fleet, left, config) for i in range(draw.rng.randint(0, 5)))
    return [gang for gang in drawn if gang is not None]


def _running(
    draw: Draw, uid: str, fleet: Sequence[Node], left: dict[str, Resources], config: QueueConfig
) -> Admitted | None:
    shape = Resources({PODS: 1, GPU: draw.one(1, 2, 4), "cpu": 1})
    if draw.lacks("requests of a running gang", 0.12):
        shape = Resources({PODS: 1})
    where: dict[str, int] = {}
    for _ in range(draw.one(1, 2, 2, 4)):
        name = draw.one(*fleet).name if fleet and draw.maybe(0.9) else GONE
        if name == GONE and draw.maybe(0.5):
            continue
        if name == GONE or shape.fits(left[name]):
            where[name] = where.get(name, 0) + 1
            left[name] = left.get(name, shape) - shape
    if not where:
        return None
    usable = {node.name for node in fleet if node.usable}
    lost = tuple(("p", name, count) for name, count in where.items() if name not in usable)
    if lost:
        draw.missing.add("the node of a running gang")
    return _holding(
        draw, uid, PodSet("p", sum(where.values()), PodShape(shape)), where, lost, config
    )


def _holding(
    draw: Draw,
    uid: str,
    podset: PodSet,
    where: dict[str, int],
    lost: tuple[tuple[str, str, int], ...],
    config: QueueConfig,
) -> Admitted:
    flavor: str | None = draw.one(*config.flavors)
    queue: str | None = draw.one(*config.cluster_queues)
    if draw.lacks("the flavor of a running gang", 0.08):
        flavor = GONE
    if draw.lacks("the LocalQueue of a running gang", 0.06):
        queue = GONE
    if draw.lacks("quota of a running gang", 0.04):
        queue, flavor = None, None
    known = config.flavors.get(flavor or "")
    topology = config.topologies.get(known.topology or "") if known is not None else None
    if topology is not None and draw.maybe(0.4):
        mode = draw.one(TopologyMode.REQUIRED, TopologyMode.PREFERRED)
        together = TopologyRequest(mode, draw.one(*topology.levels))
        podset = replace(podset, topology=together)
    priority, queued_at = draw.rng.randint(0, 3), float(draw.rng.randint(0, 5))
    flavors = dict.fromkeys(podset.shape.requests, flavor) if flavor is not None else {}
    return Admitted(
        Workload(uid, "Job", "team", uid, (podset,), queue, priority, queued_at),
        Placement((PodSetPlacement("p", tuple(where.items()), flavors),)),
        leaving=draw.maybe(0.1),
        started_at=NOW - draw.one(0, 10, 1000),
        lost=lost,
        returns=draw.maybe(0.1),
        idle_since=draw.one(None, None, NOW - 5000),
        ends_at=draw.one(None, NOW + 100, NOW - 5),
    )
