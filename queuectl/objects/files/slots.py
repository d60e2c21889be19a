"""Matches the pods of a file with the gangs of the same file.

The slots of a gang count once, whether its pods are in the file or not. A pod without a slot counts as another pod on its node. A
running gang without stated hosts gets its slots from its pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from queuectl.domain.fleet import Fleet
from queuectl.domain.pod_records import PodRecord
from queuectl.domain.quantity import Resources, total
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.files.gangs import Gang
from queuectl.objects.files.pods import GivenPod

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name", "training.kubeflow.org/job-name")
_PODSET_LABELS = (
    keys.PODSET_LABEL,
    keys.KUEUE_PREFIX + "podset",
    "training.kubeflow.org/replica-type",
)

Slot = tuple[str, str]  # podset, node name


class Owners:
    """Finds the gang of its namespace that a pod belongs to: by uid where there is one, else by names in labels and owners."""

    def __init__(
        self, gangs: Iterable[Gang], workload_names: Mapping[tuple[str, str], str]
    ) -> None:
        """``workload_names``: (namespace, name of a Workload) to the uid of its gang."""
        self._names: dict[tuple[str, str, str], Gang] = {}
        self._uids: dict[str, Gang] = {}
        self._indexes: dict[tuple[str, str, str], dict[int, Gang]] = {}  # of arrays, by job
        self._arrays: dict[str, tuple[str, str, str]] = {}  # uid -> job
        self._kinds: dict[str, None] = {}  # in the order of the gangs
        for gang in gangs:
            self._kinds[gang.kind] = None
            self._names[gang.key] = gang
            self._uids[gang.uid] = gang
            if gang.index is not None:
                self._indexes.setdefault(gang.job, {})[gang.index] = gang
                self._arrays[gang.uid.rpartition(".")[0]] = gang.job
            for owner in gang.owners:
                if owner.uid:
                    self._uids.setdefault(owner.uid, gang)
        self._workloads = {key: self._uids[uid] for key, uid in workload_names.items()}

    def of(self, pod: GivenPod) -> Gang | None:
        namespace = pod.record.namespace
        if pod.record.rank is not None and (array := self._array_of(pod)) is not None:
            index = self._indexes[array].get(pod.record.rank)
            # Else it can be a pod of the gang of an elastic Job.
            own = index is None or pod.record.podset in ("", index.podsets[0].name)
            if own and (index is not None or array not in self._names):
                return index
        for uid in (pod.labels.get(keys.WORKLOAD_LABEL, ""), pod.record.owner, pod.record.uid):
            gang = self._uids.get(uid)
            if gang is not None and gang.namespace == namespace:
                return gang
        for owner in pod.owners:
            found = self._names.get((owner.kind, namespace, owner.name))
            if found is not None and (not owner.uid or not found.has_uid):
                return found
        if pod.workload is not None and (namespace, pod.workload) in self._workloads:
            return self._workloads[namespace, pod.workload]
        return self._by_label(pod) if not pod.owners else None

    def _array_of(self, pod: GivenPod) -> tuple[str, str, str] | None:
        """The array that owns a pod."""
        found = self._arrays.get(pod.record.owner)
        if found is not None:
            return found if found[1] == pod.record.namespace else None
        jobs = (
            (owner.kind, pod.record.namespace, owner.name) for owner in pod.owners if not owner.uid
        )
        return next((job for job in jobs if job in self._indexes), None)

    def _by_label(self, pod: GivenPod) -> Gang | None:
        names = [pod.labels[label] for label in _JOB_LABELS if label in pod.labels]
        for name in names:
            for kind in self._kinds:
                found = self._names.get((kind, pod.record.namespace, name))
                if found is not None:
                    return found
        return None


@dataclass
class Slots:
    """Slots of running gangs, filled pod by pod.

    Attributes:
        held: gang uid to its slots, in placement order.
        other_pods: node name to what fills no slot there.
        filled: uids of the pods that fill a slot of a podset whose devices are known.
        guaranteed: nodes with a pod of the QoS class Guaranteed that fills no slot.
    """

    fleet: Fleet
    held: dict[str, dict[Slot, int]] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)
    guaranteed: set[str] = field(default_factory=set)
    _free: dict[str, Counter[Slot]] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _other_pods: dict[str, list[Resources]] = field(default_factory=dict)

    def state(self, gang: Gang, slots: Mapping[Slot, int]) -> None:
        """Slots that the gang's own document states."""
        self.held[gang.uid] = dict(slots)
        self._free[gang.uid] = Counter(slots)

    def derive(self, gang: Gang) -> None:
        """Let the gang's pods make its slots."""
        self.held[gang.uid] = {}
        self._open.add(gang.uid)

    @property
    def other_pods(self) -> dict[str, Resources]:
        return {node: total(vectors) for node, vectors in sorted(self._other_pods.items())}

    def fill(self, pods: Iterable[GivenPod], owners: Owners) -> None:
        """Account for every pod that uses a node of the fleet."""
        names = {node.hostname: node.name for node in self.fleet.nodes}
        ranked = sorted(
            pods, key=lambda p: (p.record.rank is None, p.record.rank or 0, p.record.name)
        )
        for pod in ranked:
            node = node_of(pod.record, names)
            if pod.record.terminal or node is None or node not in self.fleet.by_name:
                continue
            gang = owners.of(pod)
            if gang is None or not self._take(gang, pod, node):
                self._other_pods.setdefault(node, []).append(pod.record.requests)
                if pod.record.guaranteed:
                    self.guaranteed.add(node)

    def _take(self, gang: Gang, pod: GivenPod, node: str) -> bool:
        for podset in _podsets_of(pod, gang.podsets):
            if self._fills(gang, podset, node):
                if not podset.claims or podset.shape.devices is not None:
                    self.filled.add(pod.record.uid)
                return True
        return False

    def _fills(self, gang: Gang, podset: PodSet, node: str) -> bool:
        slot = (podset.name, node)
        if gang.uid in self._open:
            slots = self.held[gang.uid]
            used = sum(count for (name, _), count in slots.items() if name == podset.name)
            if used < podset.count:
                slots[slot] = slots.get(slot, 0) + 1
                return True
        elif gang.uid in self._free and self._free[gang.uid][slot] > 0:
            self._free[gang.uid][slot] -= 1
            return True
        return False


def node_of(pod: PodRecord, names: Mapping[str, str]) -> str | None:
    """Node a pod uses: bound, or pinned and on its way. ``names``: hostname label to node name."""
    if pod.node is not None:
        return pod.node
    return names.get(pod.pin) if pod.pin is not None and not pod.gated else None


def _podsets_of(pod: GivenPod, podsets: tuple[PodSet, ...]) -> list[PodSet]:
    """The podset its label names, else any; those of its own size first."""
    for label in _PODSET_LABELS:
        named = [podset for podset in podsets if podset.name == pod.labels.get(label)]
        if named:
            return named
    return sorted(podsets, key=lambda podset: podset.shape.requests != pod.record.requests)
