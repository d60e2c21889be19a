"""Configuration structs to the domain's values, the rules one field alone cannot tell, and what is not honoured yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME, Requirement
from queuectl.domain.queues import (
    DEFAULT_VICTIM_ORDER,
    ClusterQueue,
    Cohort,
    Defragment,
    FlavorPreference,
    Fungibility,
    LabelSelector,
    LocalQueue,
    Protection,
    QueueingStrategy,
    ResourceFlavor,
    StopPolicy,
    Topology,
    VictimKey,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.objects import config_wire as wire
from queuectl.objects.config_groups import once, read_groups
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_label_key, is_name
from queuectl.objects.nodes import read_taints
from queuectl.objects.pods import read_tolerations
from queuectl.objects.templates import read_requirements


@dataclass(frozen=True, slots=True)
class Warned:
    """A field that was understood but has no effect yet."""

    field: str
    reason: str = "not honoured yet"


def _warn_stop(policy: StopPolicy | None) -> Iterator[Warned]:
    if policy is StopPolicy.HOLD_AND_DRAIN:
        yield Warned("spec.stopPolicy", "HoldAndDrain only holds for now: what runs is not evicted")


# ---- ClusterQueue and Cohort


def read_cluster_queue(document: wire.ClusterQueueDocument) -> ClusterQueue:
    """Raises RequestError naming field and value."""
    spec = document.spec
    if spec.cohort and spec.cohort_name and spec.cohort != spec.cohort_name:
        raise RequestError(
            f"spec.cohortName: {spec.cohort_name!r} differs from spec.cohort {spec.cohort!r}"
        )
    preemption = spec.preemption or wire.PreemptionSpec()
    policy = spec.policy or wire.PolicySpec()
    cohort = _read_cohort_name(spec.cohort_name or spec.cohort, "spec.cohortName")
    return ClusterQueue(
        name=document.metadata.name,
        groups=read_groups(spec.resource_groups or [], in_cohort=cohort is not None),
        strategy=spec.queueing_strategy or QueueingStrategy.BEST_EFFORT_FIFO,
        within_cluster_queue=preemption.within_cluster_queue or WithinClusterQueue.NEVER,
        stop_policy=spec.stop_policy or StopPolicy.NONE,
        namespace_selector=_read_selector(spec.namespace_selector),
        victim_order=_read_victim_order(policy),
        cohort=cohort,
        fungibility=_read_fungibility(spec.flavor_fungibility or wire.FlavorFungibility()),
        protection=_read_protection(policy),
        defragment=Defragment(policy.defragment or "Off"),
        defragment_budget=policy.defragment_budget or 0,
        preempts_to_borrow=_preempts_to_borrow(preemption),
    )


def _preempts_to_borrow(preemption: wire.PreemptionSpec) -> bool:
    borrow = preemption.borrow_within_cohort or wire.BorrowWithinCohort()
    return borrow.policy not in (None, "Never")


def _read_cohort_name(name: str | None, path: str) -> str | None:
    if name and not is_name(name):
        raise RequestError(f"{path}: {name!r} is not the name of a Cohort")
    return name or None


_OLD_NAMES: Final = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}


def _read_fungibility(spec: wire.FlavorFungibility) -> Fungibility:
    default = Fungibility()
    borrow, preempt = (
        WhenCan(_OLD_NAMES.get(given, given)) if given else fallback
        for given, fallback in (
            (spec.when_can_borrow, default.when_can_borrow),
            (spec.when_can_preempt, default.when_can_preempt),
        )
    )
    return Fungibility(borrow, preempt, FlavorPreference(spec.preference or default.preference))


def _read_protection(policy: wire.PolicySpec) -> Protection:
    return Protection(
        float(policy.min_runtime_seconds or 0),
        policy.max_evictions_per_day,
        float(policy.cooldown_seconds or 0),
    )


def _read_selector(selector: wire.SelectorSpec | None) -> LabelSelector | None:
    if selector is None:
        return None
    labels = [
        Requirement(key, "In", (value,))
        for key, value in sorted((selector.match_labels or {}).items())
    ]
    expressions = read_requirements(
        [expression.loose() for expression in selector.match_expressions or ()],
        "spec.namespaceSelector.matchExpressions",
    )
    return LabelSelector((*labels, *expressions))


def _read_victim_order(policy: wire.PolicySpec) -> tuple[VictimKey, ...]:
    if policy.victim_order is None:
        return DEFAULT_VICTIM_ORDER
    if not policy.victim_order:
        raise RequestError("spec.policy.victimOrder: is empty")
    once(policy.victim_order, "spec.policy.victimOrder:")
    return tuple(policy.victim_order)


_POLICIES: Final = (
    ("idleReclaim", "idle_reclaim"),
    ("splitFlavors", "split_flavors"),
    ("quotaFromNodes", "quota_from_nodes"),
    ("maxPerUser", "max_per_user"),
)
_INERT: Final[tuple[Any, ...]] = (None, 0, False, "Off", {}, [])


def warn_cluster_queue(document: wire.ClusterQueueDocument) -> Iterator[Warned]:
    """Fields that would change a decision but do not yet; defaults that the server fills in are passed over."""
    spec = document.spec
    preemption = spec.preemption or wire.PreemptionSpec()
    checks = spec.admission_checks_strategy or wire.AdmissionChecksStrategy()
    scope = spec.admission_scope or wire.AdmissionScope()
    asked = {
        "preemption.reclaimWithinCohort": preemption.reclaim_within_cohort not in (None, "Never"),
        "preemption.borrowWithinCohort": _preempts_to_borrow(preemption),
        "admissionChecks": bool(spec.admission_checks),
        "admissionChecksStrategy": bool(checks.admission_checks),
        "fairSharing": _weighs(spec.fair_sharing),
        "admissionScope": bool(scope.admission_mode),
        "concurrentAdmissionPolicy": bool(spec.concurrent_admission_policy),
    }
    for field, attribute in _POLICIES:
        asked[f"policy.{field}"] = getattr(spec.policy, attribute, None) not in _INERT
    yield from (Warned(f"spec.{field}") for field, set_ in asked.items() if set_)
    if not (spec.cohort_name or spec.cohort):
        yield from _warn_limits(spec.resource_groups, "has no effect: in no cohort")
    yield from _warn_stop(spec.stop_policy)


def _weighs(sharing: wire.FairSharing | None) -> bool:
    return sharing is not None and str(sharing.weight) not in ("None", "1")


def read_cohort(document: wire.CohortDocument) -> Cohort:
    """Raises RequestError naming field and value."""
    spec = document.spec
    name = document.metadata.name
    parent = _read_cohort_name(spec.parent_name, "spec.parentName")
    if parent == name:
        raise RequestError(f"spec.parentName: {parent!r} is the Cohort itself")
    return Cohort(name, parent, read_groups(spec.resource_groups or [], in_cohort=True))


def warn_cohort(document: wire.CohortDocument) -> Iterator[Warned]:
    """Its weight in fair sharing, and limits towards a parent it does not have."""
    spec = document.spec
    if _weighs(spec.fair_sharing):
        yield Warned("spec.fairSharing")
    if not spec.parent_name:
        yield from _warn_limits(spec.resource_groups, "has no effect: this Cohort has no parent")


def _warn_limits(groups: list[wire.ResourceGroupSpec] | None, reason: str) -> Iterator[Warned]:
    for i, group in enumerate(groups or ()):
        for k, quotas in enumerate(group.flavors):
            for n, quota in enumerate(quotas.resources):
                path = f"spec.resourceGroups[{i}].flavors[{k}].resources[{n}]"
                if quota.borrowing_limit is not None:
                    yield Warned(f"{path}.borrowingLimit", reason)
                if quota.lending_limit is not None:
                    yield Warned(f"{path}.lendingLimit", reason)


# ---- LocalQueue, ResourceFlavor, Topology


def read_local_queue(document: wire.LocalQueueDocument) -> LocalQueue:
    """Raises RequestError naming field and value."""
    if not is_name(document.spec.cluster_queue):
        raise RequestError(
            f"spec.clusterQueue: {document.spec.cluster_queue!r} is not the name of a ClusterQueue"
        )
    return LocalQueue(
        namespace=document.metadata.namespace or "default",
        name=document.metadata.name,
        cluster_queue=document.spec.cluster_queue,
        stop_policy=document.spec.stop_policy or StopPolicy.NONE,
    )


def warn_local_queue(document: wire.LocalQueueDocument) -> Iterator[Warned]:
    """Its weight in fair sharing, and a drain."""
    if _weighs(document.spec.fair_sharing):
        yield Warned("spec.fairSharing")
    yield from _warn_stop(document.spec.stop_policy)


def read_flavor(document: wire.ResourceFlavorDocument) -> ResourceFlavor:
    """Raises RequestError naming field and value."""
    spec = document.spec
    for key in spec.node_labels or {}:
        if not is_label_key(key):
            raise RequestError(f"spec.nodeLabels: {key!r} is not the key of a node label")
    for i, toleration in enumerate(spec.tolerations or ()):
        path = f"spec.tolerations[{i}]"
        if not toleration.key and toleration.operator != "Exists":
            raise RequestError(f"{path}.operator: must be Exists where there is no key")
        if toleration.operator == "Exists" and toleration.value:
            raise RequestError(f"{path}.value: must be empty where the operator is Exists")
    return ResourceFlavor(
        name=document.metadata.name,
        node_labels=tuple(sorted((spec.node_labels or {}).items())),
        node_taints=read_taints([t.loose() for t in spec.node_taints or ()], "spec.nodeTaints"),
        tolerations=read_tolerations([t.loose() for t in spec.tolerations or ()]),
        topology=spec.topology_name or None,
    )


def read_topology(document: wire.TopologyDocument) -> Topology:
    """Raises RequestError naming field and value."""
    levels = tuple(level.node_label for level in document.spec.levels)
    if not 1 <= len(levels) <= 16:
        raise RequestError(f"spec.levels: {len(levels)} levels, but 1 to 16 are possible")
    for i, level in enumerate(levels):
        path = f"spec.levels[{i}].nodeLabel"
        if not is_label_key(level):
            raise RequestError(f"{path}: {level!r} is not the key of a node label")
        if level == HOSTNAME and i + 1 < len(levels):
            raise RequestError(f"{path}: {HOSTNAME} can only be the last level")
    once(levels, "spec.levels: node label")
    return Topology(document.metadata.name, levels)
