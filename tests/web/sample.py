"""A sample cluster: racks of GPU nodes that four teams share, with running, pending and evicted gangs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.estimates import ExpectedRunTime, ExpectedStart, RunTimeSource
from queuectl.domain.fleet import HOSTNAME, Fleet, Node
from queuectl.domain.gpus import as_number
from queuectl.domain.jobs import PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.domain.quantity import CPU, GPU, MEMORY, PODS, Resources
from queuectl.domain.queries import ConfigDocument, DocumentKey, HistoryLine
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.related_jobs import RelatedJobs
from queuectl.domain.snapshot import Admitted, CapacityLease, Pending, Snapshot
from queuectl.domain.utilization import GangUse, UseState
from queuectl.domain.words import gpu_hours_of, percent
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from queuectl.objects.configuration.queue_config import build
from queuectl.planner.cache import PlannerCache
from queuectl.state.pastuse import BudgetSums
from tests.api.support import DIAGNOSIS, FixedDiagnoser
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.counted import map_of
from tests.web.kept import PLANNED, reservation_states, reservations, with_planned_start
from tests.web.lives import dependencies, keep_lives, run_times
from tests.web.records import CONFIGURATION, USERS, keep_records, line_of

NOW = 1_795_000_000.0
BLOCK, RACK = "topology.queuectl.dev/block", "topology.queuectl.dev/rack"
QUEUES = ("language", "platform", "speech", "vision")
HOST_GPUS = 8
FLAVORS = {GPU: "h100"}
WORDS = ("llama", "diffusion", "whisper", "retrieval", "rlhf", "eval", "sweep", "distill", "tts")


@dataclass(frozen=True)
class Size:
    """The size of the sample."""

    blocks: int = 10
    racks: int = 20
    hosts: int = 25
    pending: int = 10_000

    @property
    def nodes(self) -> int:
        return self.blocks * self.racks * self.hosts


BROKEN_FROM = 8  # pods
SMALL = Size(2, 4, 8, 30)
LARGE = Size()


class Scene:
    """A cluster that does not change."""

    def __init__(self, snapshot: Snapshot, uses: dict[str, GangUse]) -> None:
        self.snapshot: Snapshot | None = snapshot
        self.uses = uses
        self.cache = PlannerCache()
        self.checkpoints: dict[str, float] = {}
        self.jobs: dict[str, RelatedJobs] = {}
        self._cluster_map: ClusterMap | None = None

    async def current_snapshot(self) -> Snapshot | None:
        return self.snapshot

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        return tuple(_pods(entry)) if self.snapshot is not None else None

    async def checkpoint_at(self, entry: Entry) -> float | None:
        return self.checkpoints.get(entry.uid)

    async def related(self, entry: Entry) -> RelatedJobs | None:
        return self.jobs.get(entry.uid)

    async def cluster_map(self) -> ClusterMap | None:
        if self.snapshot is None:
            return None
        if self._cluster_map is None:
            self._cluster_map = map_of(self.snapshot, self.uses)
        return self._cluster_map


@dataclass
class Sample:
    """All sources of a dashboard."""

    database: MemoryDatabase
    store: MemoryStore
    cluster_reader: Scene
    diagnoser: FixedDiagnoser


def _pods(entry: Entry) -> Iterator[PodRecord]:
    """A pod for each slot. In a large gang, rank 5 restarts again and again."""
    placed = entry.placement.podsets if entry.placement is not None else ()
    for podset in placed:
        nodes = [node for node, count in podset.nodes for _ in range(count)]
        for rank, node in enumerate(nodes):
            broken = rank == 5 and len(nodes) >= BROKEN_FROM
            yield PodRecord(
                entry.namespace,
                f"{entry.name}-{podset.podset}-{rank}",
                f"{entry.uid}-{rank}",
                version=1,
                attempt=entry.attempt,
                podset=podset.podset,
                rank=rank,
                node=node,
                phase=PodPhase.RUNNING,
                ready=not broken,
                restarts=4 if broken else 0,
                status_reason="CrashLoopBackOff" if broken else "",
            )


def documents(size: Size) -> list[dict[str, Any]]:
    """Configuration as users write it."""
    gpus = size.nodes * HOST_GPUS
    parts = dict(zip(QUEUES, (0.45, 0.1, 0.15, 0.3), strict=True))
    found: list[dict[str, Any]] = [
        _document("Topology", "fabric", {"levels": [{"nodeLabel": x} for x in (BLOCK, RACK, HOSTNAME)]}),
        _document("ResourceFlavor", "h100", {"nodeLabels": {"gpu": "h100"}, "topologyName": "fabric"}),
        _document("Cohort", "research", {}),
        CONFIGURATION,
    ]  # fmt: skip
    for name, part in parts.items():
        quota = {"name": GPU, "nominalQuota": int(gpus * part)}
        if name == "platform":
            quota |= {"borrowingLimit": int(gpus * 0.1), "lendingLimit": int(gpus * 0.05)}
        group = {
            "coveredResources": [GPU],
            "flavors": [{"name": "h100", "resources": [quota]}],
        }
        spec = {"cohortName": "research", "namespaceSelector": {}, "resourceGroups": [group]}
        spec["preemption"] = {"withinClusterQueue": "LowerPriority"}
        found.append(_document("ClusterQueue", name, spec))
        local = _document("LocalQueue", "default", {"clusterQueue": name})
        local["metadata"]["namespace"] = f"team-{name}"
        found.append(local)
    more = {"budget": "vision", "month": "2026-11", "gpuHours": 500, "by": "ann"}
    return [
        *found,
        *reservations(NOW),
        _document("Budget", "vision", {"clusterQueue": "vision", "gpuHoursPerMonth": 5000}),
        _document("Budget", "speech", {"namespace": "team-speech", "gpuHoursPerMonth": 1}),
        _document("BudgetTopUp", "vision-2026-11-1", {**more, "reason": "paper deadline"}),
    ]


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def make(size: Size = SMALL, seed: int = 7) -> Sample:
    """The same sample for the same seed."""
    rng = random.Random(seed)
    database = MemoryDatabase(epoch=1, holder="sample")
    for document in documents(size):
        database.revision += 1
        database.documents[DocumentKey.of(document)] = ConfigDocument(document, database.revision)
    fleet = _fleet(size, rng)
    running = list(_running(fleet, rng))
    uses = {gang.workload.uid: _use(gang.workload.uid, rng) for gang in running}
    entries = [_entry(gang, rng) for gang in running]
    waiting = list(_waiting(size, rng))
    entries += waiting + list(_aside(rng))
    _reserve(entries)
    planned = {PLANNED: with_planned_start(entries, NOW)}
    database.reserved = reservation_states(NOW)
    database.entries = {entry.uid: entry for entry in entries}
    database.history = _history(entries, rng)
    keep_records(database, NOW, size.nodes, size.nodes * HOST_GPUS, rng)
    keep_lives(database, NOW)
    config = build([d.document for d in database.documents.values()], database.revision)
    snapshot = Snapshot(
        NOW,
        fleet,
        config,
        tuple(
            Pending(
                _workload(e.uid, e.namespace, e.name, e.pods, rng), planned_start=planned.get(e.uid)
            )
            for e in waiting
        ),
        tuple(map(_ending, range(len(running)), running)),
        other_pods={fleet.nodes[-1].name: Resources({GPU: 2, PODS: 1})},
        namespaces={f"team-{name}": {} for name in QUEUES},
    )
    snapshot = BudgetSums().applied(snapshot)
    diagnoser = FixedDiagnoser(_diagnosis())
    diagnoser.uses = uses
    diagnoser.running = snapshot
    diagnoser.run_times = {
        entry.uid: ExpectedRunTime(RunTimeSource.LEARNED, 7200.0, 0.8, 4000.0, 24, 900.0)
        for entry in waiting
    }
    started = [database.entries[gang.workload.uid] for gang in running]
    diagnoser.run_times |= run_times(started, NOW)
    diagnoser.starts = {entry.uid: _expected(rng) for entry in waiting}
    scene = Scene(snapshot, uses)
    scene.jobs = dependencies(started)
    scene.checkpoints = {started[0].uid: NOW - 700.0}
    return Sample(database, MemoryStore(database), scene, diagnoser)


UNHEALTHY, EVIDENCE = "gpu-00-00-02", "2 GPUs: GPU 3: XID 79; GPU 5: XID 79"


def _fleet(size: Size, rng: random.Random) -> Fleet:
    capacity = Resources({GPU: HOST_GPUS, CPU: 128_000, MEMORY: 2**40, PODS: 110})
    nodes = []
    for b in range(size.blocks):
        for r in range(size.racks):
            for h in range(size.hosts):
                name = f"gpu-{b:02}-{r:02}-{h:02}"
                labels = {BLOCK: f"block-{b:02}", RACK: f"rack-{r:02}", HOSTNAME: name, "gpu": "h100"}  # fmt: skip
                health = rng.random()
                evidence = EVIDENCE if name == UNHEALTHY else ""
                closed = bool(evidence) or health < 0.02
                node = Node(name, labels, capacity, (), health > 0.012, closed)
                nodes.append(replace(node, unhealthy=evidence))
    return Fleet(tuple(nodes))


def _workload(uid: str, namespace: str, name: str, pods: int, rng: random.Random) -> Workload:
    shape = PodShape(Resources({GPU: HOST_GPUS, CPU: 64_000, MEMORY: 2**39, PODS: 1}))
    podset = PodSet("worker", pods, shape)
    priority = rng.choice((0, 0, 0, 100, 1000))
    return Workload(uid, "PyTorchJob", namespace, name, (podset,), "default", priority)


def _running(fleet: Fleet, rng: random.Random) -> Iterator[Admitted]:
    """Gangs of whole nodes and a few small ones on nine tenths of the nodes."""
    at = number = 0
    names = [node.name for node in fleet.nodes if node.ready]
    while at < len(names):
        pods = rng.choice((1, 1, 2, 4, 8, 16, 32))
        hosts = names[at : at + pods]
        at += pods
        if rng.random() < 0.12:
            continue
        queue = rng.choices(QUEUES, (50, 12, 8, 30))[0]
        number += 1
        name = f"{rng.choice(WORDS)}-{number:05}"
        workload = _workload(f"run-{number:05}", f"team-{queue}", name, len(hosts), rng)
        placed = PodSetPlacement("worker", tuple((host, 1) for host in hosts), FLAVORS)
        if len(hosts) == 1 and rng.random() < 0.5:
            small = PodShape(Resources({GPU: rng.choice((1, 2, 4)), CPU: 8_000, PODS: 1}))
            workload = replace(workload, podsets=(PodSet("worker", 1, small),))
        started = NOW - rng.expovariate(1 / 40_000)
        yield Admitted(workload, Placement((placed,)), started_at=started)


def _use(uid: str, rng: random.Random) -> GangUse:
    state = rng.choices(list(UseState), (6, 4, 74, 8, 6, 2))[0]
    share = {UseState.ACTIVE: rng.uniform(0.45, 0.97), UseState.LOW: rng.uniform(0.06, 0.19)}
    share |= {UseState.IDLE: 0.004, UseState.STUCK: 0.99, UseState.WARMUP: 0.02}
    known = share.get(state)
    text = (
        "no samples of its GPUs"
        if known is None
        else f"its GPUs are used {percent(known)} on average"
    )
    covered = 0.0 if known is None else 1.0
    return GangUse(uid, 1, state, NOW - rng.uniform(60, 7200), NOW - 12, known, covered, text)


def _entry(gang: Admitted, rng: random.Random) -> Entry:
    workload = gang.workload
    state = State.RUNNING if rng.random() < 0.97 else State.STARTING
    ready = Reason(Code.PODS_READY, "all pods are ready")
    if state is State.STARTING:
        ready = Reason(Code.ADMITTED, "admitted as attempt 1")
    broken = workload.pods >= BROKEN_FROM and state is State.RUNNING
    if broken:
        text = f"1 of {workload.pods} pods is not ready: 1 CrashLoopBackOff"
        ready = Reason(Code.WAIT_FOR_RECOVERY, text)
    return Entry(
        uid=workload.uid,
        kind=workload.kind,
        namespace=workload.namespace,
        name=workload.name,
        state=state,
        queue="default",
        cluster_queue=workload.namespace.removeprefix("team-"),
        priority=workload.priority,
        gpus=workload.gpus,
        pods=workload.pods,
        attempt=1,
        queued_at=gang.started_at - rng.expovariate(1 / 3000),
        since=gang.started_at + 40,
        started_at=gang.started_at,
        ready_at=gang.started_at + 40,
        reason=ready,
        unready_since=gang.started_at + 90 if broken else None,
        placement=gang.placement,
        version=4,
        user=_user(workload.uid),
    )


def _user(uid: str) -> str:
    """As the admission policy records it; "" for some, as for jobs from before the policy."""
    return USERS[int(uid[-1]) % len(USERS)]


_REASONS = (
    (Code.WAITING_FOR_QUOTA, "it needs {g} nvidia.com/gpu of flavor h100; 96 of the quota are left"),
    (Code.TOPOLOGY_PLACEMENT_FAILED, "no rack has {p} nodes with 8 free GPUs: the best has 11"),
    (Code.PENDING_EVALUATION, "not evaluated yet; the planner considers gangs before it in queue order first"),
    (Code.WAITING_IN_ORDER, "behind a gang that is blocked"),
    (Code.EXCEEDS_MAX_QUOTA, "it needs {g} nvidia.com/gpu, more than the queue may ever use"),
)  # fmt: skip


def _waiting(size: Size, rng: random.Random) -> Iterator[Entry]:
    for number in range(size.pending):
        queue = rng.choices(QUEUES, (45, 5, 15, 35))[0]
        pods = rng.choice((1, 2, 4, 8, 16, 32, 64))
        code, text = rng.choices(_REASONS, (40, 25, 25, 9, 1))[0]
        yield Entry(
            uid=f"wait-{number:05}",
            kind="PyTorchJob",
            namespace=f"team-{queue}",
            name=f"{rng.choice(WORDS)}-w{number:05}",
            state=State.PENDING,
            queue="default",
            cluster_queue=queue,
            priority=rng.choices((0, 100, 1000), (80, 16, 4))[0],
            gpus=pods * HOST_GPUS,
            pods=pods,
            queued_at=NOW - rng.expovariate(1 / 20_000),
            since=NOW - rng.uniform(1, 3000),
            reason=Reason(code, text.format(g=pods * HOST_GPUS, p=pods)),
            version=2,
            user=_user(f"{number}"),
        )


_COSTS = {"lostGpuSeconds": 5400, "gpus": 32}


def _aside(rng: random.Random) -> Iterator[Entry]:
    states = (
        (State.HELD, Code.HELD, "by ann: waits for the data"),
        (State.BACKOFF, Code.BACKOFF, "start 3 failed (PodsReadyTimeout); the next start is tried in 240 s"),
        (State.DEACTIVATED, Code.REQUEUING_LIMIT, "start 6 failed (PodsReadyTimeout); 6 failed starts in a row exceed the limit of 5"),
        (State.EVICTING, Code.PREEMPTED, "preempted for team-vision/urgent; this loses 1.5 GPU-hours of work and frees 32 GPUs"),
        (State.FINISHED, Code.SUCCEEDED, ""),
    )  # fmt: skip
    for number, (state, code, text) in enumerate(states):
        yield Entry(
            uid=f"aside-{number}",
            kind="Job",
            namespace="team-speech",
            name=f"tts-aside-{number}",
            state=state,
            queue="default",
            cluster_queue="speech",
            gpus=32,
            pods=4,
            attempt=2,
            queued_at=NOW - 50_000,
            since=NOW - 300,
            requeue_at=NOW + 240 if state is State.BACKOFF else None,
            finished_at=NOW - 300 if state is State.FINISHED else None,
            reason=Reason(code, text, _COSTS if state is State.EVICTING else {}),
            parked=Reason(code, text) if state in (State.HELD, State.DEACTIVATED) else None,
            evictions=rng.randrange(3),
            version=5,
            user="ann",
        )


def _reserve(entries: list[Entry]) -> None:
    """One gang has a reservation and waits for its victims."""
    place = next(i for i, entry in enumerate(entries) if entry.uid == "wait-00000")
    host = next(entry for entry in entries if entry.placement is not None)
    assert host.placement is not None
    entries[place] = replace(
        entries[place],
        state=State.RESERVED,
        priority=1000,
        reason=Reason(Code.WAITING_FOR_PREEMPTED, "1 gang leaves for it"),
        lease=CapacityLease(host.placement, (host.uid,), NOW - 20, NOW + 580),
    )


def _history(entries: list[Entry], rng: random.Random) -> list[HistoryLine]:
    lines: list[tuple[float, Entry, State | None, State, Reason, int]] = []
    waits = [entry for entry in entries if entry.uid.startswith("wait-")]
    for entry in entries:
        lines.append((entry.queued_at, entry, None, State.PENDING, Reason(Code.QUEUED), 0))
        if entry.started_at is not None:
            at = entry.started_at
            if rng.random() < 0.15:
                lines += _evicted(entry, rng.choice(waits), rng)
            admitted = Reason(Code.ADMITTED, f"{entry.pods} pods placed in 1 rack")
            lines.append((at, entry, State.PENDING, State.STARTING, admitted, 1))
            lines.append((at + 40, entry, State.STARTING, State.RUNNING, Reason(Code.PODS_READY), 1))  # fmt: skip
        else:
            lines.append((entry.since, entry, State.PENDING, entry.state, entry.reason, 0))
    lines.sort(key=lambda line: line[0])
    return [line_of(number, *line) for number, line in enumerate(lines, 1)]


def _evicted(
    entry: Entry, favored: Entry, rng: random.Random
) -> Iterator[tuple[float, Entry, State | None, State, Reason, int]]:
    at = entry.queued_at + rng.uniform(0.2, 0.8) * ((entry.started_at or NOW) - entry.queued_at)
    lost = int(rng.expovariate(1 / 40_000))
    if rng.random() < 0.7:
        text = f"preempted for {favored.ref}; this loses {gpu_hours_of(lost)} of work and frees {entry.gpus} GPUs"
        why = rng.choice(("InClusterQueue", "InCohortReclamation", "InCohortFairSharing"))
        details = {"preemptor": favored.uid, "why": why, "lostGpuSeconds": lost, "gpus": as_number(entry.gpus)}  # fmt: skip
        reason = Reason(Code.PREEMPTED, text, details)
    else:
        reason = Reason(Code.NODE_FAILURES, "2 of its nodes are lost and no repair is possible")
    yield at, entry, State.RUNNING, State.EVICTING, reason, 1
    yield at + 30, entry, State.EVICTING, State.PENDING, Reason(Code.QUEUED, "requeued"), 1


def _ending(number: int, gang: Admitted) -> Admitted:
    """A third of the gangs has a limit, a third an expected end."""
    ends = NOW + 1200.0 * (number % 70 + 1) if number % 3 else None
    return replace(gang, ends_at=ends, end_enforced=number % 3 == 1)


def _expected(rng: random.Random) -> ExpectedStart:
    median = NOW + rng.uniform(600, 90_000)
    return ExpectedStart(median, median + (median - NOW) / 2, NOW - 12.0)


def _diagnosis() -> Diagnosis:
    return DIAGNOSIS
