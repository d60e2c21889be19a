"""References between configuration objects: cycles of Cohorts, and names that do not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final

from queuectl.domain.budgets import BudgetScope
from queuectl.domain.queries import DocumentKey
from queuectl.domain.queues import QueueConfig, QuotaOverride, ResourceFlavor
from queuectl.domain.reservations import REQUESTS, AdvanceReservation, no_amount
from queuectl.objects.configuration.checks import PROVISIONING_KIND
from queuectl.objects.documents import Document, as_document

MAX_COHORTS: Final = 64
"""The longest chain of Cohorts to the root of a tree. Each level sums the quota of all Cohorts below it."""


def refuse_circular_cohorts(
    cohorts: Iterable[Document | Mapping[str, Any]], parents: Mapping[str, str | None]
) -> None:
    """Check that no Cohort is its own ancestor, which would borrow from its own quota, and that no tree is too high.

    The cost is linear in the number of Cohorts.

    Args:
        cohorts: the documents to check.
        parents: from the name of each Cohort to the name of its parent, with the Cohorts to check.

    Raises:
        DocumentError: naming document and field.
    """
    levels, circular = _levels(parents)
    below = dict(levels)  # the level of the lowest Cohort below each
    for name in sorted(set(levels) - circular, key=lambda name: -levels[name]):
        if above := parents.get(name):
            below[above] = max(below[above], below[name])
    for cohort in cohorts:
        document = cohort if isinstance(cohort, Document) else as_document(dict(cohort))
        name = document.body["metadata"]["name"]
        if name in circular:
            raise document.error("spec.parentName", f"is a cycle: {_cycle(name, parents)}")
        if parents.get(name) and below[name] > MAX_COHORTS:
            reason = f"makes a chain of {below[name]} Cohorts; at most {MAX_COHORTS} are allowed"
            raise document.error("spec.parentName", reason)


def circular_cohorts(parents: Mapping[str, str | None]) -> frozenset[str]:
    """Cohorts whose parent must be ignored, to avoid cycles and trees that are too high."""
    levels, circular = _levels(parents)
    high = (name for name, level in levels.items() if level > 1 and level % MAX_COHORTS == 1)
    return frozenset(circular).union(high)


def refuse_reserved_devices(
    documents: Iterable[Document | Mapping[str, Any]], resources: Collection[str]
) -> None:
    """Check that no Reservation keeps an amount of resources that only devices provide.

    Args:
        documents: configuration of each kind.
        resources: those resources.

    Raises:
        DocumentError: naming document and field.
    """
    for each in documents if resources else ():
        document = each if isinstance(each, Document) else as_document(dict(each))
        if document.kind != "Reservation":
            continue
        capacity = document.body["spec"].get("capacity") or {}
        name = next((name for name in capacity.get("requests", ()) if name in resources), None)
        if name is not None:
            raise document.error(REQUESTS, no_amount(name))


def _levels(parents: Mapping[str, str | None]) -> tuple[dict[str, int], set[str]]:
    """The number of Cohorts from each to its root, itself included, and the Cohorts in cycles, which count as roots."""
    levels: dict[str, int] = {}
    circular: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}
        name: str | None = start
        while name and name not in levels and name not in path:
            path[name] = None
            name = parents.get(name)
        ahead = list(path)
        if name in path:
            ring = ahead[ahead.index(name) :]
            circular.update(ring)
            levels.update(dict.fromkeys(ring, 1))
            ahead = ahead[: -len(ring)]
        base = levels[name] if name else 0
        levels.update(zip(reversed(ahead), count(base + 1), strict=False))
    return levels, circular


def _cycle(name: str, parents: Mapping[str, str | None]) -> str:
    path = [name]
    while (above := parents[path[-1]]) != name:
        assert above is not None
        path.append(above)
    return " -> ".join([*path, name])


def references(document: Mapping[str, Any]) -> frozenset[DocumentKey]:
    """The keys of the objects that :func:`dangling` needs to check one stored object."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    named: set[tuple[str, str | None]] = set()
    match document["kind"]:
        case "ClusterQueue":
            flavors = [f for group in spec.get("resourceGroups") or () for f in group["flavors"]]
            strategy = spec.get("admissionChecksStrategy") or {}
            checks = [rule["name"] for rule in strategy.get("admissionChecks") or ()]
            named = {("ResourceFlavor", flavor["name"]) for flavor in flavors}
            named |= {
                ("AdmissionCheck", c) for c in (*checks, *(spec.get("admissionChecks") or ()))
            }
        case "LocalQueue" | "QuotaOverride":
            named = {("ClusterQueue", spec["clusterQueue"])}
        case "Reservation":
            flavor = (spec.get("capacity") or {}).get("flavor")
            named = {("ClusterQueue", spec.get("clusterQueue")), ("ResourceFlavor", flavor)}
        case "ResourceFlavor":
            named = {("Topology", spec.get("topologyName"))}
        case "AdmissionCheck":
            settings = spec.get("parameters") or {}
            named = {(PROVISIONING_KIND, settings.get("name"))}
            named = named if settings.get("kind") == PROVISIONING_KIND else set()
        case "Budget":
            named = {("ClusterQueue", spec.get("clusterQueue"))}
        case "BudgetTopUp":
            named = {("Budget", spec["budget"])}
    return frozenset(DocumentKey(kind, "", name) for kind, name in named if name)


def dangling(config: QueueConfig) -> tuple[str, ...]:
    """Sentences about references to missing objects. They are allowed: a queue can be created before its flavors."""
    sentences = []
    for queue in config.cluster_queues.values():
        for group in queue.groups:
            sentences += [
                f"ClusterQueue {queue.name}: ResourceFlavor {quotas.flavor} does not exist"
                for quotas in group.flavors
                if quotas.flavor not in config.flavors
            ]
        sentences += [
            f"ClusterQueue {queue.name}: AdmissionCheck {rule.name} does not exist: no gang starts"
            for rule in queue.admission_checks
            if rule.name not in config.checks
        ]
    sentences += [
        f"AdmissionCheck {check.name}: {PROVISIONING_KIND} {check.settings} does not exist"
        for check in config.checks.values()
        if check.settings and check.provisioning is None
    ]
    for local in config.local_queues.values():
        if local.cluster_queue not in config.cluster_queues:
            sentences.append(
                f"LocalQueue {local.namespace}/{local.name}:"
                f" ClusterQueue {local.cluster_queue} does not exist"
            )
    for override in config.overrides.values():
        if (reason := _no_quota(config, override)) is not None:
            sentences.append(f"QuotaOverride {override.name}: {reason}")
    sentences += _of_budgets(config)
    for reservation in config.reservations.values():
        sentences += [
            f"Reservation {reservation.name}: {text}" for text in _unknown(config, reservation)
        ]
    for flavor in config.flavors.values():
        sentences += [
            f"ResourceFlavor {flavor.name}: {text}" for text in _of_topology(config, flavor)
        ]
    return tuple(sentences)


def _of_topology(config: QueueConfig, flavor: ResourceFlavor) -> Iterator[str]:
    if flavor.topology is None:
        return
    topology = config.topologies.get(flavor.topology)
    if topology is None:
        yield f"Topology {flavor.topology} does not exist"
    elif flavor.node_template is not None:
        for level, _ in flavor.node_template.domains:
            if level not in topology.levels:
                yield f"Topology {topology.name} has no level {level}, which nodesPerDomain names"


def _of_budgets(config: QueueConfig) -> Iterator[str]:
    for budget in config.budgets.values():
        of_queue = budget.scope is BudgetScope.CLUSTER_QUEUE
        if of_queue and budget.holder not in config.cluster_queues:
            yield f"Budget {budget.name}: ClusterQueue {budget.holder} does not exist"
    for top_up in config.top_ups.values():
        if top_up.budget not in config.budgets:
            yield f"BudgetTopUp {top_up.name}: Budget {top_up.budget} does not exist"


def _unknown(config: QueueConfig, reservation: AdvanceReservation) -> Iterator[str]:
    queue, capacity = reservation.cluster_queue, reservation.capacity
    if queue is not None and queue not in config.cluster_queues:
        yield f"ClusterQueue {queue} does not exist"
    flavor = capacity.flavor if capacity is not None else None
    if flavor is not None and flavor not in config.flavors:
        yield f"ResourceFlavor {flavor} does not exist"


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
