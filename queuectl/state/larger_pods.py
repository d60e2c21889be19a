"""Pods that request more than planned when they are created: webhooks have changed them. The next start is planned with their requests."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.jobs import JobRecord, PodRecord
from queuectl.domain.needs import PodNeeds
from queuectl.domain.quantity import Resources
from queuectl.domain.workload import PodSet


class LargerPods:
    """The largest requests of the gated pods of each job. It forgets those of an earlier template."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, tuple[PodNeeds, Resources]]] = {}  # by job and podset

    def see(self, pod: PodRecord, job: JobRecord) -> None:
        """Remember a gated pod if it is larger than its podset. Pods that are a job themselves have no template."""
        podset = next((each for each in job.podsets if each.name == pod.podset), None)
        if podset is None or podset.needs is None or job.of_pods:
            return
        if pod.attempt < job.attempt or pod.requests.fits(podset.shape.requests):
            return
        requests = pod.requests.at_least(self._of(job, podset) or podset.seen)
        self._seen.setdefault(_template(job), {})[podset.name] = (podset.needs, requests)

    def _of(self, job: JobRecord, podset: PodSet) -> Resources | None:
        needs, requests = self._seen.get(_template(job), {}).get(podset.name, (None, None))
        return requests if needs == podset.needs else None

    def applied(self, job: JobRecord) -> JobRecord:
        """The job with the requests that its earlier pods had; the same object if none was larger."""
        if not self._seen.get(_template(job)):
            return job
        podsets = ((podset, self._of(job, podset)) for podset in job.podsets)
        return replace(
            job, podsets=tuple(replace(p, seen=seen) if seen else p for p, seen in podsets)
        )

    def forget(self, uid: str) -> None:
        """Forget a deleted job."""
        self._seen.pop(uid, None)


def _template(job: JobRecord) -> str:
    """The uid of the object with the template, which the indexes of an array share."""
    return job.index.job_uid if job.index is not None else job.uid
