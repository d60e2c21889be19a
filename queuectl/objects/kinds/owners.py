"""References from objects that queuectl makes for a job to the job, with which the API server deletes them."""

from __future__ import annotations

from queuectl.domain.arrays import object_of
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Document
from queuectl.objects.kinds import JobKinds


def owner_references(job: JobRecord, kinds: JobKinds) -> list[Document]:
    """The object of a job. A workload that consists of pods has none."""
    if job.index is not None:
        job = object_of(job)
    elif job.of_pods:
        return []
    kind = kinds[job.kind]
    return [
        {
            "apiVersion": f"{kind.group}/{kind.version}",
            "kind": job.kind,
            "name": job.name,
            "uid": job.uid,
        }
    ]
