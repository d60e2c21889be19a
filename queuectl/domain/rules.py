"""Rules that hold for all queues: what Kueue keeps in its ``Configuration``, with its meanings and field names.

They come from a document of kind ``Configuration``; without one the defaults here hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from queuectl.domain.quantity import CPU, Resources


class FairStrategy(StrEnum):
    """When fair sharing lets a gang take from a ClusterQueue whose share is larger (``preemptionStrategies``)."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"


@dataclass(frozen=True, slots=True)
class UsageFairness:
    """Who used less lately goes first (``admissionFairSharing``).

    Attributes:
        half_life: seconds after which past use counts half; 0 = only what is used now counts.
        sampling: seconds between two looks at what is used.
        resource_weights: factor of each resource in the sum; a resource that is absent counts 1.
        before_priority: usage goes before priority, as in Kueue; else after it.
        user_label: label of a job that names its user; None = users are not told apart.
    """

    half_life: float = 0.0
    sampling: float = 300.0
    resource_weights: Mapping[str, float] = field(default_factory=dict)
    before_priority: bool = False
    user_label: str | None = None


@dataclass(frozen=True, slots=True)
class Transformation:
    """What a request for ``source`` is charged as (``resources.transformations``).

    Attributes:
        outputs: resource to the amount charged per unit of ``source`` (cpu: per core).
        multiply_by: a resource of the same pod whose amount multiplies the outputs once more.
        retain: ``source`` itself is charged as well.
    """

    source: str
    outputs: Mapping[str, int] = field(default_factory=dict)
    multiply_by: str | None = None
    retain: bool = True

    def made_of(self, requests: Resources) -> dict[str, int]:
        """What the outputs come to for one pod."""
        factor = _whole(self.source, requests[self.source])
        if self.multiply_by is not None:
            factor *= _whole(self.multiply_by, requests[self.multiply_by])
        return {name: per_unit * factor for name, per_unit in self.outputs.items()}


def _whole(resource: str, amount: int) -> int:
    """An amount in whole units: cpu is counted in cores, a part of a core as one."""
    return -(-amount // 1000) if resource == CPU else amount


@dataclass(frozen=True, slots=True)
class PodsReady:
    """How long a start may take, and what follows when it fails (``waitForPodsReady``). Times in seconds.

    Attributes:
        timeout: from admission until every pod was ready once.
        recovery_timeout: for a gang that was ready and lost a pod, until every pod is ready again; None = no limit.
        requeue_by_eviction: after a failed start the gang queues by the time of its eviction, else at its old place.
        backoff_base, backoff_ceiling: pause after failed start n: ``base * 2^(n-1)``, at most the ceiling.
        backoff_jitter: up to this part of the pause is added to it.
        backoff_limit: failed starts in a row after which the gang is deactivated; None = no limit.
    """

    timeout: float = 1800.0
    recovery_timeout: float | None = 1800.0
    requeue_by_eviction: bool = True
    backoff_base: float = 60.0
    backoff_ceiling: float = 3600.0
    backoff_jitter: float = 0.1
    backoff_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds that rows of the ledger are kept (``objectRetentionPolicies``); None = for ever. History stays."""

    after_finished: float | None = None
    after_deactivated: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """All of them.

    Attributes:
        fair_sharing: strategies of preemption by share, first to last; empty = fair sharing is off.
        excluded_prefixes: resources whose names begin so are charged to no quota.
        ignore_undeclared: a requested resource that a ClusterQueue does not cover is not charged, rather than refused.
        kueue_keys: labels and annotations with Kueue's prefix count: always, never, or where no Kueue runs.
        eviction_grace: seconds between telling a gang that it will be evicted and suspending it.
    """

    fair_sharing: tuple[FairStrategy, ...] = ()
    usage_fairness: UsageFairness | None = None
    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    ignore_undeclared: bool = False
    pods_ready: PodsReady = PodsReady()
    retention: Retention = Retention()
    eviction_grace: float = 0.0

    @property
    def charges_as_asked(self) -> bool:
        """Whether quota is charged exactly what pods request."""
        return not (self.excluded_prefixes or self.transformations)

    def charged(self, requests: Resources) -> Resources:
        """What one pod with these requests is charged to quota."""
        if self.charges_as_asked:
            return requests
        amounts: dict[str, int] = {}
        by_source = {known.source: known for known in self.transformations}
        for name, amount in requests.items():
            if any(name.startswith(prefix) for prefix in self.excluded_prefixes):
                continue
            known = by_source.get(name)
            if known is None or known.retain:
                amounts[name] = amounts.get(name, 0) + amount
            for output, made in known.made_of(requests).items() if known is not None else ():
                amounts[output] = amounts.get(output, 0) + made
        return Resources(amounts)
