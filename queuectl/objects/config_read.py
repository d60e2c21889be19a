"""Configuration structs to the domain's values, the rules one field alone cannot tell, and what is not honoured yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME, Requirement
from queuectl.domain.queues import (
    DEFAULT_VICTIM_ORDER,
    ClusterQueue,
    FlavorQuotas,
    LabelSelector,
    LocalQueue,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Topology,
    VictimKey,
    WithinClusterQueue,
)
from queuectl.objects import config_wire as wire
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_label_key, is_name
from queuectl.objects.nodes import read_taints
from queuectl.objects.pods import read_tolerations
from queuectl.objects.requests import read_amount
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
    groups = spec.resource_groups or []
    return ClusterQueue(
        name=document.metadata.name,
        groups=_read_groups(groups, in_cohort=bool(spec.cohort or spec.cohort_name)),
        strategy=spec.queueing_strategy or QueueingStrategy.BEST_EFFORT_FIFO,
        within_cluster_queue=preemption.within_cluster_queue or WithinClusterQueue.NEVER,
        stop_policy=spec.stop_policy or StopPolicy.NONE,
        namespace_selector=_read_selector(spec.namespace_selector),
        victim_order=_read_victim_order(spec.policy),
    )


def _read_groups(
    groups: list[wire.ResourceGroupSpec], *, in_cohort: bool
) -> tuple[ResourceGroup, ...]:
    read = []
    for i, group in enumerate(groups):
        path = f"spec.resourceGroups[{i}]"
        if not group.covered_resources:
            raise RequestError(f"{path}.coveredResources: is empty")
        if not group.flavors:
            raise RequestError(f"{path}.flavors: is empty")
        flavors = tuple(
            _read_quotas(quotas, group.covered_resources, f"{path}.flavors[{k}]", in_cohort)
            for k, quotas in enumerate(group.flavors)
        )
        read.append(ResourceGroup(tuple(group.covered_resources), flavors))
    path = "spec.resourceGroups"
    _once((name for group in read for name in group.covered), f"{path}: resource")
    _once((quotas.flavor for group in read for quotas in group.flavors), f"{path}: flavor")
    return tuple(read)


def _once(names: Iterable[str], what: str) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise RequestError(f"{what} {str(name)!r} stands there {times} times")


def _read_quotas(
    quotas: wire.FlavorQuotasSpec, covered: list[str], path: str, in_cohort: bool
) -> FlavorQuotas:
    nominal: dict[str, int] = {}
    for k, quota in enumerate(quotas.resources):
        place = f"{path}.resources[{k}]"
        if quota.name in nominal or quota.name not in covered:
            wrong = "stands there twice" if quota.name in nominal else "is not in coveredResources"
            raise RequestError(f"{place}.name: {quota.name!r} {wrong}")
        nominal[quota.name] = _amount(quota.name, quota.nominal_quota, f"{place}.nominalQuota")
        limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
        for field, limit in limits.items():
            if limit is None:
                continue
            _amount(quota.name, limit, f"{place}.{field}")
            if not in_cohort:
                raise RequestError(f"{place}.{field}: needs a cohort")
    missing = [name for name in covered if name not in nominal]
    if missing:
        raise RequestError(f"{path}.resources: {missing[0]!r} of coveredResources is missing")
    return FlavorQuotas(quotas.name, nominal)


def _amount(resource: str, text: Any, path: str) -> int:
    try:
        return read_amount(resource, text, round_up=False)
    except RequestError as error:
        raise error.under(path) from None


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


def _read_victim_order(policy: wire.PolicySpec | None) -> tuple[VictimKey, ...]:
    if policy is None or policy.victim_order is None:
        return DEFAULT_VICTIM_ORDER
    if not policy.victim_order:
        raise RequestError("spec.policy.victimOrder: is empty")
    _once(policy.victim_order, "spec.policy.victimOrder:")
    return tuple(policy.victim_order)


_POLICIES: Final = (
    ("minRuntimeSeconds", "min_runtime_seconds"),
    ("maxEvictionsPerDay", "max_evictions_per_day"),
    ("cooldownSeconds", "cooldown_seconds"),
    ("idleReclaim", "idle_reclaim"),
    ("defragment", "defragment"),
    ("splitFlavors", "split_flavors"),
    ("quotaFromNodes", "quota_from_nodes"),
    ("maxPerUser", "max_per_user"),
)
_INERT: Final[tuple[Any, ...]] = (None, 0, False, "Off", {}, [])


def warn_cluster_queue(document: wire.ClusterQueueDocument) -> Iterator[Warned]:
    """Fields that would change a decision but do not yet; defaults that the server fills in are passed over."""
    spec = document.spec
    preemption = spec.preemption or wire.PreemptionSpec()
    borrow = preemption.borrow_within_cohort or wire.BorrowWithinCohort()
    fungibility = spec.flavor_fungibility or wire.FlavorFungibility()
    checks = spec.admission_checks_strategy or wire.AdmissionChecksStrategy()
    scope = spec.admission_scope or wire.AdmissionScope()
    asked = {
        "cohortName": bool(spec.cohort or spec.cohort_name),
        "preemption.reclaimWithinCohort": preemption.reclaim_within_cohort not in (None, "Never"),
        "preemption.borrowWithinCohort": borrow.policy not in (None, "Never"),
        "flavorFungibility.whenCanBorrow": fungibility.when_can_borrow == "TryNextFlavor",
        "flavorFungibility.whenCanPreempt": fungibility.when_can_preempt
        not in (None, "TryNextFlavor"),
        "admissionChecks": bool(spec.admission_checks),
        "admissionChecksStrategy": bool(checks.admission_checks),
        "fairSharing": _weighs(spec.fair_sharing),
        "admissionScope": bool(scope.admission_mode),
        "concurrentAdmissionPolicy": bool(spec.concurrent_admission_policy),
    }
    for field, attribute in _POLICIES:
        asked[f"policy.{field}"] = getattr(spec.policy, attribute, None) not in _INERT
    yield from (Warned(f"spec.{field}") for field, set_ in asked.items() if set_)
    yield from _warn_stop(spec.stop_policy)
    yield from _warn_groups(spec.resource_groups or [])


def _weighs(sharing: wire.FairSharing | None) -> bool:
    return sharing is not None and str(sharing.weight) not in ("None", "1")


def _warn_groups(groups: list[wire.ResourceGroupSpec]) -> Iterator[Warned]:
    for i, group in enumerate(groups):
        for k, quotas in enumerate(group.flavors):
            for n, quota in enumerate(quotas.resources):
                path = f"spec.resourceGroups[{i}].flavors[{k}].resources[{n}]"
                if quota.borrowing_limit is not None:
                    yield Warned(f"{path}.borrowingLimit")
                if quota.lending_limit is not None:
                    yield Warned(f"{path}.lendingLimit")


def read_cohort(document: wire.CohortDocument) -> None:
    """Checked and kept as a document; nothing plans with it yet. Raises RequestError naming field and value."""
    _read_groups(document.spec.resource_groups or [], in_cohort=True)


def warn_cohort(_: wire.CohortDocument) -> Iterator[Warned]:
    """Nothing of a Cohort is honoured yet."""
    yield Warned("spec", "Cohorts are not honoured yet: no quota is borrowed or lent")


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
    _once(levels, "spec.levels: node label")
    return Topology(document.metadata.name, levels)
