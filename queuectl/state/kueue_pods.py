"""The pods that a Kueue started before queuectl, by the job of the Workload that they name.

Between such a pod and its job can be objects of other controllers, which queuectl does not watch: the Jobs of a JobSet, the JobSet of a
TrainJob, the Job of the launcher of an MPIJob. Kueue writes the name of its Workload into the pod templates, and the name contains a hash
of the uid of the job. The link holds without the Workload, and after a restart of queuectl.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from queuectl.domain.jobs import JobRecord, OwnerKey, PodRecord
from queuectl.objects import keys
from queuectl.objects.kinds import JobKinds
from queuectl.objects.kueue_names import workload_name


class _WorkloadKey(NamedTuple):
    namespace: str
    name: str


class KueuePods:
    """Jobs and pods by the name of the Workload that Kueue made for the job."""

    def __init__(self, kinds: JobKinds) -> None:
        self._kinds = kinds
        self._jobs: dict[_WorkloadKey, OwnerKey] = {}
        self._keys: dict[str, _WorkloadKey] = {}  # by the uid of the job
        self._pods: dict[_WorkloadKey, set[str]] = {}  # uids

    def put(self, pod: PodRecord) -> PodRecord:
        """The pod with the job of its Workload as its owner, if that job is known; otherwise as it is."""
        if not pod.kueue_workload:
            return pod
        key = _WorkloadKey(pod.namespace, pod.kueue_workload)
        self._pods.setdefault(key, set()).add(pod.uid)
        job = self._jobs.get(key)
        if job is None or pod.owner_kind not in (job.kind, *keys.CHILD_KINDS):
            return pod
        return replace(pod, owner=job.uid, owner_kind=job.kind)

    def remove(self, pod: PodRecord) -> None:
        """Forget a deleted pod."""
        key = _WorkloadKey(pod.namespace, pod.kueue_workload)
        uids = self._pods.get(key)
        if uids is not None:
            uids.discard(pod.uid)
            if not uids:
                del self._pods[key]

    def put_job(self, job: JobRecord) -> Collection[str]:
        """Take note of a job. Returns the uids of its pods whose owner changes: those that were known before a new job."""
        if job.uid in self._keys or job.kind not in self._kinds:
            return ()
        name = workload_name(job.kind, self._kinds[job.kind].group, job.name, job.uid)
        key = _WorkloadKey(job.namespace, name)
        self._keys[job.uid] = key
        self._jobs[key] = OwnerKey.of(job)
        return tuple(self._pods.get(key, ()))

    def remove_job(self, uid: str) -> None:
        """Forget a deleted job. Its pods keep it as their owner."""
        key = self._keys.pop(uid, None)
        if key is not None:
            del self._jobs[key]
