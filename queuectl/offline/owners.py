"""The gang of each pod of a file, and its podset: by uid where there is one, otherwise by names in labels and owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from queuectl.domain.arrays import parted
from queuectl.domain.jobs import PodRecord
from queuectl.domain.workload import PodSet
from queuectl.lifecycle.outstanding_writes import by_rank_and_name
from queuectl.objects import keys
from queuectl.objects.files.pods import GivenPod
from queuectl.objects.kinds.jobset import JOBSET
from queuectl.offline.gangs import DocumentedGang, Key, as_uid
from queuectl.state.usage import node_of

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name", "training.kubeflow.org/job-name")
_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_PODSET_LABELS = (
    keys.PODSET_LABEL,
    keys.KUEUE_PREFIX + "podset",
    "training.kubeflow.org/replica-type",
    "jobset.sigs.k8s.io/replicatedjob-name",
)
Slot = tuple[str, str]
"""Podset, and node name."""


class Owners:
    """Finds the gang of its namespace that a pod belongs to."""

    def __init__(
        self,
        gangs: Iterable[DocumentedGang],
        workloads: Mapping[tuple[str, str], str],
        creators: Mapping[tuple[str, str], tuple[str, str] | None],
    ) -> None:
        """``workloads``: (namespace, name of a Workload) to the uid of its gang. ``creators``: of :class:`~.assembly.Parts`."""
        self._made = creators
        self._names: dict[Key, DocumentedGang] = {}
        self._uids: dict[str, DocumentedGang] = {}
        self._kinds: dict[str, None] = {}  # in the order of the gangs
        for gang in gangs:
            self._kinds[gang.record.kind] = None
            self._names[gang.key] = gang
            self._uids[gang.record.uid] = gang
            for owner in gang.workload.owners if gang.workload is not None else ():
                if owner.uid:
                    self._uids.setdefault(as_uid(owner.uid), gang)
        self._workloads = {key: self._uids[uid] for key, uid in workloads.items()}

    def of(self, pod: GivenPod) -> DocumentedGang | None:
        """The gang, or the array of its gang; None for a pod of no gang of the input."""
        record = pod.record
        for uid in (*_named(pod), as_uid(record.owner), as_uid(record.uid)):
            gang = self._uids.get(uid)
            if gang is not None and gang.record.namespace == record.namespace:
                return gang
        for owner in pod.owners:
            found = self._names.get((owner.kind, record.namespace, owner.name))
            if found is not None and (not owner.uid or not found.has_uid):
                return found
            if (found := self._above(owner.kind, record.namespace, owner.name)) is not None:
                return found
        if pod.workload is not None and (record.namespace, pod.workload) in self._workloads:
            return self._workloads[record.namespace, pod.workload]
        if (name := pod.labels.get(_JOBSET_LABEL)) is not None:  # its Job is often not in the input
            return self._names.get((JOBSET.kind, record.namespace, name))
        return self._by_label(pod) if not pod.owners else None

    def _above(self, kind: str, namespace: str, name: str) -> DocumentedGang | None:
        """The gang whose controller made the object, or made the one that made it."""
        met: set[tuple[str, str]] = set()
        at: tuple[str, str] | None = (kind, f"{namespace}/{name}")
        while at is not None and at not in met:
            met.add(at)
            if (at := self._made.get(at)) is not None:
                _, _, own = at[1].partition("/")
                if (found := self._names.get((at[0], namespace, own))) is not None:
                    return found
        return None

    def _by_label(self, pod: GivenPod) -> DocumentedGang | None:
        for name in (pod.labels[label] for label in _JOB_LABELS if label in pod.labels):
            for kind in self._kinds:
                found = self._names.get((kind, pod.record.namespace, name))
                if found is not None:
                    return found
        return None


def _named(pod: GivenPod) -> Iterator[str]:
    """The uid of the workload, or of the job of the index, for which it was made."""
    label = pod.labels.get(keys.WORKLOAD_LABEL, "")
    if label:
        yield as_uid(label)
        if (index := parted(label)) is not None:
            yield as_uid(index[0])


@dataclass
class Seats:
    """Pods of gangs with the podsets to which they belong.

    Attributes:
        stated: uid of a gang to the slots that its admission states; gangs without stated hosts are absent.
        names: hostname label to node name.
    """

    stated: Mapping[str, Mapping[Slot, int]]
    names: Mapping[str, str]
    _taken: dict[str, Counter[Slot]] = field(default_factory=dict)

    def owned(
        self, pods: Mapping[int, tuple[GivenPod, DocumentedGang]]
    ) -> Iterator[tuple[int, PodRecord]]:
        """The records of pods with their gangs as owners. Pods on nodes get the first slots."""

        def first(place: int) -> tuple[bool, tuple[bool, int, str]]:
            record = pods[place][0].record
            return self._node(record) is None, by_rank_and_name(record)

        for place in sorted(pods, key=first):
            yield place, self._of(*pods[place])

    def _node(self, pod: PodRecord) -> str | None:
        return None if pod.terminal else node_of(pod, self.names)

    def _of(self, pod: GivenPod, gang: DocumentedGang) -> PodRecord:
        record = gang.record
        return replace(
            pod.record,
            owner=record.uid,
            owner_kind=record.kind,
            podset=self._podset(pod, gang),
            maker="",
        )

    def _podset(self, pod: GivenPod, gang: DocumentedGang) -> str:
        """That of its label, otherwise one with room; those of its own size first."""
        podsets = gang.record.podsets
        for label in _PODSET_LABELS:
            if any(podset.name == pod.labels.get(label) for podset in podsets):
                return pod.labels[label]
        sized = sorted(podsets, key=lambda one: one.shape.requests != pod.record.requests)
        node = self._node(pod.record) or ""
        for podset in sized:
            if self._takes(gang.record.uid, podset, node):
                return podset.name
        return sized[0].name if sized else pod.record.podset

    def _takes(self, uid: str, podset: PodSet, node: str) -> bool:
        """Whether a podset has a slot left, on the node if its slots are stated. The slot is taken then."""
        stated = self.stated.get(uid)
        slot = (podset.name, node if stated is not None else "")
        most = podset.count if stated is None else stated.get(slot, 0)
        taken = self._taken.setdefault(uid, Counter())
        if taken[slot] >= most:
            return False
        taken[slot] += 1
        return True
