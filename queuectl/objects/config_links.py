"""What configuration objects need of each other: circles of Cohorts, names that lead nowhere, users nobody tells apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig, QuotaOverride
from queuectl.objects.documents import Document, as_document


def refuse_cycle(cohort: Document | Mapping[str, Any], parents: Mapping[str, str | None]) -> None:
    """Check that a Cohort is not above itself: it would borrow from its own quota.

    Args:
        cohort: its document.
        parents: Cohort name to its parent's, of all other Cohorts.

    Raises:
        DocumentError: naming document and field.
    """
    refuse_cycles([cohort], parents)


def refuse_cycles(
    cohorts: Iterable[Document | Mapping[str, Any]], parents: Mapping[str, str | None]
) -> None:
    """The same of several Cohorts, in their order. The work grows with the number of Cohorts, not with its square."""
    apart: set[str] = set()  # names of Cohorts that are in no cycle
    for cohort in cohorts:
        document = cohort if isinstance(cohort, Document) else as_document(dict(cohort))
        name = document.body["metadata"]["name"]
        path = {name: 0}  # and the place of each name in it
        above = (document.body.get("spec") or {}).get("parentName")
        while above and above not in path and above not in apart:
            path[above] = len(path)
            above = parents.get(above)
        if above == name:
            raise document.error("spec.parentName", f"is a cycle: {' -> '.join([*path, name])}")
        # From a name that is repeated on they are in a cycle. An earlier document may have this name and another parent.
        apart.update(list(path)[1 : path.get(above)])


def references(document: Mapping[str, Any]) -> frozenset[DocumentKey]:
    """What else must be looked at to say of one object, in the form in which it is kept, what :func:`dangling` says of it."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    named: set[tuple[str, str | None]] = set()
    match document["kind"]:
        case "ClusterQueue":
            flavors = [f for group in spec.get("resourceGroups") or () for f in group["flavors"]]
            named = {("ResourceFlavor", flavor["name"]) for flavor in flavors}
        case "LocalQueue" | "QuotaOverride":
            named = {("ClusterQueue", spec["clusterQueue"])}
        case "ResourceFlavor":
            named = {("Topology", spec.get("topologyName"))}
    return frozenset(DocumentKey(kind, "", name) for kind, name in named if name)


def dangling(config: QueueConfig) -> tuple[str, ...]:
    """What has no effect for want of another object, as sentences: a queue may be written before what it refers to."""
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
    for override in config.overrides.values():
        if (why := _no_quota(config, override)) is not None:
            found.append(f"QuotaOverride {override.name}: {why}")
    for flavor in config.flavors.values():
        if flavor.topology is not None and flavor.topology not in config.topologies:
            found.append(f"ResourceFlavor {flavor.name}: Topology {flavor.topology} does not exist")
    return tuple(found)


def _no_quota(config: QueueConfig, override: QuotaOverride) -> str | None:
    queue = config.cluster_queues.get(override.cluster_queue)
    if queue is None:
        return f"ClusterQueue {override.cluster_queue} does not exist"
    for group in queue.groups:
        for quotas in group.flavors:
            if quotas.flavor == override.flavor and override.resource in quotas.nominal:
                return None
    what = f"{override.resource} of flavor {override.flavor}"
    return f"ClusterQueue {queue.name} has no quota for {what}"
