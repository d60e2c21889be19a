"""Parses configuration objects of queuectl and of Kueue into a QueueConfig, which states whether a workload can be planned.

:func:`validate` is for one object over REST, :func:`build` for the objects in the database; files use both. An unknown field is an
error. A known field that is not supported is a warning. Server metadata and status are ignored. The reasons for which a workload is not
planned are those of its queues and namespace, and do not depend on capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from queuectl.domain.checks import PROVISIONING, AdmissionCheck, inactive
from queuectl.domain.fleet import Fleet
from queuectl.domain.gpus import GpuWeights, why_refused
from queuectl.domain.jobs import JobRecord
from queuectl.domain.provisioning import ProvisioningConfig
from queuectl.domain.queues import (
    ClusterQueue,
    LocalQueue,
    QueueConfig,
    QueueingStrategy,
    StopPolicy,
)
from queuectl.domain.reasons import Code, Reason
from queuectl.domain.rules import Rules
from queuectl.domain.workload import PodSet, fraction_of, too_many_gpus
from queuectl.objects.configuration import flavors_wire, reservations_wire, wire
from queuectl.objects.configuration.checks import (
    PROVISIONING_KIND,
    read_admission_check,
    read_provisioning_config,
    warn_admission_check,
)
from queuectl.objects.configuration.config_kinds import API_VERSION, BY_KIND, ONLY_NAME, ConfigKind
from queuectl.objects.configuration.flavors import read_flavor, read_topology
from queuectl.objects.configuration.groups import read_override
from queuectl.objects.configuration.links import circular_cohorts, refuse_circular_cohorts
from queuectl.objects.configuration.queues import (
    read_cluster_queue,
    read_cohort,
    read_local_queue,
    warn_cluster_queue,
    warn_cohort,
)
from queuectl.objects.configuration.reservations import read_budget, read_reservation, read_top_up
from queuectl.objects.configuration.settings import (
    Warned,
    by_price,
    modernise,
    read_rules,
    warn_configuration,
)
from queuectl.objects.configuration.settings_wire import ConfigurationDocument
from queuectl.objects.documents import Document, as_document
from queuectl.objects.errors import RequestError
from queuectl.objects.keys import MAX_EXECUTION
from queuectl.objects.names import is_name

# ---- Parsing

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class KindReader:
    """Reads the objects of one kind.

    Attributes:
        wire: strict struct to which an object is decoded.
        read: converts it to the domain's value; can raise RequestError.
        warn: its fields that are not supported.
        modernise: converts an older version to the newest, in place.
    """

    wire: type[Any]
    read: Callable[[Any], Any]
    warn: Callable[[Any], Iterator[Warned]] = lambda _: iter(())
    modernise: Callable[[Any], None] = lambda _: None


def _read_priority(document: wire.PriorityClassDocument) -> int:
    return document.value


READERS: Final[Mapping[str, KindReader]] = MappingProxyType(
    {
        "ClusterQueue": KindReader(
            wire.ClusterQueueDocument, read_cluster_queue, warn_cluster_queue
        ),
        "LocalQueue": KindReader(wire.LocalQueueDocument, read_local_queue),
        "Cohort": KindReader(wire.CohortDocument, read_cohort, warn_cohort),
        "ResourceFlavor": KindReader(flavors_wire.ResourceFlavorDocument, read_flavor),
        "Topology": KindReader(flavors_wire.TopologyDocument, read_topology),
        "AdmissionCheck": KindReader(
            wire.AdmissionCheckDocument, read_admission_check, warn_admission_check
        ),
        PROVISIONING_KIND: KindReader(
            wire.ProvisioningRequestConfigDocument, read_provisioning_config
        ),
        "QuotaOverride": KindReader(reservations_wire.QuotaOverrideDocument, read_override),
        "Budget": KindReader(reservations_wire.BudgetDocument, read_budget),
        "BudgetTopUp": KindReader(reservations_wire.BudgetTopUpDocument, read_top_up),
        "Reservation": KindReader(reservations_wire.ReservationDocument, read_reservation),
        "WorkloadPriorityClass": KindReader(wire.PriorityClassDocument, _read_priority),
        "Configuration": KindReader(
            ConfigurationDocument, read_rules, warn_configuration, modernise
        ),
    }
)
"""The readers of :data:`queuectl.objects.configuration.config_kinds.CONFIG_KINDS`, by kind."""


def is_config(document: Document) -> bool:
    """Whether it is a configuration object, of any version."""
    kind = BY_KIND.get(document.kind)
    if kind is None:
        return False
    groups = {version.partition("/")[0] for version in kind.versions}
    return document.api_version.partition("/")[0] in groups


def named(document: Document) -> Document:
    """The document, with the only name if its kind has only one object and the document has no name."""
    kind = BY_KIND.get(document.kind)
    meta = document.body.get("metadata") or {}
    if kind is None or not kind.single or meta.get("name"):
        return document
    address = replace(document.address, name=f"{kind.kind}/{ONLY_NAME}")
    return Document(address, {**document.body, "metadata": {**meta, "name": ONLY_NAME}})


def is_single(document: Document) -> bool:
    """Whether its kind has only one object, in any version."""
    return is_config(document) and BY_KIND[document.kind].single


def _given(body: Document | Mapping[str, Any]) -> Document:
    return named(body if isinstance(body, Document) else as_document(dict(body)))


def validate(document: Document | Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Check one configuration object.

    Returns:
        The object in stored form (``queuectl.dev/v1``, without older names and server fields), and warnings about fields
        that are not supported.

    Raises:
        DocumentError: naming document and field.
    """
    given = _given(document)
    kind, decoded = _decode(given)
    _read(given, kind, decoded)
    warnings = tuple(
        f"{given.address}: {warned.field}: {warned.reason}"
        for warned in READERS[kind.kind].warn(decoded)
    )
    return _normalize(kind, decoded), warnings


def _decode(document: Document) -> tuple[ConfigKind, Any]:
    kind = BY_KIND.get(document.kind)
    if kind is None:
        listed = ", ".join(BY_KIND)
        raise document.error("kind", f"{document.kind!r} is not one of {listed}")
    if document.api_version not in kind.versions:
        listed = ", ".join(kind.versions)
        raise document.error("apiVersion", f"{document.api_version!r} is not one of {listed}")
    reader = READERS[kind.kind]
    decoded = document.convert(reader.wire)
    reader.modernise(decoded)
    name = decoded.metadata.name
    if kind.single and name != ONLY_NAME:
        reason = f"{name!r}: the only {kind.kind} has the name {ONLY_NAME}"
        raise document.error("metadata.name", reason)
    if not is_name(name):
        raise document.error(
            "metadata.name", f"{name!r} is not a name of letters, digits, -, _ and ."
        )
    namespace = decoded.metadata.namespace
    if kind.namespaced:
        decoded.metadata.namespace = namespace or "default"
        if not is_name(decoded.metadata.namespace):
            raise document.error(
                "metadata.namespace", f"{namespace!r} is not a name of letters, digits, -, _ and ."
            )
    elif namespace:
        raise document.error("metadata.namespace", f"a {kind.kind} has no namespace")
    return kind, decoded


def _read(document: Document, kind: ConfigKind, decoded: Any) -> Any:
    try:
        value = READERS[kind.kind].read(decoded)
    except RequestError as error:
        raise document.error("", str(error)) from None
    own = {
        "spec.policy": getattr(getattr(decoded, "spec", None), "policy", None),
        "queuectl": getattr(decoded, "queuectl", None),
    }
    for field, given in own.items():
        if given is not None and document.api_version != API_VERSION:
            raise document.error(field, f"is a field of {API_VERSION}, not of Kueue's API")
    return value


def _normalize(kind: ConfigKind, decoded: Any) -> dict[str, Any]:
    decoded.api_version = API_VERSION
    decoded.status = None
    if not kind.namespaced:
        decoded.metadata.namespace = None
    annotations = decoded.metadata.annotations
    if annotations:
        kept = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
        decoded.metadata.annotations = kept or None
    spec = getattr(decoded, "spec", None)
    if isinstance(spec, wire.ClusterQueueSpec):
        spec.cohort_name, spec.cohort = spec.cohort_name or spec.cohort, None
    body = msgspec.to_builtins(decoded, str_keys=True)
    assert isinstance(body, dict)
    return body


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A parsed configuration object. ``key`` is its name, with the namespace if its kind has one; ``content`` is its value in the domain."""

    document: Document
    kind: str
    key: Any
    content: Any


def read(body: Mapping[str, Any] | Document) -> ReadDocument:
    """Parse one configuration object.

    Raises:
        DocumentError: naming document and field.
    """
    document = _given(body)
    kind, decoded = _decode(document)
    meta = decoded.metadata
    key = (meta.namespace, meta.name) if kind.namespaced else meta.name
    return ReadDocument(document, kind.kind, key, _read(document, kind, decoded))


def build(
    documents: Iterable[Mapping[str, Any] | Document], revision: int, *, strict: bool = False
) -> QueueConfig:
    """The configuration of one revision. Later documents replace earlier ones of the same kind and name.

    Args:
        documents: of all kinds.
        revision: of the store.
        strict: refuse cycles of Cohorts and trees that are too high, instead of ignoring some parents.

    Raises:
        DocumentError: one of them is invalid.
    """
    objects = list(map(read, documents))
    if strict:
        cohorts = {one.key: one for one in objects if one.kind == "Cohort"}
        parents = {name: one.content.parent for name, one in cohorts.items()}
        refuse_circular_cohorts((one.document for one in reversed(cohorts.values())), parents)
    return together(objects, revision)


def together(objects: Iterable[ReadDocument], revision: int) -> QueueConfig:
    """The same for parsed objects. It ignores the parents of Cohorts in cycles, see :func:`circular_cohorts`."""
    parts: dict[str, dict[Any, Any]] = {kind: {} for kind in BY_KIND}
    for one in objects:
        parts[one.kind][one.key] = one.content
    cohorts = parts["Cohort"]
    for name in circular_cohorts({name: cohort.parent for name, cohort in cohorts.items()}):
        cohorts[name] = replace(cohorts[name], parent=None)
    config = QueueConfig(
        revision=revision,
        cluster_queues=parts["ClusterQueue"],
        local_queues=parts["LocalQueue"],
        flavors=parts["ResourceFlavor"],
        topologies=parts["Topology"],
        priority_classes=parts["WorkloadPriorityClass"],
        cohorts=cohorts,
        overrides=parts["QuotaOverride"],
        budgets=parts["Budget"],
        top_ups=parts["BudgetTopUp"],
        reservations=parts["Reservation"],
        checks=_with_settings(parts["AdmissionCheck"], parts[PROVISIONING_KIND]),
        rules=parts["Configuration"].get(ONLY_NAME, Rules()),
    )
    queues = {
        name: by_price(_with_checks(_in_line(queue, config), config.checks), config)
        for name, queue in config.cluster_queues.items()
    }
    return replace(config, cluster_queues=queues)


def _with_settings(
    checks: Mapping[str, AdmissionCheck], settings: Mapping[str, ProvisioningConfig]
) -> dict[str, AdmissionCheck]:
    """The checks with the settings that they name."""
    return {
        name: replace(check, provisioning=settings.get(check.settings))
        for name, check in checks.items()
    }


def _with_checks(queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> ClusterQueue:
    """The ClusterQueue with what its rules need to know about the checks that they name."""
    makers = {name for name, check in checks.items() if check.controller == PROVISIONING}
    if not any(rule.name in makers for rule in queue.admission_checks):
        return queue
    rules = (replace(rule, provisions=rule.name in makers) for rule in queue.admission_checks)
    return replace(queue, admission_checks=tuple(rules))


# ---- Admissibility


def _in_line(queue: ClusterQueue, config: QueueConfig) -> ClusterQueue:
    """The ClusterQueue with the strategy of its Cohort, if that is Backfill."""
    cohort = config.backfill_cohort(queue)
    if cohort is None or cohort.backfill is None:
        return queue
    return replace(queue, strategy=QueueingStrategy.BACKFILL, backfill=cohort.backfill)


def inadmissible_reason(
    namespace: str, queue: str, config: QueueConfig, labels: Mapping[str, str]
) -> Reason | None:
    """The reason for which no gang of this LocalQueue can start now, or None.

    Args:
        namespace: of the workload and its LocalQueue.
        queue: name of the LocalQueue.
        config: all queues.
        labels: of the namespace.
    """
    local = config.local_queues.get((namespace, queue))
    target = config.cluster_queues.get(local.cluster_queue) if local is not None else None
    if local is not None and target is not None:
        stopped = _stopped(target, local, StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN)
        if stopped is not None:
            return stopped
    return closed(namespace, queue, config, labels)


def refused_gpus(podsets: Sequence[PodSet], fleet: Fleet, weights: GpuWeights) -> Reason | None:
    """The reason for which no gang can have the GPUs that these podsets request, or None."""
    if (excess := too_many_gpus(podsets, weights)) is not None:
        return Reason(Code.MISCONFIGURED, excess)
    if (asked := fraction_of(podsets)) is not None:
        return Reason(Code.UNSUPPORTED, why_refused(asked, fleet, weights))
    return None


def refused_job(job: JobRecord, queue: str, config: QueueConfig) -> Reason | None:
    """The reason for which a LocalQueue that accepts its namespace refuses a job, or None.

    It names a WorkloadPriorityClass that does not exist, or a longer maximum execution time than its ClusterQueue permits.
    """
    named, stated = job.priority_class, job.max_execution
    if named is not None and named not in config.priority_classes:
        return Reason(Code.MISCONFIGURED, f"WorkloadPriorityClass {named} does not exist")
    target = config.cluster_queue_of(job.namespace, queue)
    if stated is None or target is None or not target.execution.refuses(stated):
        return None
    text = (
        f"{MAX_EXECUTION}: {stated:.0f} s is more than the {target.execution.most:.0f} s that ClusterQueue "
        f"{target.name} permits"
    )
    return Reason(Code.MISCONFIGURED, text)


def closed(
    namespace: str, queue: str, config: QueueConfig, labels: Mapping[str, str]
) -> Reason | None:
    """The same without stop policies: the reason for which the LocalQueue does not accept the namespace, or None."""
    local = config.local_queues.get((namespace, queue))
    if local is None:
        text = f"LocalQueue {queue} does not exist in namespace {namespace}"
        return Reason(Code.MISCONFIGURED, text)
    target = config.cluster_queues.get(local.cluster_queue)
    if target is None:
        text = (
            f"LocalQueue {queue} points to ClusterQueue {local.cluster_queue}, which does not exist"
        )
        return Reason(Code.MISCONFIGURED, text)
    if target.namespace_selector is None:
        return _selects_none(target)
    if not target.namespace_selector.matches(labels):
        text = f"{_selector(target)} does not select namespace {namespace}"
        return Reason(Code.MISCONFIGURED, text)
    return _unanswered(target, config)


def inactive_reason(target: ClusterQueue, config: QueueConfig) -> Reason | None:
    """The reason for which no gang of this ClusterQueue can start now, whatever its LocalQueue, or None."""
    if target.stop_policy is not StopPolicy.NONE:
        return _queue_stopped(target)
    if target.namespace_selector is None:
        return _selects_none(target)
    flavors = {quotas.flavor for group in target.groups for quotas in group.flavors}
    if flavors and not flavors & config.flavors.keys():
        text = f"ResourceFlavor {', '.join(sorted(flavors))} does not exist"
        return Reason(Code.MISCONFIGURED, text)
    return _unanswered(target, config)


def _selector(target: ClusterQueue) -> str:
    return f"spec.namespaceSelector of ClusterQueue {target.name}"


def _selects_none(target: ClusterQueue) -> Reason:
    text = f"{_selector(target)} is not set, so it selects no namespace; {{}} selects all"
    return Reason(Code.MISCONFIGURED, text)


def _unanswered(target: ClusterQueue, config: QueueConfig) -> Reason | None:
    unanswered = inactive(target.admission_checks, config.checks) if target.admission_checks else {}
    if not unanswered:
        return None
    listed = "; ".join(f"AdmissionCheck {name} {why}" for name, why in unanswered.items())
    text = f"ClusterQueue {target.name} starts no gang: {listed}"
    details = {"clusterQueue": target.name, "admissionChecks": list(unanswered)}
    return Reason(Code.UNSATISFIED_CHECKS, text, details)


def drain(namespace: str, queue: str, config: QueueConfig) -> Reason | None:
    """The reason for which running gangs of this LocalQueue are evicted (``HoldAndDrain``), or None."""
    local = config.local_queues.get((namespace, queue))
    target = config.cluster_queues.get(local.cluster_queue) if local is not None else None
    if local is None or target is None:
        return None
    return _stopped(target, local, StopPolicy.HOLD_AND_DRAIN)


def _queue_stopped(target: ClusterQueue) -> Reason:
    text = f"ClusterQueue {target.name} is stopped (stopPolicy {target.stop_policy})"
    return Reason(Code.QUEUE_STOPPED, text)


def _stopped(target: ClusterQueue, local: LocalQueue, *policies: StopPolicy) -> Reason | None:
    if target.stop_policy in policies:
        return _queue_stopped(target)
    if local.stop_policy in policies:
        return Reason(
            Code.LOCAL_QUEUE_STOPPED,
            f"LocalQueue {local.name} is stopped (stopPolicy {local.stop_policy})",
        )
    return None
