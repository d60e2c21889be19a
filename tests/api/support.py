"""Fixtures of the API tests: documents, a ledger with a workload in every state, and a health that a test can set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from queuectl.control.questions.throttle import PlannerThrottle
from queuectl.control.questions.viewer import ClusterView
from queuectl.control.questions.what_if import ConfigurationSource, WhatIfPlanner
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.commands import Action, Command
from queuectl.domain.diagnosis import (
    AddQuota,
    Diagnosis,
    Excess,
    Limit,
    Obstacle,
    Remedy,
    SuggestedFix,
)
from queuectl.domain.estimates import ExpectedRunTime, ExpectedStart, ExpectedStarts
from queuectl.domain.events import (
    Admit,
    CommandReceived,
    Drained,
    Ended,
    Event,
    Evict,
    PodsLost,
    PodsReady,
    Refuse,
    Reserve,
    Submitted,
)
from queuectl.domain.fleet import Fleet
from queuectl.domain.jobs import JobOutcome, JobRecord, PodRecord
from queuectl.domain.ledger import Checked, Entry, EntryChange
from queuectl.domain.plan import Cost
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queries import DocumentKey, UnmanagedPod
from queuectl.domain.queues import QueueConfig
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import PodsReadyRules, Rules
from queuectl.domain.snapshot import Admitted, CapacityLease, Snapshot
from queuectl.domain.spending import BudgetReport, report
from queuectl.domain.utilization import GangUse
from queuectl.domain.what_if import DrainCost, Preview, WhatIf, WhatIfResult
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from queuectl.lifecycle.machine import handle
from queuectl.objects.kinds import KINDS
from queuectl.planner.cache import PlannerCache
from queuectl.reports.over_quota import over_quota
from queuectl.state.mirror import Mirror
from tests.support.counted import map_of

DIAGNOSIS = Diagnosis(
    "uid-pending",
    (Obstacle(Limit.QUOTA, "quota: it needs 40 GPUs, 32 are left", {"needs": 40, "left": 32}),),
    (
        SuggestedFix(
            Remedy.ADD_QUOTA,
            "add quota for 8 more nvidia.com/gpu",
            {"amount": 8},
            (AddQuota("team-a", "h100", GPU, 8),),
            least=True,
        ),
    ),
)


class FixedDiagnoser:
    """Knows one diagnosis, the workloads it was asked about, and the running gangs."""

    def __init__(self, known: Diagnosis | None = DIAGNOSIS) -> None:
        self.known = known
        self.asked: list[str] = []
        self.running: Snapshot | None = None
        self.uses: dict[str, GangUse] = {}
        self.previews: dict[tuple[str, Action], Preview] = {}
        self.starts: dict[str, ExpectedStart] = {}
        self.computed_at = 0.0  # of the estimate
        self.run_times: dict[str, ExpectedRunTime] = {}
        self.checked: Checked | None = None
        self.drains: dict[DocumentKey, DrainCost] = {}
        self.devices: frozenset[str] = frozenset()

    async def diagnose(self, uid: str) -> Diagnosis | None:
        self.asked.append(uid)
        return self.known

    async def preview(self, entry: Entry, action: Action) -> Preview | None:
        return self.previews.get((entry.uid, action))

    async def drain_cost(self, queue: DocumentKey) -> DrainCost | None:
        return self.drains.get(queue)

    async def eviction_costs(self, uids: Collection[str]) -> Mapping[str, Cost]:
        """By the previews of ``preempt``."""
        known = {uid: self.previews.get((uid, Action.PREEMPT)) for uid in uids}
        return {uid: p.cost for uid, p in known.items() if p is not None and p.cost is not None}

    async def over_quota(self, config: QueueConfig) -> Sequence[Excess] | None:
        """Of the gangs that the test sets as running."""
        return over_quota(self.running, config) if self.running is not None else None

    async def device_resources(self) -> Collection[str]:
        return self.devices

    async def check(self) -> Checked | None:
        return self.checked

    async def leader(self) -> str:
        return "queuectl-1"

    def gang_use(self, uid: str) -> GangUse | None:
        return self.uses.get(uid)

    def expected_starts(self) -> ExpectedStarts:
        return ExpectedStarts(
            self.computed_at, self.starts, len(self.starts), run_times=self.run_times
        )


class FixedLookout:
    """Returns the snapshot that the test sets; None = none yet."""

    kinds = KINDS

    def __init__(
        self,
        known: ClusterMap | None,
        *,
        held: tuple[UnmanagedPod, ...] | None = (),
        pods: tuple[PodRecord, ...] | None = (),
    ) -> None:
        self.known = known
        self.held = held
        self._pods = pods

    async def cluster_map(self) -> ClusterMap | None:
        return self.known

    @property
    def cache(self) -> PlannerCache:
        return PlannerCache()

    async def current_snapshot(self) -> Snapshot | None:
        return None

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        return self.held

    async def budgets(self) -> BudgetReport | None:
        return BudgetReport(0.0) if self.known is not None else None

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        return self._pods

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        raise AssertionError("no test plans a change")


class FixedClusterReader:
    """Sees one snapshot, and tries out on it what it is asked."""

    kinds = KINDS

    def __init__(self, snapshot: Snapshot | None, store: ConfigurationSource) -> None:
        self.snapshot = snapshot
        self._tryout = WhatIfPlanner(
            self._look, store, Mirror({}), throttle=PlannerThrottle(1.0), cache=PlannerCache()
        )

    async def _look(self) -> ClusterView | None:
        return ClusterView(self.snapshot) if self.snapshot is not None else None

    async def cluster_map(self) -> ClusterMap | None:
        return map_of(self.snapshot, {}) if self.snapshot is not None else None

    @property
    def cache(self) -> PlannerCache:
        return PlannerCache()

    async def current_snapshot(self) -> Snapshot | None:
        return self.snapshot

    async def unmanaged(self) -> tuple[UnmanagedPod, ...] | None:
        return () if self.snapshot is not None else None

    async def budgets(self) -> BudgetReport | None:
        return report(self.snapshot) if self.snapshot is not None else None

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        return () if self.snapshot is not None else None

    async def try_out(self, question: WhatIf) -> WhatIfResult | None:
        return await self._tryout.try_out(question)


CLUSTER_QUEUE: dict[str, Any] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "ClusterQueue",
    "metadata": {"name": "team-a"},
    "spec": {
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO",
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [
                    {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 64}]}
                ],
            }
        ],
    },
}
LOCAL_QUEUE: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "LocalQueue",
    "metadata": {"name": "default", "namespace": "team-a"},
    "spec": {"clusterQueue": "team-a"},
}
COHORT: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Cohort",
    "metadata": {"name": "all"},
}
FLAVOR: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "h100"},
    "spec": {"nodeLabels": {"gpu": "h100"}, "topologyName": "racks"},
}
TOPOLOGY: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "Topology",
    "metadata": {"name": "racks"},
    "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]},
}
OVERRIDE: dict[str, Any] = {
    "apiVersion": "queuectl.dev/v1",
    "kind": "QuotaOverride",
    "metadata": {"name": "deadline"},
    "spec": {
        "clusterQueue": "team-a",
        "flavor": "h100",
        "resource": "nvidia.com/gpu",
        "from": "2126-11-20T08:00:00Z",
        "until": "2126-11-27T08:00:00Z",
        "add": 16,
        "reason": "paper deadline",
    },
}
PRIORITY: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 1000,
    "description": "before all others",
}
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "metadata": {"name": "default"},
    "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
    "waitForPodsReady": {"timeout": "5m"},
}
DOCUMENTS = {
    "/api/v1/clusterqueues/team-a": CLUSTER_QUEUE,
    "/api/v1/namespaces/team-a/localqueues/default": LOCAL_QUEUE,
    "/api/v1/cohorts/all": COHORT,
    "/api/v1/resourceflavors/h100": FLAVOR,
    "/api/v1/topologies/racks": TOPOLOGY,
    "/api/v1/quotaoverrides/deadline": OVERRIDE,
    "/api/v1/priorityclasses/high": PRIORITY,
    "/api/v1/configurations/default": CONFIGURATION,
}
QUEUE_PATH = "/api/v1/clusterqueues/team-a"

PLACED = Placement(
    (PodSetPlacement("worker", (("node-1", 2), ("node-2", 2)), {"nvidia.com/gpu": "h100"}),)
)
LEASE = CapacityLease(PLACED, victims=("uid-victim",), created_at=50.0, expires_at=650.0)


def running(*gangs: tuple[str, float], gpus: int = 32) -> Snapshot:
    """A snapshot in which these gangs of ClusterQueue ``team-a`` run, each with its start time."""
    podset = PodSet("main", 1, PodShape(Resources({GPU: gpus})))
    flavors = {GPU: "h100"}
    return Snapshot(
        100.0,
        Fleet(()),
        QueueConfig(),
        admitted=tuple(
            Admitted(
                Workload(name, "Job", "team-a", name, (podset,), "default"),
                Placement((PodSetPlacement("main", (), flavors),)),
                started_at=started,
            )
            for name, started in gangs
        ),
    )


class FixedHealth:
    """Returns the health that the test sets."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.blockers: list[str] = []

    async def live(self) -> Sequence[str]:
        return self.faults

    async def ready(self) -> Sequence[str]:
        return self.blockers


def job(name: str, *, kind: str = "Job", at: float = 1.0, namespace: str = "team-a") -> JobRecord:
    """A gang of 4 pods with 8 GPUs each."""
    shape = PodShape(Resources({GPU: 8}))
    return JobRecord(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=f"uid-{kind.lower()}-{name}",
        version=1,
        created_at=at,
        queue="default",
        podsets=(PodSet("worker", 4, shape),),
    )


PUNCTUAL = Rules(pods_ready=PodsReadyRules(backoff_jitter=0.0))


def live_through(record: JobRecord, *events: Event, priority: int = 0) -> list[EntryChange]:
    """The changes of a workload that was submitted and met these events, ten seconds apart."""
    first = handle(None, Submitted(record, priority, "team-a"), record.created_at)
    assert first is not None
    changes = [first]
    for number, event in enumerate(events, 1):
        change = handle(changes[-1].after, event, record.created_at + 10.0 * number, PUNCTUAL)
        assert change is not None
        changes.append(change)
    return changes


QUOTA = Refuse(
    Reason(
        Code.WAITING_FOR_QUOTA,
        "32 of 64 nvidia.com/gpu are in use",
        {"also": [], "proof": "optimal"},
    )
)
RESERVE = Reserve(LEASE, Reason(Code.WAITING_FOR_PREEMPTED, "1 gang leaves for it"))
PREEMPT = Evict(Reason(Code.PREEMPTED, "for team-a/urgent"))
TIMEOUT = Evict(Reason(Code.PODS_READY_TIMEOUT, "not ready in time"))


def asked(action: Action) -> CommandReceived:
    return CommandReceived(Command(1, "", action, "alice", "r", 5.0))


LIVES: dict[str, tuple[Event, ...]] = {
    "pending": (QUOTA,),
    "reserved": (RESERVE,),
    "starting": (Admit(PLACED),),
    "running": (Admit(PLACED), PodsReady()),
    "evicting": (Admit(PLACED), PodsReady(), PREEMPT),
    "requeued": (Admit(PLACED), PodsReady(), PREEMPT, Drained()),
    "backoff": (Admit(PLACED), TIMEOUT, Drained()),
    "held": (asked(Action.HOLD),),
    "leaving": (Admit(PLACED), PodsReady(), asked(Action.DEACTIVATE)),
    "deactivated": (asked(Action.DEACTIVATE),),
    "unready": (Admit(PLACED), PodsReady(), PodsLost("1 of 2 pods is not ready: 1 terminating")),
    "finished": (Admit(PLACED), PodsReady(), Ended(JobOutcome.SUCCEEDED)),
}


def entry(name: str) -> Entry:
    """The workload that lived the life of this name."""
    return live_through(job(name), *LIVES[name])[-1].after
