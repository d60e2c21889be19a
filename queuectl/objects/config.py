"""The one reader of configuration: ClusterQueue and its relatives, ours and Kueue's, to a QueueConfig.

Three doors, one set of rules: :func:`validate` (one object over REST), :func:`build` (what the database holds) and both
together for files. A field outside the kind's schema is an error; one that is known but not honoured yet is a warning;
server metadata and status are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from queuectl.domain.queues import QueueConfig
from queuectl.objects import config_wire as wire
from queuectl.objects.config_read import (
    Warned,
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_local_queue,
    read_topology,
    warn_cluster_queue,
    warn_cohort,
    warn_local_queue,
)
from queuectl.objects.documents import Document, as_document
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_name

API_VERSION: Final = "queuectl.dev/v1"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2")
CONFIGURATION_VERSIONS: Final = (
    API_VERSION,
    "config.kueue.x-k8s.io/v1beta1",
    "config.kueue.x-k8s.io/v1beta2",
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class ConfigKind:
    """One kind of configuration object.

    Attributes:
        kind: as written.
        plural: REST resource name.
        wire: strict struct it is decoded to.
        read: to the domain's value; may raise RequestError.
        warn: what it asks that is not honoured yet.
        namespaced: whether it lives in a namespace.
    """

    kind: str
    plural: str
    wire: type[Any]
    read: Callable[[Any], Any]
    warn: Callable[[Any], Iterator[Warned]] = lambda _: iter(())
    namespaced: bool = False


def _read_priority(document: wire.PriorityClassDocument) -> int:
    return document.value


CONFIG_KINDS: Final[Mapping[str, ConfigKind]] = MappingProxyType(
    {
        kind.kind: kind
        for kind in (
            ConfigKind(
                "ClusterQueue",
                "clusterqueues",
                wire.ClusterQueueDocument,
                read_cluster_queue,
                warn_cluster_queue,
            ),
            ConfigKind(
                "LocalQueue",
                "localqueues",
                wire.LocalQueueDocument,
                read_local_queue,
                warn_local_queue,
                namespaced=True,
            ),
            ConfigKind("Cohort", "cohorts", wire.CohortDocument, read_cohort, warn_cohort),
            ConfigKind(
                "ResourceFlavor", "resourceflavors", wire.ResourceFlavorDocument, read_flavor
            ),
            ConfigKind("Topology", "topologies", wire.TopologyDocument, read_topology),
            ConfigKind(
                "WorkloadPriorityClass",
                "priorityclasses",
                wire.PriorityClassDocument,
                _read_priority,
            ),
        )
    }
)


def is_config(document: Document) -> bool:
    """Whether it is a configuration object, of whatever version."""
    group = document.api_version.partition("/")[0]
    return document.kind in CONFIG_KINDS and group in ("queuectl.dev", "kueue.x-k8s.io")


def key_of(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """(kind, namespace, name) of a normalised document; the namespace is empty for cluster-scoped kinds."""
    meta = body["metadata"]
    return body["kind"], meta.get("namespace", ""), meta["name"]


def validate(document: Document | Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Check one configuration object.

    Returns:
        The object as it is kept (``queuectl.dev/v1``, Kueue's older spellings renamed, server fields dropped), and
        warnings about fields that are not honoured yet.

    Raises:
        DocumentError: naming document and field.
    """
    given = document if isinstance(document, Document) else as_document(dict(document))
    kind, decoded = _decode(given)
    _read(given, kind, decoded)
    warnings = tuple(
        f"{given.address}: {warned.field}: {warned.reason}" for warned in kind.warn(decoded)
    )
    return _normalise(kind, decoded), warnings


def _decode(document: Document) -> tuple[ConfigKind, Any]:
    kind = CONFIG_KINDS.get(document.kind)
    if kind is None:
        listed = ", ".join(CONFIG_KINDS)
        raise document.error("kind", f"{document.kind!r} is none of {listed}")
    if document.api_version not in (API_VERSION, *KUEUE_VERSIONS):
        listed = ", ".join((API_VERSION, *KUEUE_VERSIONS))
        raise document.error("apiVersion", f"{document.api_version!r} is none of {listed}")
    decoded = document.convert(kind.wire)
    name = decoded.metadata.name
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
        raise document.error("metadata.namespace", f"a {kind.kind} lives in no namespace")
    return kind, decoded


def _read(document: Document, kind: ConfigKind, decoded: Any) -> Any:
    try:
        value = kind.read(decoded)
    except RequestError as error:
        raise document.error("", str(error)) from None
    if document.api_version != API_VERSION and getattr(
        getattr(decoded, "spec", None), "policy", None
    ):
        raise document.error("spec.policy", f"is a field of {API_VERSION}, not of Kueue's API")
    return value


def _normalise(kind: ConfigKind, decoded: Any) -> dict[str, Any]:
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


def build(documents: Iterable[Mapping[str, Any] | Document], revision: int) -> QueueConfig:
    """All configuration of one revision. Later documents replace earlier ones of the same kind and name.

    Raises:
        DocumentError: one of them is invalid.
    """
    parts: dict[str, dict[Any, Any]] = {kind: {} for kind in CONFIG_KINDS}
    cohorts: list[Document] = []
    for body in documents:
        document = body if isinstance(body, Document) else as_document(dict(body))
        kind, decoded = _decode(document)
        meta = decoded.metadata
        key = (meta.namespace, meta.name) if kind.namespaced else meta.name
        parts[kind.kind][key] = _read(document, kind, decoded)
        if kind.kind == "Cohort":
            cohorts.append(document)
    parents = {name: cohort.parent for name, cohort in parts["Cohort"].items()}
    for document in reversed(cohorts):  # the last one closes it
        refuse_cycle(document, parents)
    return QueueConfig(
        revision=revision,
        cluster_queues=parts["ClusterQueue"],
        local_queues=parts["LocalQueue"],
        flavors=parts["ResourceFlavor"],
        topologies=parts["Topology"],
        priority_classes=parts["WorkloadPriorityClass"],
        cohorts=parts["Cohort"],
    )


def refuse_cycle(cohort: Document | Mapping[str, Any], parents: Mapping[str, str | None]) -> None:
    """Check that a Cohort is not above itself: it would borrow from its own quota.

    Args:
        cohort: its document.
        parents: Cohort name to its parent's, of all other Cohorts.

    Raises:
        DocumentError: naming document and field.
    """
    document = cohort if isinstance(cohort, Document) else as_document(dict(cohort))
    name = document.body["metadata"]["name"]
    path = [name]
    above = (document.body.get("spec") or {}).get("parentName")
    while above and above not in path:
        path.append(above)
        above = parents.get(above)
    if above == name:
        raise document.error("spec.parentName", f"is a cycle: {' -> '.join([*path, name])}")


def dangling(config: QueueConfig) -> tuple[str, ...]:
    """Names that lead nowhere, as sentences: a queue may be written before what it refers to."""
    found = []
    for queue in config.cluster_queues.values():
        for group in queue.groups:
            found += [
                f"ClusterQueue {queue.name}: ResourceFlavor {quotas.flavor} does not exist"
                for quotas in group.flavors
                if quotas.flavor not in config.flavors
            ]
    for local in config.local_queues.values():
        if local.cluster_queue not in config.cluster_queues:
            found.append(
                f"LocalQueue {local.namespace}/{local.name}:"
                f" ClusterQueue {local.cluster_queue} does not exist"
            )
    for flavor in config.flavors.values():
        if flavor.topology is not None and flavor.topology not in config.topologies:
            found.append(f"ResourceFlavor {flavor.name}: Topology {flavor.topology} does not exist")
    return tuple(found)


_HONOURED_ELSEWHERE: Final = (
    "manage_jobs_without_queue_name",
    "managed_jobs_namespace_selector",
    "wait_for_pods_ready",
    "integrations",
    "multi_kueue",
    "fair_sharing",
    "admission_fair_sharing",
    "resources",
    "feature_gates",
    "object_retention_policies",
)


def is_configuration(document: Document) -> bool:
    """Whether it is Kueue's ``Configuration`` (settings of the manager, not an object of the cluster)."""
    return document.kind == "Configuration" and document.api_version in CONFIGURATION_VERSIONS


def read_configuration(document: Document) -> tuple[str, ...]:
    """Check a ``Configuration``.

    Returns:
        Warnings: none of its settings that rule planning is honoured yet; those that only run a Kueue manager mean
        nothing here and are passed over.

    Raises:
        DocumentError: a field is none of a Configuration's.
    """
    if not is_configuration(document):
        raise document.error("kind", f"{document.api_version} {document.kind} is no Configuration")
    decoded = document.convert(wire.ConfigurationDocument)
    fields = {f.name: f.encode_name for f in msgspec.structs.fields(wire.ConfigurationDocument)}
    return tuple(
        f"{document.address}: {fields[name]}: not honoured yet"
        for name in _HONOURED_ELSEWHERE
        if getattr(decoded, name) not in (None, {}, [])
    )
