"""The kinds of ``ray.io/v1``, run by KubeRay. The head of a Ray cluster is a podset, and each group of workers.

KubeRay creates RayClusters for a RayService, with its queue label. Each of them is a separate gang, and the RayService is not a gang.

KubeRay creates a RayCluster for each run of a RayJob. Once the cluster is ready, KubeRay creates a Job whose pod submits the entrypoint,
unless the mode of submission is another one.

With the feature gate RayMultiHostIndexing, which is on by default, KubeRay counts the replicas of a group of workers, and the hosts
of a replica. The rank of a worker follows from both. The head has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.request_rules import ContainerNeeds
from queuectl.domain.workload import PodSet
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, with_container, with_default, with_init
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import (
    BATCH_JOB,
    RAY_CLUSTER,
    Conditions,
    Default,
    Description,
    Manager,
    Only,
    PodSets,
    Required,
    StatusPhase,
    Unsupported,
)
from queuectl.objects.kinds.places import PodSetPlace, field

_GROUP, _VERSION = "ray.io", "v1"
_HEAD, _SUBMITTER = "head", "submitter"
_LEAST, _HOSTS = "minReplicas", "numOfHosts"
_LABELS: Final = "labels"
_MODE: Final = "spec.submissionMode"
_K8S_JOB, _SIDECAR = "K8sJobMode", "SidecarMode"
_SUBMITTER_TEMPLATE: Final = "spec.submitterPodTemplate"
_JOB_STATUS: Final = "status.jobStatus"

# KubeRay gives each worker an init container that waits for the head, with these resources.
_WAIT: Final = ContainerNeeds(
    requests=((CPU, 200), (MEMORY, 256 << 20)),
    limits=((CPU, 200), (MEMORY, 256 << 20)),
    incidental=True,
)
# The container that submits the entrypoint, in the default template of the Job, and on the head in SidecarMode.
_SUBMITS: Final = ContainerNeeds(
    requests=((CPU, 500), (MEMORY, 200 << 20)),
    limits=((CPU, 1000), (MEMORY, 1 << 30)),
    incidental=True,
)
_CLEANS_UP: Final = "fault tolerance of the GCS is not supported: the pod that clears its storage is created after the end of the cluster"


def cluster_podsets(cluster: str) -> tuple[PodSets, ...]:
    """The places of the podsets of the Ray cluster at this path."""
    return (
        PodSets(path=f"{cluster}.headGroupSpec", name=_HEAD, added_labels=_LABELS, count=()),
        PodSets(
            path=f"{cluster}.workerGroupSpecs",
            key="groupName",
            added_labels=_LABELS,
            count=(("replicas", "maxReplicas"), (_HOSTS,)),
            least=_LEAST,
            ranks=(_HOSTS,),
            optional=True,
            unsupported=(
                Unsupported(
                    path="suspend",
                    reason="a group of workers is not suspended alone: set its replicas and minReplicas to 0",
                ),
            ),
        ),
    )


def _checked(cluster: str) -> tuple[str, ...]:
    """Fields of the Ray cluster at this path, besides its podsets, that KubeRay checks. It never stops a cluster that it finds invalid."""
    names = (
        "rayVersion",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "gcsFaultToleranceOptions",
        "authOptions",
        "upgradeStrategy",
    )
    return tuple(f"{cluster}.{name}" for name in names)


def _unsupported(cluster: str) -> tuple[Unsupported, ...]:
    return (
        Unsupported(
            path=f"{cluster}.enableInTreeAutoscaling",
            reason="a number of workers that changes while the cluster runs is not supported",
        ),
        Unsupported(path=f"{cluster}.gcsFaultToleranceOptions", reason=_CLEANS_UP),
        Unsupported(path="metadata.annotations", annotation="ray.io/ft-enabled", reason=_CLEANS_UP),
    )


SERVICE: Final = (f"{_GROUP}/{_VERSION}", "RayService")


def is_service(api_version: str, kind: str) -> bool:
    """Whether KubeRay creates RayClusters for an object, with its labels and annotations. Each of them is a separate job."""
    return (api_version, kind) == SERVICE


def cluster_of_service(document: Mapping[str, Any]) -> dict[str, Any]:
    """The RayCluster that KubeRay creates for a RayService, with the name of the service."""
    spec = document.get("spec")
    cluster = spec.get("rayClusterConfig") if isinstance(spec, Mapping) else None
    return {**document, "kind": RAYCLUSTER.kind, "spec": cluster}


class RayKind(DescribedKind):
    """Adds the init container of workers, and that KubeRay creates each pod again that has ended."""

    def complete(self, podsets: list[PodSet]) -> list[PodSet]:
        others = (_HEAD, _SUBMITTER)
        return [one if one.name in others else with_init(one, _WAIT) for one in podsets]

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        return replace(super().read_fields(document, fields), followed=True)


class RayCluster(RayKind):
    """Adds elastic clusters. KubeRay regards a RayJob, which has such a cluster, as not started while a pod of it waits."""

    def can_grow(self, document: Any, entry: PodSetPlace) -> bool:  # noqa: ARG002 - of Growing
        hosts = field(entry.content, _HOSTS) if entry.index is not None else None
        # KubeRay replaces all pods of a replica with several hosts together.
        return entry.index is not None and (hosts or 1) == 1

    def stated_least(self, document: Any, entry: PodSetPlace) -> int | None:  # noqa: ARG002 - of Growing
        return field(entry.content, _LEAST) or None


class RayJob(RayKind):
    """Adds the container that submits the entrypoint. Its podset comes after the others, and a RayJob can end in two ways without success."""

    more: ClassVar[Mapping[str, object]] = {_JOB_STATUS: str | None}

    def status(self, document: Any) -> tuple[bool, bool, bool]:
        succeeded, failed, drained = super().status(document)
        stopped = succeeded and field(document, _JOB_STATUS) not in (None, "", "SUCCEEDED")
        return succeeded and not stopped, failed or stopped, drained

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        if (mode := field(document, _MODE) or _K8S_JOB) not in (_K8S_JOB, "HTTPMode", _SIDECAR):
            raise RequestError(
                f"{_MODE}: {mode!r} is not supported: KubeRay does not suspend a RayJob that waits for its user",
                unsupported=True,
            )
        podsets = tuple(self._with_submitter(one, mode) for one in fields.podsets)
        late = tuple(one.name for one in podsets if one.name == _SUBMITTER)
        return replace(super().read_fields(document, fields), podsets=podsets, late=late)

    def _with_submitter(self, podset: PodSet, mode: str) -> PodSet:
        if podset.name == _SUBMITTER:
            return with_default(podset, _SUBMITS)
        beside = mode == _SIDECAR and podset.name == _HEAD
        return with_container(podset, _SUBMITS) if beside else podset


RAYCLUSTER: Final = RayCluster(
    Description(
        kind="RayCluster",
        group=_GROUP,
        version=_VERSION,
        plural="rayclusters",
        suspend="spec.suspend",
        podsets=cluster_podsets("spec"),
        fixed=_checked("spec"),
        # A cluster with this label that names a RayJob or a RayService is invalid if it has an upgradeStrategy.
        fixed_labels=("ray.io/originated-from-crd",),
        # It runs until it is deleted.
        conditions=Conditions(succeeded="", failed="", suspended="RayClusterSuspended"),
        manager=Manager(path="spec.managedBy", name="ray.io/kuberay-operator"),
        unsupported=(
            *_unsupported("spec"),
            # KubeRay copies the annotations of a RayService.
            Unsupported(
                path="metadata.annotations",
                annotation="ray.io/initializing-timeout",
                reason="KubeRay counts the time in the queue, and a RayService that waits longer fails for good: remove it",
            ),
        ),
        operator="kubeRayOperator",
    )
)

RAYJOB: Final = RayJob(
    Description(
        kind="RayJob",
        group=_GROUP,
        version=_VERSION,
        plural="rayjobs",
        suspend="spec.suspend",
        podsets=(
            *cluster_podsets("spec.rayClusterSpec"),
            PodSets(
                path=_SUBMITTER_TEMPLATE,
                name=_SUBMITTER,
                template="",
                count=(),
                optional=True,
                only=Only(path=_MODE, value=_K8S_JOB),
                default=Default(
                    container="ray-job-submitter",
                    image="spec.rayClusterSpec.headGroupSpec.template",
                    requests={"cpu": "500m", "memory": "200Mi"},
                    limits={"cpu": "1", "memory": "1Gi"},
                ),
            ),
        ),
        # KubeRay checks them too.
        fixed=(
            *_checked("spec.rayClusterSpec"),
            _MODE,
            "spec.clusterSelector",
            "spec.deletionStrategy",
            "spec.submitterConfig",
            "spec.runtimeEnvYAML",
            "spec.backoffLimit",
            "spec.activeDeadlineSeconds",
            "spec.preRunningDeadlineSeconds",
        ),
        # On its RayCluster. Its pods have only the name of the RayCluster, and the labels of queuectl.
        phase=StatusPhase(
            path="status.jobDeploymentStatus",
            succeeded=("Complete",),
            # KubeRay never leaves the second one, even if the object is corrected.
            failed=("Failed", "ValidationFailed"),
            suspended=("Suspended",),
        ),
        manager=Manager(path="spec.managedBy", name="ray.io/kuberay-operator"),
        unsupported=(
            *_unsupported("spec.rayClusterSpec"),
            Unsupported(
                path="spec.clusterSelector",
                reason="the pods of a RayCluster that runs already are not those of this job: remove it",
            ),
            Unsupported(
                path="spec.deletionStrategy",
                reason="parts of the cluster that are deleted at the end of the job are not supported: the whole cluster is",
            ),
        ),
        required=(
            Required(
                path="spec.shutdownAfterJobFinishes",
                reason="is not true: KubeRay does not suspend a RayJob that keeps its cluster",
            ),
        ),
        zero=(
            Required(
                path="spec.ttlSecondsAfterFinished",
                reason="is not 0: KubeRay keeps the cluster for this time after the end of the job, when it has no quota",
            ),
        ),
        finalizer="ray.io/rayjob-finalizer",
        operator="kubeRayOperator",
        children=(BATCH_JOB, RAY_CLUSTER),
    )
)
