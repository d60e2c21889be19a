"""What configuration objects need of each other: circles of Cohorts, names that lead nowhere, users nobody tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queuectl.domain.queues import QueueConfig
from queuectl.objects.documents import Document, as_document


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
    """What has no effect for want of another object, as sentences: a queue may be written before what it refers to."""
    found = []
    usage = config.rules.usage_fairness
    for queue in config.cluster_queues.values():
        if queue.max_per_user and (usage is None or usage.user_label is None):
            found.append(
                f"ClusterQueue {queue.name}: spec.policy.maxPerUser has no effect:"
                " no queuectl.userLabel in the Configuration tells users apart"
            )
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
