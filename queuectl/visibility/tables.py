"""Lists as Tables of meta.k8s.io/v1, which kubectl prints."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from queuectl.visibility.objects import QueuedJob

TABLE: Final = {"kind": "Table", "apiVersion": "meta.k8s.io/v1"}
PARTIAL: Final = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


class IncludeObject(StrEnum):
    """The part of its object that a row of a table has."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


def _column(name: str, about: str, *, kind: str = "string", wide: bool = False) -> dict[str, Any]:
    form = "name" if name == "Name" else ""
    return {"name": name, "type": kind, "format": form, "description": about, "priority": int(wide)}


COLUMNS: Final = (
    _column("Name", "Kind of the job in lower case, a hyphen, and its name"),
    _column("State", "State of the workload"),
    _column("Queue", "LocalQueue"),
    _column("Position", "Position in the queue order of its ClusterQueue"),
    _column("Expected Start", "Median of the estimate of its start, UTC"),
    _column("Reason", "Code of the reason"),
    _column("ClusterQueue", "ClusterQueue", wide=True),
    _column("GPUs", "GPUs that it requests", wide=True),
    _column("Priority", "Priority", wide=True),
    _column("Queued", "When it was queued, UTC", wide=True),
    _column("Message", "The reason as a sentence", wide=True),
)


def table(
    jobs: Iterable[QueuedJob],
    include: IncludeObject,
    metadata: dict[str, Any],
    *,
    head: bool = True,
) -> dict[str, Any]:
    """A Table of objects.

    Args:
        jobs: the objects.
        include: what each row has of its object.
        metadata: of the list.
        head: whether it defines the columns: the events after the first of a watch do not.
    """
    return {
        **TABLE,
        "metadata": metadata,
        "columnDefinitions": list(COLUMNS) if head else None,
        "rows": rows_of(jobs, include),
    }


def rows_of(jobs: Iterable[QueuedJob], include: IncludeObject) -> list[dict[str, Any]]:
    """The rows of a Table."""
    return [_row(job, include) for job in jobs]


def _row(job: QueuedJob, include: IncludeObject) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": _cells(job)}
    if include is IncludeObject.OBJECT:
        row["object"] = job.model_dump(mode="json", by_alias=True)
    elif include is IncludeObject.METADATA:
        row["object"] = {
            **PARTIAL,
            "metadata": job.metadata.model_dump(mode="json", by_alias=True),
        }
    return row


def _cells(job: QueuedJob) -> list[str | int | float]:
    spec, status = job.spec, job.status
    position, start = status.position_in_cluster_queue, status.expected_start
    expected = f"{start.median:%Y-%m-%d %H:%M}" if start is not None else ""
    return [
        job.metadata.name,
        status.state.value,
        spec.queue,
        str(position) if position is not None else "",
        expected,
        status.reason.code,
        spec.cluster_queue,
        f"{spec.gpus:g}",
        str(spec.priority),
        f"{job.metadata.creation_timestamp:%Y-%m-%d %H:%M}",
        status.reason.message,
    ]
