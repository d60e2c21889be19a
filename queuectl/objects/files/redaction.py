"""Other names for everything in a snapshot that names a place, a person or an object. Names keep their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

from queuectl.domain.devices import DeviceOption, PodDevices
from queuectl.domain.quantity import Resources
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.domain.words import by_numbers
from queuectl.domain.workload import PodSet, PodShape

_NUMBER: Final = re.compile(r"-?\d+")
_WORDS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", ""})
_SENTENCES: Final[Mapping[str, object]] = {"message": "", "details": {}}
"""Fields that hold text for people, and what a redacted file has instead."""
_TERMS: Final = frozenset(
    {"kind", "reason", "resource", "covered", "level", "levels", "key", "operator"}
)
"""Fields whose text means the same in every cluster."""
_OF_PLACES: Final = frozenset(
    {
        "fleet",
        "nodes",
        "recovered",
        "labels",
        "other_pods",
        "of_daemons",
        "excluded",
        "lost",
        "requirements",
    }
    | {"selector", "affinity", "taints", "tolerations", "node_labels", "node_taints"}
)
"""Fields with nodes and values of labels."""


@dataclass(frozen=True, slots=True)
class Names:
    """Another name for each: ``places`` for nodes and values of labels, ``other_names`` for all else."""

    other_names: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)

    def within(self, part: str) -> Names:
        """The kind of names in a field with this name."""
        return Names(self.places, self.places) if part in _OF_PLACES else self


def renamed(content: Any, names: Names) -> Any:
    """The same value with other names, and without sentences."""
    if type(content) is str:  # not a member of an enumeration
        return names.other_names.get(content, content)
    if isinstance(content, tuple | frozenset):
        return type(content)(renamed(one, names) for one in content)
    if isinstance(content, Mapping) and not isinstance(content, Resources):
        return {
            renamed(key, names): renamed(
                one, names.within("labels") if isinstance(one, Mapping) else names
            )
            for key, one in content.items()
        }
    if not is_dataclass(content) or isinstance(content, type):
        return content
    parts = [part.name for part in fields(content) if part.name not in _TERMS]
    changed = {
        part: _SENTENCES[part]
        if part in _SENTENCES
        else renamed(getattr(content, part), names.within(part))
        for part in parts
    }
    return replace(content, **changed)


def new_names(snapshot: Snapshot) -> Names:
    """Another name for each name of a snapshot.

    The planner orders places by the numbers in their names, all else by code points: so the new names are ordered.
    """
    kept = _WORDS | set(_vocabulary(snapshot))
    places = {p for p in _places(snapshot) if p not in kept and not _NUMBER.fullmatch(p)}
    others = {name for name in _others(snapshot) if name not in kept}
    return Names(_numbered("n", others, str), _numbered("p", places, by_numbers))


def _numbered(letter: str, names: Iterable[str], order: Callable[[str], Any]) -> dict[str, str]:
    listed = sorted(sorted(names), key=order)
    width = len(str(len(listed)))
    return {name: f"{letter}{number:0{width}d}" for number, name in enumerate(listed)}


def _vocabulary(snapshot: Snapshot) -> Iterator[str]:
    """Names of resources and keys of labels: they mean the same everywhere."""
    for node in snapshot.fleet.nodes:
        yield from node.labels
        yield from node.allocatable
    for labels in snapshot.namespaces.values():
        yield from labels
    for workload in _workloads(snapshot):
        for podset in workload.podsets:
            yield podset.name
            yield from podset.shape.requests
            yield from (key for key, _ in podset.shape.rules.selector)
    queues, cohorts = snapshot.config.cluster_queues.values(), snapshot.config.cohorts.values()
    for groups in (*(queue.groups for queue in queues), *(cohort.groups for cohort in cohorts)):
        yield from (resource for group in groups for resource in group.covered)
    for topology in snapshot.config.topologies.values():
        yield from topology.levels


def _of_claims(podset: PodSet) -> Iterator[str]:
    """Claims, their requests and their selectors."""
    for reference in podset.claims:
        yield from (reference.name, reference.template or "", reference.claim or "")
    yield from (text for option in _options(podset.shape) for text in option.selectors)
    devices = podset.shape.devices or PodDevices()
    yield from devices.shared
    for claim in devices.claims:
        for request in claim.requests:
            yield from (request.name, *request.subrequests)
        yield from (name for constraint in claim.constraints for name in constraint.requests)


def _options(shape: PodShape) -> Iterator[DeviceOption]:
    for claim in shape.devices.claims if shape.devices is not None else ():
        yield from (option for request in claim.requests for option in request.options)


def _workloads(snapshot: Snapshot) -> Iterator[Any]:
    yield from (pending.workload for pending in snapshot.pending)
    yield from (admitted.workload for admitted in snapshot.admitted)


def _places(snapshot: Snapshot) -> Iterator[str]:
    """Nodes and values of labels."""
    for node in snapshot.fleet.nodes:
        yield node.name
        yield from node.labels.values()
        yield from (taint.value for taint in node.taints)
    yield from snapshot.other_pods
    for labels in snapshot.namespaces.values():
        yield from labels.values()
    for flavor in snapshot.config.flavors.values():
        yield from (value for _, value in flavor.node_labels)
        yield from (taint.value for taint in flavor.node_taints)
        yield from (toleration.value for toleration in flavor.tolerations)
    for queue in snapshot.config.cluster_queues.values():
        if queue.namespace_selector is not None:
            yield from (v for r in queue.namespace_selector.requirements for v in r.values)
    gangs: tuple[Pending | Admitted, ...] = (*snapshot.pending, *snapshot.admitted)
    for gang in gangs:
        yield from gang.excluded
    for workload in _workloads(snapshot):
        for podset in workload.podsets:
            rules = podset.shape.rules
            yield from (value for _, value in rules.selector)
            yield from (v for t in rules.affinity or () for r in t.requirements for v in r.values)
            yield from (toleration.value for toleration in rules.tolerations)
            yield from (t.value for option in _options(podset.shape) for t in option.tolerations)
    leases = [pending.lease for pending in snapshot.pending if pending.lease is not None]
    for placement in (
        *(a.placement for a in snapshot.admitted),
        *(lease.placement for lease in leases),
    ):
        yield from (name for podset in placement.podsets for name, _ in podset.nodes)


def _others(snapshot: Snapshot) -> Iterator[str]:
    """Gangs and whose they are, and objects of the configuration."""
    config, used = snapshot.config, snapshot.past_use
    for workload in _workloads(snapshot):
        yield from (workload.uid, workload.namespace, workload.name)
        yield from (workload.queue or "", workload.charged_queue or "", workload.user or "")
        for podset in workload.podsets:
            yield from _of_claims(podset)
    for pending in snapshot.pending:
        yield from pending.lease.victims if pending.lease is not None else ()
    yield from snapshot.namespaces
    for namespace, quotas in snapshot.allowances.items():
        yield from (namespace, *(quota.name for quota in quotas))
    yield from (*snapshot.moved_work, *used.cluster_queues, *used.users)
    yield from (part for queue in (*used.local_queues, *config.local_queues) for part in queue)
    for queue in config.local_queues.values():
        yield queue.cluster_queue
    for cluster_queue in config.cluster_queues.values():
        yield from (cluster_queue.name, cluster_queue.cohort or "")
    for cohort in config.cohorts.values():
        yield from (cohort.name, cohort.parent or "")
    for override in config.overrides.values():
        yield from (override.name, override.cluster_queue, override.flavor)
    for reservation in config.reservations.values():
        yield from (reservation.name, *reservation.users, *reservation.namespaces)
    yield from (*config.flavors, *config.topologies, *config.priority_classes, *config.cohorts)
