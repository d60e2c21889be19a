"""Kind ``Configuration`` to :class:`~queuectl.domain.rules.Rules`, and which of its fields have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import Any, Final

from queuectl.domain.accounting import Accounting, Price
from queuectl.domain.fleet import INTERRUPTION_TAINTS
from queuectl.domain.gpus import GpuWeights, exact
from queuectl.domain.node_health import HealthSignal, NodeHealthRules
from queuectl.domain.queues import ClusterQueue, FlavorOrder, QueueConfig
from queuectl.domain.rules import (
    DURATION_QUANTILE,
    MAX_PENDING,
    FairStrategy,
    KueueKeys,
    PodsReadyRules,
    Retention,
    Rules,
    Transformation,
    UsageFairness,
)
from queuectl.objects.configuration import settings_wire as wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError, under
from queuectl.objects.kubernetes.requests import read_factor
from queuectl.objects.names import is_label_key
from queuectl.objects.times import read_duration

# ---- ``queuectl.accounting``

_PATH: Final = "queuectl.accounting"
_MOST_GPUS: Final = 10**9
_MOST_LABELS: Final = 16  # each is stored with every workload


def read_accounting(spec: wire.AccountingSettings | None) -> Accounting:
    """Raises RequestError naming field and value."""
    if spec is None:
        return Accounting()
    labels = tuple(spec.labels or ())
    if len(labels) > _MOST_LABELS:
        raise RequestError(f"{_PATH}.labels: at most {_MOST_LABELS} are allowed")
    for field, key in (("userLabel", spec.user_label), *(("labels", key) for key in labels)):
        if key is not None and not is_label_key(key):
            raise RequestError(f"{_PATH}.{field}: {key!r} is not a label key")
    weights = spec.gpu_weights or {}
    for resource in weights:
        if not is_label_key(resource):
            raise RequestError(f"{_PATH}.gpuWeights: {resource!r} is not a resource name")
    given = {resource: _weight(resource, weight) for resource, weight in weights.items()}
    prices = spec.prices or []
    once((price.name for price in prices), f"{_PATH}.prices: name")
    return Accounting(
        user_label=spec.user_label,
        labels=labels,
        prices=tuple(_price(price, f"{_PATH}.prices[{i}]") for i, price in enumerate(prices)),
        currency=spec.currency or Accounting().currency,
        keep_days=spec.keep_days or Accounting().keep_days,
        gpus=GpuWeights(tuple(sorted(given.items()))),
    )


def _weight(resource: str, stated: float | str) -> Fraction:
    try:
        weight = exact(stated)
    except (ValueError, ZeroDivisionError):
        weight = Fraction(-1)
    if not 0 <= weight <= _MOST_GPUS:
        raise RequestError(
            f"{_PATH}.gpuWeights.{resource}: {stated!r} is not a number or fraction from 0 to {_MOST_GPUS:,}"
        )
    return weight


def _price(spec: wire.PriceSpec, path: str) -> Price:
    if not spec.name:
        raise RequestError(f"{path}.name: is empty")
    for key in spec.node_labels or {}:
        if not is_label_key(key):
            raise RequestError(f"{path}.nodeLabels: {key!r} is not a label key")
    return Price(
        spec.name, spec.gpu_hour, spec.flavor, tuple(sorted((spec.node_labels or {}).items()))
    )


# ---- ``resources.deviceClassMappings``

_MOST_MAPPINGS: Final = 16
_MOST_CLASSES: Final = 8
_MAPPINGS_PATH: Final = "resources.deviceClassMappings"


def read_device_classes(mappings: Sequence[wire.DeviceClassMapping]) -> tuple[tuple[str, str], ...]:
    """(DeviceClass, resource), sorted, without the mappings of counters and capacities.

    Raises:
        RequestError: a name is invalid, or a class occurs twice.
    """
    if len(mappings) > _MOST_MAPPINGS:
        raise RequestError(f"{_MAPPINGS_PATH}: at most {_MOST_MAPPINGS} are allowed")
    once((mapping.name for mapping in mappings), f"{_MAPPINGS_PATH}: name")
    for i, mapping in enumerate(mappings):
        _check(mapping, f"{_MAPPINGS_PATH}[{i}]")
    pairs = [
        (name, mapping.name)
        for mapping in mappings
        if not mapping.sources
        for name in mapping.device_class_names or ()
    ]
    once((name for name, _ in pairs), f"{_MAPPINGS_PATH}: DeviceClass")
    return tuple(sorted(pairs))


def _check(mapping: wire.DeviceClassMapping, path: str) -> None:
    if not is_label_key(mapping.name):
        raise RequestError(f"{path}.name: {mapping.name!r} is not a resource name")
    classes = mapping.device_class_names or []
    if not 1 <= len(classes) <= _MOST_CLASSES:
        raise RequestError(
            f"{path}.deviceClassNames: 1 to {_MOST_CLASSES} are allowed, not {len(classes)}"
        )
    for name in classes:
        if not is_label_key(name):
            raise RequestError(
                f"{path}.deviceClassNames: {name!r} is not the name of a DeviceClass"
            )


# ---- ``queuectl.nodeHealth``


def read_node_health(spec: wire.NodeHealthSettings) -> NodeHealthRules:
    """Omitted fields have their defaults. Raises RequestError naming field and value."""
    path = "queuectl.nodeHealth"
    converted: dict[str, Any] = {}
    if spec.hold is not None:
        converted["hold"] = read_duration(spec.hold, f"{path}.hold")
    if spec.conditions is not None:
        converted["conditions"] = read_conditions(spec.conditions)
    if spec.signals is not None:
        once(spec.signals, f"{path}.signals:")
        if HealthSignal.CONDITION in spec.signals:
            raise RequestError(f"{path}.signals: {HealthSignal.CONDITION} is set by conditions")
        converted["signals"] = tuple(spec.signals)
    if spec.xids is not None:
        once(map(str, spec.xids), f"{path}.xids:")
        converted["xids"] = tuple(spec.xids)
    return spec.applied_to(NodeHealthRules(), **converted)


def read_conditions(stated: wire.NodeConditions) -> tuple[tuple[str, str], ...]:
    """(type, status) of conditions of nodes. YAML reads an unquoted True as a Boolean."""
    return tuple((kind, str(status)) for kind, status in stated.items())


# ---- ``flavorOrder: Cheapest``


def by_price(queue: ClusterQueue, config: QueueConfig) -> ClusterQueue:
    """The ClusterQueue with the cheapest flavor of each resource group first. The order of the list decides between equal prices.

    A flavor has the first price of the accounting that holds for its name, its node labels and those of its ``nodeTemplate``.
    """
    if queue.flavor_order is not FlavorOrder.CHEAPEST:
        return queue
    prices = {name: _price_of(name, config) for name in queue.flavors}

    def cost(name: str) -> float:
        price = prices[name]
        return inf if price is None else price

    groups = tuple(
        replace(group, flavors=tuple(sorted(group.flavors, key=lambda one: cost(one.flavor))))
        for group in queue.groups
    )
    shown = tuple((name, prices[name]) for name in sorted(prices, key=cost))
    return replace(queue, groups=groups, flavor_prices=shown)


def _price_of(name: str, config: QueueConfig) -> float | None:
    """Of a GPU hour."""
    flavor = config.flavors.get(name)
    labels = dict(flavor.node_labels) if flavor is not None else {}
    if flavor is not None and flavor.node_template is not None:
        labels |= dict(flavor.node_template.labels)
    price = config.rules.accounting.price(name, labels)
    return price.gpu_hour if price is not None else None


# ---- Warnings


@dataclass(frozen=True, slots=True)
class Warned:
    """A known field that has no effect, or only a part of it."""

    field: str
    reason: str = "not supported"


# ---- Rules

V1BETA1: Final = "config.kueue.x-k8s.io/v1beta1"

_BOTH: Final = (
    FairStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,
    FairStrategy.LESS_THAN_INITIAL_SHARE,
)
_STRATEGIES: Final = (_BOTH, *((one,) for one in _BOTH))


def modernise(document: wire.ConfigurationDocument) -> None:
    """Convert ``v1beta1`` to the newest version in place: write its defaults out, and use one form for each setting."""
    own, fair = document.queuectl, document.fair_sharing
    old = document.api_version == V1BETA1
    if own is not None and isinstance(own.kueue_keys, bool):
        own.kueue_keys = "on" if own.kueue_keys else "off"
    if fair is not None:
        if not fair.preemption_strategies:
            fair.preemption_strategies = list(_BOTH)
        if fair.enable is False or (old and not fair.enable):
            document.fair_sharing = None
        fair.enable = None
    waits = document.wait_for_pods_ready
    if waits is None or not old:
        return
    if not waits.enable:
        document.wait_for_pods_ready = wire.WaitForPodsReady(enable=False)
        return
    waits.enable = None
    waits.timeout = waits.timeout or "5m"
    if waits.block_admission is None:
        waits.block_admission = True


def read_rules(document: wire.ConfigurationDocument) -> Rules:
    """Raises RequestError naming field and value."""
    own = document.queuectl or wire.OwnSettings()
    resources = document.resources or wire.ResourceSettings()
    ignore = resources.quota_check_strategy == "IgnoreUndeclared"
    if ignore and resources.exclude_resource_prefixes:
        raise RequestError(
            "resources.quotaCheckStrategy: IgnoreUndeclared and excludeResourcePrefixes cannot be used together"
        )
    return Rules(
        fair_sharing=_read_fair_sharing(document.fair_sharing),
        usage_fairness=_read_usage(document.admission_fair_sharing, own),
        excluded_prefixes=_read_prefixes(resources.exclude_resource_prefixes or ()),
        transformations=_read_transformations(resources.transformations or ()),
        ignore_undeclared=ignore,
        pods_ready=_read_pods_ready(document.wait_for_pods_ready, own),
        retention=_read_retention(document.object_retention_policies),
        eviction_grace=_optional(own.eviction_grace, "queuectl.evictionGrace") or 0.0,
        kueue_keys=KueueKeys(str(own.kueue_keys or KueueKeys.AUTO)),
        trusted_submitters=frozenset(own.trusted_submitters or ()),
        device_classes=read_device_classes(resources.device_class_mappings or ()),
        accounting=read_accounting(own.accounting),
        node_health=read_node_health(own.node_health or wire.NodeHealthSettings()),
        interruption_taints=_interruption_taints(own.interruption_taints),
        interruption_conditions=read_conditions(own.interruption_conditions or {}),
        duration_quantile=own.duration_quantile or DURATION_QUANTILE,
        max_pending=own.max_pending or MAX_PENDING,
        admission_plugins=frozenset(own.admission_plugins or ()),
    )


def _optional(text: str | None, path: str) -> float | None:
    return None if text is None else read_duration(text, path)


# ---- fairness


def _read_fair_sharing(fair: wire.FairSharingSettings | None) -> tuple[FairStrategy, ...]:
    path = "fairSharing.preemptionStrategies"
    if fair is None:
        return ()
    strategies = tuple(fair.preemption_strategies or ())
    if strategies not in _STRATEGIES:
        valid = " or ".join(f"[{', '.join(one)}]" for one in _STRATEGIES)
        raise RequestError(f"{path}: [{', '.join(strategies)}] is not {valid}")
    return strategies


def _read_usage(
    spec: wire.AdmissionFairSharing | None, own: wire.OwnSettings
) -> UsageFairness | None:
    if own.user_label is not None and not is_label_key(own.user_label):
        raise RequestError(f"queuectl.userLabel: {own.user_label!r} is not a label key")
    if spec is None:
        for field, given in _usage_only(own):
            if given is not None:
                raise RequestError(f"queuectl.{field}: has no effect without admissionFairSharing")
        return None
    path = "admissionFairSharing"
    sampling = spec.usage_sampling_interval
    default = UsageFairness().sampling
    seconds = _optional(sampling, f"{path}.usageSamplingInterval")
    if seconds == 0:
        raise RequestError(f"{path}.usageSamplingInterval: must be more than 0")
    return UsageFairness(
        half_life=read_duration(spec.usage_half_life_time, f"{path}.usageHalfLifeTime"),
        sampling=default if seconds is None else seconds,
        resource_weights=dict(spec.resource_weights or {}),
        before_priority=bool(own.usage_before_priority),
        user_label=own.user_label,
    )


def _usage_only(own: wire.OwnSettings) -> Iterator[tuple[str, Any]]:
    yield "usageBeforePriority", own.usage_before_priority
    yield "userLabel", own.user_label


# ---- resources that are charged


def _read_prefixes(prefixes: Sequence[str]) -> tuple[str, ...]:
    for i, prefix in enumerate(prefixes):
        if not prefix:
            raise RequestError(f"resources.excludeResourcePrefixes[{i}]: is empty")
    return tuple(prefixes)


def _read_transformations(
    specs: Sequence[wire.ResourceTransformation],
) -> tuple[Transformation, ...]:
    path = "resources.transformations"
    once((asked.input for asked in specs), f"{path}: input")
    return tuple(_read_one(asked, f"{path}[{i}]") for i, asked in enumerate(specs))


def _read_one(spec: wire.ResourceTransformation, path: str) -> Transformation:
    outputs = spec.outputs or {}
    names = {"input": spec.input, **{f"outputs.{name}": name for name in outputs}}
    if spec.multiply_by:
        names["multiplyBy"] = spec.multiply_by
    for field, name in names.items():
        if not is_label_key(name):
            raise RequestError(f"{path}.{field}: {name!r} is not a resource name")
    with under(f"{path}.outputs"):
        factors = {name: read_factor(name, amount) for name, amount in outputs.items()}
    return Transformation(
        source=spec.input,
        outputs=factors,
        multiply_by=spec.multiply_by or None,
        retain=spec.strategy != "Replace",
    )


# ---- life cycle


def _read_pods_ready(waits: wire.WaitForPodsReady | None, own: wire.OwnSettings) -> PodsReadyRules:
    default = PodsReadyRules()
    jitter = default.backoff_jitter if own.backoff_jitter is None else own.backoff_jitter
    if waits is None or waits.enable is False:
        return PodsReadyRules(backoff_jitter=jitter)
    path = "waitForPodsReady"
    requeuing = waits.requeuing_strategy or wire.RequeuingStrategy()
    timeout = _optional(waits.timeout, f"{path}.timeout") or default.timeout
    recovery = _optional(waits.recovery_timeout, f"{path}.recoveryTimeout")
    rules = PodsReadyRules(
        timeout=timeout,
        recovery_timeout=timeout if recovery is None else recovery or None,
        requeue_by_eviction=requeuing.timestamp != "Creation",
        backoff_jitter=jitter,
    )
    return requeuing.applied_to(rules)


def _read_retention(policies: wire.ObjectRetention | None) -> Retention:
    kept = policies.workloads if policies is not None else None
    if kept is None:
        return Retention()
    path = "objectRetentionPolicies.workloads"
    return Retention(
        _optional(kept.after_finished, f"{path}.afterFinished"),
        _optional(kept.after_deactivated_by_kueue, f"{path}.afterDeactivatedByKueue"),
    )


# ---- fields without effect

_UNHONORED: Final = (
    ("manageJobsWithoutQueueName", "manage_jobs_without_queue_name"),
    ("managedJobsNamespaceSelector", "managed_jobs_namespace_selector"),
    ("integrations", "integrations"),
    ("multiKueue", "multi_kueue"),
    ("featureGates", "feature_gates"),
)


def warn_configuration(document: wire.ConfigurationDocument) -> Iterator[Warned]:
    """Fields that affect decisions in Kueue and have no effect here. Fields about the process of a manager are ignored."""
    waits = document.wait_for_pods_ready or wire.WaitForPodsReady()
    if waits.enable is False:
        default = PodsReadyRules().timeout
        yield Warned(
            "waitForPodsReady.enable",
            f"false is not supported: a gang that is not ready {default / 60:g} minutes after its start is requeued",
        )
    if waits.block_admission:
        yield Warned("waitForPodsReady.blockAdmission")
    own = document.queuectl or wire.OwnSettings()
    if document.admission_fair_sharing is not None and own.usage_before_priority is None:
        yield Warned(
            "admissionFairSharing",
            "priority precedes past usage; for the order of Kueue, set queuectl.usageBeforePriority: true",
        )
    resources = document.resources or wire.ResourceSettings()
    for i, mapping in enumerate(resources.device_class_mappings or ()):
        if mapping.sources:
            yield Warned(f"resources.deviceClassMappings[{i}].sources")
    for field, attribute in _UNHONORED:
        if getattr(document, attribute):
            yield Warned(field)


def _interruption_taints(stated: list[str] | None) -> tuple[str, ...]:
    """The keys, or the default without them."""
    if stated is None:
        return INTERRUPTION_TAINTS
    path = "queuectl.interruptionTaints"
    once(stated, f"{path}:")
    for number, key in enumerate(stated):
        if not is_label_key(key):
            raise RequestError(f"{path}[{number}]: {key!r} is not the key of a taint")
    return tuple(stated)
