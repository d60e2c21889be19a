"""A snapshot that is made from the last one is the snapshot that is made from nothing, whatever has changed in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuectl.domain.arrays import index_uid
from queuectl.domain.containment import Boundary
from queuectl.domain.devices import (
    Claim,
    ClaimReference,
    DeviceKind,
    NodeAccess,
    PoolSlice,
    PublishedDevice,
)
from queuectl.domain.fleet import HOSTNAME, Effect, Node, Requirement, Taint, Toleration
from queuectl.domain.gpus import PodGpus
from queuectl.domain.jobs import ArrayStatus, JobRecord, PodPhase
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Topology,
)
from queuectl.domain.records import (
    ClaimRecord,
    Deleted,
    DeviceClassRecord,
    NamespaceRecord,
    NodeRecord,
    PriorityClassRecord,
    SliceRecord,
)
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot, SolverLimits
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.workload import (
    Duration,
    Placement,
    PodSet,
    PodShape,
    TopologyMode,
    TopologyRequest,
)
from queuectl.lifecycle.observations import Observer
from queuectl.state.durations import LearnedDurations
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.mirror import asked_of
from tests.unit.test_claim_users import CHARGED, CLASS, TWO
from tests.unit.test_state import CONFIG, ENTRY, JOB, LIVE, PLACEMENT, RESUMED, SHAPE, World, on

DRAINED = replace(
    CONFIG,
    cluster_queues={
        "cq": replace(CONFIG.cluster_queues["cq"], unhealthy_nodes=UnhealthyNodes.DRAIN)
    },
)
STOPPED = replace(
    CONFIG,
    revision=4,
    cluster_queues={"cq": replace(CONFIG.cluster_queues["cq"], stop_policy=StopPolicy.HOLD)},
)
LEASE = CapacityLease(PLACEMENT, ("v",), 0.0, expires_at=60.0)
OF_JOBS: list[dict[str, Any]] = [
    {"deleting": True},
    {"awaits": "none of its 2 pods exists"},
    {"awaits": ""},
    {"priority_class": "high"},
    {"podsets": (PodSet("main", 3, SHAPE),)},
    {"suspended": False},
    {"suspended": True},
    {"error": "wrong"},
    {"kept_podsets": ("main",)},
    {},
]
OF_ENTRIES: list[dict[str, Any]] = [
    {"requeue_at": 45.0},
    {"requeue_at": None},
    {"attempt": 1, "since": 10.0},
    {"state": State.RESERVED, "lease": LEASE},
    {"state": State.PENDING, "lease": None},
    {"state": State.HELD},
    {"state": LIVE.state, "attempt": 1, "placement": PLACEMENT},
    {"budget": 2},
    {"excluded": ("n1",)},
    {"priority": 7},
    {"queue": "other"},
]
OF_PODS: list[dict[str, Any]] = [
    {},
    {"phase": PodPhase.SUCCEEDED},
    {"checkpoint_at": 15.0},
    {"checkpoint_at": 17.0},
    {"deleted": True},
]
OF_USES: list[dict[str, Any]] = [
    {"state": UseState.ACTIVE, "weight": 0.5},
    {"state": UseState.ACTIVE, "weight": 0.7},
    {"state": UseState.IDLE, "weight": 0.0},
    {"deleted": True},
]
OTHERS = ["configuration", "quota", "namespace", "node", "class"]
STEPS = st.one_of(
    st.tuples(st.just("job"), st.integers(0, 1), st.sampled_from(OF_JOBS)),
    st.tuples(st.just("entry"), st.integers(0, 1), st.sampled_from(OF_ENTRIES)),
    st.tuples(st.sampled_from(["ends", "comes"]), st.integers(0, 1), st.just({})),
    st.tuples(st.just("pod"), st.integers(0, 1), st.sampled_from(OF_PODS)),
    st.tuples(st.just("use"), st.integers(0, 1), st.sampled_from(OF_USES)),
    st.tuples(st.just("warned"), st.integers(0, 1), st.just({})),
    st.tuples(st.just("time"), st.sampled_from([1, 15, 700, -600]), st.just({})),
    st.tuples(st.sampled_from(OTHERS), st.just(0), st.just({})),
)


class Changing(World):
    """Two gangs that come, change and end, with the builder that keeps what it can."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.version, self.preempts = 20.0, 10, True
        self.config: QueueConfig = DRAINED
        self.uses: dict[str, GangUse] = {}
        self.warned: set[str] = set()
        self.builder = self.fresh()
        for number in range(2):
            self.comes(number)

    def fresh(self) -> SnapshotBuilder:
        """A builder that has made no snapshot."""
        self.usage.refresh(list(self.mirror.pods))
        return SnapshotBuilder(
            self.mirror, self.ledger, self.usage, lambda: self.uses, self.idle_since
        )

    def idle_since(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> float | None:
        """An idle gang can be evicted after a warning, while its measurement is not old."""
        del job, config
        use = self.uses.get(entry.uid)
        idle = use is not None and use.state is UseState.IDLE and now - use.at < 600.0
        return use.since if use is not None and idle and entry.uid in self.warned else None

    def step(self, what: str, number: int, changes: dict[str, Any]) -> None:
        self.version += 1
        uid = f"u{number}"
        job, entry = self.mirror.jobs.get(uid), self.ledger.get(uid)
        if what == "comes":
            self.comes(number)
        elif what == "job" and job is not None:
            self.see(replace(job, version=self.version, **changes))
        elif what == "entry" and entry is not None:
            self.put(replace(entry, **changes))
        elif what == "ends" and entry is not None:
            self.put(replace(entry, state=State.FINISHED))
            self.builder.forget(uid)
            self.mirror.apply([Deleted("jobs", uid, self.version)])
        elif what == "pod" and changes.get("deleted"):
            self.mirror.apply([Deleted("pods", f"p{number}", self.version)])
        elif what == "pod":
            own: dict[str, Any] = {"owner": uid, "version": self.version}
            self.see(replace(on(f"p{number}", "n1"), **own | changes))
        elif what == "use" and changes.get("deleted"):
            self.uses.pop(uid, None)
        elif what == "use":
            share = changes["weight"]
            measured = GangUse(uid, 1, changes["state"], 5.0, self.now, share, 1.0, "", share)
            self.uses = {**self.uses, uid: measured}
        elif what == "warned":
            self.warned ^= {uid}
        elif what == "time":
            self.now += number
        else:
            self.others_change(what)

    def others_change(self, what: str) -> None:
        """A change of another object than the gang."""
        if what == "configuration":
            stopped = self.config.cluster_queues["cq"].stop_policy is StopPolicy.HOLD
            self.config = DRAINED if stopped else STOPPED
        elif what == "quota":
            queue = self.config.cluster_queues["cq"]
            group = ResourceGroup((GPU,), (FlavorQuotas("f", {GPU: self.version}),))
            queues = {"cq": replace(queue, groups=(group,))}
            self.config = replace(self.config, revision=self.version, cluster_queues=queues)
        elif what == "namespace":
            ending = not self.mirror.namespaces["a"].deleting
            self.see(NamespaceRecord("a", self.version, (), deleting=ending))
        elif what == "node":
            failing = {} if self.mirror.nodes.failing else {"n1": "its GPU fails"}
            self.mirror.mark_unhealthy(failing)
        elif what == "class":
            self.preempts = not self.preempts
            self.see(
                PriorityClassRecord("pods", self.version, 5, default=True, preempts=self.preempts)
            )

    def comes(self, number: int) -> None:
        uid, queued = f"u{number}", float(number)
        if self.ledger.get(uid) is not None:
            return
        self.see(replace(JOB, uid=uid, name=uid, version=self.version))
        self.put(replace(ENTRY, uid=uid, name=uid, queued_at=queued))

    def put(self, entry: Entry) -> None:
        self.ledger.apply([EntryChange(self.ledger.get(entry.uid), entry, self.now)])


BORROWS_LATER = [("entry", 0, {"requeue_at": 45.0}), ("time", 15, {}), ("time", 15, {})]
SET_BACK = [("entry", 0, {"requeue_at": 45.0}), ("time", 700, {}), ("time", -690, {})]
OTHERS_CHANGE: list[tuple[str, int, dict[str, Any]]] = [(what, 0, {}) for what in OTHERS]
IN_THE_WAY = [
    ("job", 0, {"kept_podsets": ("main",)}),
    ("entry", 0, {"requeue_at": 15.0}),
    ("pod", 0, {"phase": PodPhase.SUCCEEDED}),
    ("pod", 0, {"deleted": True}),
]
RETURNS = [("entry", 0, {"attempt": 1, "since": 10.0}), ("job", 0, OF_JOBS[1]), ("time", 55, {})]
RUNS = ("entry", 0, {"state": LIVE.state, "attempt": 1, "placement": PLACEMENT})
MEASURED = [RUNS, *(("use", 0, change) for change in (*OF_USES, *OF_USES))]
IDLE = [RUNS, ("use", 0, OF_USES[2]), ("warned", 0, {}), ("time", 700, {}), ("warned", 0, {})]
CHECKPOINTS = [RUNS, *(("pod", 0, change) for change in OF_PODS)]
CHANGED = [RUNS, ("entry", 0, {"priority": 7}), *(("job", 0, change) for change in OF_JOBS)]


QUOTA_EDITS = [("quota", 0, {}), RUNS, ("quota", 0, {}), *OTHERS_CHANGE, ("quota", 0, {})]


@settings(max_examples=40)
@example(QUOTA_EDITS)
@example(MEASURED)
@example(IDLE)
@example(CHECKPOINTS)
@example(CHANGED)
@example(BORROWS_LATER)
@example(RETURNS)
@example(IN_THE_WAY)
@example(SET_BACK)
@example(OTHERS_CHANGE)
@example([("entry", 0, {"state": State.RESERVED, "lease": LEASE}), ("time", 55, {})])
@given(st.lists(STEPS, max_size=12))
def test_pending_and_running_gangs_are_those_of_a_new_builder(
    steps: list[tuple[str, int, dict[str, Any]]],
) -> None:
    world = Changing()
    for step in [("time", 0, {}), *steps]:
        world.step(*step)
        kept = world.builder.freeze(world.config, world.now, SolverLimits())
        fresh = world.fresh().freeze(world.config, world.now, SolverLimits())
        assert kept.pending == fresh.pending
        assert kept.admitted == fresh.admitted
        again = world.builder.freeze(world.config, world.now, SolverLimits())
        for before, after in zip(kept.pending, again.pending, strict=True):
            entry = world.ledger.get(before.workload.uid)
            assert before is after or (entry is not None and entry.lease is not None)


def test_gangs_are_the_same_objects_after_an_edit_of_quota() -> None:
    """The caches of the planner stay valid, and no gang is made again."""
    world = Changing()
    for step in (RUNS, ("time", 0, {}), ("quota", 0, {})):
        world.step(*step)
    before = world.builder.freeze(world.config, world.now, SolverLimits())
    world.step("quota", 0, {})
    after = world.builder.freeze(world.config, world.now, SolverLimits())
    assert after.config is world.config
    assert [*map(id, after.pending), *map(id, after.admitted)] == [
        *map(id, before.pending),
        *map(id, before.admitted),
    ]


FOLLOWING = replace(
    DRAINED,
    cluster_queues={
        "cq": replace(
            DRAINED.cluster_queues["cq"],
            groups=(ResourceGroup((GPU,), (FlavorQuotas("f", {GPU: 1}),)),),
            headroom=0.0,
        )
    },
    flavors={"f": ResourceFlavor("f", (("kind", "gpu"),))},
)


def kind_of_node(name: str, version: int, **changes: Any) -> NodeRecord:
    labels = {HOSTNAME: name, "kind": "gpu"}
    return NodeRecord(replace(Node(name, labels, SHAPE.requests), **changes), version)


def test_gangs_are_the_same_objects_after_a_change_of_another_node() -> None:
    """Even if heartbeats of all nodes came since the last change, and if quota follows the nodes."""
    world = Changing()
    world.config = FOLLOWING
    world.see(*(kind_of_node(name, 50) for name in ("n1", "n2", "n3")))
    world.step(*RUNS)
    before = world.builder.freeze(world.config, world.now, SolverLimits())
    assert before.pending
    assert before.admitted
    world.see(*(kind_of_node(name, 51) for name in ("n1", "n2")))
    world.see(kind_of_node("n3", 51, unschedulable=True))
    after = world.builder.freeze(world.config, world.now, SolverLimits())
    assert after.config.later != before.config.later
    assert [*map(id, after.pending), *map(id, after.admitted)] == [
        *map(id, before.pending),
        *map(id, before.admitted),
    ]


def test_names_of_local_queues_that_do_not_exist_are_not_kept() -> None:
    world = Changing()
    for number in range(1000):
        world.see(replace(JOB, uid="u0", queue=f"q-{number}", version=100 + number))
        world.put(replace(ENTRY, uid="u0", queue=f"q-{number}"))
        pending = world.builder.freeze(world.config, world.now, SolverLimits()).pending
        assert any(gang.blocked is not None for gang in pending)
    world.step("ends", 0, {})
    assert world.builder._blocking._inadmissible.keys() <= {("a", "q")}


QUOTAS = FlavorQuotas("f", {GPU: 64, CHARGED: 64})
SIZED = replace(
    CONFIG,
    cluster_queues={
        "cq": replace(
            CONFIG.cluster_queues["cq"],
            groups=(ResourceGroup((GPU, CHARGED), (QUOTAS,)),),
        )
    },
    flavors={"f": ResourceFlavor("f")},
)
SHARING = PodSet("main", 2, SHAPE, claims=(ClaimReference("c", claim="pair"),))
PAIR = Claim("pair", "a", "pair", TWO)
PARTS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}


def parts_of_gpus(node: str) -> SliceRecord:
    """The devices of a node, which are sevenths of a GPU."""
    kind = DeviceKind(CLASS.name, (("productName", "H100"), ("profile", "1g.10gb")))
    devices = tuple(PublishedDevice(f"gpu-{number}", kind) for number in range(8))
    pool = PoolSlice(f"{node}-gpu", CLASS.name, node, 1, 1, NodeAccess(node=node), devices)
    return SliceRecord(pool.name, 9, pool)


OF_SIZES: dict[str, list[Any]] = {
    "MIG": [
        NodeRecord(Node(name, {HOSTNAME: name, **PARTS}, SHAPE.requests), 9)
        for name in ("n1", "n2", "n3")
    ],
    "claim": [ClaimRecord("a", "pair", 9, replace(PAIR, allocated=()))],
    "devices": [parts_of_gpus("n1")],
}


@pytest.mark.parametrize("what", OF_SIZES)
@pytest.mark.parametrize("entry", [ENTRY, LIVE], ids=["pending", "running"])
def test_a_gang_has_the_size_that_its_pods_have_now(what: str, entry: Entry) -> None:
    job = replace(JOB, podsets=(SHARING,), suspended=entry is ENTRY, attempt=entry.attempt)
    known = [DeviceClassRecord(CLASS.name, 2, CLASS), ClaimRecord("a", "pair", 3, PAIR), job]
    world = World(entry, records=known)

    def sizes(frozen: Snapshot) -> list[PodGpus]:
        workloads = [
            *(gang.workload for gang in frozen.pending),
            *(gang.workload for gang in frozen.admitted),
        ]
        return [podset.gpus for workload in workloads for podset in workload.podsets]

    def kept() -> list[PodGpus]:
        return sizes(world.snapshot_builder.freeze(SIZED, 20.0, SolverLimits()))

    before = kept()
    world.see(*OF_SIZES[what])
    assert [before] != [kept()] == [sizes(world.freeze(20.0, SIZED))]


def test_a_pending_gang_has_its_size_in_the_cluster_queue_to_which_its_local_queue_leads_now() -> (
    None
):
    flavors = {name: ResourceFlavor(name, (("pool", name),)) for name in ("whole", "parts")}
    group = {name: (ResourceGroup((GPU,), (FlavorQuotas(name, {GPU: 64}),)),) for name in flavors}
    queues = {
        name: replace(CONFIG.cluster_queues["cq"], name=name, groups=group[name])
        for name in flavors
    }
    leading_to = {
        name: replace(
            CONFIG,
            cluster_queues=queues,
            flavors=flavors,
            local_queues={("a", "q"): LocalQueue("a", "q", name)},
        )
        for name in flavors
    }
    entry = replace(ENTRY, cluster_queue="whole")
    node = Node("n1", {HOSTNAME: "n1", "pool": "parts", **PARTS}, SHAPE.requests)
    world = World(entry, records=[JOB, NodeRecord(node, 9)])

    def kept(config: QueueConfig) -> list[Pending]:
        return list(world.snapshot_builder.freeze(config, 20.0, SolverLimits()).pending)

    before = kept(leading_to["whole"])
    kept(leading_to["parts"])  # the gang has not been observed since
    moved = EntryChange(entry, replace(entry, cluster_queue="parts"), 20.0)
    world.ledger.apply([moved])
    new = list(world.freeze(20.0, leading_to["parts"]).pending)
    assert before != new == kept(leading_to["parts"])


@pytest.mark.sets_aside
def test_a_gang_that_was_left_out_while_sizes_changed_has_its_size_when_it_is_tried_again() -> None:
    job = replace(JOB, podsets=(SHARING,), suspended=True)
    known = [DeviceClassRecord(CLASS.name, 2, CLASS), ClaimRecord("a", "pair", 3, PAIR), job]
    world = World(ENTRY, records=known)

    def kept() -> list[Pending]:
        return list(world.snapshot_builder.freeze(SIZED, 20.0, SolverLimits()).pending)

    before = kept()
    containment, version = world.mirror.containment, asked_of(world.mirror.jobs["u1"])
    error = ValueError("it cannot be planned")
    containment.failed(Boundary.SNAPSHOT, "u1", error, namespace="a", version=version)
    world.see(*OF_SIZES["MIG"])
    assert kept() == []
    containment.passed(Boundary.SNAPSHOT, "u1")
    assert before != kept() == list(world.freeze(20.0, SIZED).pending)


@pytest.mark.sets_aside
def test_a_pending_gang_that_is_set_aside_is_left_out_at_once() -> None:
    world = Changing()
    limits = SolverLimits()
    assert len(world.builder.freeze(DRAINED, 20.0, limits).pending) == 2
    error = ValueError("it cannot be planned")
    version = asked_of(world.mirror.jobs["u0"])
    world.mirror.containment.failed(Boundary.SNAPSHOT, "u0", error, namespace="a", version=version)
    (left,) = world.builder.freeze(DRAINED, 21.0, limits).pending
    assert left.workload.uid == "u1"


class Guessing(LearnedDurations):
    """An expectation that is another one each time it is estimated, and that is due every 100 s."""

    estimates = 0

    def attempt(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> Duration | None:
        super().attempt(entry, job, config, now)
        self.estimates += 1
        return Duration(float(self.estimates))

    def end(
        self, entry: Entry, job: JobRecord, config: QueueConfig, now: float
    ) -> tuple[float | None, bool]:
        self.estimates += 1
        return 1000.0 * self.estimates, False

    def due_at(self, uid: str) -> float:
        return 100.0 * (1 + self.estimates)


def test_the_end_of_a_running_gang_is_estimated_again_when_it_is_due() -> None:
    world = World(LIVE, records=[RESUMED])
    durations = Guessing(world.mirror)
    builder = SnapshotBuilder(world.mirror, world.ledger, world.usage, durations=durations)

    def end(now: float) -> float | None:
        return builder.freeze(CONFIG, now, SolverLimits()).admitted[0].ends_at

    assert [end(at) for at in (20.0, 199.0, 200.0, 201.0)] == [1000.0, 1000.0, 2000.0, 2000.0]


def test_an_expectation_is_estimated_again_when_it_is_due_and_after_more_runs_are_read() -> None:
    world = World(ENTRY, records=[JOB])
    durations = Guessing(world.mirror)
    builder = SnapshotBuilder(world.mirror, world.ledger, world.usage, durations=durations)

    def seconds(now: float) -> float | None:
        duration = builder.freeze(CONFIG, now, SolverLimits()).pending[0].workload.duration
        return duration.seconds if duration is not None else None

    assert [seconds(at) for at in (20.0, 199.0, 200.0, 201.0)] == [1.0, 1.0, 2.0, 2.0]
    durations.learn(())
    durations.due_at = lambda uid: 0.0  # type: ignore[method-assign]
    assert seconds(202.0) == 3.0


# ---- nodes, namespaces and queues: only gangs that they concern are made again

NODE_NAMES = ("n1", "n2", "n3")
POOL, OTHER_POOL = ("pool", "whole"), ("pool", "parts")
OF_NODES: list[dict[str, Any]] = [
    {"ready": False},
    {"ready": True},
    {"unschedulable": True},
    {"taints": (Taint("k", Effect.NO_SCHEDULE),)},
    {"labels": dict([POOL])},
    {"labels": {**PARTS, **dict([OTHER_POOL])}},
    {"labels": {**PARTS, **dict([POOL])}},
    {"allocatable": Resources({})},
    {"allocatable": SHAPE.requests * 2},
    {"allocatable": Resources({"nvidia.com/gpu": 7, "nvidia.com/mig-1g.10gb": 7})},
    {"failed": Resources({"nvidia.com/gpu": 1})},
    {},  # the node is deleted, or created again
]
MIG = PodSet("main", 2, PodShape(Resources({"nvidia.com/mig-1g.10gb": 2})))
TWO_QUEUES = replace(
    SIZED,
    cluster_queues={
        "cq": SIZED.cluster_queues["cq"],
        "second": replace(SIZED.cluster_queues["cq"], name="second"),
    },
    local_queues={
        ("a", "q"): LocalQueue("a", "q", "cq"),
        ("b", "q"): LocalQueue("b", "q", "second"),
    },
    flavors={"f": ResourceFlavor("f", topology="t"), "g": ResourceFlavor("g", (OTHER_POOL,))},
    topologies={"t": Topology("t", ("pool", HOSTNAME))},
)
ON_FLAVOR = Placement((replace(PLACEMENT.podsets[0], flavors={GPU: "f"}),))
IN_ONE_POOL = TopologyRequest(TopologyMode.REQUIRED, "pool")


def _queue(config: QueueConfig, name: str, **changes: Any) -> QueueConfig:
    queues = {**TWO_QUEUES.cluster_queues, **config.cluster_queues}
    edited = replace(queues[name], **changes)
    return replace(config, cluster_queues={**config.cluster_queues, name: edited})


def _flavors(*names: str) -> tuple[ResourceGroup, ...]:
    quotas = tuple(FlavorQuotas(name, {GPU: 64, CHARGED: 64}) for name in names)
    return (ResourceGroup((GPU, CHARGED), quotas),)


def _local(config: QueueConfig, namespace: str, **changes: Any) -> QueueConfig:
    locals_ = dict(config.local_queues)
    key = (namespace, "q")
    known = locals_.get(key) or LocalQueue(namespace, "q", "cq")
    return replace(config, local_queues={**locals_, key: replace(known, **changes)})


def _flavor(config: QueueConfig, name: str, **changes: Any) -> QueueConfig:
    flavors = dict(config.flavors)
    return replace(config, flavors={**flavors, name: replace(flavors[name], **changes)})


EDITS: list[Callable[[QueueConfig], QueueConfig]] = [
    lambda config: _queue(config, "cq", stop_policy=StopPolicy.HOLD),
    lambda config: _queue(config, "cq", stop_policy=StopPolicy.NONE),
    lambda config: _queue(config, "second", groups=_flavors("g")),
    lambda config: _queue(config, "second", groups=_flavors("f", "g")),
    lambda config: _queue(config, "cq", groups=_flavors("g")),
    lambda config: _queue(config, "cq", groups=_flavors("f")),
    lambda config: _queue(
        config, "cq", namespace_selector=LabelSelector((Requirement("x", "In", ("y",)),))
    ),
    lambda config: _queue(config, "cq", unhealthy_nodes=UnhealthyNodes.DRAIN),
    lambda config: _local(config, "a", cluster_queue="second"),
    lambda config: _local(config, "a", cluster_queue="missing"),
    lambda config: _local(config, "b", stop_policy=StopPolicy.HOLD_AND_DRAIN),
    lambda config: _local(config, "b", stop_policy=StopPolicy.NONE),
    lambda config: replace(config, local_queues={}),
    lambda config: _flavor(config, "f", node_labels=(POOL,)),
    lambda config: _flavor(config, "g", node_labels=()),
    lambda config: _flavor(config, "f", tolerations=(Toleration("k", "Exists"),)),
    lambda config: replace(config, topologies={"t": Topology("t", (HOSTNAME,))}),
    lambda config: replace(config, cluster_queues={"cq": config.cluster_queues["cq"]}),
    lambda config: TWO_QUEUES,
]
IN_PARTS, WITHOUT_GPUS, WITH_GPUS, ONLY_PARTS, ONLY_WHOLE = (
    ("node", "n1", OF_NODES[5]),
    ("node", "n1", OF_NODES[7]),
    ("node", "n1", OF_NODES[8]),
    ("edit", "", EDITS[4]),
    ("edit", "", EDITS[5]),
)
SURROUNDINGS = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NODE_NAMES), st.sampled_from(OF_NODES)),
    st.tuples(st.just("edit"), st.just(""), st.sampled_from(EDITS)),
    st.tuples(st.just("namespace"), st.sampled_from("abc"), st.sampled_from(["y", "z", None])),
    st.tuples(st.just("devices"), st.sampled_from(NODE_NAMES), st.booleans()),
    st.tuples(st.just("class"), st.just(""), st.booleans()),
)


class Surrounded:
    """Gangs that wait and run while nodes, devices, namespaces and queues change."""

    def __init__(self) -> None:
        whole = replace(JOB, uid="u0", name="u0")
        shares = replace(JOB, uid="u1", name="u1", podsets=(SHARING,))
        of_parts = replace(JOB, uid="u2", name="u2", namespace="b", podsets=(MIG,))
        runs = replace(RESUMED, uid="u3", name="u3")
        grows = replace(
            RESUMED, uid="u5", name="u5", array=ArrayStatus(3, 3, base=2, podset="main")
        )
        grows = replace(grows, podsets=(PodSet("main", 2, SHAPE, topology=IN_ONE_POOL),))
        runs_parts = replace(RESUMED, uid="u4", name="u4", namespace="b", podsets=(MIG,))
        self.entries = [
            *(replace(ENTRY, uid=one.uid, name=one.name) for one in (whole, shares)),
            replace(ENTRY, uid="u2", name="u2", namespace="b", cluster_queue="second"),
            replace(LIVE, uid="u3", name="u3"),
            replace(LIVE, uid="u4", name="u4", namespace="b", cluster_queue="second"),
            replace(LIVE, uid="u5", name="u5", placement=ON_FLAVOR),
            replace(ENTRY, uid=index_uid("u5", 2), name="u5_2", pods=1),
        ]
        nodes = {name: Node(name, {HOSTNAME: name}, SHAPE.requests) for name in NODE_NAMES}
        self.version = 100
        self.records: dict[tuple[str, str], Any] = {
            **{("nodes", name): NodeRecord(node, 2) for name, node in nodes.items()},
            **{
                ("jobs", one.uid): one for one in (whole, shares, of_parts, runs, runs_parts, grows)
            },
            **{("namespaces", name): NamespaceRecord(name, 1) for name in "ab"},
            ("deviceclasses", CLASS.name): DeviceClassRecord(CLASS.name, 2, CLASS),
            ("resourceclaims", "a/pair"): ClaimRecord("a", "pair", 3, PAIR),
        }
        self.config = replace(TWO_QUEUES, revision=1)
        self.kept = self.from_nothing()
        self.observer = Observer(self.kept.mirror, self.kept.ledger, self.kept.usage, 30.0)

    def from_nothing(self) -> World:
        """The same state in a mirror that has seen nothing else."""
        world = World(*self.entries, records=self.records.values())
        gone = [
            Deleted("nodes", name, 99) for name in NODE_NAMES if ("nodes", name) not in self.records
        ]
        world.mirror.apply(gone)
        return world

    def step(self, what: str, name: str, change: Any) -> None:
        self.version += 1
        if what == "edit":
            self.config = replace(change(self.config), revision=self.version)
        elif what == "node" and not change and ("nodes", name) in self.records:
            self._delete("nodes", name)
        elif what == "node":
            known = self.records.get(("nodes", name))
            node = known.node if known is not None else Node(name, {HOSTNAME: name}, SHAPE.requests)
            labels = {"labels": {HOSTNAME: name, **change["labels"]}} if "labels" in change else {}
            self._put("nodes", name, NodeRecord(replace(node, **change | labels), self.version))
        elif what == "namespace" and change is None and name == "c":
            self._delete("namespaces", name)
        elif what == "namespace":
            labels_of = (("x", change),) if change else ()
            self._put("namespaces", name, NamespaceRecord(name, self.version, labels_of))
        elif what == "devices" and change:
            devices = replace(parts_of_gpus(name), version=self.version)
            self._put("resourceslices", devices.name, devices)
        elif what == "devices":
            self._delete("resourceslices", parts_of_gpus(name).name)
        else:
            record = PriorityClassRecord("pods", self.version, 5, default=True, preempts=change)
            self._put("priorityclasses", "pods", record)

    def _put(self, resource: str, key: str, record: Any) -> None:
        self.records[resource, key] = record
        self.kept.see(record)

    def _delete(self, resource: str, key: str) -> None:
        if self.records.pop((resource, key), None) is not None:
            self.kept.mirror.apply([Deleted(resource, key, self.version)])


@settings(max_examples=150)
@example([IN_PARTS, ONLY_PARTS, ONLY_WHOLE])
@example([ONLY_PARTS, WITHOUT_GPUS, IN_PARTS, WITH_GPUS])
@given(st.lists(SURROUNDINGS, min_size=1, max_size=8))
def test_gangs_follow_nodes_devices_namespaces_and_queues(
    steps: list[tuple[str, str, Any]],
) -> None:
    world = Surrounded()
    world.kept.snapshot_builder.freeze(world.config, 20.0, SolverLimits())
    for step in steps:
        world.step(*step)
        kept = world.kept.snapshot_builder.freeze(world.config, 20.0, SolverLimits())
        fresh = world.from_nothing().freeze(20.0, world.config)
        assert kept.pending == fresh.pending
        assert kept.admitted == fresh.admitted
        assert kept.namespaces == fresh.namespaces


@settings(max_examples=100)
@example([IN_PARTS, ONLY_PARTS, ONLY_WHOLE])
@example([ONLY_PARTS, WITHOUT_GPUS, IN_PARTS, WITH_GPUS])
@given(st.lists(SURROUNDINGS, min_size=1, max_size=8))
def test_the_size_in_the_ledger_follows_nodes_and_devices(
    steps: list[tuple[str, str, Any]],
) -> None:
    """No job is observed again for them, but those whose size they change."""
    world = Surrounded()
    world.kept.mirror.touched |= {entry.uid for entry in world.entries}
    for step in [("class", "", True), *steps]:
        world.step(*step)
        if step[0] == "edit":
            world.kept.mirror.touched |= {entry.uid for entry in world.entries}
        seen = world.observer.observe(world.config, 20.0)
        world.kept.ledger.apply(seen.changes)
        mirror = world.from_nothing().mirror
        for entry in world.kept.ledger.entries(State.PENDING):
            assert entry.gpus == mirror.sized(mirror.jobs[entry.uid], world.config).gpus


GONE = replace(CONFIG, local_queues={})


@pytest.mark.sets_aside
def test_a_running_gang_that_is_set_aside_stays_charged_to_the_cluster_queue_of_its_start() -> None:
    world = World(LIVE, records=[RESUMED])
    charged = [gang.workload.charged_queue for gang in world.freeze(20.0, GONE).admitted]
    version = asked_of(world.mirror.jobs["u1"])
    error = ValueError("it cannot be planned")
    world.mirror.containment.failed(Boundary.SNAPSHOT, "u1", error, namespace="a", version=version)
    (gang,) = world.freeze(20.0, GONE).admitted
    assert not gang.restartable, "as the ledger has it"
    assert [gang.workload.charged_queue] == charged == ["cq"]


def test_a_policy_of_the_cluster_queue_of_its_start_reaches_a_gang_without_its_local_queue() -> (
    None
):
    world = World(LIVE, records=[RESUMED])
    world.mirror.nodes.failing = {"n3": "its GPU has errors"}
    limits = SolverLimits()
    world.snapshot_builder.freeze(GONE, 20.0, limits)
    draining = replace(DRAINED, revision=5, local_queues={})
    again = world.snapshot_builder.freeze(draining, 20.0, limits).admitted
    assert again == world.freeze(20.0, draining).admitted
