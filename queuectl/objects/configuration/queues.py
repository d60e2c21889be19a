"""Converts configuration structs to the values of the domain, checks rules across fields, and warns about unsupported fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from queuectl.domain.fleet import Requirement
from queuectl.domain.quantity import CPU
from queuectl.domain.queues import (
    DEFAULT_VICTIM_ORDER,
    WEIGHT_UNIT,
    Backfill,
    ClusterQueue,
    Cohort,
    Defragment,
    ExecutionLimits,
    FlavorPreference,
    Fungibility,
    IdleReclaim,
    LabelSelector,
    LocalQueue,
    Protection,
    QueueingStrategy,
    ReclaimWithinCohort,
    VictimKey,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.objects.configuration import wire
from queuectl.objects.configuration.checks import read_check_rules, warn_check_rules
from queuectl.objects.configuration.groups import once, read_groups
from queuectl.objects.configuration.settings import Warned
from queuectl.objects.configuration.stops import acting_stop
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.requests import read_amount
from queuectl.objects.kubernetes.templates import read_requirements
from queuectl.objects.kubernetes.wire import Quantity
from queuectl.objects.names import is_name

_PERCENT: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?%")


# ---- ClusterQueue and Cohort


def read_cluster_queue(document: wire.ClusterQueueDocument) -> ClusterQueue:
    """Raises RequestError naming field and value."""
    spec = document.spec
    if spec.cohort and spec.cohort_name and spec.cohort != spec.cohort_name:
        raise RequestError(
            f"spec.cohortName: {spec.cohort_name!r} differs from spec.cohort {spec.cohort!r}"
        )
    preemption = spec.preemption or wire.PreemptionSpec()
    borrow = preemption.borrow_within_cohort or wire.BorrowWithinCohort()
    reclaim = preemption.reclaim_within_cohort
    if reclaim is ReclaimWithinCohort.NEVER and _borrows(preemption):
        raise RequestError(
            "spec.preemption.borrowWithinCohort.policy: must be Never if reclaimWithinCohort is Never"
        )
    policy = spec.policy or wire.PolicySpec()
    cohort = _read_cohort_name(spec.cohort_name or spec.cohort, "spec.cohortName")
    headroom = _read_headroom(policy.quota_from_nodes)
    queue = ClusterQueue(
        name=document.metadata.name,
        groups=read_groups(
            spec.resource_groups or [],
            in_cohort=cohort is not None,
            lends_at_most_nominal=headroom is None,
        ),
        strategy=spec.queueing_strategy or QueueingStrategy.BEST_EFFORT_FIFO,
        within_cluster_queue=preemption.within_cluster_queue or WithinClusterQueue.NEVER,
        stop_policy=acting_stop(spec.stop_policy, document.metadata.annotations),
        namespace_selector=read_selector(spec.namespace_selector, "spec.namespaceSelector"),
        cohort=cohort,
        fungibility=_read_fungibility(spec.flavor_fungibility or wire.FlavorFungibility()),
        protection=policy.applied_to(Protection()),
        preempts_to_borrow=_borrows(preemption),
        reclaim_within_cohort=reclaim or ReclaimWithinCohort.NEVER,
        borrow_threshold=borrow.max_priority_threshold if _borrows(preemption) else None,
        weight=_read_weight(spec.fair_sharing),
        usage_fairness=_uses_past_use(spec.admission_scope),
        headroom=headroom,
        admission_checks=read_check_rules(spec),
        backfill=_read_backfill(policy),
        execution=_read_execution(policy),
    )
    return policy.applied_to(
        queue,
        victim_order=_read_victim_order(policy),
        defragment=Defragment(policy.defragment or "Off"),
        idle_reclaim=_read_idle_reclaim(policy.idle_reclaim),
        max_per_user=_read_max_per_user(policy.max_per_user),
    )


def _read_backfill(policy: wire.PolicySpec | wire.CohortPolicySpec) -> Backfill:
    default = Backfill()
    return Backfill(
        policy.planned_starts or default.planned_starts,
        policy.backfill_order or default.order,
        policy.planned_start_delay,
    )


def _read_execution(policy: wire.PolicySpec) -> ExecutionLimits:
    default, most = policy.default_max_exec_time_seconds, policy.max_exec_time_seconds
    if default is not None and most is not None and default > most:
        raise RequestError(
            f"spec.policy.defaultMaxExecTimeSeconds: {default} is more than maxExecTimeSeconds {most}"
        )
    return ExecutionLimits(
        float(default) if default is not None else None, float(most) if most is not None else None
    )


def _borrows(preemption: wire.PreemptionSpec) -> bool:
    borrow = preemption.borrow_within_cohort or wire.BorrowWithinCohort()
    return borrow.policy not in (None, "Never")


def _uses_past_use(scope: wire.AdmissionScope | None) -> bool:
    return scope is not None and scope.admission_mode == "UsageBasedAdmissionFairSharing"


def _read_weight(sharing: wire.FairSharing | None) -> int:
    """In thousandths, rounded up, so that only 0 is 0."""
    if sharing is None or sharing.weight is None:
        return WEIGHT_UNIT
    try:
        return read_amount(
            CPU, sharing.weight, round_up=True
        )  # cpu has the unit of a thousandth too
    except RequestError:
        shown = str(sharing.weight)
        raise RequestError(
            f"spec.fairSharing.weight: {shown!r} is not a number of at least 0"
        ) from None


def _read_headroom(spec: wire.QuotaFromNodes | None) -> float | None:
    """The fraction of capacity that stays free, or None if quota does not follow the nodes."""
    if spec is None:
        return None
    text = spec.headroom if spec.headroom is not None else "0%"
    part = Fraction(text[:-1]) / 100 if _PERCENT.fullmatch(text) else Fraction(2)
    if part > 1:
        raise RequestError(
            f"spec.policy.quotaFromNodes.headroom: {text!r} is not between 0% and 100%"
        )
    return float(part)


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


def _read_idle_reclaim(spec: wire.IdleReclaimSpec | None) -> IdleReclaim:
    """Omitted fields have their defaults."""
    if spec is None:
        return IdleReclaim()
    rule = spec.applied_to(IdleReclaim())
    path = "spec.policy.idleReclaim"
    if not rule.window:
        raise RequestError(f"{path}.windowSeconds: must be at least 1")
    if rule.memory_window < rule.window:
        raise RequestError(
            f"{path}.memoryWindowSeconds: {rule.memory_window:.0f} is shorter than windowSeconds {rule.window:.0f}"
        )
    if rule.idle_below > rule.active_above:
        raise RequestError(
            f"{path}.idleBelow: {rule.idle_below} is above activeAbove {rule.active_above}"
        )
    return rule


def read_selector(selector: wire.SelectorSpec | None, path: str) -> LabelSelector | None:
    """A selector of labels. ``path``: of its field, for messages. Raises RequestError."""
    if selector is None:
        return None
    labels = [
        Requirement(key, "In", (value,))
        for key, value in sorted((selector.match_labels or {}).items())
    ]
    expressions = read_requirements(
        [expression.loose() for expression in selector.match_expressions or ()],
        f"{path}.matchExpressions",
    )
    return LabelSelector((*labels, *expressions))


def _read_victim_order(policy: wire.PolicySpec) -> tuple[VictimKey, ...]:
    if policy.victim_order is None:
        return DEFAULT_VICTIM_ORDER
    if not policy.victim_order:
        raise RequestError("spec.policy.victimOrder: is empty")
    once(policy.victim_order, "spec.policy.victimOrder:")
    return tuple(policy.victim_order)


def _read_max_per_user(amounts: Mapping[str, Quantity] | None) -> tuple[tuple[str, int], ...]:
    """In the order of resources."""
    with under("spec.policy.maxPerUser"):
        return tuple(
            (name, read_amount(name, amount, round_up=False))
            for name, amount in sorted((amounts or {}).items())
        )


def warn_cluster_queue(document: wire.ClusterQueueDocument) -> Iterator[Warned]:
    """Fields that affect decisions in Kueue and have no effect here, without defaults that a server adds."""
    spec = document.spec
    yield from warn_check_rules(spec)
    if spec.concurrent_admission_policy:
        yield Warned("spec.concurrentAdmissionPolicy")
    yield from _warn_pairs(spec)
    if spec.queueing_strategy is not QueueingStrategy.BACKFILL:
        yield from _warn_backfill(spec.policy)
    if not (spec.cohort_name or spec.cohort):
        yield from _warn_limits(spec.resource_groups, "has no effect: in no cohort")


def _warn_pairs(spec: wire.ClusterQueueSpec) -> Iterator[Warned]:
    """Fields that have an effect only with another, which is not there."""
    preemption = spec.preemption or wire.PreemptionSpec()
    borrow = preemption.borrow_within_cohort or wire.BorrowWithinCohort()
    path = "spec.preemption.borrowWithinCohort"
    if _borrows(preemption) and preemption.reclaim_within_cohort is None:
        reason = "Kueue accepts it only with a reclaimWithinCohort other than Never"
        yield Warned(f"{path}.policy", reason)
    if borrow.max_priority_threshold is not None and not _borrows(preemption):
        yield Warned(f"{path}.maxPriorityThreshold", "has no effect: the policy is Never")
    fungible = spec.flavor_fungibility or wire.FlavorFungibility()
    both = (fungible.when_can_borrow, fungible.when_can_preempt)
    if fungible.preference is not None and both != ("TryNextFlavor", "TryNextFlavor"):
        reason = "Kueue takes it only where whenCanBorrow and whenCanPreempt are TryNextFlavor"
        yield Warned("spec.flavorFungibility.preference", reason)


def read_cohort(document: wire.CohortDocument) -> Cohort:
    """Raises RequestError naming field and value."""
    spec = document.spec
    name = document.metadata.name
    parent = _read_cohort_name(spec.parent_name, "spec.parentName")
    if parent == name:
        raise RequestError(f"spec.parentName: {parent!r} is the Cohort itself")
    groups = read_groups(spec.resource_groups or [], in_cohort=True, lends_at_most_nominal=False)
    policy = spec.policy or wire.CohortPolicySpec()
    backfill = _read_backfill(policy) if spec.queueing_strategy is not None else None
    return Cohort(name, parent, groups, _read_weight(spec.fair_sharing), backfill)


def warn_cohort(document: wire.CohortDocument) -> Iterator[Warned]:
    """Limits of a Cohort without a parent, which have no effect."""
    spec = document.spec
    if not spec.parent_name:
        yield from _warn_limits(spec.resource_groups, "has no effect: this Cohort has no parent")
    if spec.queueing_strategy is None:
        yield from _warn_backfill(spec.policy)


def _warn_backfill(policy: wire.PolicySpec | wire.CohortPolicySpec | None) -> Iterator[Warned]:
    """Fields of planned starts, for queues without them."""
    reason = "has no effect: queueingStrategy is not Backfill"
    if policy is None:
        return
    fields = {
        "plannedStarts": policy.planned_starts,
        "backfillOrder": policy.backfill_order,
        "plannedStartDelay": policy.planned_start_delay,
    }
    for name, value in fields.items():
        if value is not None:
            yield Warned(f"spec.policy.{name}", reason)


def _warn_limits(groups: list[wire.ResourceGroupSpec] | None, reason: str) -> Iterator[Warned]:
    for i, group in enumerate(groups or ()):
        for k, quotas in enumerate(group.flavors):
            for n, quota in enumerate(quotas.resources):
                path = f"spec.resourceGroups[{i}].flavors[{k}].resources[{n}]"
                if quota.borrowing_limit is not None:
                    yield Warned(f"{path}.borrowingLimit", reason)
                if quota.lending_limit is not None:
                    yield Warned(f"{path}.lendingLimit", reason)


# ---- LocalQueue


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
        stop_policy=acting_stop(document.spec.stop_policy, document.metadata.annotations),
        weight=_read_weight(document.spec.fair_sharing),
        max_pending=document.spec.policy.max_pending if document.spec.policy else None,
    )
