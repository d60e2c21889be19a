"""The object QueuedJob: one workload that is not Finished, in the form of Kubernetes.

The name of the object has the kind of the job, because jobs of different kinds can have the same name: the Job ``train`` is ``job-train``.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from queuectl.api.schemas import (
    CheckView,
    ConditionView,
    ExpectedStartView,
    ExplainView,
    PlannedStartView,
    ReasonView,
    RunTimeView,
    UseView,
    View,
    WorkloadView,
)
from queuectl.domain.ledger import Entry, State

GROUP: Final = "visibility.queuectl.dev"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "QueuedJob"
LIST_KIND: Final = "QueuedJobList"
PLURAL: Final = "queuedjobs"
SINGULAR: Final = "queuedjob"
SHORT_NAME: Final = "qj"

QUEUE_LABEL: Final = "queuectl.dev/queue-name"
CLUSTER_QUEUE_LABEL: Final = f"{GROUP}/cluster-queue"
STATE_LABEL: Final = f"{GROUP}/state"
KIND_LABEL: Final = f"{GROUP}/kind"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class QueuedJobMetadata(View):
    name: str = Field(description="Kind of the job in lower case, a hyphen, and its name.")
    namespace: str
    uid: str = Field(description="uid of the job.")
    resource_version: str = Field(description="Changes when the object changes.")
    creation_timestamp: datetime = Field(description="When the job was queued.")
    labels: dict[str, str] = Field(description="Queue, ClusterQueue, state and kind.")


class QueuedJobSpec(View):
    kind: str = Field(description="Kind of the job.")
    name: str = Field(description="Name of the job.")
    queue: str = Field(description="LocalQueue; empty without one.")
    cluster_queue: str
    user: str = Field(description="User of the job; empty if unknown.")
    priority: int
    gpus: float = Field(description="GPUs that it requests.")
    pods: int


class QueuedJobStatus(View):
    state: State
    since: datetime = Field(description="Start of this state.")
    position_in_cluster_queue: int | None = Field(
        description="Position in queue order, from 1; null = it is not pending."
    )
    position_in_local_queue: int | None
    expected_start: ExpectedStartView | None = Field(
        description="The estimate of its start. null = unknown, or it is not pending."
    )
    planned_start: PlannedStartView | None = Field(description="Its planned start, if it has one.")
    run_time: RunTimeView | None = Field(description="Its expected run time. null = unknown.")
    reason: ReasonView
    attempt: int = Field(description="Number of starts so far.")
    evictions: int
    started_at: datetime | None
    gates: list[str] = Field(description="Admission gates of the job.")
    checks: list[CheckView] = Field(description="Its admission checks, while it has a placement.")
    use: UseView | None = Field(description="Its GPU utilization. null = not measured.")
    conditions: list[ConditionView]


class QueuedJob(View):
    """A workload of queuectl that is not finished: its queue, its state, its position, its expected start, and the reason."""

    api_version: Literal["visibility.queuectl.dev/v1"] = "visibility.queuectl.dev/v1"
    kind: Literal["QueuedJob"] = "QueuedJob"
    metadata: QueuedJobMetadata
    spec: QueuedJobSpec
    status: QueuedJobStatus
    explanation: ExplainView | None = Field(
        None,
        description="Blocking constraints and suggested fixes. Only in an answer about one object.",
    )


def object_name(entry: Entry) -> str:
    """The name of the object of a workload."""
    return f"{entry.kind.lower()}-{entry.name}"


def labels_of(entry: Entry) -> dict[str, str]:
    """The labels of the object of a workload. A value that cannot be a label is left out."""
    values = {
        QUEUE_LABEL: entry.queue,
        CLUSTER_QUEUE_LABEL: entry.cluster_queue,
        STATE_LABEL: entry.state.value,
        KIND_LABEL: entry.kind,
    }
    return {key: text for key, text in values.items() if _LABEL_VALUE.fullmatch(text)}


def fields_of(entry: Entry) -> dict[str, str]:
    """The fields of a workload by which a list can be selected."""
    return {
        "metadata.name": object_name(entry),
        "metadata.namespace": entry.namespace,
        "spec.kind": entry.kind,
        "spec.queue": entry.queue,
        "spec.clusterQueue": entry.cluster_queue,
        "status.state": entry.state.value,
    }


FIELDS: Final = frozenset(
    fields_of(Entry(uid="", kind="", namespace="", name="", state=State.PENDING))
)
"""The names of these fields."""


def queued_job(
    entry: Entry, view: WorkloadView, version: int, explanation: ExplainView | None = None
) -> QueuedJob:
    """The object of a workload.

    Args:
        entry: its row.
        view: what the caller may see of it.
        version: of the object.
        explanation: of one object; None in a list.
    """
    return QueuedJob(
        metadata=QueuedJobMetadata(
            name=object_name(entry),
            namespace=entry.namespace,
            uid=entry.uid,
            resource_version=str(version),
            creation_timestamp=view.queued_at,
            labels=labels_of(entry),
        ),
        spec=QueuedJobSpec.model_validate(_part(view, QueuedJobSpec)),
        status=QueuedJobStatus.model_validate(_part(view, QueuedJobStatus)),
        explanation=explanation,
    )


def _part(view: WorkloadView, of: type[View]) -> dict[str, Any]:
    """The fields of a view that a smaller view also has."""
    return {name: getattr(view, name) for name in of.model_fields}
