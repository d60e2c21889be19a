"""Labels, annotations and gates on users' objects: ``queuectl.dev/<suffix>`` and Kueue's twin of it.

queuectl reads both prefixes. Different values of both keys are an error, and never a silent choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuectl.objects.errors import RequestError

PREFIX: Final = "queuectl.dev/"
KUEUE_PREFIX: Final = "kueue.x-k8s.io/"

GATE: Final = PREFIX + "placement"
POD_PRIORITY_CLASS: Final = "queuectl-managed"
"""PriorityClass (preemptionPolicy Never) that the admission policy puts on every managed pod."""
POD_PRIORITY: Final = 1_000_000_000
"""Its value by default: the highest one of a class of users, so that kube-scheduler preempts no gang for their pods."""

# suffixes a user writes on a job
QUEUE_NAME: Final = "queue-name"
PRIORITY_CLASS: Final = "priority-class"
PREEMPTIBLE: Final = "preemptible"
IDLE_RECLAIM: Final = "idle-reclaim"
WARMUP: Final = "warmup-seconds"
UTILIZATION: Final = "gpu-utilization"
IDLE_SINCE: Final = "idle-since"
"""Only where no source of metrics can be asked: offline planning."""
CHECKPOINT: Final = "last-checkpoint-time"
EVICTIONS: Final = "evictions"
MAX_EXECUTION: Final = "max-exec-time-seconds"
EXPECTED_DURATION: Final = "expected-duration-seconds"
ADMISSION_GATED_BY: Final = "admission-gated-by"
AFTER: Final = "after"
ARRAY: Final = "array"
ELASTIC_JOB: Final = "elastic-job"
MIN_PARALLELISM: Final = "job-min-parallelism"
COMPLETIONS_FOLLOW: Final = "job-completions-equal-parallelism"

# suffixes a user writes on a pod template
REQUIRED_TOPOLOGY: Final = "podset-required-topology"
PREFERRED_TOPOLOGY: Final = "podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = "podset-unconstrained-topology"
GROUP_NAME: Final = "podset-group-name"
SLICE_TOPOLOGY: Final = "podset-slice-required-topology"
SLICE_SIZE: Final = "podset-slice-size"
SLICE_CONSTRAINTS: Final = "podset-slice-required-topology-constraints"
BALANCED: Final = "podset-balanced"
SHARED_GPUS: Final = "podset-shared-gpus"
MIN_COUNT: Final = "min-count"
NUMA_POLICY: Final = "podset-numa-policy"

# suffixes a user writes on a pod of a group
POD_GROUP: Final = "pod-group-name"
POD_GROUP_TOTAL: Final = "pod-group-total-count"
POD_GROUP_FAST: Final = "pod-group-fast-admission"
POD_GROUP_INDEX: Final = "pod-group-pod-index"
RETRIABLE: Final = "retriable-in-group"

# keys queuectl itself writes
QUEUE_LABEL: Final = PREFIX + QUEUE_NAME
QUEUE_KEYS: Final = (QUEUE_LABEL, KUEUE_PREFIX + QUEUE_NAME)
"""The labels that name a queue; the second one only where Kueue's keys count."""
WORKLOAD_LABEL: Final = PREFIX + "workload"
ATTEMPT_LABEL: Final = PREFIX + "attempt"
PODSET_LABEL: Final = PREFIX + "podset"
KIND_LABEL: Final = PREFIX + "workload-kind"
"""The kind of the workload, on pods that another object than the workload controls."""
RANKS_LABEL: Final = PREFIX + "ranks-per-group"
"""The number of pods of a group, if the pods of a podset have the index of a group and an index inside it."""
FIRST_RANK_LABEL: Final = PREFIX + "first-rank"
"""The first index of the pods of a podset, if it is not 0."""
STATUS_ANNOTATION: Final = PREFIX + "status"
ORIGINAL_PRIORITY_CLASS: Final = PREFIX + "original-priority-class"
SUBMITTED_BY: Final = PREFIX + "submitted-by"
"""Name of the user who created the job: admission writes it, from the request."""
ORIGINAL_PARALLELISM: Final = PREFIX + "original-parallelism"
BASE_COUNT: Final = PREFIX + "base-count"
"""On a running elastic Job: the number of pods with which it started."""
PREEMPT_REQUESTED: Final = PREFIX + "preempt-requested"
DEFAULT_QUEUE_LABEL: Final = PREFIX + "default-queue"
"""On a namespace: it has a LocalQueue ``default``, which takes in jobs that name no queue."""

NOTIFY: Final = PREFIX + "notify"
"""Annotation of a job: the receivers of its events."""
NOTIFY_EVENTS: Final = PREFIX + "notify-events"

# what the API server writes
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""Label of each namespace: its name."""

# what a job answers to it
PREEMPT_READY: Final = PREFIX + "preempt-ready"

# what the controllers of jobs write on their pods
REPLICA_TYPE_LABEL: Final = "training.kubeflow.org/replica-type"
JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
KUEUE_PODSET_LABEL: Final = KUEUE_PREFIX + "podset"
"""Kueue writes it into the pod templates of a job that it starts."""
KUEUE_WORKLOAD: Final = KUEUE_PREFIX + "workload"
"""Annotation: the name of the Workload, which Kueue writes into the same templates."""
JOB_PODSET: Final = "main"
"""Name of the one podset of a ``batch/v1`` Job."""

RANK_LABELS: Final = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    PREFIX + POD_GROUP_INDEX,
    KUEUE_PREFIX + POD_GROUP_INDEX,
    "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index",
    "ray.io/replica-host-index",
    "ray.io/worker-group-replica-index",
)
"""The first one that a pod has counts: its index, inside its group if it has a group."""

GROUP_LABELS: Final = ("jobset.sigs.k8s.io/job-index", "ray.io/worker-group-replica-index")
"""Of pods with :data:`RANKS_LABEL`: the index of the group. A pod of Ray without an index inside its group is the whole group."""

PATCHES_OWNER: Final = PREFIX + "controller"
"""The owner of queuectl's entry in a list with changes of pod templates."""

PARENT_KINDS: Final = frozenset({"TrainJob"})
"""Kinds of jobs whose pod templates are in an object that their controller creates, and that exists while the job is suspended."""

CHILD_KINDS: Final = frozenset({"Job", "JobSet", "PyTorchJob", "RayCluster"})
"""Kinds of objects that the controllers of jobs create. Only these controllers can create them with queuectl's labels in their templates, so
the labels of their pods name the job."""


POD_MAKERS: Final = frozenset({"SparkApplication"})
"""Kinds of jobs of which a pod creates other pods. The labels of those name the job."""


def either(mapping: Mapping[str, str] | None, suffix: str, *, kueue: bool = True) -> str | None:
    """The value under ``queuectl.dev/<suffix>`` or ``kueue.x-k8s.io/<suffix>``, None when there is neither.

    Args:
        mapping: labels or annotations of an object.
        suffix: without prefix.
        kueue: False where a Kueue runs: its keys are not ours then.

    Raises:
        RequestError: both keys exist and their values differ.
    """
    if not mapping:
        return None
    ours = mapping.get(PREFIX + suffix)
    theirs = mapping.get(KUEUE_PREFIX + suffix) if kueue else None
    if ours is not None and theirs is not None and ours != theirs:
        raise RequestError(
            f"{PREFIX}{suffix} is {ours!r} but {KUEUE_PREFIX}{suffix} is {theirs!r}: keep one of them"
        )
    return ours if ours is not None else theirs
