"""The responses of the API as pydantic models with the conventions of Kubernetes (camelCase, RFC 3339 times).

They are the contract in docs/reference/openapi.json. They are neither domain values nor rows of the database.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from queuectl.domain.checks import CheckState
from queuectl.domain.diagnosis import Limit, Remedy
from queuectl.domain.estimates import RunTimeSource
from queuectl.domain.identity import LONGEST_TOKEN
from queuectl.domain.ledger import State
from queuectl.domain.pastuse import AccountScope
from queuectl.domain.plan import Proof
from queuectl.domain.reasons import Code
from queuectl.domain.redaction import ANOTHER_TEAM
from queuectl.domain.utilization import UseState
from queuectl.domain.words import utc


def maybe(seconds: float | None) -> datetime | None:
    """Unix seconds as a time in UTC, or nothing."""
    return None if seconds is None else utc(seconds)


class View(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid"
    )


class ConfirmBody(View):
    """A deletion of objects that own the configuration, to confirm."""

    id: str = Field(
        min_length=1, max_length=64, description="Of the deletion, as the report has it."
    )


class SignInBody(View):
    """A token of the cluster, for example from ``kubectl create token``."""

    token: str = Field(min_length=1, max_length=LONGEST_TOKEN)


class FieldError(View):
    field: str = Field(
        description="Path of the field in the document, or name of the parameter; empty = the whole document."
    )
    reason: str


class ProblemView(BaseModel):
    """RFC 9457 problem details; docs/reference/problems.md lists the types."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(description="URI of the problem type, which never changes.")
    title: str
    status: int
    detail: str
    instance: str = Field(description="Path of the request.")
    errors: list[FieldError] | None = Field(
        default=None, description="The separate errors, if there are several."
    )


class ConfigMetadata(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    namespace: str | None = None
    resourceVersion: str | None = Field(  # noqa: N815 - Kubernetes' spelling
        default=None,
        description="Version of the object; the ETag is the version in quotes. Ignored in a PUT.",
    )


class ConfigObject(BaseModel):
    """A configuration document in the form of Kueue; the bodies of the PUTs describe each kind."""

    model_config = ConfigDict(extra="allow")

    apiVersion: str  # noqa: N815 - Kubernetes' spelling
    kind: str
    metadata: ConfigMetadata


class ConfigList(BaseModel):
    apiVersion: str  # noqa: N815 - Kubernetes' spelling
    kind: str
    items: list[ConfigObject]


class DifferenceView(View):
    field: str = Field(description="Path of the field; items of lists are named.")
    before: Any = Field(description="Value before; null = the field did not exist.")
    after: Any = Field(description="Value after; null = the field no longer exists.")


class ExcessView(View):
    """A quota that running workloads exceed."""

    kind: Literal["ClusterQueue", "Cohort"]
    name: str
    flavor: str
    resource: str
    used: int = Field(description="CPU in thousandths of a core; other resources in whole units.")
    allowed: int = Field(description="The quota, with the quota that can be borrowed.")
    workloads: list[str] = Field(
        description="namespace/name of the newest gangs whose end would remove the excess, newest first."
    )


class ConfigApplied(View):
    """Answer to a PUT."""

    result: Literal["created", "configured", "unchanged"]
    warnings: list[str] = Field(
        description="Warnings about fields that are not supported, and about references to missing objects."
    )
    changes: list[DifferenceView] = Field(description="The changed fields; empty for a new object.")
    object: ConfigObject
    over_quota: list[ExcessView] | None = Field(
        default=None,
        description="In the response to a dry run of one document: quotas that running gangs would exceed. "
        "null = not requested, or this process has started a moment ago and has no snapshot yet.",
    )


class DryRunObjectView(ConfigApplied):
    """The effect of applying one of several documents."""

    refused: str | None = Field(
        description="Why the server refuses to store this document: objects of the cluster own it. null = it does not refuse it."
    )


class DryRunView(View):
    """The effect of applying several documents together."""

    objects: list[DryRunObjectView] = Field(description="In the order of the documents.")
    over_quota: list[ExcessView] | None = Field(
        description="Quotas that running gangs would exceed with all of them. null = not known at the moment."
    )


class ReasonView(View):
    code: Code
    message: str
    details: dict[str, Any]


class ConditionView(View):
    """One of Kueue's Workload conditions, derived from the state."""

    type: str
    status: Literal["True", "False"]
    reason: str
    message: str
    last_transition_time: datetime


class UseView(View):
    """The measured GPU utilization of a gang. `Unknown` is a separate state and never counts as idle."""

    state: UseState
    since: datetime = Field(description="Start of this state.")
    looked_at: datetime = Field(description="The time of the evaluation.")
    utilization: float | None = Field(
        description="0 to 1, mean over all its GPUs since the evaluation before; null = unknown."
    )
    covered: float = Field(description="The part of its GPUs with enough samples, 0 to 1.")
    message: str = Field(description="The reason of the state; for Unknown, the missing samples.")


class ExpectedStartView(View):
    """An estimate of the start of a pending workload. It can change with each estimate, unlike a planned start."""

    median: datetime = Field(description="It is as likely to start earlier as later.")
    p90: datetime | None = Field(
        description="It starts no later with a probability of 90%; null = unknown."
    )
    computed_at: datetime = Field(description="The time of the estimate.")


class ShareView(View):
    count: int
    flavors: dict[str, str] = Field(description="ResourceFlavor by resource.")


class PodSetPlaced(View):
    name: str
    count: int
    flavors: dict[str, str] = Field(description="ResourceFlavor by resource.")
    nodes: dict[str, int] = Field(description="Number of pods by node, in rank order.")
    shares: list[ShareView] | None = Field(
        default=None,
        description="For a podset that is split over flavors: the flavors of its pods, in rank order.",
    )


class AwaitedView(View):
    workload: str = Field(
        description="namespace/name; an unknown uid does not change. "
        f"`{ANOTHER_TEAM}` for a workload that you are not allowed to see."
    )
    ends_at: datetime = Field(description="Its limit or expected end.")


class PlannedStartView(View):
    """The planned start of a pending gang. Gangs after it in queue order do not delay it."""

    at: datetime
    pod_sets: list[PodSetPlaced] = Field(
        description="Its placement at that time. A later plan can choose other nodes."
    )
    awaits: list[AwaitedView] = Field(
        description="Workloads that end before, with its nodes or with quota that it needs, at most 64; the last end is first."
    )
    overruns: int = Field(
        description="Number of times that it moved later because a workload ran longer than expected."
    )


class RunTimeView(View):
    """How long a workload runs, all attempts together, as far as that is known."""

    source: RunTimeSource = Field(
        description="`Limit`: the controller ends it then. `Stated`: its user expects it. `Learned`: finished workloads like it ran as long."
    )
    seconds: float = Field(description="The run time that planning assumes.")
    quantile: float | None = Field(
        description="Probability with which it ends within `seconds`; null = the run time is not learned."
    )
    median: float | None = Field(
        description="Median run time of finished workloads like it, in seconds; null = none are known."
    )
    gangs: int = Field(description="Number of finished workloads of which this is the median.")
    error: float | None = Field(
        description="Median difference in seconds between the learned median and the run time of workloads of its ClusterQueue that "
        "have finished; null = not known, or not learned."
    )


class CheckView(View):
    """An admission check of a workload that has a placement."""

    name: str
    state: CheckState
    since: datetime = Field(description="Start of this state.")
    message: str
    due: datetime | None = Field(
        description="Time at which it counts as `Retry` without an answer; null = never."
    )
    retries: int = Field(description="How often it answered `Retry` since the last start.")


class WorkloadView(View):
    uid: str
    kind: str
    namespace: str
    name: str
    queue: str = Field(description="LocalQueue; empty without one.")
    cluster_queue: str
    user: str = Field(description="User of the job; empty if unknown.")
    labels: dict[str, str] = Field(
        description="Labels of the job, except those of queuectl and Kueue; the first 64 by key."
    )
    priority: int
    priority_set: int | None = Field(
        description="Priority that a user has set instead of that of its classes; null = not set."
    )
    priority_until: datetime | None = Field(
        description="End of the priority that a user has set; null = it has no end."
    )
    queue_set: str | None = Field(
        description="LocalQueue to which a user moves it, until its object has the new label."
    )
    state: State
    reason: ReasonView
    gpus: float = Field(
        description="GPUs that it requests; an instance or a replica counts as a part of a GPU."
    )
    pods: int
    attempt: int = Field(description="Number of starts so far.")
    evictions: int
    queued_at: datetime
    since: datetime = Field(description="Start of this state.")
    started_at: datetime | None
    ready_at: datetime | None
    finished_at: datetime | None
    requeue_at: datetime | None = Field(
        description="End of the back-off. In other states, the time before which it does not borrow."
    )
    position_in_cluster_queue: int | None = Field(
        description="Position in queue order, from 1; null = it is not pending."
    )
    position_in_local_queue: int | None
    gates: list[str] = Field(description="Admission gates of the job.")
    after: list[str] = Field(
        description="The jobs that must end first, as KIND/NAME:ok, any or failed. Those that have are omitted."
    )
    checks: list[CheckView] = Field(description="Its admission checks, while it has a placement.")
    expected_start: ExpectedStartView | None = Field(
        description="The estimate of its start, as a range. null = unknown, or it is not pending."
    )
    planned_start: PlannedStartView | None = Field(
        description="Its planned start, in a ClusterQueue or Cohort with `queueingStrategy: Backfill`. null = it has none."
    )
    run_time: RunTimeView | None = Field(
        description="Its expected run time. null = unknown, or it is neither pending nor running."
    )
    executed_seconds: float = Field(
        description="Total run time of its earlier attempts in seconds."
    )
    conditions: list[ConditionView]
    use: UseView | None = Field(
        description="Its GPU utilization. null = it holds no GPUs now, it has not been measured yet, or no source of GPU "
        "utilization is configured."
    )


class WorkloadPageView(View):
    items: list[WorkloadView]
    next_cursor: str | None = Field(
        description="Value of `cursor` for the next page; null = this is the last page."
    )


class PlacementView(View):
    planned: bool = Field(
        description="true = a reservation: the gang starts here after its victims have stopped."
    )
    pod_sets: list[PodSetPlaced]


class ReservationView(View):
    victims: list[str | None] = Field(
        description="UIDs of its victims; null = a workload that you are not allowed to see."
    )
    victim_names: list[str] = Field(
        description="The same as namespace/name, in the same order; an unknown uid does not change. "
        f"`{ANOTHER_TEAM}` for one that you are not allowed to see."
    )
    created_at: datetime
    expires_at: datetime | None = Field(
        description="null = until its admission checks have answered."
    )


class ObstacleView(View):
    """One blocking constraint: without it, and with all the others, the workload would start."""

    code: Limit
    message: str
    details: dict[str, Any]


class SuggestedFixView(View):
    """One suggested fix, which is enough by itself."""

    code: Remedy
    message: str
    least: bool = Field(
        description="true = the solver has proved that no smaller size of this fix is enough."
    )
    details: dict[str, Any]


class ExplainView(View):
    """The explanation of a workload: its state, its reason, blocking constraints and suggested fixes."""

    uid: str
    workload: str = Field(description="namespace/name")
    kind: str
    state: State
    sentence: str = Field(description="A summary in one or two sentences.")
    code: Code
    message: str
    details: dict[str, Any]
    under_way: list[str] = Field(
        description="Changes of MIG configurations that queuectl makes for it, and those that failed."
    )
    conflict: list[ObstacleView] = Field(
        description="A minimal set of blocking constraints, found by the solver. Empty if it "
        "is not pending, or has no diagnosis yet."
    )
    conflict_proof: Proof = Field(
        description="optimal = each blocking constraint is needed; feasible = the solver reached a limit, so the list can include constraints that do not block."
    )
    suggested_fixes: list[SuggestedFixView] = Field(
        description="Suggested fixes, each enough by itself and verified by the solver."
    )
    position: int | None = Field(
        description="Position in the queue order of its ClusterQueue, from 1; null = it is not pending."
    )
    expected_start: ExpectedStartView | None = Field(
        description="The estimate of its start, as in the workload."
    )
    planned_start: PlannedStartView | None = Field(description="Planned start, as in the workload.")
    run_time: RunTimeView | None = Field(description="Its expected run time, as in the workload.")
    placement: PlacementView | None
    reservation: ReservationView | None
    checks: list[CheckView]
    use: UseView | None = Field(description="Its GPU utilization, as in the workload.")


class HistoryView(View):
    id: int
    at: datetime
    event: str
    from_state: State | None
    to_state: State
    attempt: int
    cycle: int = Field(description="Number of the planning cycle of this step.")
    reason: ReasonView
    placement: PlacementView | None = Field(
        description="The placement that this step committed, if any."
    )


class HistoryPage(View):
    uid: str
    items: list[HistoryView]
    next_after: int | None = Field(
        description="Value of `after` for the next page; null = this is the last page."
    )


class PastUseItem(View):
    scope: AccountScope
    namespace: str | None = Field(description="Namespace of a LocalQueue; null for other accounts.")
    name: str
    cluster_queue: str | None = Field(
        description="ClusterQueue of a LocalQueue; null for other accounts, and for a deleted LocalQueue."
    )
    resources: dict[str, float] = Field(
        description="Decayed use of each resource in whole units: cores, bytes, devices."
    )
    usage: float | None = Field(
        description="Weighted sum of all resources, divided by the weight of the LocalQueue; null = its weight is 0."
    )
    share: float | None = Field(
        description="Its share of the use by all LocalQueues of its ClusterQueue, or by all accounts of its scope;"
        " null = without any use, or it is not one of these accounts."
    )


class PastUseView(View):
    as_of: datetime | None = Field(description="Time of the last sample; null = no sample.")
    items: list[PastUseItem]
