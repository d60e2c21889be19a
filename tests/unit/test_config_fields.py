"""Every field of every configuration kind: what it means here, that it is only warned about, or what it refuses.

One row a field. Field names and meanings are Kueue's unless they stand under ``policy`` or ``queuectl``. The last tests see
to it that no field of the reader is missing from the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from queuectl.domain.accounting import Accounting, Price
from queuectl.domain.budgets import GPU_HOUR, Budget, BudgetScope, TopUp, WhenSpent
from queuectl.domain.checks import EXTERNAL, PROVISIONING, AdmissionCheck, CheckRule
from queuectl.domain.fleet import Effect, NodeTemplate, Requirement, Taint, Toleration
from queuectl.domain.gpus import GpuWeights, SharedGpus
from queuectl.domain.mig import MigConfig, MigDevices, MigMode
from queuectl.domain.node_health import HealthMode, HealthSignal, NodeHealthRules, UnhealthyNodes
from queuectl.domain.provisioning import MergePolicy, ProvisioningConfig
from queuectl.domain.quantity import PODS, Resources
from queuectl.domain.queues import (
    Backfill,
    BackfillOrder,
    ClusterQueue,
    Cohort,
    Defragment,
    ExecutionLimits,
    FlavorOrder,
    FlavorPreference,
    FlavorQuotas,
    Fungibility,
    IdleReclaim,
    LabelSelector,
    LocalQueue,
    Protection,
    QueueingStrategy,
    QuotaOverride,
    ReclaimMode,
    ReclaimWithinCohort,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Topology,
    VictimKey,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.reservations import AdvanceReservation, ReservedCapacity
from queuectl.domain.rules import (
    AdmissionPlugin,
    FairStrategy,
    KueueKeys,
    PodsReadyRules,
    Retention,
    Rules,
    Transformation,
    UsageFairness,
)
from queuectl.domain.workload import TopologyMode, TopologyRequest
from queuectl.objects.configuration.queue_config import READERS, build, validate
from queuectl.objects.errors import DocumentError
from queuectl.objects.times import parse_time

OURS = "queuectl.dev/v1"
GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
FINAL = FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE
INITIAL = FairStrategy.LESS_THAN_INITIAL_SHARE

Fields = dict[str, Any]


def short(parameter: object) -> str:
    """The id of a parameter of a test."""
    return str(parameter)[:40]


def nested(path: str, value: Any) -> Fields:
    """``a.b`` and a value as the document fragment that contains it."""
    for part in reversed(path.split(".")):
        value = {part: value}
    fragment: Fields = value
    return fragment


BACKFILL = nested("spec.queueingStrategy", "Backfill")


def merged(*parts: Fields) -> Fields:
    result: Fields = {}
    for part in parts:
        for key, value in part.items():
            known = result.get(key)
            both = isinstance(known, dict) and isinstance(value, dict)
            result[key] = merged(known, value) if both else value  # type: ignore[arg-type]
    return result


BARE: dict[str, Fields] = {
    "ClusterQueue": {"spec": {}},
    "LocalQueue": {"spec": {"clusterQueue": "cq"}},
    "Cohort": {"spec": {}},
    "ResourceFlavor": {"spec": {}},
    "Topology": {"spec": {"levels": [{"nodeLabel": "rack"}]}},
    "AdmissionCheck": {"spec": {"controllerName": EXTERNAL}},
    "ProvisioningRequestConfig": {"spec": {"provisioningClassName": "class.example.com"}},
    "WorkloadPriorityClass": {"value": 0},
    "QuotaOverride": {
        "spec": {
            "clusterQueue": "cq",
            "flavor": "h100",
            "resource": GPU,
            "from": "2026-01-31T12:00:00Z",
            "until": "2026-01-31T13:00:00Z",
        }
    },
    "Budget": {"spec": {"namespace": "team", "gpuHoursPerMonth": 10}},
    "BudgetTopUp": {
        "spec": {"budget": "b", "month": "2026-11", "gpuHours": 1, "reason": "a deadline"}
    },
    "Reservation": {
        "spec": {"from": "2026-01-31T12:00:00Z", "until": "2026-01-31T13:00:00Z"},
    },
    "Configuration": {},
}


MAKES_NODES: Fields = {
    "spec": {
        "controllerName": PROVISIONING,
        "parameters": {
            "apiGroup": "kueue.x-k8s.io",
            "kind": "ProvisioningRequestConfig",
            "name": "x",
        },
    }
}


def document(kind: str, *parts: Fields, version: str = OURS) -> Fields:
    name = "default" if kind == "Configuration" else "x"
    head = {"apiVersion": version, "kind": kind, "metadata": {"name": name}}
    return merged(head, BARE[kind], *parts)


def read(kind: str, *parts: Fields, version: str = OURS) -> Any:
    """The value that the planner sees."""
    kept, _ = validate(document(kind, *parts, version=version))
    config = build([kept], 1)
    if kind == "Configuration":
        return config.rules
    if kind == "ProvisioningRequestConfig":
        return build([kept, document("AdmissionCheck", MAKES_NODES)], 1).checks["x"].provisioning
    tables: dict[str, Mapping[Any, Any]] = {
        "ClusterQueue": config.cluster_queues,
        "LocalQueue": config.local_queues,
        "Cohort": config.cohorts,
        "ResourceFlavor": config.flavors,
        "Topology": config.topologies,
        "AdmissionCheck": config.checks,
        "WorkloadPriorityClass": config.priority_classes,
        "QuotaOverride": config.overrides,
        "Budget": config.budgets,
        "BudgetTopUp": config.top_ups,
        "Reservation": config.reservations,
    }
    (value,) = tables[kind].values()
    return value


def group(**changes: Any) -> Fields:
    quota = {"name": GPU, "nominalQuota": 8, **changes}
    return {"coveredResources": [GPU], "flavors": [{"name": "h100", "resources": [quota]}]}


def groups(**changes: Any) -> list[Fields]:
    return [group(**changes)]


def quotas(**limits: Any) -> tuple[ResourceGroup, ...]:
    return (ResourceGroup((GPU,), (FlavorQuotas("h100", {GPU: 8}, **limits),)),)


# ---- honored: kind, field, value as written, what it changes in the domain's value

IN_COHORT = {"spec": {"cohortName": "c"}}

HONORED: list[tuple[str, str, Any, Fields, Fields]] = [
    # kind, field, value, fields that the domain's value gets, other fields of the document
    ("ClusterQueue", "spec.resourceGroups", groups(), {"groups": quotas()}, {}),
    ("ClusterQueue", "spec.resourceGroups.borrowingLimit", groups(borrowingLimit=4),
     {"groups": quotas(borrowing={GPU: 4}), "cohort": "c"}, IN_COHORT),
    ("ClusterQueue", "spec.resourceGroups.lendingLimit", groups(lendingLimit="2"),
     {"groups": quotas(lending={GPU: 2}), "cohort": "c"}, IN_COHORT),
    ("ClusterQueue", "spec.cohort", "c", {"cohort": "c"}, {}),
    ("ClusterQueue", "spec.cohortName", "c", {"cohort": "c"}, {}),
    ("ClusterQueue", "spec.queueingStrategy", "StrictFIFO", {"strategy": QueueingStrategy.STRICT_FIFO}, {}),
    ("ClusterQueue", "spec.namespaceSelector", {}, {"namespace_selector": LabelSelector()}, {}),
    ("ClusterQueue", "spec.namespaceSelector.matchLabels", {"team": "a"},
     {"namespace_selector": LabelSelector((Requirement("team", "In", ("a",)),))}, {}),
    ("ClusterQueue", "spec.namespaceSelector.matchExpressions", [{"key": "env", "operator": "In", "values": ["dev"]}],
     {"namespace_selector": LabelSelector((Requirement("env", "In", ("dev",)),))}, {}),
    ("ClusterQueue", "spec.flavorFungibility.whenCanBorrow", "TryNextFlavor",
     {"fungibility": Fungibility(when_can_borrow=WhenCan.TRY_NEXT_FLAVOR)}, {}),
    ("ClusterQueue", "spec.flavorFungibility.whenCanPreempt", "MayStopSearch",
     {"fungibility": Fungibility(when_can_preempt=WhenCan.MAY_STOP_SEARCH)}, {}),
    ("ClusterQueue", "spec.flavorFungibility.preference", "PreemptionOverBorrowing",
     {"fungibility": Fungibility(WhenCan.TRY_NEXT_FLAVOR, WhenCan.TRY_NEXT_FLAVOR,
                                 FlavorPreference.PREEMPTION_OVER_BORROWING)},
     nested("spec.flavorFungibility", {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"})),
    ("ClusterQueue", "spec.preemption.withinClusterQueue", "LowerOrNewerEqualPriority",
     {"within_cluster_queue": WithinClusterQueue.LOWER_OR_NEWER_EQUAL_PRIORITY}, {}),
    ("ClusterQueue", "spec.preemption.reclaimWithinCohort", "Any",
     {"reclaim_within_cohort": ReclaimWithinCohort.ANY}, {}),
    ("ClusterQueue", "spec.preemption.borrowWithinCohort.policy", "LowerPriority",
     {"reclaim_within_cohort": ReclaimWithinCohort.LOWER_PRIORITY, "preempts_to_borrow": True},
     nested("spec.preemption.reclaimWithinCohort", "LowerPriority")),
    ("ClusterQueue", "spec.preemption.borrowWithinCohort.maxPriorityThreshold", -5,
     {"reclaim_within_cohort": ReclaimWithinCohort.ANY, "preempts_to_borrow": True, "borrow_threshold": -5},
     nested("spec.preemption", {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}})),
    ("ClusterQueue", "spec.stopPolicy", "HoldAndDrain", {"stop_policy": StopPolicy.HOLD_AND_DRAIN}, {}),
    ("ClusterQueue", "spec.fairSharing.weight", "500m", {"weight": 500}, {}),
    ("ClusterQueue", "spec.admissionScope.admissionMode", "UsageBasedAdmissionFairSharing",
     {"usage_fairness": True}, {}),
    ("ClusterQueue", "spec.policy.victimOrder", ["count"], {"victim_order": (VictimKey.COUNT,)}, {}),
    ("ClusterQueue", "spec.policy.minRuntimeSeconds", 60, {"protection": Protection(min_runtime=60.0)}, {}),
    ("ClusterQueue", "spec.policy.maxEvictionsPerDay", 0, {"protection": Protection(max_evictions_per_day=0)}, {}),
    ("ClusterQueue", "spec.policy.cooldownSeconds", 5, {"protection": Protection(cooldown=5.0)}, {}),
    ("ClusterQueue", "spec.policy.defragment", "Execute", {"defragment": Defragment.EXECUTE}, {}),
    ("ClusterQueue", "spec.policy.defragmentBudget", 7200, {"defragment_budget": 7200}, {}),
    ("ClusterQueue", "spec.policy.maxPerUser", {GPU: "8", "cpu": "1500m"}, {"max_per_user": (("cpu", 1500), (GPU, 8))}, {}),
    ("ClusterQueue", "spec.policy.maxPerUser", {GPU: 0}, {"max_per_user": ((GPU, 0),)}, {}),
    ("ClusterQueue", "spec.policy.maxPriority", 100, {"max_priority": 100}, {}),
    ("ClusterQueue", "spec.policy.borrowBackoffSeconds", 0, {"borrow_backoff": 0.0}, {}),
    ("ClusterQueue", "spec.policy.preemptionOptOut", "Always", {"preemption_opt_out": "Always"}, {}),
    ("ClusterQueue", "spec.policy.preemptionOptOut", "Never", {"preemption_opt_out": "Never"}, {}),
    ("ClusterQueue", "spec.policy.unhealthyNodes", "Drain", {"unhealthy_nodes": UnhealthyNodes.DRAIN}, {}),
    ("ClusterQueue", "spec.queueingStrategy", "Backfill", {"strategy": QueueingStrategy.BACKFILL}, {}),
    ("ClusterQueue", "spec.policy.plannedStarts", 3,
     {"strategy": QueueingStrategy.BACKFILL, "backfill": Backfill(3)}, BACKFILL),
    ("ClusterQueue", "spec.policy.backfillOrder", "Queue",
     {"strategy": QueueingStrategy.BACKFILL, "backfill": Backfill(order=BackfillOrder.QUEUE)}, BACKFILL),
    ("ClusterQueue", "spec.policy.plannedStartDelay", 0,
     {"strategy": QueueingStrategy.BACKFILL, "backfill": Backfill(delay=0.0)}, BACKFILL),
    ("ClusterQueue", "spec.policy.trustCheckpoints", False, {"trusts_checkpoints": False}, {}),
    ("ClusterQueue", "spec.policy.sharedGpus", "Never", {"shared_gpus": SharedGpus.NEVER}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.maxWarmupSeconds", 0, {"idle_reclaim": IdleReclaim(max_warmup=0.0)}, {}),
    ("ClusterQueue", "spec.policy.borrowBackoffSeconds", 90, {"borrow_backoff": 90.0}, {}),
    ("ClusterQueue", "spec.policy.reclaimPatienceSeconds", 0, {"reclaim_patience": 0.0}, {}),
    ("ClusterQueue", "spec.policy.defaultMaxExecTimeSeconds", 3600, {"execution": ExecutionLimits(default=3600.0)}, {}),
    ("ClusterQueue", "spec.policy.timeSliceSeconds", 3600, {"time_slice": 3600.0}, {}),
    ("ClusterQueue", "spec.policy.maxExecTimeSeconds", 86400, {"execution": ExecutionLimits(most=86400.0)}, {}),
    ("ClusterQueue", "spec.policy.reclaimPatienceSeconds", 90, {"reclaim_patience": 90.0}, {}),
    ("ClusterQueue", "spec.policy.splitFlavors", True, {"split_flavors": True}, {}),
    ("ClusterQueue", "spec.policy.evictWithinNominal", True, {"evicts_within_nominal": True}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.mode", "Off", {"idle_reclaim": IdleReclaim(ReclaimMode.OFF)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.windowSeconds", 900, {"idle_reclaim": IdleReclaim(window=900.0)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.warmupSeconds", 0, {"idle_reclaim": IdleReclaim(warmup=0.0)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.idleBelow", 0.01, {"idle_reclaim": IdleReclaim(idle_below=0.01)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.activeAbove", 0.1, {"idle_reclaim": IdleReclaim(active_above=0.1)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.lowBelow", 0.3, {"idle_reclaim": IdleReclaim(low_below=0.3)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.memoryAbove", 0.5, {"idle_reclaim": IdleReclaim(memory_above=0.5)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.memoryWindowSeconds", 3600,
     {"idle_reclaim": IdleReclaim(memory_window=3600.0)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.graceSeconds", 60, {"idle_reclaim": IdleReclaim(grace=60.0)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.cooldownSeconds", 0, {"idle_reclaim": IdleReclaim(cooldown=0.0)}, {}),
    ("ClusterQueue", "spec.policy.idleReclaim.yieldsToEqualPriority", True,
     {"idle_reclaim": IdleReclaim(to_equal=True)}, {}),
    ("ClusterQueue", "spec.policy.quotaFromNodes", {}, {"headroom": 0.0}, {}),
    ("ClusterQueue", "spec.policy.quotaFromNodes.headroom", "12.5%", {"headroom": 0.125}, {}),
    ("LocalQueue", "spec.clusterQueue", "other", {"cluster_queue": "other"}, {}),
    ("LocalQueue", "spec.stopPolicy", "Hold", {"stop_policy": StopPolicy.HOLD}, {}),
    ("LocalQueue", "spec.fairSharing.weight", 2, {"weight": 2000}, {}),
    ("LocalQueue", "spec.policy.maxPending", 500, {"max_pending": 500}, {}),
    ("Cohort", "spec.parentName", "root", {"parent": "root"}, {}),
    ("Cohort", "spec.resourceGroups", groups(), {"groups": quotas()}, {}),
    ("Cohort", "spec.resourceGroups.borrowingLimit", groups(borrowingLimit=4),
     {"groups": quotas(borrowing={GPU: 4}), "parent": "p"}, nested("spec.parentName", "p")),
    ("Cohort", "spec.fairSharing.weight", 0, {"weight": 0}, {}),
    ("Cohort", "spec.queueingStrategy", "Backfill", {"backfill": Backfill()}, {}),
    ("Cohort", "spec.policy.plannedStarts", 3, {"backfill": Backfill(3)}, BACKFILL),
    ("Cohort", "spec.policy.backfillOrder", "Queue",
     {"backfill": Backfill(order=BackfillOrder.QUEUE)}, BACKFILL),
    ("Cohort", "spec.policy.plannedStartDelay", 0.5, {"backfill": Backfill(delay=0.5)}, BACKFILL),
    ("ResourceFlavor", "spec.nodeLabels", {"gpu": "h100"}, {"node_labels": (("gpu", "h100"),)}, {}),
    ("ResourceFlavor", "spec.nodeTaints", [{"key": "spot", "value": "1", "effect": "NoSchedule", "timeAdded": "now"}],
     {"node_taints": (Taint("spot", Effect.NO_SCHEDULE, "1"),)}, {}),
    ("ResourceFlavor", "spec.tolerations",
     [{"key": "spot", "operator": "Equal", "value": "1", "effect": "NoExecute", "tolerationSeconds": 5}],
     {"tolerations": (Toleration("spot", "Equal", "1", Effect.NO_EXECUTE, 5),)}, {}),
    ("ResourceFlavor", "spec.topologyName", "racks", {"topology": "racks"}, {}),
    ("AdmissionCheck", "spec.policy.timeoutSeconds", 60, {"timeout": 60.0}, {}),
    ("AdmissionCheck", "spec.controllerName", PROVISIONING,
     {"controller": PROVISIONING, "settings": "x"}, nested("spec.parameters", MAKES_NODES["spec"]["parameters"])),
    ("ProvisioningRequestConfig", "spec.provisioningClassName", "other", {"class_name": "other"}, {}),
    ("ProvisioningRequestConfig", "spec.parameters", {"b": "2", "a": "1"}, {"parameters": (("a", "1"), ("b", "2"))}, {}),
    ("ProvisioningRequestConfig", "spec.managedResources", [GPU], {"managed": frozenset({GPU})}, {}),
    ("ProvisioningRequestConfig", "spec.retryStrategy.backoffLimitCount", 0, {"retries": 0}, {}),
    ("ProvisioningRequestConfig", "spec.retryStrategy.backoffBaseSeconds", 5, {"backoff_base": 5.0}, {}),
    ("ProvisioningRequestConfig", "spec.retryStrategy.backoffMaxSeconds", 9, {"backoff_ceiling": 9.0}, {}),
    ("ProvisioningRequestConfig", "spec.podSetUpdates.nodeSelector",
     [{"key": "pool", "valueFromProvisioningClassDetail": "name"}], {"selectors": (("pool", "name"),)}, {}),
    ("ProvisioningRequestConfig", "spec.podSetMergePolicy", "IdenticalPodTemplates", {"merge": MergePolicy.TEMPLATES}, {}),
    ("ClusterQueue", "spec.policy.flavorOrder", "Cheapest", {"flavor_order": FlavorOrder.CHEAPEST}, {}),
    ("ResourceFlavor", "spec.policy.nodeTemplate",
     {"allocatable": {GPU: "8", "pods": 20}, "maximumNodes": 6, "labels": {"kind": "h100"},
      "taints": [{"key": "spot", "value": "yes", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}], "nodesPerDomain": {"rack": 2}},
     {"topology": "t", "node_template": NodeTemplate(
         Resources({GPU: 8, PODS: 20}), 6, (("kind", "h100"),), (Taint("spot", Effect.NO_SCHEDULE, "yes"),), (("rack", 2),))},
     nested("spec.topologyName", "t")),
    ("ResourceFlavor", "spec.policy.nodeTemplate", {"allocatable": {}, "maximumNodes": 1},
     {"topology": "t", "node_template": NodeTemplate(Resources({PODS: 110}), 1)}, nested("spec.topologyName", "t")),
    ("ResourceFlavor", "spec.policy.migConfigs",
     {"x": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}, {"devices": "all", "mig-enabled": False}]},
     {"mig_configs": (MigConfig("x", (MigDevices((0,), (("1g.5gb", 7),)), MigDevices())),),
      "node_labels": (("gpu", "a100"),)}, nested("spec.nodeLabels", {"gpu": "a100"})),
    ("ResourceFlavor", "spec.policy.migReconfiguration", "Execute",
     {"mig_reconfiguration": MigMode.EXECUTE, "node_labels": (("gpu", "a100"),),
      "mig_configs": (MigConfig("x", (MigDevices(),)),)},
     {"spec": {"nodeLabels": {"gpu": "a100"}, "policy": {"migConfigs": {"x": [{"devices": "all", "mig-enabled": False}]}}}}),
    ("Topology", "spec.levels", [{"nodeLabel": "rack"}, {"nodeLabel": HOST}], {"levels": ("rack", HOST)}, {}),
    ("Configuration", "fairSharing.preemptionStrategies", [INITIAL], {"fair_sharing": (INITIAL,)}, {}),
    ("Configuration", "fairSharing.preemptionStrategies", [], {"fair_sharing": (FINAL, INITIAL)}, {}),
    ("Configuration", "fairSharing.enable", True, {"fair_sharing": (FINAL, INITIAL)}, {}),
    ("Configuration", "admissionFairSharing.usageHalfLifeTime", "168h",
     {"usage_fairness": UsageFairness(half_life=604800.0)}, {}),
    ("Configuration", "admissionFairSharing.usageSamplingInterval", "1m30s",
     {"usage_fairness": UsageFairness(half_life=60.0, sampling=90.0)}, nested("admissionFairSharing.usageHalfLifeTime", "1m")),
    ("Configuration", "admissionFairSharing.resourceWeights", {"cpu": 0, GPU: 2.5},
     {"usage_fairness": UsageFairness(half_life=60.0, resource_weights={"cpu": 0.0, GPU: 2.5})},
     nested("admissionFairSharing.usageHalfLifeTime", "1m")),
    ("Configuration", "queuectl.usageBeforePriority", True,
     {"usage_fairness": UsageFairness(half_life=60.0, before_priority=True)},
     nested("admissionFairSharing.usageHalfLifeTime", "1m")),
    ("Configuration", "queuectl.userLabel", "example.com/user",
     {"usage_fairness": UsageFairness(half_life=60.0, user_label="example.com/user")},
     nested("admissionFairSharing.usageHalfLifeTime", "1m")),
    ("Configuration", "queuectl.durationQuantile", 0.9, {"duration_quantile": 0.9}, {}),
    ("Configuration", "queuectl.maxPending", 2**31 - 1, {"max_pending": 2**31 - 1}, {}),
    ("Configuration", "queuectl.backoffJitter", 0.5, {"pods_ready": PodsReadyRules(backoff_jitter=0.5)}, {}),
    ("Configuration", "queuectl.evictionGrace", "30s", {"eviction_grace": 30.0}, {}),
    ("Configuration", "queuectl.nodeHealth.mode", "Report", {"node_health": NodeHealthRules(HealthMode.REPORT)}, {}),
    ("Configuration", "queuectl.nodeHealth.conditions", {"GpuBad": "True", "GpuReady": False},
     {"node_health": NodeHealthRules(conditions=(("GpuBad", "True"), ("GpuReady", "False")))}, {}),
    ("Configuration", "queuectl.nodeHealth.signals", ["Xid"], {"node_health": NodeHealthRules(signals=(HealthSignal.XID,))}, {}),
    ("Configuration", "queuectl.nodeHealth.xids", [79, 74], {"node_health": NodeHealthRules(xids=(79, 74))}, {}),
    ("Configuration", "queuectl.nodeHealth.hold", "1h", {"node_health": NodeHealthRules(hold=3600.0)}, {}),
    ("Configuration", "queuectl.nodeHealth.throttledAbove", 0.9, {"node_health": NodeHealthRules(throttled_above=0.9)}, {}),
    ("Configuration", "queuectl.nodeHealth.stragglerBelow", 0, {"node_health": NodeHealthRules(straggler_below=0.0)}, {}),
    ("Configuration", "queuectl.interruptionConditions", {"VMEventScheduled": True},
     {"interruption_conditions": (("VMEventScheduled", "True"),)}, {}),
    ("Configuration", "queuectl.interruptionTaints", ["example.com/leaving"], {"interruption_taints": ("example.com/leaving",)}, {}),
    ("Configuration", "queuectl.nodeHealth.maxUnhealthy", 0.1, {"node_health": NodeHealthRules(most=0.1)}, {}),
    ("Configuration", "queuectl.kueueKeys", "on", {"kueue_keys": KueueKeys.ON}, {}),
    ("Configuration", "resources.deviceClassMappings",
     [{"name": "e.com/gpu", "deviceClassNames": ["b", "a"]}, {"name": "e.com/fpga", "deviceClassNames": ["c"], "sources": []}],
     {"device_classes": (("a", "e.com/gpu"), ("b", "e.com/gpu"), ("c", "e.com/fpga"))}, {}),
    ("Configuration", "queuectl.admissionPlugins", ["PodNodeSelector"],
     {"admission_plugins": frozenset({AdmissionPlugin.POD_NODE_SELECTOR})}, {}),
    ("Configuration", "queuectl.trustedSubmitters", ["system:serviceaccount:ci:runner"],
     {"trusted_submitters": frozenset({"system:serviceaccount:ci:runner"})}, {}),
    ("Configuration", "queuectl.accounting.userLabel", "example.com/user",
     {"accounting": Accounting(user_label="example.com/user")}, {}),
    ("Configuration", "queuectl.accounting.labels", ["team", "example.com/project"],
     {"accounting": Accounting(labels=("team", "example.com/project"))}, {}),
    ("Configuration", "queuectl.accounting.currency", "EUR", {"accounting": Accounting(currency="EUR")}, {}),
    ("Configuration", "queuectl.accounting.keepDays", 90, {"accounting": Accounting(keep_days=90)}, {}),
    ("Configuration", "queuectl.accounting.prices",
     [{"name": "spot", "gpuHour": 1.25, "flavor": "h100", "nodeLabels": {"capacity": "spot"}}, {"name": "rest", "gpuHour": 2}],
     {"accounting": Accounting(prices=(Price("spot", 1.25, "h100", (("capacity", "spot"),)), Price("rest", 2.0)))}, {}),
    ("Configuration", "queuectl.accounting.gpuWeights", {"nvidia.com/mig-1g.6gb": 0.1, "example.com/gpu": "2/7"},
     {"accounting": Accounting(gpus=GpuWeights((("example.com/gpu", Fraction(2, 7)), ("nvidia.com/mig-1g.6gb", Fraction(1, 10)))))}, {}),
    ("Configuration", "resources.quotaCheckStrategy", "IgnoreUndeclared", {"ignore_undeclared": True}, {}),
    ("Configuration", "resources.excludeResourcePrefixes", ["networking.example.com/"],
     {"excluded_prefixes": ("networking.example.com/",)}, {}),
    ("Configuration", "resources.transformations",
     [{"input": "cpu", "strategy": "Replace", "multiplyBy": GPU, "outputs": {"example.com/credits": "1.5"}}],
     {"transformations": (Transformation("cpu", {"example.com/credits": Fraction(3, 2)}, GPU, retain=False),)}, {}),
    ("Configuration", "waitForPodsReady.timeout", "10m",
     {"pods_ready": PodsReadyRules(timeout=600.0, recovery_timeout=600.0)}, {}),
    ("Configuration", "waitForPodsReady.recoveryTimeout", "3m", {"pods_ready": PodsReadyRules(recovery_timeout=180.0)}, {}),
    ("Configuration", "waitForPodsReady.requeuingStrategy.timestamp", "Creation",
     {"pods_ready": PodsReadyRules(requeue_by_eviction=False)}, {}),
    ("Configuration", "waitForPodsReady.requeuingStrategy.backoffLimitCount", 3,
     {"pods_ready": PodsReadyRules(backoff_limit=3)}, {}),
    ("Configuration", "waitForPodsReady.requeuingStrategy.backoffBaseSeconds", 5,
     {"pods_ready": PodsReadyRules(backoff_base=5.0)}, {}),
    ("Configuration", "waitForPodsReady.requeuingStrategy.backoffMaxSeconds", 90,
     {"pods_ready": PodsReadyRules(backoff_ceiling=90.0)}, {}),
    ("Configuration", "objectRetentionPolicies.workloads.afterFinished", "24h",
     {"retention": Retention(after_finished=86400.0)}, {}),
    ("Configuration", "objectRetentionPolicies.workloads.afterDeactivatedByKueue", "0s",
     {"retention": Retention(after_deactivated=0.0)}, {}),
]  # fmt: skip


def written(field: str, value: Any) -> Fields:
    """A row's value at its place. Fields of quotas stand inside the groups that the row gives."""
    for inner in (".borrowingLimit", ".lendingLimit"):
        field = field.removesuffix(inner)
    return nested(field, value)


@pytest.mark.parametrize(("kind", "field", "value", "means", "beside"), HONORED, ids=short)
def test_an_honored_field_means_this_and_nothing_else(
    kind: str, field: str, value: Any, means: Fields, beside: Fields
) -> None:
    parts = (beside, written(field, value))
    _, warnings = validate(document(kind, *parts))
    usage = "usage_fairness" in means and "usageBeforePriority" not in field
    assert len(warnings) == (kind == "Configuration" and usage)  # that it counts after priority
    plain = DEFAULTS[kind]
    assert read(kind, *parts) == replace(plain, **means)
    assert means, "a row states the change"


DEFAULTS: dict[str, Any] = {
    "ClusterQueue": ClusterQueue("x"),
    "LocalQueue": LocalQueue("default", "x", "cq"),
    "Cohort": Cohort("x"),
    "ResourceFlavor": ResourceFlavor("x"),
    "Topology": Topology("x", ("rack",)),
    "AdmissionCheck": AdmissionCheck("x", EXTERNAL),
    "ProvisioningRequestConfig": ProvisioningConfig("x", "class.example.com"),
    "Configuration": Rules(),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_without_a_field_its_default_holds(kind: str) -> None:
    assert read(kind) == DEFAULTS[kind]
    assert validate(document(kind))[1] == ()


NIGHT = QuotaOverride("x", "cq", "h100", GPU, 1769860800.0, 1769864400.0)
AMOUNTS: list[tuple[Fields, QuotaOverride]] = [
    ({"add": 8}, replace(NIGHT, add=8)),
    ({"add": "-8"}, replace(NIGHT, add=-8)),
    ({"add": -8, "reason": "a test bed is borrowed"}, replace(NIGHT, add=-8)),
    ({"nominalQuota": "16"}, replace(NIGHT, nominal=16)),
    ({"nominalQuota": 0}, replace(NIGHT, nominal=0)),
    ({"resource": "cpu", "add": "500m"}, replace(NIGHT, resource="cpu", add=500)),
    ({"resource": "memory", "add": "-1Gi"}, replace(NIGHT, resource="memory", add=-(2**30))),
    ({"add": 1, "from": "2026-01-31T13:30:00+02:00"}, replace(NIGHT, add=1, begins=1769859000.0)),
]


@pytest.mark.parametrize(("spec", "means"), AMOUNTS, ids=short)
def test_an_override_has_an_amount_a_start_and_an_end(spec: Fields, means: QuotaOverride) -> None:
    assert read("QuotaOverride", {"spec": spec}) == means


TEAM = Budget("x", BudgetScope.NAMESPACE, "team", 10 * GPU_HOUR)
BUDGETS: list[tuple[Fields, Budget]] = [
    ({}, TEAM),
    ({"gpuHoursPerMonth": "0.1"}, replace(TEAM, monthly=GPU_HOUR // 10)),
    ({"gpuHoursPerMonth": "1/3"}, replace(TEAM, monthly=GPU_HOUR // 3)),
    ({"gpuHoursPerMonth": 0}, replace(TEAM, monthly=0)),
    ({"namespace": None, "user": "ann@example.com"}, replace(TEAM, scope=BudgetScope.USER, holder="ann@example.com")),
    ({"namespace": None, "clusterQueue": "cq"}, replace(TEAM, scope=BudgetScope.CLUSTER_QUEUE, holder="cq")),
    ({"namespace": None, "localQueue": "team/q"}, replace(TEAM, scope=BudgetScope.LOCAL_QUEUE, holder="team/q")),
    ({"timeZone": "Europe/Berlin"}, replace(TEAM, time_zone="Europe/Berlin")),
    ({"whenSpent": "Hold", "wholeRun": True}, replace(TEAM, whole_run=True)),
    ({"whenSpent": "LowerPriority", "priorityWhenSpent": -5}, replace(TEAM, when_spent=WhenSpent.LOWER_PRIORITY, priority_when_spent=-5)),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "means"), BUDGETS, ids=short)
def test_a_budget_names_a_spender_and_gpu_hours_of_each_month(spec: Fields, means: Budget) -> None:
    assert read("Budget", {"spec": spec}) == means


MORE = TopUp("x", "b", "2026-11", GPU_HOUR, "a deadline")
TOP_UPS: list[tuple[Fields, TopUp]] = [
    ({}, MORE),
    ({"budget": "c", "month": "2027-01"}, replace(MORE, budget="c", month="2027-01")),
    ({"gpuHours": "2.5", "reason": "r"}, replace(MORE, amount=GPU_HOUR * 5 // 2, reason="r")),
    ({"by": "ann", "at": "2026-11-23T12:00:00Z"}, replace(MORE, by="ann", at="2026-11-23T12:00:00Z")),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "means"), TOP_UPS, ids=short)
def test_a_top_up_adds_gpu_hours_to_one_month(spec: Fields, means: TopUp) -> None:
    assert read("BudgetTopUp", {"spec": spec}) == means


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"clusterQueue": "cq"}, "spec: give one of clusterQueue, localQueue, namespace, user"),
        ({"namespace": None}, "spec: give one of clusterQueue, localQueue, namespace, user"),
        ({"whenSpent": "LowerPriority"}, "spec.priorityWhenSpent: give it if whenSpent is LowerPriority"),
        ({"whenSpent": "LowerPriority", "priorityWhenSpent": 1, "wholeRun": True}, "spec.wholeRun: has no effect"),
    ],
    ids=str,
)  # fmt: skip
def test_a_budget_with_contradictory_fields_is_refused(spec: Fields, says: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(says)):
        validate(document("Budget", {"spec": spec}))


def test_a_month_begins_at_midnight_of_its_time_zone() -> None:
    at = parse_time("2026-10-31T23:30:00Z")
    assert replace(TEAM, time_zone="UTC").month(at).name == "2026-10"
    berlin = replace(TEAM, time_zone="Europe/Berlin").month(at)
    begins, ends = parse_time("2026-10-31T23:00:00Z"), parse_time("2026-11-30T23:00:00Z")
    assert (berlin.name, berlin.begins, berlin.ends) == ("2026-11", begins, ends)
    october = replace(TEAM, time_zone="Europe/Berlin").month(at - 3600)
    assert october.ends - october.begins == (31 * 24 + 1) * 3600  # summer time ends in it


GANG = {"pods": 4, "requests": {GPU: 8}}
ASKED = ReservedCapacity(4, Resources({GPU: 8, "pods": 1}))
HELD = AdvanceReservation("x", 1769860800.0, 1769864400.0, cluster_queue="cq", capacity=ASKED)
RESERVED: list[tuple[Fields, AdvanceReservation]] = [
    ({"clusterQueue": "cq", "capacity": GANG, "reason": "a demo"}, HELD),
    ({"clusterQueue": "cq", "capacity": GANG, "evict": True}, replace(HELD, evicts=True)),
    (
        {"clusterQueue": "cq", "capacity": GANG, "users": ["eve"], "namespaces": ["team"]},
        replace(HELD, users=frozenset({"eve"}), namespaces=frozenset({"team"})),
    ),
    (
        {"clusterQueue": "cq", "capacity": GANG, "recurrence": "FREQ=WEEKLY"},
        replace(HELD, recurrence="FREQ=WEEKLY"),
    ),
    (
        {
            "clusterQueue": "cq",
            "capacity": {**GANG, "flavor": "h100", "nodeSelector": {"zone": "a"}},
        },
        replace(HELD, capacity=replace(ASKED, flavor="h100", node_labels=(("zone", "a"),))),
    ),
    (
        {"clusterQueue": "cq", "capacity": {**GANG, "requiredTopology": "rack"}},
        replace(
            HELD,
            capacity=replace(ASKED, topology=TopologyRequest(TopologyMode.REQUIRED, "rack")),
        ),
    ),
    (
        {"clusterQueue": "cq", "capacity": {**GANG, "preferredTopology": "rack"}},
        replace(
            HELD,
            capacity=replace(ASKED, topology=TopologyRequest(TopologyMode.PREFERRED, "rack")),
        ),
    ),
    (
        {"nodes": ["b", "a"]},
        replace(HELD, cluster_queue=None, capacity=None, nodes=("a", "b")),
    ),
]


@pytest.mark.parametrize(("spec", "means"), RESERVED, ids=short)
def test_a_reservation_has_capacity_or_nodes_and_times(
    spec: Fields, means: AdvanceReservation
) -> None:
    assert read("Reservation", {"spec": spec}) == means


NOON = 1769860800.0
DAY = 86400.0
OCCURRENCES: list[tuple[str, float, tuple[float, float] | None]] = [
    ("", -10, (0, 3600)),
    ("", 0, (0, 3600)),
    ("", 3599, (0, 3600)),
    ("", 3600, None),
    ("FREQ=WEEKLY", 3599, (0, 3600)),
    ("FREQ=WEEKLY", 3600, (7 * DAY, 7 * DAY + 3600)),
    ("FREQ=WEEKLY", 70 * DAY + 5, (70 * DAY, 70 * DAY + 3600)),
    ("RRULE:FREQ=DAILY;COUNT=2", 0, (0, 3600)),
    ("FREQ=DAILY;COUNT=2", DAY, (DAY, DAY + 3600)),
    ("FREQ=DAILY;COUNT=2", DAY + 3600, None),
    ("FREQ=DAILY;UNTIL=20260203T000000Z", 2 * DAY + 3600, None),
]


@pytest.mark.parametrize(("rule", "at", "times"), OCCURRENCES)
def test_the_current_or_next_occurrence_counts(
    rule: str, at: float, times: tuple[float, float] | None
) -> None:
    repeats = {"recurrence": rule} if rule else {}
    found = read("Reservation", {"spec": {"nodes": ["a"], **repeats}}).occurrence(NOON + at)
    assert found == (None if times is None else (NOON + times[0], NOON + times[1]))


def test_a_priority_class_has_a_value_and_a_description() -> None:
    assert read("WorkloadPriorityClass", {"value": -7, "description": "low"}) == -7


# ---- known, not supported: one warning names the field, and the object has the same meaning as without it

WARNED: list[tuple[str, str, Any]] = [
    ("AdmissionCheck", "spec.retryDelayMinutes", 15),
    ("AdmissionCheck", "spec.parameters", {"apiGroup": "g", "kind": "K", "name": "n"}),
    ("ClusterQueue", "spec.concurrentAdmissionPolicy", {"migration": {"mode": "TryPreferredFlavors"}}),
    ("Configuration", "waitForPodsReady.blockAdmission", True),
    ("Configuration", "waitForPodsReady.enable", False),
    ("Configuration", "manageJobsWithoutQueueName", True),
    ("Configuration", "managedJobsNamespaceSelector", {"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["x"]}]}),
    ("Configuration", "integrations", {"frameworks": ["batch/job"], "externalFrameworks": ["F.v1.e.com"],
                                       "labelKeysToCopy": ["a"], "podOptions": {"podSelector": {}, "namespaceSelector": {}}}),
    ("Configuration", "multiKueue", {"gcInterval": "1m", "origin": "o", "workerLostTimeout": "15m", "dispatcherName": "d",
                                     "externalFrameworks": [], "clusterProfile": {}, "incrementalDispatcherConfig": {}}),
    ("Configuration", "featureGates", {"TopologyAwareScheduling": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "value"), WARNED, ids=short)
def test_a_known_field_without_effect_gives_a_warning(kind: str, field: str, value: Any) -> None:
    part = nested(field, value)
    _, warnings = validate(document(kind, part))
    (warning,) = warnings
    name = document(kind)["metadata"]["name"]
    assert warning.startswith(f"{kind}/{name}: {field}: ")
    assert warning.endswith(": not supported") or "is not supported" in warning
    assert read(kind, part) == DEFAULTS[kind]


def test_a_mapping_of_counters_gives_a_warning_and_is_not_charged() -> None:
    source = {"counter": {"name": "memory", "driver": "gpu.example.com"}}
    mapping = {"name": "e.com/memory", "deviceClassNames": ["gpu"], "sources": [source]}
    part = nested(MAPPINGS, [mapping])
    _, warnings = validate(document("Configuration", part))
    name = document("Configuration")["metadata"]["name"]
    assert list(warnings) == [f"Configuration/{name}: {MAPPINGS}[0].sources: not supported"]
    assert read("Configuration", part) == DEFAULTS["Configuration"]


CHECKS: list[tuple[Fields, tuple[CheckRule, ...], list[str]]] = [
    # spec, rules, warnings
    ({"admissionChecks": []}, (), []),
    ({"admissionChecks": ["b", "a"]}, (CheckRule("a"), CheckRule("b")), []),
    ({"admissionChecksStrategy": {"admissionChecks": []}}, (), []),
    (
        {"admissionChecksStrategy": {"admissionChecks": [{"name": "a", "onFlavors": ["f"]}]}},
        (CheckRule("a", frozenset({"f"})),),
        [
            "spec.admissionChecksStrategy.admissionChecks[0].onFlavors: f: not a flavor of this ClusterQueue"
        ],
    ),
]


@pytest.mark.parametrize(("spec", "rules", "warned"), CHECKS, ids=short)
def test_a_cluster_queue_names_admission_checks_by_flavor(
    spec: Fields, rules: tuple[CheckRule, ...], warned: list[str]
) -> None:
    assert read("ClusterQueue", {"spec": spec}).admission_checks == rules
    _, warnings = validate(document("ClusterQueue", {"spec": spec}))
    assert warnings == tuple(f"ClusterQueue/x: {text}" for text in warned)


@pytest.mark.parametrize("mode", list(ReclaimMode))
def test_each_mode_of_idle_reclaim_is_honored(
    mode: ReclaimMode,
) -> None:
    part = nested("spec.policy.idleReclaim.mode", mode.value)
    _, warnings = validate(document("ClusterQueue", part))
    assert not warnings
    assert read("ClusterQueue", part).idle_reclaim == IdleReclaim(mode)


# ---- about a Kueue manager's own process: no effect and no warning

PASSED_OVER: list[tuple[str, Any]] = [
    ("namespace", "kueue-system"),
    ("webhook", {"port": 9443, "host": "", "certDir": "certs"}),
    ("metrics", {"bindAddress": ":8443", "enableClusterQueueResources": True, "customLabels": [], "localQueueMetrics": {}}),
    ("health", {"healthProbeBindAddress": ":8081", "readinessEndpointName": "r", "livenessEndpointName": "l"}),
    ("leaderElection", {"leaderElect": True, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s",
                        "resourceLock": "leases", "resourceName": "n", "resourceNamespace": "ns"}),
    ("controller", {"groupKindConcurrency": {"Job.batch": 5}, "cacheSyncTimeout": 5}),
    ("clientConnection", {"qps": 300, "burst": 500}),
    ("internalCertManagement", {"enable": False, "webhookServiceName": "s", "webhookSecretName": "t"}),
    ("pprofBindAddress", ":8083"),
    ("queueVisibility", {"clusterQueues": {"maxCount": 10}, "updateIntervalSeconds": 5}),
    ("visibilityServer", {"bindAddress": "0.0.0.0", "bindPort": 8082}),
    ("tls", {"minVersion": "VersionTLS12", "cipherSuites": [], "curvePreferences": []}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), PASSED_OVER, ids=short)
def test_what_runs_a_kueue_manager_means_nothing_here(field: str, value: Any) -> None:
    part = nested(field, value)
    assert validate(document("Configuration", part))[1] == ()
    assert read("Configuration", part) == Rules()
    if isinstance(value, dict):
        with pytest.raises(
            DocumentError, match=rf"Configuration/default: {field}\.color: unknown field"
        ):
            validate(document("Configuration", part, nested(f"{field}.color", "red")))


# ---- refused

WAITS, REQUEUE = "waitForPodsReady", "waitForPodsReady.requeuingStrategy"
TRANSFORM = "resources.transformations"
MAPPINGS = "resources.deviceClassMappings"
REFUSED: list[tuple[str, str, Any, str]] = [
    ("AdmissionCheck", "spec.controllerName", "", "is empty"),
    ("ProvisioningRequestConfig", "spec.provisioningClassName", "", "'' is not a name"),
    ("ProvisioningRequestConfig", "spec.parameters", {"a": "x" * 256}, "is longer than 255 characters"),
    ("ProvisioningRequestConfig", "spec.managedResources", [GPU, GPU], "resource 'nvidia.com/gpu' occurs 2 times"),
    ("ProvisioningRequestConfig", "spec.retryStrategy.backoffLimitCount", -1, "expected `int` >= 0"),
    ("ProvisioningRequestConfig", "spec.podSetMergePolicy", "Any", "'Any'"),
    ("ProvisioningRequestConfig", "spec.podSetUpdates.nodeSelector",
     [{"key": "a b", "valueFromProvisioningClassDetail": "x"}], "'a b' is not a node label key"),
    ("ProvisioningRequestConfig", "spec.podSetUpdates.nodeSelector",
     [{"key": "a", "valueFromProvisioningClassDetail": ""}], "is empty"),
    ("Configuration", "queuectl.interruptionConditions", {"VMEventScheduled": "Maybe"}, "invalid"),
    ("Configuration", "queuectl.interruptionTaints", ["a b"], "'a b' is not the key of a taint"),
    ("AdmissionCheck", "spec.policy.timeoutSeconds", 0, "expected `int` >= 1"),
    ("ClusterQueue", "spec.admissionChecks", ["a", "a"], "'a' is there twice"),
    ("ClusterQueue", "spec.admissionChecks", ["A B"], "'A B' is not the name of an AdmissionCheck"),
    ("ClusterQueue", "spec.admissionChecks", [f"c{n}" for n in range(9)], "9 are more than 8"),
    ("ClusterQueue", "spec.fairSharing.weight", "-1", "'-1' is not a number of at least 0"),
    ("ClusterQueue", "spec.fairSharing.weight", "heavy", "'heavy' is not a number of at least 0"),
    ("LocalQueue", "spec.fairSharing.weight", -1, "'-1' is not a number of at least 0"),
    ("Cohort", "spec.fairSharing.weight", "1 kg", "'1 kg' is not a number of at least 0"),
    ("ClusterQueue", "spec.fairSharing.wait", 1, "unknown field"),
    ("ClusterQueue", "spec.policy.idleReclaim", "Always", "expected `object | null`, got `str`"),
    ("ClusterQueue", "spec.policy.idleReclaim.mode", "Sometimes", "invalid enum value 'Sometimes'"),
    ("ClusterQueue", "spec.policy.quotaFromNodes", True, "expected `object | null`, got `bool`"),
    ("ClusterQueue", "spec.policy.maxPerUser", 8, "expected `object | null`, got `int`"),
    ("ClusterQueue", "spec.policy.idleReclaim", {"window": 5}, "unknown field"),
    ("ClusterQueue", "spec.policy.idleReclaim.windowSeconds", 0, "must be at least 1"),
    ("ClusterQueue", "spec.policy.maxExecTimeSeconds", 0, "expected `int` >= 1"),
    ("ClusterQueue", "spec.policy", {"defaultMaxExecTimeSeconds": 7200, "maxExecTimeSeconds": 3600},
     ".defaultMaxExecTimeSeconds: 7200 is more than maxExecTimeSeconds 3600"),
    ("ClusterQueue", "spec.policy.idleReclaim.memoryWindowSeconds", 60, "is shorter than windowSeconds 1800"),
    ("ClusterQueue", "spec.policy.idleReclaim.idleBelow", 0.06, "is above activeAbove 0.05"),
    ("ClusterQueue", "spec.policy.idleReclaim.idleBelow", 2, "<= 1"),
    ("ClusterQueue", "spec.admissionScope.admissionMode", "Fair", "invalid enum value 'Fair'"),
    ("ClusterQueue", "spec.admissionScope", {}, ".admissionMode: is required"),
    ("ClusterQueue", "spec.preemption.reclaimWithinCohort", "Lower", "invalid enum value 'Lower'"),
    ("ClusterQueue", "spec.preemption.borrowWithinCohort.policy", "Any", "invalid enum value 'Any'"),
    ("ClusterQueue", "spec.preemption.borrowWithinCohort.maxPriorityThreshold", 2**31, "expected `int` <= 2147483647"),
    ("ClusterQueue", "spec.policy.quotaFromNodes.headroom", "120%", "'120%' is not between 0% and 100%"),
    ("ClusterQueue", "spec.policy.quotaFromNodes.headroom", "0.1", "'0.1' is not between 0% and 100%"),
    ("ClusterQueue", "spec.policy.quotaFromNodes.part", "1%", "unknown field"),
    ("Configuration", "color", "red", "unknown field"),
    ("Configuration", "metadata.name", "other", "'other': the only Configuration has the name default"),
    ("Configuration", "metadata.namespace", "kueue-system", "a Configuration has no namespace"),
    ("Configuration", "fairSharing.preemptionStrategies", [INITIAL, FINAL],
     "[LessThanInitialShare, LessThanOrEqualToFinalShare] is not [LessThanOrEqualToFinalShare, LessThanInitialShare] or"),
    ("Configuration", "fairSharing.preemptionStrategies", ["Least"], "invalid enum value 'Least'"),
    ("Configuration", "admissionFairSharing", {}, ".usageHalfLifeTime: is required"),
    ("Configuration", "admissionFairSharing", {"usageHalfLifeTime": "a week"},
     ".usageHalfLifeTime: 'a week' is not a duration like 30s, 5m or 1h30m"),
    ("Configuration", "admissionFairSharing", {"usageHalfLifeTime": "-1h"}, ".usageHalfLifeTime: '-1h' is negative"),
    ("Configuration", "admissionFairSharing", {"usageHalfLifeTime": "1h", "usageSamplingInterval": "0s"},
     ".usageSamplingInterval: must be more than 0"),
    ("Configuration", "admissionFairSharing", {"usageHalfLifeTime": "1h", "resourceWeights": {"cpu": -1}},
     ".resourceWeights.cpu: expected `float` >= 0.0"),
    ("Configuration", "queuectl.usageBeforePriority", True, "has no effect without admissionFairSharing"),
    ("Configuration", "queuectl.userLabel", "user", "has no effect without admissionFairSharing"),
    ("Configuration", "queuectl.userLabel", "no label", "'no label' is not a label key"),
    ("LocalQueue", "spec.policy.maxPending", 0, "expected `int` >= 1"),
    ("LocalQueue", "spec.policy.maxPending", -1, "expected `int` >= 1"),
    ("LocalQueue", "spec.policy.maxPending", True, "got `bool`"),
    ("LocalQueue", "spec.policy.maxPending", 1.5, "got `float`"),
    ("LocalQueue", "spec.policy.maxPending", "many", "got `str`"),
    ("LocalQueue", "spec.policy.maxPending", 2**31, "expected `int` <= 2147483647"),
    ("LocalQueue", "spec.policy.maxPending", 10**400, "expected `int`"),
    ("LocalQueue", "spec.policy.maxPerUser", 1, "unknown field"),
    ("Configuration", "queuectl.maxPending", 0, "expected `int` >= 1"),
    ("Configuration", "queuectl.durationQuantile", 0.4, "expected `float` >= 0.5"),
    ("Configuration", "queuectl.durationQuantile", 1, "expected `float` <= 0.99"),
    ("Configuration", "queuectl.backoffJitter", 1.5, "expected `float` <= 1.0"),
    ("Configuration", "queuectl.evictionGrace", "soon", "'soon' is not a duration like 30s, 5m or 1h30m"),
    ("Configuration", "queuectl.kueueKeys", "never", "invalid enum value 'never'"),
    ("Configuration", "queuectl.accounting.userLabel", "no label", "'no label' is not a label key"),
    ("Configuration", "queuectl.accounting.labels", ["team", "no label"], "'no label' is not a label key"),
    ("Configuration", "queuectl.accounting.labels", [f"l{i}" for i in range(17)], "at most 16 are allowed"),
    ("Configuration", "queuectl.accounting.keepDays", 0, "expected `int` >= 1"),
    ("Configuration", "queuectl.accounting.prices", [{"name": "a", "gpuHour": -1}], "[0].gpuHour: expected `float` >= 0.0"),
    ("Configuration", "queuectl.accounting.prices", [{"name": "a", "gpuHour": 1}, {"name": "a", "gpuHour": 2}],
     ": name 'a' occurs 2 times"),
    ("Configuration", "queuectl.accounting.prices", [{"name": "", "gpuHour": 1}], "[0].name: is empty"),
    ("Configuration", "queuectl.accounting.prices", [{"name": "a", "gpuHour": 1, "nodeLabels": {"no label": "x"}}],
     "[0].nodeLabels: 'no label' is not a label key"),
    ("Configuration", "queuectl.accounting.gpuWeights", {"no resource": 1}, "'no resource' is not a resource name"),
    ("Configuration", "queuectl.accounting.gpuWeights", {"nvidia.com/gpu": -1}, "is not a number or fraction from 0 to 1,000,000,000"),
    ("Configuration", "queuectl.accounting.gpuWeights", {"nvidia.com/gpu": "1/0"}, "'1/0' is not a number or fraction"),
    ("Configuration", "resources.quotaCheckStrategy", "Ignore", "invalid enum value 'Ignore'"),
    ("Configuration", "resources.excludeResourcePrefixes", [""], "[0]: is empty"),
    ("Configuration", TRANSFORM, [{"outputs": {}}], "[0].input: is required"),
    ("Configuration", TRANSFORM, [{"input": "cpu"}, {"input": "cpu"}], ": input 'cpu' occurs 2 times"),
    ("Configuration", TRANSFORM, [{"input": "c p u"}], "[0].input: 'c p u' is not a resource name"),
    ("Configuration", TRANSFORM, [{"input": "cpu", "strategy": "Drop"}], "[0].strategy: invalid enum value 'Drop'"),
    ("Configuration", TRANSFORM, [{"input": "cpu", "outputs": {"x": "many"}}], "[0].outputs: x: 'many' is not a quantity"),
    ("Configuration", MAPPINGS, [{"name": f"d{i}"} for i in range(17)], "at most 16 are allowed"),
    ("Configuration", MAPPINGS, [{"name": "d"}], "[0].deviceClassNames: 1 to 8 are allowed, not 0"),
    ("Configuration", MAPPINGS, [{"name": "d", "deviceClassNames": ["c"] * 9}], "[0].deviceClassNames: 1 to 8 are allowed, not 9"),
    ("Configuration", MAPPINGS, [{"name": "no name", "deviceClassNames": ["c"]}], "[0].name: 'no name' is not a resource name"),
    ("Configuration", MAPPINGS, [{"name": "d", "deviceClassNames": ["no name"]}], "[0].deviceClassNames: 'no name' is not the name of a DeviceClass"),
    ("Configuration", MAPPINGS, [{"name": "d", "deviceClassNames": ["c"]}] * 2, ": name 'd' occurs 2 times"),
    ("Configuration", MAPPINGS, [{"name": "d", "deviceClassNames": ["c"]}, {"name": "e", "deviceClassNames": ["c"]}],
     ": DeviceClass 'c' occurs 2 times"),
    ("Configuration", f"{WAITS}.timeout", "5", "'5' is not a duration like 30s, 5m or 1h30m"),
    ("Configuration", f"{WAITS}.recoveryTimeout", "-1s", "'-1s' is negative"),
    ("Configuration", f"{REQUEUE}.timestamp", "Now", "invalid enum value 'Now'"),
    ("Configuration", f"{REQUEUE}.backoffLimitCount", -1, "expected `int` >= 0"),
    ("Configuration", f"{REQUEUE}.backoffBaseSeconds", -1, "expected `int` >= 0"),
    ("Configuration", f"{REQUEUE}.backoffMaxSeconds", -1, "expected `int` >= 0"),
    ("Configuration", "objectRetentionPolicies.workloads.afterFinished", "1 day", "'1 day' is not a duration like"),
    ("Configuration", "objectRetentionPolicies.workloads.afterDeactivated", "1h", "unknown field"),
    ("WorkloadPriorityClass", "value", 2**31, "expected `int` <= 2147483647"),
    ("WorkloadPriorityClass", "description", "x" * 2049, "expected `str` of length <= 2048"),
    ("Budget", "spec.gpuHoursPerMonth", "-1", "'-1' is not a number from 0 to 1,000,000,000"),
    ("Budget", "spec.gpuHoursPerMonth", "many", "'many' is not a number"),
    ("Budget", "spec.namespace", "a b", "'a b' is not a name"),
    ("Budget", "spec.timeZone", "Nowhere/There", "'Nowhere/There' is not a time zone"),
    ("Budget", "spec.timeZone", "Asia/Kolkata", "do not begin at a full hour of UTC"),
    ("Budget", "spec.priorityWhenSpent", 5, "give it if whenSpent is LowerPriority"),
    ("BudgetTopUp", "spec.month", "2026-13", "'2026-13' is not a month"),
    ("BudgetTopUp", "spec.gpuHours", 0, "0 is not more than 0"),
    ("BudgetTopUp", "spec.reason", " ", "is empty"),
    ("BudgetTopUp", "spec.at", "noon", "'noon' is not an RFC 3339 time"),
    ("BudgetTopUp", "spec.budget", "a b", "'a b' is not a name"),
    ("QuotaOverride", "spec.clusterQueue", "a b", "'a b' is not a name"),
    ("QuotaOverride", "spec.flavor", "", "'' is not a name"),
    ("QuotaOverride", "spec.resource", "g p u", "is not a resource name"),
    ("QuotaOverride", "spec.from", "yesterday", "'yesterday' is not an RFC 3339 time"),
    ("QuotaOverride", "spec.until", "2026-01-31T12:00:00Z", "is not after spec.from"),
    ("QuotaOverride", "spec.nominalQuota", -1, "'-1' is negative"),
    ("QuotaOverride", "spec.add", "--1", "add"),
    ("QuotaOverride", "spec.add", "many", "add"),
    ("QuotaOverride", "spec.reason", "x" * 501, "expected `str` of length <= 500"),
    ("QuotaOverride", "spec", {}, "give either nominalQuota or add"),
    ("QuotaOverride", "spec", {"add": 1, "nominalQuota": 1}, "give either nominalQuota or add"),
    ("Reservation", "spec", {}, "give either capacity or nodes"),
    ("Reservation", "spec", {"nodes": ["a"], "capacity": GANG}, "give either capacity or nodes"),
    ("Reservation", "spec", {"capacity": GANG}, "spec.clusterQueue: a Reservation of capacity is for one ClusterQueue"),
    ("Reservation", "spec", {"nodes": ["a"], "users": ["eve"]}, "spec.clusterQueue: is required with users or namespaces"),
    ("Reservation", "spec", {"nodes": ["a", "a"]}, "'a' occurs 2 times"),
    ("Reservation", "spec", {"nodes": ["a b"]}, "'a b' is not a name"),
    ("Reservation", "spec", {"nodes": ["a"], "clusterQueue": "a b"}, "'a b' is not a name"),
    ("Reservation", "spec.from", "soon", "'soon' is not an RFC 3339 time"),
    ("Reservation", "spec.until", "2026-01-31T12:00:00Z", "is not after spec.from"),
    ("Reservation", "spec", {"nodes": ["a"], "recurrence": "weekly"}, "FREQ of 'weekly' is not one of HOURLY"),
    ("Reservation", "spec", {"nodes": ["a"], "recurrence": "FREQ=WEEKLY;BYDAY=XX"}, "is not a rule of RFC 5545"),
    ("Reservation", "spec", {"nodes": ["a"], "until": "6000-01-01T00:00:00Z", "recurrence": "FREQ=YEARLY;COUNT=1"}, "at most 366 days"),
    ("Reservation", "spec", {"nodes": ["a"], "until": "9999-12-31T23:59:59-23:59"}, "is not an RFC 3339 time"),
    ("Reservation", "spec", {"nodes": ["a"], "from": "0001-01-01T00:00:00+23:59"}, "is not an RFC 3339 time"),
    ("Reservation", "spec", {"nodes": ["a"], "recurrence": "FREQ=WEEKLY;BYDAY=MO"}, "spec.from is not a time of"),
    ("Reservation", "spec", {"nodes": ["a"], "recurrence": "FREQ=HOURLY;BYMINUTE=0,30"}, "starts again before it has ended"),
    ("Reservation", "spec", {"nodes": ["a"], "timeZone": "Nowhere/There"}, "'Nowhere/There' is not a time zone"),
    ("Reservation", "spec", {"nodes": ["a"], "timeZone": "Europe/Berlin"}, "is the time zone of a recurrence"),
    ("Reservation", "spec", {"nodes": ["a"], "timeZone": "Europe/Berlin", "recurrence": "FREQ=HOURLY"}, "FREQ=HOURLY has no time zone"),
    ("Reservation", "spec", {"nodes": ["a"], "timeZone": "Europe/Berlin", "recurrence": "FREQ=DAILY;BYHOUR=12"}, "in Europe/Berlin"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {"pods": 0, "requests": {GPU: 1}}}, "expected `int` >= 1"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {"pods": 1, "requests": {}}}, "give at least one resource"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {"pods": 1, "requests": {"g p u": 1}}}, "is not a resource name"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {"pods": 1, "requests": {GPU: "x"}}}, f"spec.capacity.requests.{GPU}"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {**GANG, "flavor": "a b"}}, "'a b' is not a name"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {**GANG, "nodeSelector": {"a b": ""}}}, "'a b' is not a label key"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {**GANG, "requiredTopology": "a b"}}, "'a b' is not a label key"),
    ("Reservation", "spec", {"clusterQueue": "cq", "capacity": {**GANG, "requiredTopology": "a", "preferredTopology": "a"}},
     "give either requiredTopology or preferredTopology"),
    ("ResourceFlavor", "spec.nodeLabels", {f"l{i}": "" for i in range(9)}, "9 entries; at most 8 are allowed"),
    ("ResourceFlavor", "spec.nodeTaints", [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(9)], "9 entries"),
    ("ResourceFlavor", "spec.nodeTaints", [{"key": "k", "effect": "NoSchedule"}] * 2,
     ": taint 'k:NoSchedule' occurs 2 times"),
    ("ResourceFlavor", "spec.policy.nodeTemplate", {"allocatable": {}, "maximumNodes": 1}, ": requires spec.topologyName"),
    ("ResourceFlavor", "spec.policy.nodeTemplate", {"allocatable": {}}, ".maximumNodes: is required"),
    ("ResourceFlavor", "spec.policy.nodeTemplate", {"allocatable": {}, "maximumNodes": 0}, "expected `int` >= 1"),
    ("ResourceFlavor", "spec.policy.migConfigs", {"x": []}, "requires spec.nodeLabels"),
    ("ResourceFlavor", "spec.policy.migConfigs", {"x": [{"devices": "all", "mig-enabled": False, "device-filter": "0x20B010DE"}]},
     "requires spec.nodeLabels"),
    ("ResourceFlavor", "spec.policy.migReconfiguration", "Execute", "Execute requires spec.policy.migConfigs"),
    ("ResourceFlavor", "spec.policy.migReconfiguration", "Now", "invalid enum value 'Now'"),
    ("ResourceFlavor", "spec.tolerations", [{"operator": "Exists"}] * 9, "9 entries; at most 8 are allowed"),
    ("ResourceFlavor", "spec.tolerations", [{"key": "k", "tolerationSeconds": 1}],
     "[0].effect: must be NoExecute with tolerationSeconds"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "value", "says"), REFUSED, ids=short)
def test_a_wrong_value_is_refused_naming_object_and_field(
    kind: str, field: str, value: Any, says: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        validate(document(kind, nested(field, value)))
    text = str(caught.value)
    assert text.startswith(f"{kind}/")
    assert f": {field}" in text
    assert says in text


NUMERIC = [
    row[:2] for row in HONORED if isinstance(row[2], int | float) and not isinstance(row[2], bool)
]


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "small"])
@pytest.mark.parametrize(("kind", "field"), NUMERIC, ids=short)
def test_a_number_of_400_digits_is_refused(kind: str, field: str, value: int) -> None:
    with pytest.raises(DocumentError, match=re.escape(f": {field.rpartition('.')[0]}")):
        validate(document(kind, written(field, value)))


@pytest.mark.parametrize(
    ("kind", "version", "field"),
    [("ClusterQueue", "kueue.x-k8s.io/v1beta2", "spec.policy"), ("Configuration", "config.kueue.x-k8s.io/v1beta2", "queuectl")],
)  # fmt: skip
def test_our_own_fields_are_none_of_kueues(kind: str, version: str, field: str) -> None:
    with pytest.raises(
        DocumentError, match=rf"{field}: is a field of queuectl.dev/v1, not of Kueue's API"
    ):
        validate(document(kind, nested(field, {}), version=version))


# ---- limits on numbers, as in Kueue's CRDs


def many(number: int, flavors: int = 1, resources: int = 1) -> list[Fields]:
    """``number`` resource groups, each with ``flavors`` flavors and ``resources`` resources, no two alike."""
    return [
        {
            "coveredResources": [f"r{g}-{r}" for r in range(resources)],
            "flavors": [
                {"name": f"f{g}-{f}", "resources": [{"name": f"r{g}-{r}", "nominalQuota": 0} for r in range(resources)]}
                for f in range(flavors)
            ],
        }
        for g in range(number)
    ]  # fmt: skip


NUMBERS = [
    (many(16), None),
    (many(17), "spec.resourceGroups: 17 groups; at most 16 are allowed"),
    (many(1, flavors=64), None),
    (many(1, flavors=65), "spec.resourceGroups[0].flavors: 65 flavors; at most 64 are allowed"),
    (many(1, resources=64), None),
    (many(1, resources=65), "spec.resourceGroups[0].coveredResources: 65 resources; at most 64 are allowed"),
    (many(4, flavors=64), None),
    (many(5, flavors=52), "spec.resourceGroups: 260 flavors in all; at most 256 are allowed"),
    (many(5, resources=52), "spec.resourceGroups: 260 resources in all; at most 256 are allowed"),
    (many(1, flavors=64, resources=8), None),
    (many(1, flavors=64, resources=9), "spec.resourceGroups[0]: 576 quotas; at most 512 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["ClusterQueue", "Cohort"])
@pytest.mark.parametrize(
    ("given", "refusal"),
    NUMBERS,
    ids=lambda v: (v or "taken")[:50] if not isinstance(v, list) else "",
)
def test_a_queue_has_so_many_flavors_and_resources_and_no_more(
    kind: str, given: list[Fields], refusal: str | None
) -> None:
    body = document(kind, nested("spec.resourceGroups", given))
    if refusal is None:
        validate(body)
        return
    with pytest.raises(DocumentError) as caught:
        validate(body)
    assert str(caught.value) == f"{kind}/x: {refusal}"


# ---- pairs that touch each other

RECLAIM, BORROW = "spec.preemption.reclaimWithinCohort", "spec.preemption.borrowWithinCohort.policy"
LIMIT = "spec.resourceGroups[0].flavors[0].resources[0]"
KUEUE_TAKES = "Kueue accepts it only with a reclaimWithinCohort other than Never"


def pair(**fields: Any) -> Fields:
    return merged(*(nested(path.replace("__", "."), value) for path, value in fields.items()))


PAIRS: list[tuple[str, str, Fields, str | None]] = [
    # kind, outcome (taken, warned, refused), the fields, the message
    ("ClusterQueue", "refused", pair(spec__preemption={"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "LowerPriority"}}),
     f"{BORROW}: must be Never if reclaimWithinCohort is Never"),
    ("ClusterQueue", "taken", pair(spec__preemption={"reclaimWithinCohort": "Never", "borrowWithinCohort": {"policy": "Never"}}), None),
    ("ClusterQueue", "taken", pair(spec__preemption={"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}), None),
    ("ClusterQueue", "warned", pair(spec__preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}), f"{BORROW}: {KUEUE_TAKES}"),
    ("ClusterQueue", "warned", pair(spec__preemption={"borrowWithinCohort": {"maxPriorityThreshold": 5}}),
     "spec.preemption.borrowWithinCohort.maxPriorityThreshold: has no effect: the policy is Never"),
    ("ClusterQueue", "warned", pair(spec__flavorFungibility={"whenCanBorrow": "TryNextFlavor", "preference": "BorrowingOverPreemption"}),
     "spec.flavorFungibility.preference: Kueue takes it only where whenCanBorrow and whenCanPreempt are TryNextFlavor"),
    ("ClusterQueue", "warned", pair(spec__resourceGroups=groups(borrowingLimit=1)), f"{LIMIT}.borrowingLimit: has no effect: in no cohort"),
    ("ClusterQueue", "warned", pair(spec__resourceGroups=groups(lendingLimit=1)), f"{LIMIT}.lendingLimit: has no effect: in no cohort"),
    ("ClusterQueue", "taken", pair(spec__cohortName="c", spec__resourceGroups=groups(lendingLimit=8)), None),
    ("ClusterQueue", "refused", pair(spec__cohortName="c", spec__resourceGroups=groups(lendingLimit=9)),
     f"{LIMIT}.lendingLimit: '9' is more than nominalQuota"),
    ("ClusterQueue", "taken", pair(spec__cohortName="c", spec__policy__quotaFromNodes={}, spec__resourceGroups=groups(lendingLimit=9)), None),
    ("Cohort", "taken", pair(spec__parentName="p", spec__resourceGroups=groups(lendingLimit=9)), None),
    ("Cohort", "warned", pair(spec__resourceGroups=groups(lendingLimit=1)), f"{LIMIT}.lendingLimit: has no effect: this Cohort has no parent"),
    ("ClusterQueue", "refused", pair(spec__cohort="a", spec__cohortName="b"), "spec.cohortName: 'b' differs from spec.cohort 'a'"),
    ("ClusterQueue", "taken", pair(spec__cohort="a", spec__cohortName="a"), None),
    ("Configuration", "refused", pair(resources={"quotaCheckStrategy": "IgnoreUndeclared", "excludeResourcePrefixes": ["a"]}),
     "resources.quotaCheckStrategy: IgnoreUndeclared and excludeResourcePrefixes cannot be used together"),
    ("Configuration", "taken", pair(resources={"quotaCheckStrategy": "BlockUndeclared", "excludeResourcePrefixes": ["a"]}), None),
    ("Configuration", "taken", pair(admissionFairSharing__usageHalfLifeTime="1h", queuectl__usageBeforePriority=False), None),
    ("Configuration", "warned", pair(admissionFairSharing__usageHalfLifeTime="1h"),
     "admissionFairSharing: priority precedes past usage; for the order of Kueue, set queuectl.usageBeforePriority: true"),
    ("Configuration", "taken", pair(queuectl__kueueKeys="off"), None),
    ("Configuration", "taken", pair(queuectl__kueueKeys=True), None),  # YAML's bare on
    ("Configuration", "taken", pair(queuectl__kueueKeys=False), None),
    ("Configuration", "taken", pair(fairSharing={"enable": False, "preemptionStrategies": [FINAL]}), None),
    ("Configuration", "taken", pair(waitForPodsReady={"timeout": "5m", "recoveryTimeout": "0s"}), None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "happens", "fields", "says"), PAIRS, ids=lambda v: str(v)[:70])
def test_fields_that_touch_each_other(
    kind: str, happens: str, fields: Fields, says: str | None
) -> None:
    body = document(kind, fields)
    named = f"{kind}/{body['metadata']['name']}: {says}"
    if happens == "refused":
        with pytest.raises(DocumentError) as caught:
            validate(body)
        assert str(caught.value) == named
    else:
        assert validate(body)[1] == ((named,) if happens == "warned" else ())


def test_a_recovery_timeout_defaults_to_the_timeout_and_0_disables_it() -> None:
    said = [
        read("Configuration", nested("waitForPodsReady", waits)).pods_ready.recovery_timeout
        for waits in ({"timeout": "5m"}, {"timeout": "5m", "recoveryTimeout": "0s"}, {"recoveryTimeout": "1m"})
    ]  # fmt: skip
    assert said == [300.0, None, 60.0]


def test_fair_sharing_that_is_disabled_is_off() -> None:
    off = {"enable": False, "preemptionStrategies": [FINAL]}
    assert read("Configuration", nested("fairSharing", off)).fair_sharing == ()


def test_the_least_weight_above_0_is_not_0() -> None:
    assert read("ClusterQueue", nested("spec.fairSharing.weight", "0.0001")).weight == 1


# ---- v1beta1, whose defaults differ

OLD = "config.kueue.x-k8s.io/v1beta1"
OLDER: list[tuple[Fields, Fields]] = [
    (nested("fairSharing.preemptionStrategies", [FINAL]), {}),  # the default of enable is false
    (nested("fairSharing.enable", True), {"fair_sharing": (FINAL, INITIAL)}),
    (nested("waitForPodsReady", {"enable": True}), {"pods_ready": PodsReadyRules(timeout=300.0, recovery_timeout=300.0)}),
    (nested("waitForPodsReady", {"timeout": "1m"}), {}),
    (nested("waitForPodsReady", {"enable": True, "timeout": "1m", "blockAdmission": False}),
     {"pods_ready": PodsReadyRules(timeout=60.0, recovery_timeout=60.0)}),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "means"), OLDER, ids=short)
def test_v1beta1_keeps_its_own_defaults(fields: Fields, means: Fields) -> None:
    assert read("Configuration", fields, version=OLD) == replace(Rules(), **means)


@pytest.mark.parametrize(
    ("waits", "warned"),
    [({"enable": True}, ["blockAdmission"]), ({"enable": False}, ["enable"]), ({"enable": True, "blockAdmission": False}, [])],
)  # fmt: skip
def test_a_default_of_v1beta1_that_queuectl_does_not_follow_gives_a_warning(
    waits: Fields, warned: list[str]
) -> None:
    _, warnings = validate(
        document("Configuration", nested("waitForPodsReady", waits), version=OLD)
    )
    assert [w.split(": ")[1] for w in warnings] == [f"waitForPodsReady.{field}" for field in warned]


# ---- the file of Kueue's manager has no name; what is kept has one and stays as it is


def test_the_one_configuration_needs_no_name() -> None:
    kept, _ = validate(
        {"apiVersion": OLD, "kind": "Configuration", "waitForPodsReady": {"enable": True}}
    )
    assert kept["metadata"] == {"name": "default"}
    assert build([kept], 1).rules.pods_ready.timeout == 300.0


EVERY_ROW: list[Fields] = [
    *(document("QuotaOverride", {"spec": spec}) for spec, _ in AMOUNTS),
    *(document("Budget", {"spec": spec}) for spec, _ in BUDGETS),
    *(document("BudgetTopUp", {"spec": spec}) for spec, _ in TOP_UPS),
    *(document("Reservation", {"spec": spec}) for spec, _ in RESERVED),
    document("Reservation", {"spec": {"nodes": ["a"], "recurrence": "FREQ=DAILY"}}),
    *(document("ClusterQueue", {"spec": spec}) for spec, *_ in CHECKS),
    *(document(kind, beside, written(field, value)) for kind, field, value, _, beside in HONORED),
    *(document(kind, nested(field, value)) for kind, field, value in WARNED),
    *(document("Configuration", nested(field, value)) for field, value in PASSED_OVER),
    *(document("Configuration", fields, version=OLD) for fields, _ in OLDER),
    *(document(kind, fields) for kind, happens, fields, _ in PAIRS if happens != "refused"),
]


@pytest.mark.parametrize(
    "body", EVERY_ROW, ids=lambda body: str({k: body[k] for k in body if k != "metadata"})[:70]
)
def test_a_kept_document_is_kept_as_it_is_and_means_the_same(body: Fields) -> None:
    kept, warnings = validate(body)
    assert validate(kept) == (kept, warnings)
    first, again = build([body], 1), build([kept], 1)
    for part in (
        "cluster_queues",
        "local_queues",
        "flavors",
        "topologies",
        "priority_classes",
        "cohorts",
        "overrides",
        "reservations",
        "rules",
    ):
        assert getattr(first, part) == getattr(again, part)


# ---- no field of the reader is missing above


def structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if get_origin(kind) in (Union, type(int | str), list, dict) or get_args(kind):
        for argument in get_args(kind):
            yield from structs(argument)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind


def paths(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Every field, and every field inside a field."""
    for field in msgspec.structs.fields(struct):
        path = f"{prefix}{field.encode_name}"
        inner = list(structs(field.type))
        yield path
        for one in inner:
            yield from paths(one, f"{path}.")


def given_paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The same of a document."""
    if isinstance(value, list):
        for item in value:
            yield from given_paths(item, prefix)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{prefix}{key}"
            inside = list(item.values()) if key in BY_NAME else item
            yield from given_paths(inside, f"{prefix}{key}.")


BY_NAME = {"migConfigs"}  # fields whose keys are names
HEAD = {"apiVersion", "kind", "metadata", "status"}


@pytest.mark.parametrize("kind", READERS)
def test_every_field_of_the_reader_has_a_row_in_a_table(kind: str) -> None:
    rows = [*EVERY_ROW, *(document(k, nested(f, v)) for k, f, v, _ in REFUSED)]
    seen = {path for row in rows if row["kind"] == kind for path in given_paths(row)}
    known = {path for path in paths(READERS[kind].wire) if path.split(".")[0] not in HEAD}
    assert known - seen == set()
