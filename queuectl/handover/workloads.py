"""Kueue's Workload of a running gang, with the admission that Kueue would have written when it started the gang.

Kueue (0.17) keeps a running job if a Workload that the job controls is admitted and has the podsets of the job: as many, with the same
counts, containers and init containers. Otherwise it suspends the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.domain.fleet import HOSTNAME, Node
from queuectl.domain.quantity import format_quantity
from queuectl.domain.queues import ClusterQueue, QueueConfig
from queuectl.domain.workload import PodSet, PodSetPlacement
from queuectl.handover.templates import topology_request
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.pods import POD_GROUP
from queuectl.objects.kueue_names import workload_name
from queuectl.objects.times import format_time

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
FINALIZER: Final = "kueue.x-k8s.io/resource-in-use"
JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"


@dataclass(frozen=True, slots=True)
class WorkloadOwner:
    """The object that a Workload belongs to.

    Attributes:
        group: API group; "" = the core group.
    """

    group: str
    version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def api_version(self) -> str:
        """As in an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def ref(self) -> str:
        """Kind, namespace and name, for messages."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def workload_name(self) -> str:
        """The name that Kueue gives to its Workload. A group gives it its own."""
        if self.kind == POD_GROUP:
            return self.name
        return workload_name(self.kind, self.group, self.name, self.uid)


@dataclass(frozen=True, slots=True)
class SubGroups:
    """The groups of a podset whose pods have an index inside their group. ``index_label``: the label with the index of the group."""

    index_label: str
    count: int


@dataclass(frozen=True, slots=True)
class RunningPodSet:
    """A podset of a running gang.

    Attributes:
        request: what its pods ask for.
        template: the pod template without the fields of queuectl.
        count: pods in the request of the job.
        admitted: pods for which the gang was admitted.
        min_count: the minimum number of pods, if Kueue can admit fewer; None = all.
        placement: its nodes and flavors.
        index_label: the label with the rank of its pods; None = they have none.
        sub_groups: of a podset of a JobSet.
    """

    request: PodSet
    template: Mapping[str, Any]
    count: int
    admitted: int
    placement: PodSetPlacement
    min_count: int | None = None
    index_label: str | None = None
    sub_groups: SubGroups | None = None


@dataclass(frozen=True, slots=True)
class AdmittedGang:
    """The facts about a running gang that its Workload states.

    Attributes:
        labels: of the owner, with those of Kueue.
        queued_at, started_at: unix seconds.
        priority: its number, and the reference to its class; None = it has no class.
        checks: names of the admission checks of its ClusterQueue.
    """

    owner: WorkloadOwner
    queue: str
    cluster_queue: ClusterQueue
    podsets: Sequence[RunningPodSet]
    labels: Mapping[str, str]
    started_at: float
    priority: int = 0
    priority_class: Mapping[str, str] | None = None
    checks: Sequence[str] = field(default=())


def workload_of(
    gang: AdmittedGang, config: QueueConfig, nodes: Mapping[str, Node]
) -> dict[str, Any]:
    """The Workload, with ``status``. It is created without it first, as for each kind with a status.

    Raises:
        RequestError: a flavor does not fit a node of the gang, or no flavor of the ClusterQueue does.
    """
    owner = gang.owner
    spec: dict[str, Any] = {
        "queueName": gang.queue,
        "active": True,
        "priority": gang.priority,
        "podSets": [_podset(one) for one in gang.podsets],
    }
    if gang.priority_class is not None:
        spec["priorityClassRef"] = dict(gang.priority_class)
    seconds = gang.labels.get(keys.KUEUE_PREFIX + keys.MAX_EXECUTION, "")
    if seconds.isdecimal() and 0 < len(seconds) < 10:
        spec["maximumExecutionTimeSeconds"] = int(seconds)
    reference = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {
            "name": owner.workload_name,
            "namespace": owner.namespace,
            "labels": {JOB_UID_LABEL: owner.uid},
            "finalizers": [FINALIZER],
            "ownerReferences": [reference],
        },
        "spec": spec,
        "status": _status(gang, config, nodes),
    }


def group_metadata(pods: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that differ in the metadata of the Workload of a group: each pod owns it, and none controls it."""
    owners = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        for pod in pods
    ]
    return {
        "labels": {},
        "annotations": {"kueue.x-k8s.io/is-group-workload": "true"},
        "ownerReferences": owners,
    }


def _podset(podset: RunningPodSet) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": podset.request.name,
        "count": podset.count,
        "template": dict(podset.template),
    }
    if podset.min_count is not None:
        written["minCount"] = podset.min_count
    request = topology_request(podset.template.get("metadata") or {}, podset.index_label) or {}
    if podset.sub_groups is not None:
        groups = podset.sub_groups
        request |= {"subGroupIndexLabel": groups.index_label, "subGroupCount": groups.count}
    if request:
        written["topologyRequest"] = request
    return written


def _status(gang: AdmittedGang, config: QueueConfig, nodes: Mapping[str, Node]) -> dict[str, Any]:
    since = format_time(gang.started_at)
    message = "The gang was started by queuectl"

    def true(kind: str) -> dict[str, str]:
        return {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": message,
            "lastTransitionTime": since,
        }

    assignments = [_assignment(gang, one, config, nodes) for one in gang.podsets]
    status: dict[str, Any] = {
        "conditions": [true("QuotaReserved"), true("Admitted")],
        "admission": {
            "clusterQueue": gang.cluster_queue.name,
            "podSetAssignments": assignments,
        },
    }
    if gang.checks:
        ready = {"state": "Ready", "lastTransitionTime": since, "message": message}
        status["admissionChecks"] = [{"name": name, **ready} for name in gang.checks]
    return status


def _assignment(
    gang: AdmittedGang, podset: RunningPodSet, config: QueueConfig, nodes: Mapping[str, Node]
) -> dict[str, Any]:
    flavors = podset.placement.flavors
    held = [nodes[name] for name, _ in podset.placement.nodes]
    where = f"podset {podset.request.name}"
    if not flavors:
        raise RequestError(
            f"{where}: ClusterQueue {gang.cluster_queue.name} covers none of its resources"
        )
    for flavor in sorted(set(flavors.values())):
        known = config.flavors.get(flavor)
        if known is None:
            raise RequestError(f"{where}: ResourceFlavor {flavor} does not exist")
        strange = next((node for node in held if not node.has_labels(known.node_labels)), None)
        if strange is not None:
            raise RequestError(
                f"{where}: ClusterQueue {gang.cluster_queue.name} has no flavor for node {strange.name}"
            )
    charged = config.rules.charged(podset.request.shape.requests)
    written: dict[str, Any] = {
        "name": podset.request.name,
        "flavors": dict(sorted(flavors.items())),
        "resourceUsage": {
            resource: format_quantity(resource, charged[resource] * podset.admitted)
            for resource in sorted(flavors)
        },
        "count": podset.admitted,
    }
    topology = _topology(flavors, config)
    if topology is not None:
        written["topologyAssignment"] = _topology_assignment(podset.placement, topology, nodes)
    return written


def _topology(flavors: Mapping[str, str], config: QueueConfig) -> tuple[str, ...] | None:
    """The levels of the topology of its flavors; None if no flavor has one."""
    for flavor in flavors.values():
        name = config.flavors[flavor].topology
        if name is None:
            continue
        topology = config.topologies.get(name)
        if topology is None:
            raise RequestError(f"ResourceFlavor {flavor}: Topology {name} does not exist")
        return topology.levels
    return None


def _topology_assignment(
    placement: PodSetPlacement, levels: tuple[str, ...], nodes: Mapping[str, Node]
) -> dict[str, Any]:
    """The pods of each domain of the lowest level. Kueue states only the hostname if that is the lowest level."""
    written = (HOSTNAME,) if levels[-1] == HOSTNAME else levels
    counts: dict[tuple[str, ...], int] = {}
    for name, pods in placement.nodes:
        values = tuple(_level_values(nodes[name], written))
        counts[values] = counts.get(values, 0) + pods
    domains = list(counts)
    each_level = [
        {"individual": {"roots": [domain[i] for domain in domains]}} for i in range(len(written))
    ]
    counted = {"individual": [counts[domain] for domain in domains]}
    slices = [{"domainCount": len(domains), "valuesPerLevel": each_level, "podCounts": counted}]
    return {"levels": list(written), "slices": slices}


def _level_values(node: Node, levels: Sequence[str]) -> Iterator[str]:
    for level in levels:
        value = node.hostname if level == HOSTNAME else node.labels.get(level)
        if value is None:
            raise RequestError(f"node {node.name} has no label {level}, a level of its Topology")
        yield value


def pod_patch(pod: Mapping[str, Any], workload: Mapping[str, Any], podset: str) -> dict[str, Any]:
    """The labels and annotations with which Kueue finds the pod of an admitted Workload, as a merge patch.

    Without them, Kueue counts the pod once for its Workload, and once more as a pod outside its queues.
    """
    assignments = workload["status"]["admission"]["podSetAssignments"]
    placed = next(one for one in assignments if one["name"] == podset)
    annotations = {"kueue.x-k8s.io/workload": workload["metadata"]["name"]}
    present = pod["metadata"].get("annotations") or {}
    stated = (keys.REQUIRED_TOPOLOGY, keys.PREFERRED_TOPOLOGY, keys.UNCONSTRAINED_TOPOLOGY)
    if "topologyAssignment" in placed:
        copied = {
            keys.KUEUE_PREFIX + suffix: present[keys.PREFIX + suffix]
            for suffix in stated
            if keys.PREFIX + suffix in present
        }
        if not copied and not any(keys.KUEUE_PREFIX + suffix in present for suffix in stated):
            copied = {keys.KUEUE_PREFIX + keys.UNCONSTRAINED_TOPOLOGY: "true"}
        annotations |= copied
    meta: dict[str, Any] = {
        "uid": pod["metadata"]["uid"],
        "labels": {"kueue.x-k8s.io/podset": podset},
        "annotations": annotations,
    }
    return {"metadata": meta}
