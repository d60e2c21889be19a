"""The cluster at each revision of a recording, for the checks of the audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from queuectl.demo.recorder import Event, Recording
from queuectl.domain.fleet import Node
from queuectl.domain.jobs import JobRecord, OwnerKey, PodRecord
from queuectl.domain.quantity import NOTHING, Resources
from queuectl.domain.records import NodeRecord
from queuectl.objects.kinds.parents import Parents


def place_of(pod: PodRecord) -> str | None:
    """The node on which a pod occupies capacity; before it is bound, the hostname to which an ungated pod is pinned."""
    return None if pod.terminal or pod.gated else pod.node or pod.pin


def podset_of(job: JobRecord, pod: PodRecord) -> str:
    """PodSet of a managed pod. A pod without the label belongs to the only PodSet."""
    return pod.podset or (job.podsets[0].name if len(job.podsets) == 1 else "")


@dataclass(slots=True)
class ObservedState:
    """All objects at one revision.

    Attributes:
        hosts: hostname label to node.
        capacity: the most that each node has offered. Devices are missing for some time after a restart of a node, and gangs
            keep their slots there.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    capacity: dict[str, Resources] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    of_job: dict[str, dict[str, PodRecord]] = field(default_factory=dict)
    use: dict[str, Resources] = field(default_factory=dict)

    def node_of(self, pod: PodRecord) -> str | None:
        """The node on which a pod occupies capacity."""
        place = place_of(pod)
        return self.hosts.get(place, place) if place is not None and not pod.node else place


@dataclass(frozen=True, slots=True)
class PodRevision:
    """One pod before and after a revision; None = it does not exist."""

    version: int
    at: float
    before: PodRecord | None
    after: PodRecord | None


@dataclass(slots=True)
class Replay:
    """Applies a recording's events in order."""

    recording: Recording
    observed: ObservedState = field(default_factory=ObservedState)
    _parents: Parents = field(default_factory=Parents)

    def steps(self) -> Iterator[PodRevision]:
        """Each change of a pod; ``observed`` is the state after it."""
        for event in self.recording.events:
            match event.fact:
                case NodeRecord() as fact:
                    self._node(fact.node, gone=event.gone)
                case JobRecord() as job:
                    self._job(event.key, job, gone=event.gone)
                case PodRecord() as pod:
                    yield self._pod(event, pod)

    def _node(self, node: Node, *, gone: bool) -> None:
        if gone:
            self.observed.nodes.pop(node.name, None)
            self.observed.capacity.pop(node.name, None)
        else:
            self.observed.nodes[node.name] = node
            known = self.observed.capacity.get(node.name, NOTHING)
            largest = {
                name: max(known[name], node.allocatable[name])
                for name in {*known, *node.allocatable}
            }
            self.observed.capacity[node.name] = Resources(largest)
            self.observed.hosts[node.hostname] = node.name

    def _job(self, uid: str, job: JobRecord, *, gone: bool) -> None:
        changed: JobRecord | None
        if gone:
            self.observed.jobs.pop(uid, None)
            changed = self._parents.remove_child(uid)
            self._parents.drop(uid)
        elif job.parent and job.queue is None:
            changed = self._parents.put_child(job)
        else:
            changed = self._parents.put(job)
        if changed is not None:
            self.observed.jobs[changed.uid] = changed

    def _pod(self, event: Event, pod: PodRecord) -> PodRevision:
        observed = self.observed
        job = observed.jobs.get(pod.owner)
        if job is not None and pod.owned_by != OwnerKey(job.kind, job.namespace, job.uid):
            pod = replace(pod, owner="")  # its claim to the job is wrong
        before = observed.pods.get(event.key)
        after = None if event.gone else pod
        siblings = observed.of_job.setdefault(pod.owner, {})
        if after is None:
            observed.pods.pop(event.key, None)
            siblings.pop(event.key, None)
        else:
            observed.pods[event.key] = siblings[event.key] = after
        for one, sign in ((before, -1), (after, 1)):
            node = observed.node_of(one) if one is not None else None
            if one is not None and node is not None:
                observed.use[node] = observed.use.get(node, NOTHING) + one.requests * sign
        return PodRevision(event.version, event.at, before, after)
