"""The requests of a job's pods: from its templates, what admission adds to them, and its existing pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from queuectl.domain.admission import Admission, created, refusal
from queuectl.domain.job_records import JobRecord
from queuectl.domain.pod_records import PodRecord
from queuectl.domain.workload import PodSet


def same_templates(one: JobRecord, other: JobRecord) -> bool:
    """Whether the containers of two records of a job are equal in each podset."""
    mine, theirs = ([(p.name, p.needs) for p in job.podsets] for job in (one, other))
    return mine == theirs


def made_as(job: JobRecord, old: JobRecord) -> JobRecord:
    """The job with the pods of an older record of it."""
    if job.podsets == old.podsets:
        return job
    were = {podset.name: podset for podset in old.podsets}
    podsets = tuple(
        replace(now, shape=were[now.name].shape, limits=were[now.name].limits)
        if now.name in were
        else now
        for now in job.podsets
    )
    return replace(job, podsets=podsets)


def no_less(job: JobRecord, pods: Iterable[PodRecord]) -> JobRecord:
    """The job with the requests of its released pods where those are larger."""
    placed = [pod for pod in pods if pod.attempt == job.attempt and not (pod.gated or pod.terminal)]

    def raised(podset: PodSet) -> PodSet:
        requests = podset.shape.requests
        for pod in placed:
            if pod.podset == podset.name:
                requests = requests.at_least(pod.requests)
        if requests == podset.shape.requests:
            return podset
        return replace(podset, shape=replace(podset.shape, requests=requests))

    return replace(job, podsets=tuple(map(raised, job.podsets)))


_CHECKED: Final = ("Job", "Workload")
"""Kinds of which the API server has checked the requests: of the second, those of its job."""


def names_class(job: JobRecord, name: str) -> bool:
    """Whether a pod of the job has this RuntimeClass."""
    return any(podset.needs and podset.needs.runtime_class == name for podset in job.podsets)


def under(job: JobRecord, around: Admission) -> JobRecord:
    """The job with the pods that the API server creates for it; the same object if admission changes nothing."""
    podsets = tuple(created(podset, around) for podset in job.podsets)
    forbidden = refusal(
        podsets, job.namespace, around, exist=job.of_pods, accepted=job.kind in _CHECKED
    )
    if podsets == job.podsets and forbidden == job.forbidden:
        return job
    return replace(job, podsets=podsets, forbidden=forbidden)
