"""The pods above the gang of an elastic Job in a history: the Job controller creates them with the gate, and they start and leave one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from queuectl.domain.arrays import index_uid
from queuectl.domain.jobs import ArrayStatus, JobRecord, PodPhase, PodRecord
from queuectl.domain.ledger import Entry, State
from queuectl.state.mirror import Mirror


class ElasticPods:
    """Acts at once, as the other parts of a simulation."""

    def __init__(
        self,
        mirror: Mirror,
        see: Callable[[PodRecord], None],
        end: Callable[[PodRecord, str], None],
    ) -> None:
        """``end``: begins or continues the end of a pod of the gang with this uid, which takes some time."""
        self._mirror = mirror
        self._see = see
        self._end = end
        self._made = 0

    def reconcile(self) -> None:
        """Create the missing pods of each Job that runs, and delete those of each Job that is suspended or has ended."""
        for job in list(self._mirror.arrays.values()):
            for rank in _ranks(job):
                index = self._mirror.jobs[index_uid(job.uid, rank)]
                pods = list(self._mirror.pods_of(index))
                stops = job.suspended or job.outcome is not None
                if not (stops or pods):
                    self._create(job, rank)
                for pod in pods:
                    if stops or pod.terminating:  # an end continues if the Job is resumed
                        self._end(pod, job.uid)

    def _create(self, job: JobRecord, rank: int) -> None:
        self._made += 1
        name = f"{job.uid}/{rank}/{self._made}"
        shape = job.of_indexes.shape
        pod = PodRecord(job.namespace, name, name, 0, shape.requests, job.uid, owner_kind=job.kind)
        self._see(replace(pod, podset="w", rank=rank, gated=True, workload=job.uid))

    def carry_out(self, entry: Entry, ready: Callable[[str], bool]) -> None:
        """Release or evict the pod of a gang of one pod, as its entry states."""
        index = self._mirror.jobs[entry.uid]
        for pod in list(self._mirror.pods_of(index)):
            if entry.state.live and pod.gated:
                self._release(pod, entry, ready)
            elif entry.state is State.EVICTING and entry.stop_at is None:
                if not pod.gated:
                    self._end(pod, entry.uid)
                elif pod.attempt < entry.attempt:
                    self._see(replace(pod, attempt=entry.attempt, workload=entry.uid))

    def _release(self, pod: PodRecord, entry: Entry, ready: Callable[[str], bool]) -> None:
        assert entry.placement is not None
        [placed] = entry.placement.podsets
        nodes = [name for name, count in placed.nodes if count]
        if nodes and not ready(nodes[0]):
            return
        alive = replace(pod, gated=False, attempt=entry.attempt, workload=entry.uid)
        node = nodes[0] if nodes else None
        self._see(replace(alive, node=node, phase=PodPhase.RUNNING, ready=True))


def status_of(least: int, most: int) -> ArrayStatus:
    """Of an elastic Job with so many pods."""
    return ArrayStatus(most, most, base=least)


def _ranks(job: JobRecord) -> Iterator[int]:
    assert job.array is not None
    yield from range(job.array.base, job.array.at_once)
