"""The podsets of a running job as Kueue reads them from the job: in its order, with its counts and containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuectl.domain.jobs import JobRecord
from queuectl.domain.workload import Placement, PodSet
from queuectl.handover.templates import of_job, without_queuectl
from queuectl.handover.trainjobs import TRAINJOB
from queuectl.handover.workloads import RunningPodSet, SubGroups
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds import DESCRIPTIONS
from queuectl.objects.kinds.places import PodSetPlace, entries, field
from queuectl.objects.kubernetes.pods import read_count

Document = Mapping[str, Any]

JOBSET: Final = "JobSet"
_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
_INDEX_LABELS: Final = {
    "Job": _COMPLETION_INDEX,
    "PyTorchJob": _REPLICA_INDEX,
    "TFJob": _REPLICA_INDEX,
    "XGBoostJob": _REPLICA_INDEX,
    "PaddleJob": _REPLICA_INDEX,
    "JAXJob": _REPLICA_INDEX,
    "MPIJob": _REPLICA_INDEX,
    JOBSET: _COMPLETION_INDEX,
    "RayCluster": None,
    TRAINJOB: _COMPLETION_INDEX,
}
"""The label with the rank of a pod that Kueue states for a podset, by kind."""
HANDED_OVER: Final = frozenset(_INDEX_LABELS)
"""The kinds of jobs that a test hands over to a real Kueue."""


def running_podsets(
    document: Document, record: JobRecord, placement: Placement
) -> Iterator[RunningPodSet]:
    """The podsets of a job in Kueue's order.

    Args:
        document: the job; the JobSet of a TrainJob.
        record: of the job.
        placement: of its pods.

    Raises:
        RequestError: Kueue would not find these podsets in the job.
    """
    if record.kind == "Job":
        yield _of_job(document, record, placement)
        return
    requested = {one.name: one for one in record.podsets}
    placed = {one.podset: one for one in placement.podsets}
    holder = JOBSET if record.kind == TRAINJOB else record.kind
    [description] = [one for one in DESCRIPTIONS if one.kind == holder]
    for place in entries(description.podsets, document):
        request = requested.get(place.podset)
        if request is None or place.podset not in placed:
            raise RequestError(f"no pod of {place.podset} runs")
        if holder != record.kind:
            _check_count(place, request)
        yield RunningPodSet(
            request,
            without_queuectl(_template(place), record.pod_priority_class),
            request.count,
            request.count,
            placed[place.podset],
            index_label=_INDEX_LABELS[record.kind],
            sub_groups=_sub_groups(place) if holder == JOBSET else None,
        )


def _check_count(place: PodSetPlace, running: PodSet) -> None:
    """Kueue reads the numbers of a TrainJob from its runtime as it is now."""
    job = field(place.content, "template.spec") or {}
    replicas = field(place.content, "replicas")
    count = job["parallelism"] * (1 if replicas is None else replicas)
    if count != running.count:
        numbers = f"{count} pods in its runtime, and {running.count} in its JobSet"
        raise RequestError(f"{place.podset} has {numbers}")


def _template(place: PodSetPlace) -> Document:
    template: Document = field(place.content, place.where.template) or {}
    return template


def _sub_groups(place: PodSetPlace) -> SubGroups:
    replicas = field(place.content, "replicas")
    return SubGroups(_JOB_INDEX, 1 if replicas is None else int(replicas))


def _of_job(document: Document, record: JobRecord, placement: Placement) -> RunningPodSet:
    spec = document["spec"]
    [request], [placed] = record.podsets, placement.podsets
    annotations = document["metadata"].get("annotations") or {}
    least = read_count(annotations.get(keys.KUEUE_PREFIX + keys.MIN_PARALLELISM, ""))
    running = min(spec.get("parallelism", 1), spec.get("completions") or request.count)
    return RunningPodSet(
        request,
        of_job(spec["template"], record.pod_priority_class),
        request.count if least is not None else running,
        running,
        placed,
        min_count=least,
        index_label=_INDEX_LABELS["Job"],
    )
