"""Kind ``Configuration``, field by field: the union of Kueue's ``v1beta1`` and ``v1beta2`` and of ours.

Strict like the other kinds. Parts about the process of a Kueue manager have no effect, and only their fields are checked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from queuectl.domain.node_health import HealthMode, HealthSignal
from queuectl.domain.rules import AdmissionPlugin, FairStrategy
from queuectl.objects.configuration.wire import (
    Int32Count,
    MaxPending,
    ObjectHead,
    Part,
    SelectorSpec,
    Strict,
)
from queuectl.objects.kubernetes.wire import Quantity

Factor = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

NodeConditions: TypeAlias = dict[str, Literal["True", "False"] | bool]
"""Condition type to status."""


# ---- supported


class RequeuingStrategy(Strict):
    # The attributes are named as those of domain.rules.PodsReady.
    timestamp: Literal["Eviction", "Creation"] | None = None
    backoff_limit: Int32Count | None = msgspec.field(name="backoffLimitCount", default=None)
    backoff_base: Int32Count | None = msgspec.field(name="backoffBaseSeconds", default=None)
    backoff_ceiling: Int32Count | None = msgspec.field(name="backoffMaxSeconds", default=None)


class WaitForPodsReady(Strict):
    enable: bool | None = None
    timeout: str | None = None
    block_admission: bool | None = None
    requeuing_strategy: RequeuingStrategy | None = None
    recovery_timeout: str | None = None


class FairSharingSettings(Strict):
    enable: bool | None = None
    preemption_strategies: list[FairStrategy] | None = None


class AdmissionFairSharing(Strict):
    usage_half_life_time: str
    usage_sampling_interval: str | None = None
    resource_weights: dict[str, Factor] | None = None


class ResourceTransformation(Strict):
    input: str
    strategy: Literal["Retain", "Replace"] | None = None
    multiply_by: str | None = None
    outputs: dict[str, Quantity] | None = None


class DeviceClassMapping(Strict):
    name: str
    device_class_names: list[str] | None = None
    sources: list[Any] | None = None


class ResourceSettings(Strict):
    quota_check_strategy: Literal["BlockUndeclared", "IgnoreUndeclared"] | None = None
    exclude_resource_prefixes: list[str] | None = None
    transformations: list[ResourceTransformation] | None = None
    device_class_mappings: list[DeviceClassMapping] | None = None


class WorkloadRetention(Strict):
    after_finished: str | None = None
    after_deactivated_by_kueue: str | None = None


class ObjectRetention(Strict):
    workloads: WorkloadRetention | None = None


class PriceSpec(Strict):
    """The price of one GPU for one hour. The first price that matches the flavor and the node counts."""

    name: str
    gpu_hour: Factor
    flavor: str | None = None
    node_labels: dict[str, str] | None = None


class AccountingSettings(Strict):
    """Labels, prices and retention of the usage ledger."""

    user_label: str | None = None
    labels: list[str] | None = None
    currency: str | None = None
    prices: list[PriceSpec] | None = None
    keep_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] | None = None
    gpu_weights: dict[str, float | str] | None = None


class NodeHealthSettings(Strict):
    """Which signals take a node out of placement, and for how long."""

    mode: HealthMode | None = None
    conditions: NodeConditions | None = None
    signals: list[HealthSignal] | None = None
    xids: list[Int32Count] | None = None
    hold: str | None = None
    throttled_above: Part | None = None
    most: Part | None = msgspec.field(name="maxUnhealthy", default=None)
    straggler_below: Part | None = None


class OwnSettings(Strict):
    """Fields particular to queuectl."""

    usage_before_priority: bool | None = None
    user_label: str | None = None
    trusted_submitters: list[str] | None = None
    backoff_jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    duration_quantile: Annotated[float, msgspec.Meta(ge=0.5, le=0.99)] | None = None
    eviction_grace: str | None = None
    node_health: NodeHealthSettings | None = None
    interruption_taints: list[str] | None = None
    interruption_conditions: NodeConditions | None = None
    accounting: AccountingSettings | None = None
    # YAML reads an unquoted on or off as a Boolean.
    kueue_keys: Literal["auto", "on", "off"] | bool | None = None
    max_pending: MaxPending | None = None
    admission_plugins: list[AdmissionPlugin] | None = None


# ---- known, not supported


class PodOptions(Strict):
    namespace_selector: Any = None
    pod_selector: Any = None


class Integrations(Strict):
    frameworks: list[str] | None = None
    external_frameworks: list[str] | None = None
    pod_options: PodOptions | None = None
    label_keys_to_copy: list[str] | None = None


class MultiKueue(Strict):
    gc_interval: str | None = None
    origin: str | None = None
    worker_lost_timeout: str | None = None
    dispatcher_name: str | None = None
    external_frameworks: Any = None
    cluster_profile: Any = None
    incremental_dispatcher_config: Any = None


# ---- about a manager's own process


class Webhook(Strict):
    port: Any = None
    host: Any = None
    cert_dir: Any = None


class Metrics(Strict):
    bind_address: Any = None
    enable_cluster_queue_resources: Any = None
    custom_labels: Any = None
    local_queue_metrics: Any = None


class Health(Strict):
    health_probe_bind_address: Any = None
    readiness_endpoint_name: Any = None
    liveness_endpoint_name: Any = None


class LeaderElection(Strict):
    leader_elect: Any = None
    lease_duration: Any = None
    renew_deadline: Any = None
    retry_period: Any = None
    resource_lock: Any = None
    resource_name: Any = None
    resource_namespace: Any = None


class Controller(Strict):
    group_kind_concurrency: Any = None
    cache_sync_timeout: Any = None


class ClientConnection(Strict):
    qps: Any = None
    burst: Any = None


class CertManagement(Strict):
    enable: Any = None
    webhook_service_name: Any = None
    webhook_secret_name: Any = None


class QueueVisibility(Strict):
    cluster_queues: Any = None
    update_interval_seconds: Any = None


class VisibilityServer(Strict):
    bind_address: Any = None
    bind_port: Any = None


class Tls(Strict):
    min_version: Any = None
    cipher_suites: Any = None
    curve_preferences: Any = None


class ConfigurationDocument(ObjectHead, kw_only=True):
    """One object: the rules for all queues, and what else Kueue keeps alongside them."""

    wait_for_pods_ready: WaitForPodsReady | None = None
    fair_sharing: FairSharingSettings | None = None
    admission_fair_sharing: AdmissionFairSharing | None = None
    resources: ResourceSettings | None = None
    object_retention_policies: ObjectRetention | None = None
    queuectl: OwnSettings | None = None

    manage_jobs_without_queue_name: bool | None = None
    managed_jobs_namespace_selector: SelectorSpec | None = None
    integrations: Integrations | None = None
    multi_kueue: MultiKueue | None = None
    feature_gates: dict[str, bool] | None = None

    namespace: str | None = None
    webhook: Webhook | None = None
    metrics: Metrics | None = None
    health: Health | None = None
    leader_election: LeaderElection | None = None
    controller: Controller | None = None
    client_connection: ClientConnection | None = None
    internal_cert_management: CertManagement | None = None
    pprof_bind_address: str | None = None
    queue_visibility: QueueVisibility | None = None
    visibility_server: VisibilityServer | None = None
    tls: Tls | None = None
