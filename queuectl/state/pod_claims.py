"""The devices that the pods of a job request, by the objects that the watch shows."""

from __future__ import annotations

from dataclasses import replace

from queuectl.domain.job_records import JobRecord
from queuectl.domain.pod_claims import KnownClaims, resolved
from queuectl.domain.reasons import Reason


def names_claims(job: JobRecord) -> bool:
    """Whether a pod of the job has resource claims."""
    return any(podset.claims for podset in job.podsets)


def all_resolved(job: JobRecord) -> bool:
    """Whether the devices of all its claims are known."""
    return all(podset.shape.devices is not None for podset in job.podsets if podset.claims)


def claiming(job: JobRecord, known: KnownClaims) -> JobRecord:
    """The job with the devices that its pods request; the same object if they name no claim.

    If a claim cannot be planned, the job is blocked with the reason.
    """
    if not names_claims(job):
        return job
    podsets, reasons = [], list[Reason]()
    for podset in job.podsets:
        found, why = resolved(job.namespace, podset, known)
        podsets.append(found)
        reasons += why
    return replace(
        job, podsets=tuple(podsets), forbidden=job.forbidden or next(iter(reasons), None)
    )
