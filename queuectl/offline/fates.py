"""The fates of gangs and pods in a snapshot, and the gangs of drained queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.plan import Eviction
from queuectl.domain.snapshot import Admitted, Pending, Snapshot
from queuectl.objects.configuration.queue_config import drain
from queuectl.objects.documents import Document
from queuectl.objects.files.unread import names_queue, of_no_gang, without_queue
from queuectl.offline.account import STATE, DocumentUse, Fate
from queuectl.offline.gangs import DocumentedGang
from queuectl.state.mirror import Mirror


def drained(snapshot: Snapshot) -> Iterator[Eviction]:
    """The gangs that ``stopPolicy: HoldAndDrain`` evicts."""
    for gang in snapshot.admitted:
        workload = gang.workload
        why = drain(workload.namespace, workload.queue or "", snapshot.config)
        if why is not None and not gang.leaving:
            yield Eviction(workload.uid, why.code, why.message)


def leaving(snapshot: Snapshot, out: AbstractSet[str]) -> Snapshot:
    """The snapshot in which these gangs are being evicted. Each keeps its place in the queue; a pod that was added to a gang has none."""

    def left(gang: Admitted) -> Admitted:
        return replace(gang, leaving=True, returns=not gang.workload.grows, lost=())

    admitted = tuple(left(g) if g.workload.uid in out else g for g in snapshot.admitted)
    return replace(snapshot, admitted=admitted)


class Fates:
    """Finds the fate of one gang or of one pod."""

    def __init__(
        self,
        mirror: Mirror,
        snapshot: Snapshot,
        given_of: Callable[[JobRecord], DocumentedGang],
        shown: Collection[str],
        left: Mapping[str, str],
    ) -> None:
        """Look up the gangs of the snapshot.

        Args:
            mirror: with all gangs and pods.
            snapshot: made from it.
            given_of: the gang, as its documents have it, of a job of the mirror.
            shown: uids of the jobs of which the input has pods.
            left: uid of a job to the reason why it is not in the snapshot.
        """
        self._mirror = mirror
        self._given_of = given_of
        self._shown = shown
        self._left = left
        self._nodes = {node.name for node in mirror.fleet.nodes}
        self._gangs: dict[str, Fate] = {}
        self._pods: dict[str, Fate] = {}
        self._note(snapshot.pending, Fate(DocumentUse.PLANNED))
        self._note(snapshot.admitted, Fate(DocumentUse.RUNNING))  # an array can be both

    def _note(self, gangs: Iterable[Admitted | Pending], fate: Fate) -> None:
        for gang in gangs:
            job = self._mirror.jobs[gang.workload.uid]
            self._gangs[self._given_of(job).record.uid] = fate
            self._pods |= {pod.uid: fate for pod in self._mirror.pods_of(job)}

    def of_gang(self, gang: DocumentedGang) -> Fate:
        """Of a job, or of a Workload without one."""
        record, found = gang.record, self._gangs.get(gang.record.uid)
        if found is not None:
            return found
        if gang.finished:
            return Fate.ignored("it has finished")
        if record.uid in self._left:
            return Fate.ignored(self._left[record.uid])
        if record.queue is None:
            counts = record.uid in self._shown and not names_queue(gang.document)
            return STATE if counts else Fate.ignored(without_queue(gang.document))
        return Fate.ignored("none of its pods waits or runs")

    def of_pod(self, document: Document, pod: PodRecord) -> Fate:
        """Of a pod. A pod of no gang counts on its node."""
        found = self._pods.get(pod.uid)
        if found is not None:
            return found
        if pod.terminal:
            return Fate.ignored("it has ended")
        node = pod.node or ""
        if pod.member is not None and pod.node is None:
            return Fate.ignored("it belongs to no gang that waits or runs")
        if pod.member is None and (not node or names_queue(document)):
            counts = "; it counts on its node as a pod without a queue" if node else ""
            return Fate.ignored(of_no_gang(document) + counts)
        return (
            STATE if node in self._nodes else Fate.ignored(f"its node {node} is not in the input")
        )
