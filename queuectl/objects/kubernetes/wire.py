"""The fields of Kubernetes objects that queuectl reads. msgspec skips all others without building values.

Each field can be absent or null, as in the API. Fields that only templates need are not decoded for live pods.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from queuectl.domain.mig import ANNOTATION as MIG_RECONFIGURATION
from queuectl.objects.keys import (
    CHECKPOINT,
    KUEUE_WORKLOAD,
    PREEMPT_READY,
    PREEMPT_REQUESTED,
    PREFIX,
    SUBMITTED_BY,
)

Quantity = str | int | float


class Wire(msgspec.Struct, rename="camel", gc=False):
    """Base: camelCase names, unknown fields ignored."""


class OwnerReference(Wire):
    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class FieldsOwner(Wire):
    operation: str = ""


class Meta(Wire):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    managed_fields: list[FieldsOwner] | None = None


class Condition(Wire):
    type: str = ""
    status: str = ""
    reason: str | None = None
    last_transition_time: str | None = None


# ---- Node, Namespace, PriorityClass


class WireTaint(Wire):
    key: str = ""
    value: str | None = None
    effect: str = ""
    time_added: str | None = None


class WireNodeSpec(Wire):
    taints: list[WireTaint] | None = None
    unschedulable: bool | None = None


class NodeStatus(Wire):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    conditions: list[Condition] | None = None


class LabeledMeta(Wire):
    """Metadata of objects without annotations, which are not needed."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class NodeAnnotations(Wire):
    """Other annotations are not needed."""

    mig_reconfiguration: str | None = msgspec.field(default=None, name=MIG_RECONFIGURATION)


class NodeMeta(Wire):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: NodeAnnotations | None = None


class WireNode(Wire):
    metadata: NodeMeta = msgspec.field(default_factory=NodeMeta)
    spec: WireNodeSpec | None = None
    status: NodeStatus | None = None


class NamespaceAnnotations(Wire):
    """Other annotations are not needed."""

    pod_node_selector: str | None = msgspec.field(
        default=None, name="scheduler.alpha.kubernetes.io/node-selector"
    )
    openshift: str | None = msgspec.field(default=None, name="openshift.io/node-selector")


class NamespaceMeta(Wire):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: NamespaceAnnotations | None = None
    deletion_timestamp: str | None = None


class WireNamespace(Wire):
    metadata: NamespaceMeta = msgspec.field(default_factory=NamespaceMeta)


class WirePriorityClass(Wire):
    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)
    value: int = 0
    global_default: bool | None = None
    preemption_policy: Literal["PreemptLowerPriority", "Never"] | None = None


# ---- ResourceQuota


class NamespacedMeta(Wire):
    """Metadata with only the identity."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""


class ScopeRequirement(Wire):
    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None


class ScopeSelector(Wire):
    match_expressions: list[ScopeRequirement] | None = None


class ResourceQuotaSpec(Wire):
    hard: dict[str, Quantity] | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire):
    hard: dict[str, Quantity] | None = None
    used: dict[str, Quantity] | None = None


class WireResourceQuota(Wire):
    metadata: NamespacedMeta = msgspec.field(default_factory=NamespacedMeta)
    spec: ResourceQuotaSpec | None = None
    status: ResourceQuotaStatus | None = None


# ---- requests of one pod


class Needs(Wire):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class Container(Wire):
    name: str = ""
    resources: Needs | None = None
    restart_policy: str | None = None


class WireToleration(Wire):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


# ---- Pod


class PodNotes(Wire):
    """The only annotations of a live pod that are decoded."""

    checkpoint: str | None = msgspec.field(default=None, name=PREFIX + CHECKPOINT)
    submitted_by: str | None = msgspec.field(default=None, name=SUBMITTED_BY)
    preempt_requested: str = msgspec.field(default="", name=PREEMPT_REQUESTED)
    preempt_ready: str = msgspec.field(default="", name=PREEMPT_READY)
    kueue_workload: str = msgspec.field(default="", name=KUEUE_WORKLOAD)


class PodMeta(Wire):
    name: str = ""
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: PodNotes | None = None
    owner_references: list[OwnerReference] | None = None


class Gate(Wire):
    name: str = ""


class SelectorRequirement(Wire):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Term(Wire):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelectorTerms(Wire):
    node_selector_terms: list[Term] | None = None


class NodeAffinity(Wire):
    required: NodeSelectorTerms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class OwnAffinity(Wire):
    """The affinity of a pod to nodes. That to other pods is not read."""

    node_affinity: NodeAffinity | None = None


class PodSpec(Wire):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: Needs | None = None
    node_selector: dict[str, str] | None = None
    affinity: OwnAffinity | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[Gate] | None = None
    tolerations: list[WireToleration] | None = None


class ContainerEnd(Wire):
    reason: str | None = None
    exit_code: int = 0


class ContainerWait(Wire):
    reason: str | None = None


class ContainerState(Wire):
    waiting: ContainerWait | None = None
    terminated: ContainerEnd | None = None


class ContainerStatus(Wire):
    name: str = ""
    allocated_resources: dict[str, Quantity] | None = None
    resources: Needs | None = None
    restart_count: int = 0
    state: ContainerState | None = None


class PodStatus(Wire):
    phase: str | None = None
    reason: str | None = None
    conditions: list[Condition] | None = None
    start_time: str | None = None
    qos_class: str | None = None
    allocated_resources: dict[str, Quantity] | None = None
    resources: Needs | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class WirePod(Wire):
    metadata: PodMeta = msgspec.field(default_factory=PodMeta)
    spec: PodSpec | None = None
    status: PodStatus | None = None


# ---- pod templates


class Port(Wire):
    host_port: int | None = None
    container_port: int | None = None


class WireClaimUse(Wire):
    name: str = ""


class TemplateNeeds(Needs):
    claims: list[WireClaimUse] | None = None


class TemplateContainer(Container):
    resources: TemplateNeeds | None = None
    ports: list[Port] | None = None


class PodAffinity(Wire):
    required: list[Any] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire):
    topology_key: str = ""
    when_unsatisfiable: str | None = None


class PodClaim(Wire):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class TemplateSpec(Wire):
    containers: list[TemplateContainer] | None = None
    init_containers: list[TemplateContainer] | None = None
    overhead: dict[str, Quantity] | None = None
    runtime_class_name: str | None = None
    active_deadline_seconds: int | None = None
    resources: Needs | None = None
    node_selector: dict[str, str] | None = None
    node_name: str | None = None
    affinity: Affinity | None = None
    tolerations: list[WireToleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    resource_claims: list[PodClaim] | None = None
    host_network: bool | None = None
    priority_class_name: str | None = None
    restart_policy: str | None = None
    scheduling_gates: list[Gate] | None = None
    scheduling_group: dict[str, Any] | None = None


class TemplateMeta(Wire):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(Wire):
    metadata: TemplateMeta | None = None
    spec: TemplateSpec | None = None
