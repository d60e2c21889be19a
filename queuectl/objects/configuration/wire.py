"""The configuration kinds, field by field: the union of ``queuectl.dev/v1`` and Kueue's ``v1beta1`` and ``v1beta2``.

Strict: a field that is not declared here is refused. objects/configuration/queue_config.py warns about declared fields that are not
supported. Defaults are not written, so a document that is parsed and written twice does not change.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from queuectl.domain.budgets import WhenSpent
from queuectl.domain.fleet import MOST_NODES
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.mig import MigMode
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.provisioning import MergePolicy
from queuectl.domain.queues import (
    MOST_PLANNED_STARTS,
    BackfillOrder,
    FlavorOrder,
    OptOut,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    StopPolicy,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.objects.kubernetes.wire import (
    Quantity,
    SelectorRequirement,
    WireTaint,
    WireToleration,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Count = Annotated[
    int, msgspec.Meta(ge=0, le=2**53)
]  # the largest integer that every JSON parser keeps exact


NodeCount = Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)]
GpuIndex = Annotated[int, msgspec.Meta(ge=0, lt=32)]


class Strict(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Base: camelCase names, unknown fields refused, defaults not written."""

    def applied_to(self, defaults: T, **converted: Any) -> T:
        """``defaults`` with the fields of the same name that this document gives, and with the ``converted`` ones."""
        kinds = {field.name: str(field.type) for field in fields(defaults)}
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name in kinds}
        new = {name: value for name, value in own.items() if value is not None} | converted
        for name, value in new.items():
            if type(value) is int and kinds[name].startswith("float"):  # a whole number of seconds
                new[name] = float(value)
        return replace(defaults, **new)


class ConfigMeta(msgspec.Struct, rename="camel", omit_defaults=True):
    """The stored part of metadata. Fields that a server adds are ignored."""

    name: str
    namespace: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class FairSharing(Strict):
    weight: Quantity | None = None


class StrictExpression(Strict):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None

    def loose(self) -> SelectorRequirement:
        return SelectorRequirement(self.key, self.operator, self.values)


class SelectorSpec(Strict):
    match_labels: dict[str, str] | None = None
    match_expressions: list[StrictExpression] | None = None


class StrictTaint(Strict):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str | None = None
    time_added: str | None = None

    def loose(self) -> WireTaint:
        return WireTaint(self.key, self.value, self.effect)


class StrictToleration(Strict):
    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None

    def loose(self) -> WireToleration:
        return WireToleration(
            self.key, self.operator, self.value, self.effect, self.toleration_seconds
        )


# ---- ClusterQueue, Cohort


class QuotaSpec(Strict):
    name: str
    nominal_quota: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotasSpec(Strict):
    name: str
    resources: list[QuotaSpec]


class ResourceGroupSpec(Strict):
    covered_resources: list[str]
    flavors: list[FlavorQuotasSpec]


class FlavorFungibility(Strict):
    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor", "Borrow"] | None = None
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor", "Preempt"] | None = None
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] | None = None


class BorrowWithinCohort(Strict):
    policy: Literal["Never", "LowerPriority"] | None = None
    max_priority_threshold: Priority | None = None


class PreemptionSpec(Strict):
    reclaim_within_cohort: ReclaimWithinCohort | None = None
    borrow_within_cohort: BorrowWithinCohort | None = None
    within_cluster_queue: WithinClusterQueue | None = None


class AdmissionCheckRule(Strict):
    name: str
    on_flavors: list[str] | None = None


class AdmissionChecksStrategy(Strict):
    admission_checks: list[AdmissionCheckRule] | None = None


class AdmissionScope(Strict):
    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]


class QuotaFromNodes(Strict):
    headroom: str | None = None


Part = Annotated[float, msgspec.Meta(ge=0, le=1)]


PlannedStarts = Annotated[int, msgspec.Meta(ge=1, le=MOST_PLANNED_STARTS)]
ExecutionSeconds = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
MaxPending = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class IdleReclaimSpec(Strict):
    # The attributes are named as those of domain.queues.IdleReclaim.
    mode: ReclaimMode | None = None
    window: Count | None = msgspec.field(name="windowSeconds", default=None)
    warmup: Count | None = msgspec.field(name="warmupSeconds", default=None)
    idle_below: Part | None = None
    active_above: Part | None = None
    low_below: Part | None = None
    memory_above: Part | None = None
    memory_window: Count | None = msgspec.field(name="memoryWindowSeconds", default=None)
    grace: Count | None = msgspec.field(name="graceSeconds", default=None)
    cooldown: Count | None = msgspec.field(name="cooldownSeconds", default=None)
    to_equal: bool | None = msgspec.field(name="yieldsToEqualPriority", default=None)
    max_warmup: Count | None = msgspec.field(name="maxWarmupSeconds", default=None)


class PolicySpec(Strict):
    """Policies particular to queuectl."""

    # Attributes are named as those of domain.queues.ClusterQueue and domain.queues.Protection.

    victim_order: list[VictimKey] | None = None
    min_runtime: Count | None = msgspec.field(name="minRuntimeSeconds", default=None)
    max_evictions_per_day: Count | None = None
    cooldown: Count | None = msgspec.field(name="cooldownSeconds", default=None)
    idle_reclaim: IdleReclaimSpec | None = None
    defragment: Literal["Off", "Plan", "Execute"] | None = None
    defragment_budget: Count | None = None
    split_flavors: bool | None = None
    quota_from_nodes: QuotaFromNodes | None = None
    max_per_user: dict[str, Quantity] | None = None
    max_priority: Priority | None = None
    borrow_backoff: Count | None = msgspec.field(name="borrowBackoffSeconds", default=None)
    reclaim_patience: Count | None = msgspec.field(name="reclaimPatienceSeconds", default=None)
    preemption_opt_out: OptOut | None = None
    trusts_checkpoints: bool | None = msgspec.field(name="trustCheckpoints", default=None)
    shared_gpus: SharedGpus | None = None
    unhealthy_nodes: UnhealthyNodes | None = None
    evicts_within_nominal: bool | None = msgspec.field(name="evictWithinNominal", default=None)
    planned_starts: PlannedStarts | None = None
    backfill_order: BackfillOrder | None = None
    planned_start_delay: Part | None = None
    default_max_exec_time_seconds: ExecutionSeconds | None = None
    max_exec_time_seconds: ExecutionSeconds | None = None
    time_slice: ExecutionSeconds | None = msgspec.field(name="timeSliceSeconds", default=None)
    flavor_order: FlavorOrder | None = None


class ClusterQueueSpec(Strict):
    resource_groups: list[ResourceGroupSpec] | None = None
    cohort: str | None = None
    cohort_name: str | None = None
    queueing_strategy: QueueingStrategy | None = None
    namespace_selector: SelectorSpec | None = None
    flavor_fungibility: FlavorFungibility | None = None
    preemption: PreemptionSpec | None = None
    admission_checks: list[str] | None = None
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: dict[str, Any] | None = None
    policy: PolicySpec | None = None


class CohortPolicySpec(Strict):
    """Policies particular to queuectl."""

    planned_starts: PlannedStarts | None = None
    backfill_order: BackfillOrder | None = None
    planned_start_delay: Part | None = None


class CohortSpec(Strict):
    parent_name: str | None = None
    resource_groups: list[ResourceGroupSpec] | None = None
    fair_sharing: FairSharing | None = None
    queueing_strategy: Literal["Backfill"] | None = None
    policy: CohortPolicySpec | None = None


# ---- the rest


class LocalQueuePolicySpec(Strict):
    """Policies particular to queuectl."""

    max_pending: MaxPending | None = None


class LocalQueueSpec(Strict):
    cluster_queue: str
    stop_policy: StopPolicy | None = None
    fair_sharing: FairSharing | None = None
    policy: LocalQueuePolicySpec | None = None


class MigEntry(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, omit_defaults=True):
    """Some GPUs of a node in one MIG configuration, as in the file of mig-parted."""

    devices: Literal["all"] | list[GpuIndex]
    mig_enabled: bool
    mig_devices: dict[str, Annotated[int, msgspec.Meta(ge=1, le=7)]] | None = None
    device_filter: str | list[str] | None = None


class NodeTemplateSpec(Strict):
    """The nodes that an autoscaler can make."""

    allocatable: dict[str, Quantity]
    maximum_nodes: NodeCount
    labels: dict[str, str] | None = None
    taints: list[StrictTaint] | None = None
    nodes_per_domain: dict[str, NodeCount] | None = None


class FlavorPolicy(Strict):
    """Fields particular to queuectl."""

    node_template: NodeTemplateSpec | None = None
    mig_configs: dict[str, list[MigEntry]] | None = None
    mig_reconfiguration: MigMode | None = None


class ResourceFlavorSpec(Strict):
    node_labels: dict[str, str] | None = None
    node_taints: list[StrictTaint] | None = None
    tolerations: list[StrictToleration] | None = None
    topology_name: str | None = None
    policy: FlavorPolicy | None = None


class LevelSpec(Strict):
    node_label: str


class TopologySpec(Strict):
    levels: list[LevelSpec]


class CheckParameters(Strict):
    api_group: str
    kind: str
    name: str


class AdmissionCheckPolicy(Strict):
    """Fields particular to queuectl."""

    timeout_seconds: ExecutionSeconds | None = None


class AdmissionCheckSpec(Strict):
    controller_name: str
    parameters: CheckParameters | None = None
    retry_delay_minutes: int | None = None
    policy: AdmissionCheckPolicy | None = None


class RetryStrategy(Strict):
    # The attributes are named as those of domain.provisioning.ProvisioningConfig.
    retries: Annotated[int, msgspec.Meta(ge=0)] | None = msgspec.field(
        name="backoffLimitCount", default=None
    )
    backoff_base: Annotated[int, msgspec.Meta(ge=0)] | None = msgspec.field(
        name="backoffBaseSeconds", default=None
    )
    backoff_ceiling: Annotated[int, msgspec.Meta(ge=0)] | None = msgspec.field(
        name="backoffMaxSeconds", default=None
    )


class DetailSelector(Strict):
    key: str
    value_from_provisioning_class_detail: str


class ProvisionedPodSets(Strict):
    node_selector: list[DetailSelector] | None = None


class ProvisioningRequestConfigSpec(Strict):
    provisioning_class_name: str
    parameters: dict[str, str] | None = None
    managed_resources: list[str] | None = None
    retry_strategy: RetryStrategy | None = None
    pod_set_updates: ProvisionedPodSets | None = None
    pod_set_merge_policy: MergePolicy | None = None


class ObjectHead(Strict, kw_only=True):
    """Fields of all kinds. The status is ignored."""

    api_version: str
    kind: str
    metadata: ConfigMeta
    status: Any = None


class ClusterQueueDocument(ObjectHead, kw_only=True):
    spec: ClusterQueueSpec = msgspec.field(default_factory=ClusterQueueSpec)


class CohortDocument(ObjectHead, kw_only=True):
    spec: CohortSpec = msgspec.field(default_factory=CohortSpec)


class LocalQueueDocument(ObjectHead, kw_only=True):
    spec: LocalQueueSpec


class ResourceFlavorDocument(ObjectHead, kw_only=True):
    spec: ResourceFlavorSpec = msgspec.field(default_factory=ResourceFlavorSpec)


class TopologyDocument(ObjectHead, kw_only=True):
    spec: TopologySpec


class AdmissionCheckDocument(ObjectHead, kw_only=True):
    spec: AdmissionCheckSpec


class ProvisioningRequestConfigDocument(ObjectHead, kw_only=True):
    spec: ProvisioningRequestConfigSpec


class QuotaOverrideSpec(Strict):
    cluster_queue: str
    flavor: str
    resource: str
    begins: str = msgspec.field(name="from")
    until: str
    nominal_quota: Quantity | None = None
    add: Quantity | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class QuotaOverrideDocument(ObjectHead, kw_only=True):
    spec: QuotaOverrideSpec


class BudgetSpec(Strict):
    gpu_hours_per_month: Quantity
    cluster_queue: str | None = None
    local_queue: str | None = None
    namespace: str | None = None
    user: Annotated[str, msgspec.Meta(max_length=253)] | None = None
    time_zone: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    when_spent: WhenSpent | None = None
    priority_when_spent: Priority | None = None
    whole_run: bool | None = None


class BudgetDocument(ObjectHead, kw_only=True):
    spec: BudgetSpec


class BudgetTopUpSpec(Strict):
    budget: str
    month: str
    gpu_hours: Quantity
    reason: Annotated[str, msgspec.Meta(max_length=500)]
    by: Annotated[str, msgspec.Meta(max_length=253)] | None = None
    at: str | None = None


class BudgetTopUpDocument(ObjectHead, kw_only=True):
    spec: BudgetTopUpSpec


class ReservedCapacitySpec(Strict):
    pods: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    requests: dict[str, Quantity]
    flavor: str | None = None
    node_selector: dict[str, str] | None = None
    required_topology: str | None = None
    preferred_topology: str | None = None


class ReservationSpec(Strict):
    begins: str = msgspec.field(name="from")
    until: str
    cluster_queue: str | None = None
    capacity: ReservedCapacitySpec | None = None
    nodes: list[str] | None = None
    recurrence: Annotated[str, msgspec.Meta(min_length=1, max_length=500)] | None = None
    time_zone: str | None = None
    users: list[str] | None = None
    namespaces: list[str] | None = None
    evict: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class ReservationDocument(ObjectHead, kw_only=True):
    spec: ReservationSpec


class PriorityClassDocument(ObjectHead, kw_only=True):
    value: Priority
    description: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
