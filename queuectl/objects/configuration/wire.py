"""The configuration kinds, field by field: the union of ``queuectl.dev/v1`` and Kueue's ``v1beta1`` and ``v1beta2``.

Strict: a field that is not declared here is refused. objects/configuration/queue_config.py warns about declared fields that are not
supported. Defaults are not written, so a document that is parsed and written twice does not change.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from queuectl.domain.checks import MOST_CHECKS
from queuectl.domain.gpus import SharedGpus
from queuectl.domain.node_health import UnhealthyNodes
from queuectl.domain.provisioning import MergePolicy
from queuectl.domain.queues import (
    MOST_PLANNED_STARTS,
    BackfillOrder,
    FlavorOrder,
    IdleReclaim,
    OptOut,
    QueueingStrategy,
    ReclaimMode,
    ReclaimWithinCohort,
    StopPolicy,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.objects.configuration.bounds import (
    UNIQUE,
    Amount,
    LabelKey,
    Name,
    NameOrEmpty,
    Rule,
    Text,
    has_text,
    keyed,
    or_default,
    states,
)
from queuectl.objects.kubernetes.wire import (
    SelectorRequirement,
    WireTaint,
    WireToleration,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int32Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[
    int, msgspec.Meta(ge=0, le=2**53)
]  # the largest integer that every JSON parser keeps exact


Labels = Annotated[dict[str, Text], msgspec.Meta(max_length=64)]


class Strict(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Base: camelCase names, unknown fields refused, defaults not written.

    ``rules`` are those across fields that CEL can state, see :mod:`queuectl.objects.configuration.bounds`.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()

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
    weight: Amount | None = None


class StrictExpression(Strict):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[list[Text], msgspec.Meta(max_length=256)] | None = None

    rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need at least one; Exists and DoesNotExist take none",
            "values",
        ),
    )

    def loose(self) -> SelectorRequirement:
        return SelectorRequirement(self.key, self.operator, self.values)


class SelectorSpec(Strict):
    match_labels: Labels | None = None
    match_expressions: Annotated[list[StrictExpression], msgspec.Meta(max_length=64)] | None = None


class StrictTaint(Strict):
    key: Text
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: Text | None = None
    time_added: Text | None = None

    def loose(self) -> WireTaint:
        return WireTaint(self.key, self.value, self.effect)


class StrictToleration(Strict):
    key: Text | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Text | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] | None = None

    rules = (
        Rule(
            f"({has_text('key')}) || ({has_text('operator', 'Exists')})",
            "must be Exists without a key",
            "operator",
        ),
        Rule(
            f"!({has_text('operator', 'Exists')}) || !({has_text('value')})",
            "must be empty with the operator Exists",
            "value",
        ),
        Rule(
            f"!has(self.tolerationSeconds) || ({has_text('effect', 'NoExecute')})",
            "must be NoExecute with tolerationSeconds",
            "effect",
        ),
    )

    def loose(self) -> WireToleration:
        return WireToleration(
            self.key, self.operator, self.value, self.effect, self.toleration_seconds
        )


# ---- ClusterQueue, Cohort


MOST_GROUPS: Final = 16
MOST_IN_GROUP: Final = 64  # flavors, and resources
MOST_IN_ALL: Final = 256  # flavors or resources, in all groups
MOST_QUOTAS: Final = 512  # pairs of flavor and resource in one group


class QuotaSpec(Strict):
    name: LabelKey
    nominal_quota: Amount
    borrowing_limit: Amount | None = None
    lending_limit: Amount | None = None


class FlavorQuotasSpec(Strict):
    name: Text
    resources: Annotated[list[QuotaSpec], keyed("name"), states(minItems=1, maxItems=MOST_IN_GROUP)]


class ResourceGroupSpec(Strict):
    covered_resources: Annotated[list[LabelKey], UNIQUE, states(minItems=1, maxItems=MOST_IN_GROUP)]
    flavors: Annotated[
        list[FlavorQuotasSpec], keyed("name"), states(minItems=1, maxItems=MOST_IN_GROUP)
    ]

    rules = (
        Rule(
            f"size(self.coveredResources) * size(self.flavors) <= {MOST_QUOTAS}",
            f"at most {MOST_QUOTAS} quotas are allowed",
        ),
        Rule(
            "self.flavors.all(flavor, size(flavor.resources) == size(self.coveredResources)"
            " && flavor.resources.all(quota, quota.name in self.coveredResources))",
            "each flavor must have one entry for each of coveredResources",
            "flavors",
        ),
    )


ResourceGroups = Annotated[
    list[ResourceGroupSpec],
    states(
        Rule(
            f"self.map(group, size(group.flavors)).sum() <= {MOST_IN_ALL}",
            f"at most {MOST_IN_ALL} flavors in all are allowed",
        ),
        Rule(
            f"self.map(group, size(group.coveredResources)).sum() <= {MOST_IN_ALL}",
            f"at most {MOST_IN_ALL} resources in all are allowed",
        ),
        Rule(
            "self.all(group, group.coveredResources.all(name, self.exists_one(other, name in other.coveredResources)))",
            "a resource is in two groups",
        ),
        Rule(
            "self.all(group, self.exists_one(other, sets.intersects(group.flavors.map(flavor, flavor.name),"
            " other.flavors.map(flavor, flavor.name))))",
            "a flavor is in two groups",
        ),
        maxItems=MOST_GROUPS,
    ),
]


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

    rules = (
        Rule(
            f"!({has_text('reclaimWithinCohort', 'Never')}) || !has(self.borrowWithinCohort)"
            " || !has(self.borrowWithinCohort.policy) || self.borrowWithinCohort.policy == 'Never'",
            "must be Never if reclaimWithinCohort is Never",
            "borrowWithinCohort.policy",
        ),
    )


class AdmissionCheckRule(Strict):
    name: Name
    on_flavors: Annotated[list[Text], msgspec.Meta(max_length=MOST_IN_GROUP)] | None = None


class AdmissionChecksStrategy(Strict):
    admission_checks: (
        Annotated[list[AdmissionCheckRule], keyed("name"), states(maxItems=MOST_CHECKS)] | None
    ) = None


class AdmissionScope(Strict):
    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]


class QuotaFromNodes(Strict):
    headroom: (
        Annotated[
            str,
            states(maxLength=11, pattern=r"^(?:0?[0-9]{1,2}(\.[0-9]{1,6})?|100(\.0{1,6})?)%$"),
        ]
        | None
    ) = None


Part = Annotated[float, msgspec.Meta(ge=0, le=1)]


PlannedStarts = Annotated[int, msgspec.Meta(ge=1, le=MOST_PLANNED_STARTS)]
ExecutionSeconds = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
MaxPending = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


_IDLE: Final = IdleReclaim()


class IdleReclaimSpec(Strict):
    # The attributes are named as those of domain.queues.IdleReclaim.
    mode: ReclaimMode | None = None
    window: Annotated[Count, states(minimum=1)] | None = msgspec.field(
        name="windowSeconds", default=None
    )
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

    rules = (
        Rule(
            f"{or_default('memoryWindowSeconds', int(_IDLE.memory_window))}"
            f" >= {or_default('windowSeconds', int(_IDLE.window))}",
            "is shorter than windowSeconds",
            "memoryWindowSeconds",
        ),
        Rule(
            f"{or_default('idleBelow', _IDLE.idle_below)}"
            f" <= {or_default('activeAbove', _IDLE.active_above)}",
            "is above activeAbove",
            "idleBelow",
        ),
    )


class PolicySpec(Strict):
    """Policies particular to queuectl."""

    # Attributes are named as those of domain.queues.ClusterQueue and domain.queues.Protection.

    victim_order: (
        Annotated[
            list[VictimKey],
            states(
                Rule("self.all(key, self.exists_one(other, other == key))", "has a key twice"),
                minItems=1,
                maxItems=len(VictimKey),
            ),
        ]
        | None
    ) = None
    min_runtime: Count | None = msgspec.field(name="minRuntimeSeconds", default=None)
    max_evictions_per_day: Count | None = None
    cooldown: Count | None = msgspec.field(name="cooldownSeconds", default=None)
    idle_reclaim: IdleReclaimSpec | None = None
    defragment: Literal["Off", "Plan", "Execute"] | None = None
    defragment_budget: Count | None = None
    split_flavors: bool | None = None
    quota_from_nodes: QuotaFromNodes | None = None
    max_per_user: Annotated[dict[str, Amount], msgspec.Meta(max_length=MOST_IN_GROUP)] | None = None
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

    rules = (
        Rule(
            "!has(self.defaultMaxExecTimeSeconds) || !has(self.maxExecTimeSeconds)"
            " || self.defaultMaxExecTimeSeconds <= self.maxExecTimeSeconds",
            "is more than maxExecTimeSeconds",
            "defaultMaxExecTimeSeconds",
        ),
    )


class ClusterQueueSpec(Strict):
    resource_groups: ResourceGroups | None = None
    cohort: NameOrEmpty | None = None
    cohort_name: NameOrEmpty | None = None
    queueing_strategy: QueueingStrategy | None = None
    namespace_selector: SelectorSpec | None = None
    flavor_fungibility: FlavorFungibility | None = None
    preemption: PreemptionSpec | None = None
    admission_checks: Annotated[list[Name], UNIQUE, states(maxItems=MOST_CHECKS)] | None = None
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: dict[str, Any] | None = None
    policy: PolicySpec | None = None

    # Of a lendingLimit, only whole numbers: to read text as a quantity exceeds the cost that Kubernetes 1.33 permits for a rule. The
    # controller compares all of them.
    rules = (
        Rule(
            f"!({has_text('cohort')}) || !({has_text('cohortName')}) || self.cohort == self.cohortName",
            "differs from cohort",
            "cohortName",
        ),
        Rule(
            "!has(self.admissionChecks) || size(self.admissionChecks) == 0 || !has(self.admissionChecksStrategy)"
            " || !has(self.admissionChecksStrategy.admissionChecks)"
            " || size(self.admissionChecksStrategy.admissionChecks) == 0",
            "cannot be combined with admissionChecksStrategy",
            "admissionChecks",
        ),
        Rule(
            "(has(self.policy) && has(self.policy.quotaFromNodes)) || !has(self.resourceGroups)"
            " || self.resourceGroups.all(group, group.flavors.all(flavor, flavor.resources.all(quota,"
            " !has(quota.lendingLimit) || type(quota.lendingLimit) != int || type(quota.nominalQuota) != int"
            " || int(quota.lendingLimit) <= int(quota.nominalQuota))))",
            "a lendingLimit is more than its nominalQuota",
            "resourceGroups",
        ),
    )


class CohortPolicySpec(Strict):
    """Policies particular to queuectl."""

    planned_starts: PlannedStarts | None = None
    backfill_order: BackfillOrder | None = None
    planned_start_delay: Part | None = None


class CohortSpec(Strict):
    parent_name: NameOrEmpty | None = None
    resource_groups: ResourceGroups | None = None
    fair_sharing: FairSharing | None = None
    queueing_strategy: Literal["Backfill"] | None = None
    policy: CohortPolicySpec | None = None


# ---- LocalQueue


class LocalQueuePolicySpec(Strict):
    """Policies particular to queuectl."""

    max_pending: MaxPending | None = None


class LocalQueueSpec(Strict):
    cluster_queue: Name
    stop_policy: StopPolicy | None = None
    fair_sharing: FairSharing | None = None
    policy: LocalQueuePolicySpec | None = None


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
    retries: Int32Count | None = msgspec.field(name="backoffLimitCount", default=None)
    backoff_base: Int32Count | None = msgspec.field(name="backoffBaseSeconds", default=None)
    backoff_ceiling: Int32Count | None = msgspec.field(name="backoffMaxSeconds", default=None)


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

    rules = (
        Rule(
            "!has(self.spec) || !has(self.spec.parentName) || self.spec.parentName != self.metadata.name",
            "is the Cohort itself",
            "spec.parentName",
        ),
    )


class LocalQueueDocument(ObjectHead, kw_only=True):
    spec: LocalQueueSpec


class AdmissionCheckDocument(ObjectHead, kw_only=True):
    spec: AdmissionCheckSpec


class ProvisioningRequestConfigDocument(ObjectHead, kw_only=True):
    spec: ProvisioningRequestConfigSpec


class PriorityClassDocument(ObjectHead, kw_only=True):
    value: Priority
    description: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
