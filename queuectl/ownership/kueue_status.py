"""The statuses of Kueue's own objects, in Kueue's words: ClusterQueue, LocalQueue, Cohort, and the AdmissionCheck that provisions nodes.

Kueue writes none of the other kinds. A status is about the version of an object that acts: a message ends with the error of an edit that
does not. ClusterQueues and Cohorts have a share while fair sharing is on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuectl.domain.checks import PROVISIONING, inactive
from queuectl.domain.errors import bounded
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import ClusterQueue, QueueConfig, StopPolicy
from queuectl.objects.configuration.kueue_status import (
    ENDLESS_SHARE,
    FlavorUse,
    KueueQueueStatus,
    KueueShare,
    ResourceUse,
    kueue_status_body,
    seen_kueue_status,
)
from queuectl.objects.configuration.links import references
from queuectl.objects.configuration.owners import KUEUE_STATUSES
from queuectl.objects.configuration.status_wire import ACTIVE, ObjectStatus, QueueStatus
from queuectl.ownership.observed import FollowedObject
from queuectl.ownership.status_form import (
    CLUSTER_QUEUE,
    LOCAL_QUEUE,
    Decision,
    GangsByQueue,
    QueuesNow,
    QueueUse,
    StatusCounts,
    acts,
    condition,
)
from queuectl.planner.quota import QuotaRow, build_pools, cohort_pools, share_of, use_of
from queuectl.state.holdings import Row

_CHECK: Final = "AdmissionCheck"
_COHORT: Final = "Cohort"
_FLAVOR: Final = "ResourceFlavor"
_ADMITS: Final = ("Ready", "Can admit new workloads")
_REFUSES: Final = "Can't admit new workloads"
_NO_SUBMISSION: Final = "Can't submit new workloads to clusterQueue"
_Row = tuple[str, str]  # flavor, resource
_Verdict = tuple[bool, str, str]  # active, reason, message


class KueueStatusForm:
    """See :class:`queuectl.ownership.status_form.StatusForm`."""

    def read(self, content: bytes) -> QueueStatus | None:
        return seen_kueue_status(content)

    def body(self, kind: str, version: str, status: ObjectStatus) -> Mapping[str, Any]:
        return kueue_status_body(kind, version, status)

    def counts(self, use: QueueUse, queues: QueuesNow) -> StatusCounts:
        return _Counts.of(use, use.nominal or queues.config)

    def status(
        self,
        followed: FollowedObject,
        had: QueueStatus | None,
        decision: Decision,
        queues: QueuesNow,
        now: float,
    ) -> ObjectStatus | None:
        key = followed.key
        if key.kind not in KUEUE_STATUSES:
            return None
        share = had.fair_sharing if isinstance(had, KueueQueueStatus) else None
        if share is not None and key.kind != LOCAL_QUEUE:
            share = KueueShare(0)  # without fair sharing: that of Kueue cannot be removed
        if key.kind == _COHORT:
            on = share is not None or queues.config.rules.fair_sharing
            return KueueQueueStatus(conditions=[], fair_sharing=share) if on else None
        if key in decision.waiting or (key not in decision.faults and not acts(key, queues.config)):
            conditions = had.conditions if had is not None else []  # of the generation that acts
        else:
            verdict = _verdict(followed, queues.config, decision.faults.get(key, ""))
            if verdict is None:
                return None
            active, reason, message = verdict
            status = "True" if active else "False"
            generation = followed.generation
            text = bounded(message)
            conditions = [condition(had, generation, now, ACTIVE, status, reason, text)]  # type: ignore[arg-type]
        if key.kind == _CHECK:
            return ObjectStatus(conditions=conditions)
        return KueueQueueStatus(conditions=conditions, fair_sharing=share)


def _verdict(followed: FollowedObject, config: QueueConfig, fault: str) -> _Verdict | None:
    """The condition Active of an object; None = another controller writes it."""
    key = followed.key
    if not acts(key, config):
        return _never_valid(followed, config, fault)
    match key.kind:
        case "ClusterQueue":
            active, reason, message = _cluster_queue(config.cluster_queues[key.name], config)
        case "LocalQueue":
            active, reason, message = _local_queue(key, config)
        case _:
            verdict = _check(key.name, config)
            if verdict is None:
                return None
            active, reason, message = verdict
    return active, reason, f"{message}. The last edit has no effect: {fault}" if fault else message


def _never_valid(followed: FollowedObject, config: QueueConfig, fault: str) -> _Verdict | None:
    """Of an object without a version that acts."""
    if followed.key.kind == _CHECK:
        return None
    named = references(followed.document) if followed.document is not None else ()
    absent = [key.name for key in named if key.kind == _FLAVOR and key.name not in config.flavors]
    if absent:
        return False, "FlavorNotFound", f"{_REFUSES}: {_lacks(_FLAVOR, absent)}."
    return False, "Unknown", f"{_REFUSES}: {fault}"


def _cluster_queue(target: ClusterQueue, config: QueueConfig) -> _Verdict:
    causes: list[tuple[str, str]] = []
    if target.stop_policy is not StopPolicy.NONE:
        causes.append(("Stopped", "is stopped"))
    flavors = {quotas.flavor for group in target.groups for quotas in group.flavors}
    if flavors and not flavors & config.flavors.keys():
        causes.append(("FlavorNotFound", _lacks(_FLAVOR, flavors)))
    unanswered = inactive(target.admission_checks, config.checks)
    absent = unanswered.keys() - config.checks.keys()
    if absent:
        causes.append(("AdmissionCheckNotFound", _lacks(_CHECK, absent)))
    idle = unanswered.keys() & config.checks.keys()
    if idle:
        names = ",".join(sorted(idle))
        causes.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {names}"))
    if not causes:
        return True, *_ADMITS
    return False, causes[0][0], f"{_REFUSES}: {', '.join(text for _, text in causes)}."


def _lacks(kind: str, names: Iterable[str]) -> str:
    return f"references missing {kind}(s): {','.join(sorted(names))}"


def _local_queue(key: DocumentKey, config: QueueConfig) -> _Verdict:
    local = config.local_queues[key.namespace, key.name]
    if local.stop_policy is not StopPolicy.NONE:
        return False, "Stopped", "LocalQueue is stopped"
    target = config.cluster_queues.get(local.cluster_queue)
    if target is None:
        return False, "ClusterQueueDoesNotExist", _NO_SUBMISSION
    if not _cluster_queue(target, config)[0]:
        return False, "ClusterQueueIsInactive", _NO_SUBMISSION
    return True, "Ready", "Can submit new workloads to localQueue"


def _check(name: str, config: QueueConfig) -> _Verdict | None:
    check = config.checks[name]
    if check.controller != PROVISIONING:
        return None
    if check.provisioning is None:
        text = f"ProvisioningRequestConfig {check.settings} does not exist"
        return False, "BadParametersRef", text if check.settings else "spec.parameters is missing"
    return True, "Active", "The admission check is active"


# ---- Counts


@dataclass(frozen=True, slots=True)
class _Counts:
    """Gangs, quota by flavor and resource in the order of the queue, and shares of ClusterQueues and Cohorts while fair sharing is on."""

    gangs: GangsByQueue
    config: QueueConfig
    held: Mapping[DocumentKey, Counter[_Row]]
    reserved: Mapping[DocumentKey, Counter[_Row]]
    shares: Mapping[DocumentKey, int]

    @classmethod
    def of(cls, use: QueueUse, config: QueueConfig) -> _Counts:
        held, reserved = _by_queue(use.held), _by_queue(use.reserved)
        shares = _shares(config, held, reserved) if config.rules.fair_sharing else {}
        return cls(GangsByQueue.of(use.entries), config, held, reserved, shares)

    def fill(self, status: QueueStatus, key: DocumentKey) -> None:
        if not isinstance(status, KueueQueueStatus):
            return
        if self.config.rules.fair_sharing and key.kind != LOCAL_QUEUE:
            status.fair_sharing = KueueShare(self.shares.get(key, 0))
        if key.kind != _COHORT:
            self.gangs.fill(status, key)
            held = self.held.get(key, Counter())
            status.flavors_usage = self._uses(key, held)
            status.flavors_reservation = self._uses(key, held + self.reserved.get(key, Counter()))

    def _uses(self, key: DocumentKey, amounts: Mapping[_Row, int]) -> list[FlavorUse]:
        whole = key.kind == CLUSTER_QUEUE
        if whole:
            target = self.config.cluster_queues.get(key.name)
        else:
            target = self.config.cluster_queue_of(key.namespace, key.name)
        if target is None:
            return []
        return [
            FlavorUse(
                quotas.flavor,
                [
                    self._use(
                        resource,
                        amounts.get((quotas.flavor, resource), 0),
                        quotas.nominal.get(resource, 0) if whole else None,
                        pooled=target.cohort is not None,
                    )
                    for resource in sorted(group.covered)
                ],
            )
            for group in target.groups
            for quotas in group.flavors
        ]

    @staticmethod
    def _use(resource: str, used: int, nominal: int | None, *, pooled: bool) -> ResourceUse:
        """``nominal``: of a ClusterQueue; None = of a LocalQueue, which has no quota."""
        total = format_quantity(resource, used)
        if nominal is None:
            return ResourceUse(resource, total)
        borrowed = max(0, used - nominal) if pooled else 0
        return ResourceUse(resource, total, format_quantity(resource, borrowed))


def _by_queue(rows: Mapping[Row, int]) -> Mapping[DocumentKey, Counter[_Row]]:
    sums: defaultdict[DocumentKey, Counter[_Row]] = defaultdict(Counter)
    for (namespace, name, target, flavor, resource), amount in rows.items():
        sums[DocumentKey(CLUSTER_QUEUE, "", target)][flavor, resource] += amount
        sums[DocumentKey(LOCAL_QUEUE, namespace, name)][flavor, resource] += amount
    return sums


def _shares(
    config: QueueConfig,
    held: Mapping[DocumentKey, Counter[_Row]],
    reserved: Mapping[DocumentKey, Counter[_Row]],
) -> Mapping[DocumentKey, int]:
    """As Kueue counts them, with the quota that is reserved."""
    queues = build_pools(config)
    rows: Counter[QuotaRow] = Counter()
    for amounts in (held, reserved):
        for key, by_row in amounts.items():
            if key.kind == CLUSTER_QUEUE and key.name in queues:
                for (flavor, resource), amount in by_row.items():
                    rows[key.name, flavor, resource] += amount
    use = use_of(queues, rows)
    pools = {DocumentKey(CLUSTER_QUEUE, "", name): pool for name, pool in queues.items()}
    pools |= {DocumentKey(_COHORT, "", name): pool for name, pool in cohort_pools(queues).items()}
    weighted = {key: share_of(pool, use).weighted for key, pool in pools.items()}
    return {key: ENDLESS_SHARE if one is None else one for key, one in weighted.items()}
