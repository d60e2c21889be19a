"""The types of the API's answers: JSON objects. An answer can have more fields, which a newer server has added.

This file is written from docs/reference/openapi.json by ``python -m tests.api.renew_openapi``. Times are texts of RFC 3339. The value of
an enumeration is a ``str``, because a newer server can have more values.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class AnswerJson(TypedDict):
    """Base of the objects in answers."""


class AuditLineJson(AnswerJson):
    """A request for a change."""

    id: int
    at: str
    requestId: str
    """The X-Request-Id of the response, which is also in the log."""
    caller: str
    groups: list[str]
    method: str
    path: str
    operation: str
    """operationId; empty if the request reached no operation."""
    status: int | None
    """Status of the response; null = begun, with an unknown outcome."""
    detail: str
    """The reason of the refusal, or the change."""
    what: str
    """The request in words, as in `hold team-a/train`."""
    result: str
    """The result in words: done, accepted, refused or failed, with the detail; or that it is not known."""


class AuditPageJson(AnswerJson):
    """Newest first."""

    items: list[AuditLineJson]
    nextBefore: int | None
    """Value of `before` for the next page; null = this is the last page."""


class AwaitedJson(AnswerJson):
    workload: str
    """namespace/name; an unknown uid does not change. `another team` for a workload that you are not allowed to see."""
    endsAt: str
    """Its limit or expected end."""


class BatchItemJson(AnswerJson):
    """The result for one workload."""

    uid: str
    workload: str | None
    """namespace/name; null = it does not exist, or you are not allowed to see it."""
    attempt: int | None
    """Number of starts so far; null as for `workload`."""
    refusal: str | None
    """The reason why it gets no command; null = it gets one."""
    evicts: bool
    """Whether it runs and would be evicted."""
    pods: int
    """Number of pods that would be stopped."""
    gpus: float
    """GPUs that would become free."""
    lostGpuSeconds: int | None
    """Work that it would lose, in GPU-seconds; null = not known at the moment."""
    command: CommandJson | None
    """Its command; null in a dry run."""


class BatchJson(AnswerJson):
    """The results in the order of the request. The sums are those of the workloads that are not refused."""

    action: str
    accepted: int
    """Number of workloads that are not refused."""
    evicted: int
    """Number of gangs that would be evicted."""
    pods: int
    gpus: float
    lostGpuSeconds: int | None
    """null = not known for each of them."""
    items: list[BatchItemJson]


class BudgetStatusJson(AnswerJson):
    """A Budget in the current month. Amounts in GPU-hours."""

    name: str
    scope: str
    """The field that names whose gangs spend it."""
    holder: str
    """The name in that field."""
    month: str
    timeZone: str
    monthEnds: str
    whenSpent: str
    grantedGpuHours: float
    """Of the month, with top-ups."""
    spentGpuHours: float
    """Used until the time of the report."""
    ledgerGpuHours: float
    """The part in the usage ledger, until countedUntil."""
    countedUntil: str
    committedGpuHours: float
    """Use by running gangs until their ends; a gang without a known end counts for one hour."""
    leftGpuHours: float
    """granted - spent - committed; can be negative."""
    runningGpus: float
    """GPUs of the gangs that run now."""
    spentAt: str | None
    """When running gangs will have spent it, if no other starts; null = not in this month."""
    pendingGpuHours: float
    """Use by pending gangs with an enforced limit in this month, if they start now."""
    topUps: list[TopUpJson]
    """Of the month, by name."""


class BudgetsJson(AnswerJson):
    at: str
    """Time of the report."""
    items: list[BudgetStatusJson]
    """By name."""


class CallerJson(AnswerJson):
    """The caller, with the names that RBAC rules use."""

    name: str
    groups: list[str]
    authenticated: bool
    """false: queuectl does not authenticate callers and permits everything."""
    expiresAt: NotRequired[str | None]
    """End of the session, in the response to the sign-in."""


class CheckJson(AnswerJson):
    """An admission check of a workload that has a placement."""

    name: str
    state: str
    since: str
    """Start of this state."""
    message: str
    due: str | None
    """Time at which it counts as `Retry` without an answer; null = never."""
    retries: int
    """How often it answered `Retry` since the last start."""


class CheckedJson(AnswerJson):
    """The result of a check against the cluster and the database."""

    at: str
    workloads: int
    """Number of checked workloads."""
    pods: int
    nodes: int
    violations: list[ViolationJson]


class ClusterItemJson(AnswerJson):
    """All GPU-hours of the cluster. The last four add up to the first."""

    physicalGpuHours: float
    allocatedGpuHours: float
    """Held by gangs."""
    unallocatedGpuHours: float
    """Free on nodes that take pods."""
    unmanagedGpuHours: float
    """Held by pods that belong to no gang."""
    unhealthyGpuHours: float
    """Failed, or free on nodes that are not ready or cordoned."""


class ClusterMapJson(AnswerJson):
    """All nodes in columns, for a map: item i of each column belongs to node i."""

    names: list[str]
    gpus: list[float]
    free: list[float]
    """Free GPUs."""
    status: list[int]
    """0 = schedulable, 1 = cordoned, 2 = not ready."""
    utilization: list[float | None]
    """Mean utilization of the GPUs in use with a measurement, 0 to 1; null = without any."""
    who: list[list[int]]
    """For each node, the indexes of its gangs in `workloads`, largest first."""
    levels: list[LevelColumnsJson]
    workloads: WorkloadColumnsJson


class ClusterQueueUseJson(AnswerJson):
    """One ClusterQueue. The counts are of workloads that you are allowed to list."""

    name: str
    cohort: str | None
    stopPolicy: str
    """`None` = its gangs can start."""
    gpus: GpuQuotaJson | None
    """null = it has no quota of GPUs."""
    pending: int
    """Pending and Reserved."""
    running: int
    """Starting, Running and Evicting."""
    inactive: int
    """Held, in back-off or deactivated."""
    resources: list[ResourceUseJson] | None
    """Each flavor and resource; null = in a list of all queues."""


class ClusterQueueUsesJson(AnswerJson):
    items: list[ClusterQueueUseJson]
    """By name."""


class CommandListJson(AnswerJson):
    items: list[CommandJson]
    """The newest first."""
    nextBefore: int | None
    """Value of `before` for the next page; null = this is the last page."""


class CommandPageJson(AnswerJson):
    uid: str
    items: list[CommandJson]
    nextAfter: int | None
    """Value of `after` for the next page; null = this is the last page."""


class CommandJson(AnswerJson):
    """A command. The leader executes commands in the order of their ids. Results are kept for a day."""

    id: int
    uid: str
    workload: str | None
    """namespace/name; null = the workload was deleted."""
    action: str
    priority: int | None
    until: str | None
    queue: str | None
    check: str | None
    """Name of the AdmissionCheck; only of `check`."""
    checkState: str | None
    """Only of `check`."""
    by: str
    why: str
    requestId: str
    at: str
    state: str
    outcome: str | None
    """The result in words; null = not executed yet."""


class ConditionJson(AnswerJson):
    """One of Kueue's Workload conditions, derived from the state."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str


class ConfigAppliedJson(AnswerJson):
    """Answer to a PUT."""

    result: str
    warnings: list[str]
    """Warnings about fields that are not supported, and about references to missing objects."""
    changes: list[DifferenceJson]
    """The changed fields; empty for a new object."""
    object: dict[str, Any]
    overQuota: NotRequired[list[ExcessJson] | None]
    """In the response to a dry run of one document: quotas that running gangs would exceed. null = not requested, or this process has started a moment ago and has no snapshot yet."""


class ConfigListJson(AnswerJson):
    apiVersion: str
    kind: str
    items: list[dict[str, Any]]


class ConfigurationOwnerJson(AnswerJson):
    """The owner of the configuration, and the objects that the leader follows."""

    owner: str
    """Of this process: QUEUECTL_CONFIGURATION_OWNER."""
    at: str | None
    """Time of the leader's last report; null = no leader has followed objects."""
    sources: list[FollowedSourceJson]
    faulty: list[FaultyObjectJson]
    """At most 200."""
    faultyCount: int
    waiting: list[str]
    """Objects whose edit takes effect when no object was edited for a while. At most 200."""
    deletion: PendingDeletionJson | None
    """null = none waits."""


class CostItemJson(AnswerJson):
    group: GroupJson
    workloads: int | None
    """null in the total of a report by hour, flavor or price: a workload can be in several of its rows."""
    allocatedGpuHours: float
    cost: float
    """Cost of the allocated GPU-hours at the prices of that time."""
    wastedCost: float
    """Cost of the GPU-hours that were measured and not used."""
    unpricedGpuHours: float
    """Allocated GPU-hours without a price."""


class CostReportJson(AnswerJson):
    by: str
    since: str
    """Start of the first hour."""
    until: str
    """End of the last hour."""
    asOf: str | None
    """Usage up to this time is included; null = none yet."""
    currency: str
    items: list[CostItemJson]
    total: CostItemJson


class CostJson(AnswerJson):
    priority: int
    """Priority of the evicted gang."""
    lostGpuSeconds: int
    gpus: float
    """GPUs that become free."""


class CountsJson(AnswerJson):
    starts: int
    gpusStarted: float
    waits: int
    """Pending gangs, with those that have a reservation."""
    leaves: int
    """Evicted gangs, with moved gangs."""
    lostGpuSeconds: int


class CpuEfficiencyJson(AnswerJson):
    efficiency: float | None
    """CPU time that was used / CPU time that the same pods requested; above 1 for pods that use more. null = unknown."""
    measured: float
    """The part of the run time of all pods that was measured."""
    unknown: str | None
    """Why the efficiency is unknown; null = it is known."""
    usedCoresPerPod: float | None
    """On average over the measured time."""
    requestedCoresPerPod: float | None
    """The same average of the requests."""


class DecisionDetailJson(AnswerJson):
    id: int
    at: str
    """Time of the snapshot."""
    epoch: int
    """Epoch of the leader."""
    cycle: int
    """Number of the cycle in this epoch. History lines have both numbers."""
    revision: int
    """Revision of the configuration."""
    nodes: int
    pending: int
    """Pending gangs in the snapshot."""
    running: int
    """Gangs that hold capacity in the snapshot."""
    started: int
    gpusStarted: float
    evicted: int
    """Evicted gangs, without moved gangs."""
    moved: int
    waiting: int
    """Gangs that stay pending."""
    reasons: dict[str, int]
    """Number of gangs that stay pending by reason."""
    proof: str
    milliseconds: float
    """Time from the snapshot to the verified plan."""
    solver: dict[str, float]
    """Counters of the solver."""
    steps: list[EventJson]
    """Its steps of workloads that you are allowed to see."""
    nextAfter: int | None
    """Value of `after` for the next page; null = this is the last page."""


class DecisionPageJson(AnswerJson):
    items: list[DecisionJson]
    """The newest first."""
    nextBefore: int | None
    """Value of `before` for the next page; null = this is the last page."""


class DecisionJson(AnswerJson):
    """One planning cycle that changed something: its input and its decisions."""

    id: int
    at: str
    """Time of the snapshot."""
    epoch: int
    """Epoch of the leader."""
    cycle: int
    """Number of the cycle in this epoch. History lines have both numbers."""
    revision: int
    """Revision of the configuration."""
    nodes: int
    pending: int
    """Pending gangs in the snapshot."""
    running: int
    """Gangs that hold capacity in the snapshot."""
    started: int
    gpusStarted: float
    evicted: int
    """Evicted gangs, without moved gangs."""
    moved: int
    waiting: int
    """Gangs that stay pending."""
    reasons: dict[str, int]
    """Number of gangs that stay pending by reason."""
    proof: str
    milliseconds: float
    """Time from the snapshot to the verified plan."""
    solver: dict[str, float]
    """Counters of the solver."""


class DifferenceJson(AnswerJson):
    field: str
    """Path of the field; items of lists are named."""
    before: Any
    """Value before; null = the field did not exist."""
    after: Any
    """Value after; null = the field no longer exists."""


class DomainJson(AnswerJson):
    level: str
    """Node label of its level."""
    path: list[str]
    """Label values from the coarsest level to its own."""
    nodes: int
    openNodes: int
    """Nodes that are ready and not cordoned."""
    gpus: float
    """GPUs of all its nodes."""
    freeGpus: float
    """Free GPUs on schedulable nodes."""
    fragmentedGpus: float
    """Free GPUs that the next pod is expected not to be able to use."""
    largestFree: LargestJson | None
    """The largest number of free GPUs on one node; null = no node is schedulable."""
    gangs: int
    """Number of workloads with pods in the domain."""
    utilization: float | None
    """Mean utilization of the GPUs in use with a measurement, 0 to 1; null = without any."""


class DomainsJson(AnswerJson):
    items: list[TopologyDomainsJson]


class DrainJson(AnswerJson):
    """The gangs that draining the queue would evict now."""

    gangs: int
    pods: int
    gpus: float
    """GPUs that become free."""
    lostGpuSeconds: int
    """Lost work since the last checkpoints in GPU-seconds, as for each victim."""


class DryRunObjectJson(AnswerJson):
    """The effect of applying one of several documents."""

    result: str
    warnings: list[str]
    """Warnings about fields that are not supported, and about references to missing objects."""
    changes: list[DifferenceJson]
    """The changed fields; empty for a new object."""
    object: dict[str, Any]
    overQuota: NotRequired[list[ExcessJson] | None]
    """In the response to a dry run of one document: quotas that running gangs would exceed. null = not requested, or this process has started a moment ago and has no snapshot yet."""
    refused: str | None
    """Why the server refuses to store this document: objects of the cluster own it. null = it does not refuse it."""


class DryRunJson(AnswerJson):
    """The effect of applying several documents together."""

    objects: list[DryRunObjectJson]
    """In the order of the documents."""
    overQuota: list[ExcessJson] | None
    """Quotas that running gangs would exceed with all of them. null = not known at the moment."""


class EfficiencyItemJson(AnswerJson):
    """GPUs. total = effective + wasted + unknown, and wasted = idle + fragmented + unhealthy + unallocated."""

    value: str | None
    """Value of the node label; empty = nodes without it, null = all nodes."""
    totalGpus: float
    """Capacity of all nodes, failed GPUs included."""
    effectiveGpus: float
    """Held by gangs × measured utilization; 0 while a gang is stuck."""
    wastedGpus: float
    """idle + fragmented + unhealthy + unallocated"""
    idleGpus: float
    """Held by measured gangs, and not effective."""
    fragmentedGpus: float
    """Free, but the next pod is expected not to be able to use them (fragmentation gradient descent)."""
    unhealthyGpus: float
    """Failed, or free on nodes that are not ready or cordoned."""
    unallocatedGpus: float
    """All other free GPUs."""
    unknownGpus: float
    """Held by gangs or other pods, without a measurement. They are not wasted."""
    efficiency: float | None
    """effective / total; null = no GPUs."""
    highestEfficiency: float | None
    """(effective + unknown) / total"""


class EfficiencyReportJson(AnswerJson):
    at: str
    """Time of the state of the cluster."""
    by: str | None
    """Key of the node label; null = none."""
    items: list[EfficiencyItemJson]
    """One for each value, by value."""
    total: EfficiencyItemJson


class EventJson(AnswerJson):
    """The data of a `step`: one committed step of one workload."""

    id: int
    at: str
    event: str
    fromState: str | None
    toState: str
    attempt: int
    cycle: int
    """Number of the planning cycle of this step."""
    reason: ReasonJson
    placement: PlacementJson | None
    """The placement that this step committed, if any."""
    uid: str
    kind: str
    namespace: str
    name: str
    clusterQueue: str
    """Current LocalQueue of the workload; empty without one."""
    epoch: int
    """Epoch of the leader; cycle numbers are for each epoch."""


class ExcessJson(AnswerJson):
    """A quota that running workloads exceed."""

    kind: str
    name: str
    flavor: str
    resource: str
    used: int
    """CPU in thousandths of a core; other resources in whole units."""
    allowed: int
    """The quota, with the quota that can be borrowed."""
    workloads: list[str]
    """namespace/name of the newest gangs whose end would remove the excess, newest first."""


class ExpectedStartJson(AnswerJson):
    """An estimate of the start of a pending workload. It can change with each estimate, unlike a planned start."""

    median: str
    """It is as likely to start earlier as later."""
    p90: str | None
    """It starts no later with a probability of 90%; null = unknown."""
    computedAt: str
    """The time of the estimate."""


class ExplainJson(AnswerJson):
    """The explanation of a workload: its state, its reason, blocking constraints and suggested fixes."""

    uid: str
    workload: str
    """namespace/name"""
    kind: str
    state: str
    sentence: str
    """A summary in one or two sentences."""
    code: str
    message: str
    details: dict[str, Any]
    underWay: list[str]
    """Changes of MIG configurations that queuectl makes for it, and those that failed."""
    conflict: list[ObstacleJson]
    """A minimal set of blocking constraints, found by the solver. Empty if it is not pending, or has no diagnosis yet."""
    conflictProof: str
    """optimal = each blocking constraint is needed; feasible = the solver reached a limit, so the list can include constraints that do not block."""
    suggestedFixes: list[SuggestedFixJson]
    """Suggested fixes, each enough by itself and verified by the solver."""
    position: int | None
    """Position in the queue order of its ClusterQueue, from 1; null = it is not pending."""
    expectedStart: ExpectedStartJson | None
    """The estimate of its start, as in the workload."""
    plannedStart: PlannedStartJson | None
    """Planned start, as in the workload."""
    runTime: RunTimeJson | None
    """Its expected run time, as in the workload."""
    placement: PlacementJson | None
    reservation: ReservationJson | None
    checks: list[CheckJson]
    use: UseJson | None
    """Its GPU utilization, as in the workload."""


class FaultyObjectJson(AnswerJson):
    """An object whose content has no effect."""

    kind: str
    namespace: str | None
    name: str
    error: str
    acts: bool
    """true = an earlier version of it is in effect."""


class FleetItemJson(AnswerJson):
    """Free GPUs of one ResourceFlavor's nodes, averaged over the observed time."""

    flavor: str
    gpus: float
    """GPUs of schedulable nodes."""
    freeGpus: float
    fragmentedGpus: float
    """Free GPUs that the next pod is expected not to be able to use (fragmentation gradient descent)."""
    strandedGpus: float
    """Free GPUs on nodes that no pod shape fits."""
    fragmentedInsideNodesGpus: float
    """Of the fragmented GPUs, those on nodes with enough of them, but not of one PCIe root or NUMA node."""


class FollowedSourceJson(AnswerJson):
    """The objects of one kind."""

    resource: str
    """Name of the CustomResourceDefinition."""
    version: str
    """Version in which they are read; empty = not known yet."""
    objects: int
    fault: str
    """Why the objects are not known, so that the last configuration stays in effect; empty = they are known."""


class GangOutcomeJson(AnswerJson):
    """A gang and the decision for it."""

    workload: str
    """namespace/name; `another team` for one that you are not allowed to see."""
    kind: str | None
    """null = you are not allowed to see it; the same for `uid`."""
    uid: str | None
    clusterQueue: str | None
    gpus: float
    """GPUs that it requests; an instance or a replica counts as a part of a GPU."""
    submitted: bool
    """Whether the request submits it."""
    outcome: str
    before: str | None
    """The decision without the change; null = the gang does not exist then."""
    placement: PlacementJson | None
    """The placement of its start, repair, reservation or move."""
    reason: ReasonJson | None
    """The reason why it is pending or evicted."""
    preemptor: str | None
    """namespace/name of the gang for which it is evicted or migrated."""
    cost: CostJson | None
    """The lost work of its eviction."""
    conflict: list[ObstacleJson]
    """Blocking constraints; of the first submitted gangs only."""
    conflictProof: str
    """optimal = each blocking constraint is needed; feasible = the solver reached a limit, so the list can include constraints that do not block."""
    suggestedFixes: list[SuggestedFixJson]
    """Suggested fixes; of the first submitted gangs only."""


class GpuEfficiencyJson(AnswerJson):
    efficiency: float | None
    """GPU time that was used / GPU time that was measured, 0 to 1; null = unknown."""
    measured: float
    """The part of the allocated GPU time that was measured."""
    unknown: str | None
    """Why the efficiency is unknown; null = it is known."""


class GpuHoursJson(AnswerJson):
    allocated: float
    """GPUs held × time. The other parts are parts of it."""
    productive: float
    """allocated - lost"""
    lost: float
    """Work that evictions lost, restarts included."""
    used: float
    """Allocated time × measured utilization."""
    unused: float
    """Measured, and not used."""
    unknown: float
    """Allocated without a measurement."""


class GpuQuotaJson(AnswerJson):
    quota: float
    """Nominal quota of all flavors, overrides included."""
    used: float | None
    """Held by its gangs; null = not known yet."""
    borrowed: float | None
    """The part of `used` beyond the nominal quota of its flavor; null = not known yet."""


class GroupJson(AnswerJson):
    """The group of a row. Fields that are not part of the grouping are null."""

    namespace: NotRequired[str | None]
    kind: NotRequired[str | None]
    """Kind of the job; the controllerKind of OpenCost, which has it in lower case."""
    name: NotRequired[str | None]
    """Name of the job; the controller of OpenCost."""
    uid: NotRequired[str | None]
    queue: NotRequired[str | None]
    """LocalQueue."""
    clusterQueue: NotRequired[str | None]
    cohort: NotRequired[str | None]
    user: NotRequired[str | None]
    """Empty: the job names no user."""
    flavor: NotRequired[str | None]
    """ResourceFlavor; empty for waiting time."""
    price: NotRequired[str | None]
    """Name of a price in the configuration; empty without a price, and for waiting time."""
    hour: NotRequired[str | None]
    """Start of the hour."""
    label: NotRequired[str | None]
    """Value of the requested label; empty without it."""
    labels: NotRequired[dict[str, str] | None]
    """Labels of the workload that the configuration names."""


class HistoryItemJson(AnswerJson):
    """Averages of one hour, in GPUs."""

    since: str
    until: str
    """End of the hour; for the current hour, the time of the response."""
    allocatedGpus: float
    """GPUs that gangs hold."""
    usedGpus: float
    """GPUs that gangs hold and use, as measured."""
    unmeasuredGpus: float
    """GPUs that gangs hold, without a measurement."""
    pendingGpus: float
    """GPUs that pending gangs request."""
    capacityGpus: float | None
    """GPUs of schedulable nodes, and GPUs in use on others; null = unknown, or the history is of some queues only."""


class HistoryPageJson(AnswerJson):
    uid: str
    items: list[HistoryJson]
    nextAfter: int | None
    """Value of `after` for the next page; null = this is the last page."""


class HistoryJson(AnswerJson):
    id: int
    at: str
    event: str
    fromState: str | None
    toState: str
    attempt: int
    cycle: int
    """Number of the planning cycle of this step."""
    reason: ReasonJson
    placement: PlacementJson | None
    """The placement that this step committed, if any."""


class IgnoredJson(AnswerJson):
    object: str
    """API version, kind and name."""
    reason: str
    """Why it has no effect."""


class JobCostJson(AnswerJson):
    amount: float
    """Of the allocated GPU-hours, at the prices of that time."""
    currency: str
    unpricedGpuHours: float
    """GPU-hours without a price."""


class JobEfficiencyJson(AnswerJson):
    """The resources that one workload used. All attempts count, except for ``nodes``."""

    workload: str
    """namespace/name"""
    uid: str
    kind: str
    state: str
    user: str
    """Its user; empty = not known."""
    clusterQueue: str
    """Empty = none."""
    pods: int
    gpus: float
    """GPUs that it requests."""
    flavors: list[str]
    """The ResourceFlavors of the GPUs that it held."""
    nodes: list[str]
    """Nodes of the last attempt, by name."""
    attempts: int
    """How often it was started."""
    evictions: int
    queuedAt: str
    finishedAt: str | None
    elapsedSeconds: float
    """Time in which it held its nodes."""
    asOf: str | None
    """GPU-hours and cost up to this time are included; null = none yet."""
    gpu: GpuEfficiencyJson
    cpu: CpuEfficiencyJson
    memory: MemoryEfficiencyJson
    gpuHours: GpuHoursJson | None
    """null = nothing is accounted for, or the hours are deleted already."""
    cost: JobCostJson | None
    """null = no price applied."""
    utilization: list[UtilizationPointJson]
    """Of its GPUs over time, oldest first, at most 96 points of equal length. They grow with its run time: a minute at first. The end can be one point late."""


class LargestJson(AnswerJson):
    node: str
    freeGpus: float


class LevelColumnsJson(AnswerJson):
    topology: str
    label: str
    domains: list[list[str]]
    """The path of each domain."""
    of: list[int]
    """For each node, the index of its domain in `domains`; -1 = none."""


class MemoryEfficiencyJson(AnswerJson):
    efficiency: float | None
    """Mean working set / memory that the same pods requested; null = unknown."""
    measured: float
    """The part of the run time of all pods that was measured."""
    unknown: str | None
    """Why the efficiency is unknown; null = it is known."""
    usedBytesPerPod: float | None
    """Working set, on average over the measured time."""
    requestedBytesPerPod: float | None
    """The same average of the requests."""
    peakBytes: float | None
    """The largest sample of one pod. Shorter peaks between two samples are not seen."""


class MigReconfigurationJson(AnswerJson):
    """A change of the MIG configuration of a node."""

    fromConfig: str
    toConfig: str
    phase: str
    active: bool
    """Whether it continues. The node is cordoned then."""
    since: str
    """When the phase began."""
    failures: int
    """Changes of the node in succession that the MIG manager did not apply."""


class NodePageJson(AnswerJson):
    items: list[NodeJson]
    nextCursor: str | None
    """Value of `cursor` for the next page; null = this is the last page."""


class NodeSumJson(AnswerJson):
    flavors: list[str]
    """The ResourceFlavors whose labels the nodes have; empty = none."""
    model: str
    """Model of the GPUs by the labels of the nodes; empty = none."""
    nodes: int
    gpus: float
    """GPUs of all these nodes."""
    usedGpus: float
    """GPUs that pods hold."""
    freeGpus: float
    """Free GPUs on schedulable nodes."""
    closedNodes: int
    """Nodes that are ready, and cordoned or unhealthy."""
    downNodes: int
    """Nodes that are not ready."""


class NodeSumsJson(AnswerJson):
    items: list[NodeSumJson]
    """Each node is in one item."""


class NodeJson(AnswerJson):
    name: str
    ready: bool
    schedulable: bool
    """Whether the node is not cordoned, and not unhealthy."""
    unhealthy: str | None
    """The evidence that hardware of the node fails; null = none is known."""
    taintedDevices: list[TaintedDeviceJson]
    """The taints that take devices of the node out of placement."""
    migReconfiguration: MigReconfigurationJson | None
    """The last change of its MIG configuration by queuectl; null = there was none."""
    domains: dict[str, str]
    """Label value by topology level."""
    gpus: float
    """All GPUs; an instance counts as a part of a GPU."""
    freeGpus: float
    """GPUs that are not in use."""
    fragmentedGpus: float
    """Free GPUs that the next pod is expected not to be able to use."""
    capacity: dict[str, float]
    """Allocatable amounts in whole units: cores, bytes, devices, pods."""
    free: dict[str, float]
    """The free part of the allocatable amounts."""
    others: dict[str, float]
    """Amounts that pods outside the queues hold."""
    tenants: list[TenantJson]
    """The gangs on the node, largest first."""


class ObstacleJson(AnswerJson):
    """One blocking constraint: without it, and with all the others, the workload would start."""

    code: str
    message: str
    details: dict[str, Any]


class PastUseItemJson(AnswerJson):
    scope: str
    namespace: str | None
    """Namespace of a LocalQueue; null for other accounts."""
    name: str
    clusterQueue: str | None
    """ClusterQueue of a LocalQueue; null for other accounts, and for a deleted LocalQueue."""
    resources: dict[str, float]
    """Decayed use of each resource in whole units: cores, bytes, devices."""
    usage: float | None
    """Weighted sum of all resources, divided by the weight of the LocalQueue; null = its weight is 0."""
    share: float | None
    """Its share of the use by all LocalQueues of its ClusterQueue, or by all accounts of its scope; null = without any use, or it is not one of these accounts."""


class PastUseJson(AnswerJson):
    asOf: str | None
    """Time of the last sample; null = no sample."""
    items: list[PastUseItemJson]


class PendingDeletionJson(AnswerJson):
    """Deletions of more than a third of the ClusterQueues or of the ResourceFlavors."""

    id: str
    """Of this set of objects only; the confirmation names it."""
    objects: list[str]
    """At most 200."""
    count: int


class PlacementJson(AnswerJson):
    planned: bool
    """true = a reservation: the gang starts here after its victims have stopped."""
    podSets: list[PodSetPlacedJson]


class PlanJson(AnswerJson):
    at: str
    """Time of the snapshot."""
    revision: int
    """Revision of the configuration."""
    before: CountsJson
    """The plan without the change."""
    after: CountsJson
    """The plan with the change."""
    starts: list[GangOutcomeJson]
    leaves: list[GangOutcomeJson]
    waits: list[GangOutcomeJson]
    """Submitted gangs first, then gangs with another decision than before; in queue order."""
    omitted: int
    """Number of gangs that stay pending and are not listed."""
    overQuota: list[ExcessJson]
    """Quotas that running gangs would exceed, and do not exceed now."""
    warnings: list[str]
    ignored: list[IgnoredJson]
    """Documents of the request without effect on the plan."""


class PlannedStartJson(AnswerJson):
    """The planned start of a pending gang. Gangs after it in queue order do not delay it."""

    at: str
    podSets: list[PodSetPlacedJson]
    """Its placement at that time. A later plan can choose other nodes."""
    awaits: list[AwaitedJson]
    """Workloads that end before, with its nodes or with quota that it needs, at most 64; the last end is first."""
    overruns: int
    """Number of times that it moved later because a workload ran longer than expected."""


class PodPageJson(AnswerJson):
    items: list[PodJson]
    nextCursor: str | None
    """Value of `cursor` for the next page; null = this is the last page."""


class PodSetPlacedJson(AnswerJson):
    name: str
    count: int
    flavors: dict[str, str]
    """ResourceFlavor by resource."""
    nodes: dict[str, int]
    """Number of pods by node, in rank order."""
    shares: NotRequired[list[ShareJson] | None]
    """For a podset that is split over flavors: the flavors of its pods, in rank order."""


class PodJson(AnswerJson):
    name: str
    podSet: str
    rank: int | None
    """Rank of the pod in its PodSet; null = the kind of the job has no ranks."""
    attempt: int
    """The start of the workload that created the pod."""
    phase: str
    ready: bool
    terminating: bool
    node: str | None
    """null = the pod is not bound to a node."""
    restarts: int
    """Restarts of all its containers."""
    reason: str | None
    """The reason why it does not run, as in `kubectl get pods`: `ImagePullBackOff`, `CrashLoopBackOff`…"""


class PreviewJson(AnswerJson):
    """The effect that an action would have on a gang now. Nothing changes."""

    uid: str
    workload: str
    """namespace/name"""
    action: str
    change: str
    """The change of the workload in words."""
    evicts: bool
    """Whether it runs and would be evicted."""
    pods: int
    """Number of pods that would be stopped."""
    gpus: float | None
    """GPUs that become free; null = not known at the moment: send the request again."""
    lostGpuSeconds: int | None
    """Lost work since its last checkpoint and for a restart in GPU-seconds, as for each victim; null as for `gpus`."""
    noticeSeconds: float | None
    """Seconds of notice before its suspension; null as for `gpus`."""
    starts: list[StarterJson] | None
    """Gangs that could start then and cannot start now, in queue order. The gang itself is included if it would start again. null = not known within the time limit, or as for `gpus`."""


class QueueStopJson(AnswerJson):
    """A queue after it was stopped or resumed."""

    kind: str
    namespace: str | None
    """Namespace of a LocalQueue; null for a ClusterQueue."""
    name: str
    stopPolicy: str
    result: str
    """`unchanged` = the queue already had this stop policy."""
    drains: DrainJson | None
    """The gangs that a drain would evict, in a dry run with `drain`; null = not a dry run, or not known at the moment: send the request again."""


class ReasonJson(AnswerJson):
    code: str
    message: str
    details: dict[str, Any]


class ReceiverPageJson(AnswerJson):
    items: list[ReceiverJson]
    """By name."""
    address: str | None
    """Your email address that the OpenID Connect issuer has verified at your last sign-in."""
    error: str | None
    """Why the file with the receivers, as it is now, has no effect; null = it has, or without the right `get receivers/status`."""


class ReceiverStatusJson(AnswerJson):
    """The delivery to a receiver in one mode."""

    mode: str
    waiting: int
    """Events after the last delivered one, for it or not."""
    delivered: int
    dropped: int
    """Events beyond its bounds that no message has reported yet."""
    failures: int
    """Failed attempts since the last success."""
    error: str
    """Of the last attempt; empty after a success."""
    retryAt: str | None
    """Time of the next attempt, or of the next digest; null = at the next event."""


class ReceiverTestJson(AnswerJson):
    """A test event that is written, and delivered like each other event."""

    receiver: str
    to: str | None
    """Your email address, for email to users; null = its own place."""


class ReceiverJson(AnswerJson):
    """A receiver that the caller may use."""

    name: str
    kind: str
    modes: list[str]
    events: list[str]
    """The types that a subscription can select."""
    personal: bool
    """true = it sends email to the verified address of each subscriber."""
    status: list[ReceiverStatusJson] | None
    """For callers with the right `get receivers/status`; empty before the first delivery, null without the right."""


class RecordedJobPageJson(AnswerJson):
    since: int
    """Begin of the trace: a full hour, in unix seconds."""
    until: int
    """End of the trace, in unix seconds."""
    items: list[RecordedJobJson]
    """By uid."""
    nextCursor: str | None
    """Value of `cursor` for the next page; null = this is the last page."""


class RecordedJobJson(AnswerJson):
    uid: str
    kind: str
    namespace: str
    name: str
    queue: str
    """Its LocalQueue."""
    user: str
    """Its user; empty = not known."""
    priority: int
    pods: int
    gpusPerPod: int
    """GPUs of each pod, rounded up."""
    submitSeconds: float
    """From `since` to its creation; 0 = it was there before."""
    durationSeconds: float
    """Time in which it held its nodes after `since`, without the work that evictions lost."""
    finished: bool
    """false: it still ran at `until`."""
    evictions: int
    utilization: list[RecordedUtilizationJson]
    """By hour, where it changes; empty = not measured."""


class RecordedUtilizationJson(AnswerJson):
    afterSeconds: float
    """Seconds of work after which it begins."""
    utilization: float
    """Measured GPU utilization, 0 to 1."""


class RefusedPlanListJson(AnswerJson):
    items: list[RefusedPlanJson]
    """The newest first; at most 20 are kept."""


class RefusedPlanJson(AnswerJson):
    """A plan that broke a rule, so it was not committed."""

    id: int
    at: str
    """Time of the snapshot."""
    epoch: int
    """Epoch of the leader."""
    cycle: int
    """Number of the cycle in this epoch."""
    rules: list[str]
    """The violated rules."""
    bytes: int
    """Size of the file with all names."""


class ReservationJson(AnswerJson):
    victims: list[str | None]
    """UIDs of its victims; null = a workload that you are not allowed to see."""
    victimNames: list[str]
    """The same as namespace/name, in the same order; an unknown uid does not change. `another team` for one that you are not allowed to see."""
    createdAt: str
    expiresAt: str | None
    """null = until its admission checks have answered."""


class ResourceUseJson(AnswerJson):
    flavor: str
    resource: str
    quota: str
    """Nominal quota, as a quantity of Kubernetes."""
    used: str | None
    """Held by its gangs; null = not known yet."""
    borrowed: str | None
    """The part of `used` beyond the quota."""


class RunTimeJson(AnswerJson):
    """How long a workload runs, all attempts together, as far as that is known."""

    source: str
    """`Limit`: the controller ends it then. `Stated`: its user expects it. `Learned`: finished workloads like it ran as long."""
    seconds: float
    """The run time that planning assumes."""
    quantile: float | None
    """Probability with which it ends within `seconds`; null = the run time is not learned."""
    median: float | None
    """Median run time of finished workloads like it, in seconds; null = none are known."""
    gangs: int
    """Number of finished workloads of which this is the median."""
    error: float | None
    """Median difference in seconds between the learned median and the run time of workloads of its ClusterQueue that have finished; null = not known, or not learned."""


class SearchResultJson(AnswerJson):
    items: list[WorkloadMatchJson]
    """Exact matches first, then workloads that have not finished, then finished ones; among these, the newest first."""
    more: bool
    """true = more workloads match."""
    onlyNewest: bool
    """true = the text has fewer than three characters, so only the newest 2000 finished workloads were searched."""


class SetAsideObjectListJson(AnswerJson):
    items: list[SetAsideObjectJson]
    """The newest first; at most 20 are kept, one for each unit."""


class SetAsideObjectJson(AnswerJson):
    """An object that an unexpected error of queuectl concerns."""

    id: int
    at: str
    """Time of the first failure."""
    epoch: int
    """Epoch of the leader that stored it."""
    boundary: str
    """Where the error occurred."""
    unit: str
    """The object, for example `Job/namespace/name`."""
    error: str
    """Identifier of the error, as in the log event `unit_set_aside`."""
    place: str
    """Type of the error, and its place in the code."""
    bytes: int
    """Size of the object before redaction."""
    truncated: bool
    """true = the file has only the first 256 KiB."""


class ShadowComparedJson(AnswerJson):
    """A figure as observed and as simulated."""

    observed: ShadowIntervalJson
    simulated: ShadowIntervalJson
    difference: str
    """The simulated figure compared with the observed one; None = their intervals meet."""


class ShadowGangJson(AnswerJson):
    """A gang that waited, or whose pods had no node after its admission, over all observations that show it so."""

    uid: str
    namespace: str
    name: str
    kind: str
    queue: str
    clusterQueue: str
    gpus: float
    pods: int
    state: str
    """At the last observation."""
    firstSeen: str
    lastSeen: str
    waitedHours: float
    fittedHours: float
    """Hours for which it waited although it fitted."""
    fitsSince: str | None
    """First observation since which it fits; null = it does not fit now."""
    startableGpuHours: float
    """GPU-hours of its pods while it fitted."""
    unboundHours: float
    unboundGpuHours: float
    admittedAt: str | None
    """Its admission by the other controller, while pods of it have no node; null = not now."""
    reasons: list[ShadowReasonJson]
    message: str
    """The last reason, as a sentence."""


class ShadowHourJson(AnswerJson):
    hour: str
    """Begin of the hour."""
    sums: ShadowSumsJson


class ShadowIntervalJson(AnswerJson):
    """A figure, as well as it is known."""

    least: float | None
    """null = the figure is not known."""
    most: float | None
    """null = no bound is known."""


class ShadowObservedJson(AnswerJson):
    """The state of the cluster at all observations."""

    total: ShadowSumsJson
    hours: list[ShadowHourJson]
    gangs: list[ShadowGangJson]
    """Gangs seen in the period, those with the most startable GPU-hours first; at most 100."""
    gangCount: int
    """All gangs seen in the period."""
    leftOut: list[str]
    """Objects that could not be read at the last observation, with the reasons."""


class ShadowQueueJson(AnswerJson):
    p50Hours: ShadowComparedJson
    p95Hours: ShadowComparedJson
    waiting: ShadowComparedJson
    """Gangs that wait at the end."""
    queue: str
    """Namespace and name of a LocalQueue."""
    gangs: int
    """Gangs that arrived in the time of the simulation."""


class ShadowReasonJson(AnswerJson):
    """A reason that queuectl would have given."""

    code: str
    waitingHours: float
    """Hours of waiting, summed over gangs."""


class ShadowReportJson(AnswerJson):
    """The two reports of shadow mode."""

    since: str
    until: str
    lastObservation: str | None
    """The last observation; null = none yet."""
    observed: ShadowObservedJson
    limits: list[str]
    """Facts that the observed figures do not show."""
    simulated: ShadowSimulatedJson | None
    """Always from the first observation, whatever the period; null = none yet."""


class ShadowSimulatedJson(AnswerJson):
    """One continued simulation of queuectl from the first observation, with run times as observed, and the same figures as observed."""

    began: str
    until: str
    madeAt: str
    whole: bool
    """It reaches the last observation; otherwise the rest takes too long."""
    gangs: int
    runningAtBegin: int
    """Gangs that are in no waiting time."""
    unfinished: int
    """Gangs that ran or waited at the end."""
    leftOut: int
    """Gangs whose queues no longer exist."""
    resized: int
    """Gangs whose size changed while they ran."""
    gapHours: float
    """Hours without observations."""
    utilization: ShadowComparedJson
    """GPU-hours of running gangs, as a part of those and of the free ones."""
    idleGpuHours: ShadowComparedJson
    """GPU-hours that were free while a gang waited that requests GPUs."""
    evictions: ShadowComparedJson
    total: ShadowWaitsJson
    queues: list[ShadowQueueJson]
    limits: list[str]
    """Facts that the figures do not show."""


class ShadowSumsJson(AnswerJson):
    """Sums between observations that follow each other."""

    observedHours: float
    """Hours between observations that follow each other."""
    gpus: float
    """GPUs of all nodes, mean."""
    freeGpus: float
    """Free GPUs on nodes that take pods, mean."""
    fittingHours: float
    """Hours in which at least one waiting gang fitted."""
    freeWhileFittingGpuHours: float
    """GPU-hours free while a waiting gang fitted."""
    startableGpuHours: float
    """The part of them that the waiting gangs that fitted together request."""
    waitingHours: float
    """Hours of waiting, summed over gangs."""
    waitingGpuHours: float
    """GPU-hours requested by waiting gangs."""
    unboundHours: float
    """Hours in which admitted gangs had pods without a node, summed over gangs."""
    unboundGpuHours: float
    """GPU-hours of these pods."""
    reasons: list[ShadowReasonJson]
    """Of gangs that did not fit, the most frequent first."""


class ShadowWaitsJson(AnswerJson):
    """Waiting times of gangs, from their arrival or the begin until they ran or left, without the time in which they ran."""

    p50Hours: ShadowComparedJson
    p95Hours: ShadowComparedJson
    waiting: ShadowComparedJson
    """Gangs that wait at the end."""


class ShareJson(AnswerJson):
    count: int
    flavors: dict[str, str]
    """ResourceFlavor by resource."""


class StarterJson(AnswerJson):
    uid: str | None
    """null = you are not allowed to see it."""
    workload: str
    """namespace/name; `another team` for a workload that you are not allowed to see; an unknown uid does not change."""


class SubscriptionPageJson(AnswerJson):
    items: list[SubscriptionJson]
    """By id."""
    nextAfter: int | None
    """Value of `after` for the next page; null = this is the last page."""


class SubscriptionJson(AnswerJson):
    """A subscription."""

    id: int
    owner: str
    scope: str
    target: str
    receiver: str
    events: list[str]
    """Empty = all."""
    mode: str
    warning: str | None
    """Why it has no effect now; null = it has."""


class SuggestedFixJson(AnswerJson):
    """One suggested fix, which is enough by itself."""

    code: str
    message: str
    least: bool
    """true = the solver has proved that no smaller size of this fix is enough."""
    details: dict[str, Any]


class TaintedDeviceJson(AnswerJson):
    """A taint that takes a device out of placement."""

    device: str
    """driver/pool/device, as in ResourceClaims."""
    taint: str
    """key=value:effect, with the name of the DeviceTaintRule if one sets it."""


class TenantJson(AnswerJson):
    workload: str
    """namespace/name; `another team` for one that you are not allowed to see."""
    uid: str | None
    """null = you are not allowed to see it; the same for the next fields."""
    kind: str | None
    clusterQueue: str | None
    pods: int
    """Number of its pods on this node."""
    gpus: float
    """GPUs that its pods hold on this node."""
    leaving: bool
    """Whether it is being evicted."""
    use: str | None
    """Its GPU utilization; null = not measured."""
    utilization: float | None
    """Mean utilization of all its GPUs, 0 to 1."""


class TopUpJson(AnswerJson):
    """GPU-hours that were added to a month of a Budget."""

    name: str
    """Name of the BudgetTopUp."""
    budget: str
    month: str
    gpuHours: float
    reason: str
    by: str | None
    """The user of the request; null = a document was applied."""
    at: str | None
    """The time of the request; null = a document was applied."""


class TopologyDomainsJson(AnswerJson):
    topology: str
    levels: list[str]
    """Node labels of the levels, coarse to fine, without the level of nodes."""
    domains: list[DomainJson]
    """The domains, level by level: a domain follows the domain that contains it."""


class UnmanagedPodJson(AnswerJson):
    namespace: str
    name: str
    """Name of the pod."""
    node: str
    gpus: float
    """GPUs that it holds; an instance counts as a part of a GPU."""
    since: str | None
    """Time at which the kubelet accepted the pod; null = not yet."""


class UnmanagedSumJson(AnswerJson):
    namespace: str
    pods: int
    gpus: float


class UnmanagedJson(AnswerJson):
    items: list[UnmanagedPodJson]
    namespaces: list[UnmanagedSumJson]
    """Sums for the namespaces on this page, over all their pods, including those on other pages."""
    nextCursor: str | None
    """Value of `cursor` for the next page; null = this is the last page."""


class UsageHistoryJson(AnswerJson):
    asOf: str | None
    """Usage up to this time is included; null = none yet."""
    items: list[HistoryItemJson]
    """The points, oldest first."""


class UsageItemJson(AnswerJson):
    group: GroupJson
    workloads: int | None
    """null in the total of a report by hour, flavor or price: a workload can be in several of its rows."""
    allocatedGpuHours: float
    """From the commit of the start until the last pod has terminated."""
    usedGpuHours: float
    """Allocated time × measured utilization; 0 while the gang is stuck."""
    idleGpuHours: float
    """Allocated while the gang was idle."""
    stuckGpuHours: float
    """Allocated while the gang was stuck: busy without progress."""
    unknownGpuHours: float
    """Allocated without a measurement."""
    efficiency: float | None
    """used / (allocated - unknown); null = nothing was measured."""


class UsageReportJson(AnswerJson):
    by: str
    since: str
    """Start of the first hour."""
    until: str
    """End of the last hour."""
    asOf: str | None
    """Usage up to this time is included; null = none yet."""
    items: list[UsageItemJson]
    total: UsageItemJson


class UseJson(AnswerJson):
    """The measured GPU utilization of a gang. `Unknown` is a separate state and never counts as idle."""

    state: str
    since: str
    """Start of this state."""
    lookedAt: str
    """The time of the evaluation."""
    utilization: float | None
    """0 to 1, mean over all its GPUs since the evaluation before; null = unknown."""
    covered: float
    """The part of its GPUs with enough samples, 0 to 1."""
    message: str
    """The reason of the state; for Unknown, the missing samples."""


class UtilizationPointJson(AnswerJson):
    since: str
    until: str
    gpus: float
    """GPUs that it held, on average; 0 while it waited."""
    utilization: float | None
    """GPU time that was used / GPU time that was measured; null = nothing was measured."""
    measured: float
    """The part of the allocated GPU time that was measured."""


class ViolationJson(AnswerJson):
    """A violated invariant of one workload: a defect."""

    invariant: str
    kind: str
    namespace: str
    name: str
    uid: str
    message: str


class WaitsItemJson(AnswerJson):
    group: GroupJson
    workloads: int | None
    """null in the total of a report by hour, flavor or price: a workload can be in several of its rows."""
    waitedGpuHours: float
    """Requested GPUs × time in the queue or in a back-off."""
    waitingHours: float
    """Time in the queue or in a back-off."""
    waitingHoursPerWorkload: float | None
    """In the period, or in the hour of the row; null where `workloads` is."""


class WaitsReportJson(AnswerJson):
    by: str
    since: str
    """Start of the first hour."""
    until: str
    """End of the last hour."""
    asOf: str | None
    """Usage up to this time is included; null = none yet."""
    items: list[WaitsItemJson]
    total: WaitsItemJson


class WasteItemJson(AnswerJson):
    group: GroupJson
    workloads: int | None
    """null in the total of a report by hour, flavor or price: a workload can be in several of its rows."""
    allocatedGpuHours: float
    wastedGpuHours: float
    """allocated - unknown - used"""
    wastedGpus: float
    """The average number of wasted GPUs in the period, or in the hour of the row."""
    idleGpuHours: float
    stuckGpuHours: float
    unknownGpuHours: float
    efficiency: float | None
    lostToOthersGpuHours: float
    """Lost work of preemptions and moves."""
    lostInStartsGpuHours: float
    """GPU-hours of failed starts."""
    lostOtherwiseGpuHours: float
    """Lost work of other evictions."""
    evictions: int
    lostGpuHoursByReason: dict[str, float]


class WasteReportJson(AnswerJson):
    by: str
    since: str
    """Start of the first hour."""
    until: str
    """End of the last hour."""
    asOf: str | None
    """Usage up to this time is included; null = none yet."""
    items: list[WasteItemJson]
    total: WasteItemJson
    fleet: list[FleetItemJson]
    cluster: ClusterItemJson | None
    """null if the caller does not see the nodes."""


class WorkloadColumnsJson(AnswerJson):
    names: list[str]
    """namespace/name; one entry `another team` for all workloads that you are not allowed to see."""
    kinds: list[str | None]
    clusterQueues: list[str | None]
    gpus: list[float]
    uses: list[str | None]
    utilization: list[float | None]


class WorkloadMatchJson(AnswerJson):
    uid: str
    kind: str
    namespace: str
    name: str
    state: str
    reason: str
    """Code of its reason."""
    clusterQueue: str
    user: str
    """User of the job; empty if unknown."""
    gpus: float
    """GPUs that it requests."""
    queuedAt: str
    finishedAt: str | None
    """null = it has not finished."""


class WorkloadPageJson(AnswerJson):
    items: list[WorkloadJson]
    nextCursor: str | None
    """Value of `cursor` for the next page; null = this is the last page."""


class WorkloadJson(AnswerJson):
    uid: str
    kind: str
    namespace: str
    name: str
    queue: str
    """LocalQueue; empty without one."""
    clusterQueue: str
    user: str
    """User of the job; empty if unknown."""
    labels: dict[str, str]
    """Labels of the job, except those of queuectl and Kueue; the first 64 by key."""
    priority: int
    prioritySet: int | None
    """Priority that a user has set instead of that of its classes; null = not set."""
    priorityUntil: str | None
    """End of the priority that a user has set; null = it has no end."""
    queueSet: str | None
    """LocalQueue to which a user moves it, until its object has the new label."""
    state: str
    reason: ReasonJson
    gpus: float
    """GPUs that it requests; an instance or a replica counts as a part of a GPU."""
    pods: int
    attempt: int
    """Number of starts so far."""
    evictions: int
    queuedAt: str
    since: str
    """Start of this state."""
    startedAt: str | None
    readyAt: str | None
    finishedAt: str | None
    requeueAt: str | None
    """End of the back-off. In other states, the time before which it does not borrow."""
    positionInClusterQueue: int | None
    """Position in queue order, from 1; null = it is not pending."""
    positionInLocalQueue: int | None
    gates: list[str]
    """Admission gates of the job."""
    after: list[str]
    """The jobs that must end first, as KIND/NAME:ok, any or failed. Those that have are omitted."""
    checks: list[CheckJson]
    """Its admission checks, while it has a placement."""
    expectedStart: ExpectedStartJson | None
    """The estimate of its start, as a range. null = unknown, or it is not pending."""
    plannedStart: PlannedStartJson | None
    """Its planned start, in a ClusterQueue or Cohort with `queueingStrategy: Backfill`. null = it has none."""
    runTime: RunTimeJson | None
    """Its expected run time. null = unknown, or it is neither pending nor running."""
    executedSeconds: float
    """Total run time of its earlier attempts in seconds."""
    conditions: list[ConditionJson]
    use: UseJson | None
    """Its GPU utilization. null = it holds no GPUs now, it has not been measured yet, or no source of GPU utilization is configured."""
