"""Rules that hold for all queues: what Kueue keeps in its ``Configuration``, with its meanings and field names.

They come from a document of kind ``Configuration``; without one the defaults here hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Final

from queuectl.domain.accounting import Accounting
from queuectl.domain.quantity import CPU, PODS, Resources

MOST: Final = 2**63 - 1
"""The largest amount of anything; what a transformation makes beyond it counts as this much."""


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
        user_label: label that names the user of a job of a trusted submitter; None = no label does.
    """

    half_life: float = 0.0
    sampling: float = 300.0
    resource_weights: Mapping[str, float] = field(default_factory=dict)
    before_priority: bool = False
    user_label: str | None = None

    def weigh(self, amounts: Mapping[str, float]) -> float:
        """Amounts of several resources as one number: whole units (cores, bytes, devices), weighed and summed."""
        weights = self.resource_weights
        return sum(weights.get(r, 1.0) * amounts[r] / _per_unit(r) for r in sorted(amounts))

    def fresh(self, elapsed: float) -> float:
        """The part that what was used in the last ``elapsed`` seconds has in past use; the rest is older."""
        return 1.0 if self.half_life <= 0 else 1.0 - 0.5 ** (elapsed / self.half_life)


@dataclass(frozen=True, slots=True)
class Transformation:
    """What a request for ``source`` is charged as (``resources.transformations``).

    Attributes:
        outputs: resource to the amount charged per whole unit of ``source`` (a core, a byte, a device), in whole units
            of the output too; below 0 = an allowance, which takes from what other transformations make of the output.
        multiply_by: a resource of the same pod whose amount multiplies the outputs once more, where the pod asks for it.
        retain: ``source`` itself is charged as well.
    """

    source: str
    outputs: Mapping[str, Fraction] = field(default_factory=dict)
    multiply_by: str | None = None
    retain: bool = True

    def made_of(self, requests: Mapping[str, int]) -> dict[str, Fraction]:
        """What the outputs come to for one pod, in whole units."""
        factor = Fraction(requests[self.source], _per_unit(self.source))
        if self.multiply_by is not None and self.multiply_by in requests:
            factor *= Fraction(requests[self.multiply_by], _per_unit(self.multiply_by))
        return {name: per_unit * factor for name, per_unit in self.outputs.items()}


def _per_unit(resource: str) -> int:
    """How many units of :mod:`queuectl.domain.quantity` a whole unit is."""
    return 1000 if resource == CPU else 1


@dataclass(frozen=True, slots=True)
class PodsReady:
    """How long a start may take, and what follows when it fails (``waitForPodsReady``). Times in seconds.

    Attributes:
        timeout: from admission until every pod was ready once.
        recovery_timeout: for a gang that was ready and lost a pod, until every pod is ready again; None = no limit.
        requeue_by_eviction: after a failed start the gang queues by the time of its eviction, else at its old place.
        backoff_base, backoff_ceiling: pause after failed start n: ``base * 2^(n-1)``, at most the ceiling.
        backoff_jitter: up to this part of the pause is added to it.
        backoff_limit: failed starts in a row after which it is still queued again; one more deactivates it. None = no
            limit.
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


class KueueKeys(StrEnum):
    """Whether labels and annotations with Kueue's prefix count as ours."""

    AUTO = "auto"  # where no Kueue runs
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Rules:
    """All of them.

    Attributes:
        fair_sharing: strategies of preemption by share, first to last; empty = fair sharing is off.
        excluded_prefixes: resources whose names begin so are charged to no quota.
        ignore_undeclared: a requested resource that a ClusterQueue does not cover is not charged, rather than refused.
        eviction_grace: seconds between telling a gang that it will be evicted and suspending it.
        kueue_keys: when labels and annotations with Kueue's prefix count.
        accounting: how usage is told apart and priced.
        trusted_submitters: names of users whose jobs a label may say to be another user's.
    """

    fair_sharing: tuple[FairStrategy, ...] = ()
    usage_fairness: UsageFairness | None = None
    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    ignore_undeclared: bool = False
    pods_ready: PodsReady = PodsReady()
    retention: Retention = Retention()
    eviction_grace: float = 0.0
    kueue_keys: KueueKeys = KueueKeys.AUTO
    accounting: Accounting = Accounting()
    trusted_submitters: frozenset[str] = frozenset()

    @property
    def user_label(self) -> str | None:
        """Key of the label that names the user of a job of a trusted submitter, for limits and past use."""
        return self.usage_fairness.user_label if self.usage_fairness is not None else None

    @property
    def charges_as_asked(self) -> bool:
        """Whether quota is charged exactly what pods request."""
        return not (self.excluded_prefixes or self.transformations)

    def charged(self, requests: Resources) -> Resources:
        """What one pod with these requests is charged to quota. ``pods`` is always charged as it is."""
        if self.charges_as_asked:
            return requests
        by_source = {known.source: known for known in self.transformations}
        asked = {name: amount for name, amount in requests.items() if not self._excludes(name)}
        charged: dict[str, int] = {}
        made: dict[str, Fraction] = {}
        for name, amount in asked.items():
            known = by_source.get(name) if name != PODS else None
            if known is None or known.retain:
                charged[name] = amount
            for output, part in known.made_of(asked).items() if known is not None else ():
                made[output] = made.get(output, Fraction()) + part
        for output, part in made.items():
            # An allowance takes only from what transformations made, never from what the pod itself asks.
            amount = charged.get(output, 0) + max(0, ceil(part * _per_unit(output)))
            charged[output] = min(amount, MOST)
        return Resources(charged)

    def _excludes(self, resource: str) -> bool:
        return resource != PODS and resource.startswith(self.excluded_prefixes)
