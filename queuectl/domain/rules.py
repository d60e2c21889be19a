"""Rules for all queues, from a document of kind ``Configuration``, with the meanings and field names of Kueue.

Without the document, the defaults in this module apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Final

from queuectl.domain.accounting import Accounting
from queuectl.domain.fleet import INTERRUPTION_TAINTS
from queuectl.domain.node_health import NodeHealthRules
from queuectl.domain.quantity import CPU, PODS, Resources

MOST: Final = 2**63 - 1
"""The largest amount of a resource. A larger result of a transformation counts as this amount."""

DURATION_QUANTILE: Final = 0.8
"""Default of ``durationQuantile``."""

MAX_PENDING: Final = 25_000
"""Default of ``maxPending``."""


class AdmissionPlugin(StrEnum):
    """Plugins of the API server that change new pods, and that a cluster can have or not."""

    EXTENDED_RESOURCE_TOLERATION = "ExtendedResourceToleration"
    POD_NODE_SELECTOR = "PodNodeSelector"
    ORIGIN_POD_NODE_ENVIRONMENT = "scheduling.openshift.io/OriginPodNodeEnvironment"


class FairStrategy(StrEnum):
    """When a gang can evict gangs of a ClusterQueue with a larger share (``preemptionStrategies``)."""

    LESS_THAN_OR_EQUAL_TO_FINAL_SHARE = "LessThanOrEqualToFinalShare"
    LESS_THAN_INITIAL_SHARE = "LessThanInitialShare"


@dataclass(frozen=True, slots=True)
class UsageFairness:
    """Order by past usage: less usage first (``admissionFairSharing``).

    Attributes:
        half_life: seconds after which past usage counts half; 0 = only current usage counts.
        sampling: seconds between two samples.
        resource_weights: factor of each resource in the sum; a resource that is absent counts 1.
        before_priority: whether usage precedes priority, as in Kueue.
        user_label: label with the user of a job of a trusted submitter; None = no label.
    """

    half_life: float = 0.0
    sampling: float = 300.0
    resource_weights: Mapping[str, float] = field(default_factory=dict)
    before_priority: bool = False
    user_label: str | None = None

    def weigh(self, amounts: Mapping[str, float]) -> float:
        """The weighted sum of amounts, in whole units (cores, bytes, devices)."""
        weights = self.resource_weights
        return sum(weights.get(r, 1.0) * amounts[r] / _per_unit(r) for r in sorted(amounts))

    def fresh(self, elapsed: float) -> float:
        """The weight of the last ``elapsed`` seconds in past usage; the rest is the weight of earlier usage."""
        return 1.0 if self.half_life <= 0 else 1.0 - 0.5 ** (elapsed / self.half_life)


@dataclass(frozen=True, slots=True)
class Transformation:
    """The charge for a request of ``source`` (``resources.transformations``).

    Attributes:
        outputs: resource to the amount charged per whole unit of ``source`` (a core, a byte, a device), in whole units
            of the output too; a negative amount reduces the results of other transformations for the same output.
        multiply_by: a resource of the same pod whose request multiplies the outputs, if the pod requests it.
        retain: whether ``source`` itself is charged too.
    """

    source: str
    outputs: Mapping[str, Fraction] = field(default_factory=dict)
    multiply_by: str | None = None
    retain: bool = True

    def made_of(self, requests: Mapping[str, int]) -> dict[str, Fraction]:
        """The outputs for one pod, in whole units."""
        factor = Fraction(requests[self.source], _per_unit(self.source))
        if self.multiply_by is not None and self.multiply_by in requests:
            factor *= Fraction(requests[self.multiply_by], _per_unit(self.multiply_by))
        return {name: per_unit * factor for name, per_unit in self.outputs.items()}


def _per_unit(resource: str) -> int:
    """The number of units of :mod:`queuectl.domain.quantity` in one whole unit."""
    return 1000 if resource == CPU else 1


@dataclass(frozen=True, slots=True)
class PodsReadyRules:
    """The timeouts of a start and the retries of a failed one (``waitForPodsReady``). Times are in seconds.

    Attributes:
        timeout: from admission until all pods have been ready once.
        recovery_timeout: from the loss of a pod of a ready gang until all pods are ready again; None = no limit.
        requeue_by_eviction: whether a gang queues by the time of its eviction after a failed start, otherwise at its old place.
        backoff_base, backoff_ceiling: the back-off after failed start n is ``base * 2^(n-1)``, at most the ceiling.
        backoff_jitter: a random time up to this fraction of the back-off is added to it.
        backoff_limit: the number of failed starts in a row that are retried. The next one deactivates the gang. None = no
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
    """Seconds that workloads remain in the ledger (``objectRetentionPolicies``); None = indefinitely. Their history remains."""

    after_finished: float | None = None
    after_deactivated: float | None = None


class KueueKeys(StrEnum):
    """Whether labels and annotations with Kueue's prefix count."""

    AUTO = "auto"  # if no Kueue runs
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for all queues.

    Attributes:
        fair_sharing: preemption strategies in order; empty = fair sharing is off.
        excluded_prefixes: prefixes of the names of resources whose requests are not charged. Transformations still read these requests.
        ignore_undeclared: whether a resource that the ClusterQueue does not cover is ignored instead of refused.
        eviction_grace: seconds between the notice of an eviction and the suspension.
        kueue_keys: whether labels and annotations with Kueue's prefix count.
        accounting: labels, prices and retention of the usage ledger.
        trusted_submitters: accounts whose jobs can name another user in a label.
        node_health: which signals take a node out of placement.
        interruption_taints: keys of taints that announce the end of a node.
        interruption_conditions: (type, status) of conditions of nodes that announce it.
        duration_quantile: the probability, 0 to 1, that a gang ends within the run time that planning learned for it.
        max_pending: the most pending gangs of a LocalQueue that plans consider, unless the LocalQueue has its own limit.
        admission_plugins: of the API server, that change new pods.
        device_classes: (DeviceClass, resource that is charged for its devices), sorted; a class has at most one.
    """

    fair_sharing: tuple[FairStrategy, ...] = ()
    usage_fairness: UsageFairness | None = None
    excluded_prefixes: tuple[str, ...] = ()
    transformations: tuple[Transformation, ...] = ()
    ignore_undeclared: bool = False
    pods_ready: PodsReadyRules = PodsReadyRules()
    retention: Retention = Retention()
    eviction_grace: float = 0.0
    kueue_keys: KueueKeys = KueueKeys.AUTO
    accounting: Accounting = Accounting()
    trusted_submitters: frozenset[str] = frozenset()
    device_classes: tuple[tuple[str, str], ...] = ()
    node_health: NodeHealthRules = NodeHealthRules()
    duration_quantile: float = DURATION_QUANTILE
    interruption_taints: tuple[str, ...] = INTERRUPTION_TAINTS
    interruption_conditions: tuple[tuple[str, str], ...] = ()
    max_pending: int = MAX_PENDING
    admission_plugins: frozenset[AdmissionPlugin] = frozenset()

    @property
    def user_label(self) -> str | None:
        """Key of the label with the user of a job of a trusted submitter, for limits and past usage."""
        return self.usage_fairness.user_label if self.usage_fairness is not None else None

    @property
    def charges_as_asked(self) -> bool:
        """Whether the charge is equal to the requests of pods."""
        return not (self.excluded_prefixes or self.transformations)

    def charged(self, requests: Resources) -> Resources:
        """The charge for one pod with these requests. ``pods`` is always charged unchanged."""
        if self.charges_as_asked:
            return requests
        by_source = {known.source: known for known in self.transformations}
        charged: dict[str, int] = {}
        made: dict[str, Fraction] = {}
        for name, amount in requests.items():
            known = by_source.get(name) if name != PODS else None
            if (known is None or known.retain) and not self._excludes(name):
                charged[name] = amount
            for output, part in known.made_of(requests).items() if known is not None else ():
                made[output] = made.get(output, Fraction()) + part
        for output, part in made.items():
            # A negative output reduces only results of transformations, never the direct request of the pod.
            amount = charged.get(output, 0) + max(0, ceil(part * _per_unit(output)))
            charged[output] = min(amount, MOST)
        return Resources(charged)

    def _excludes(self, resource: str) -> bool:
        return resource != PODS and resource.startswith(self.excluded_prefixes)
