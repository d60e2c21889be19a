"""Kinds of objects that are not gangs of queuectl, and from which controllers create pods or jobs.

With :data:`queuectl.objects.kinds.DESCRIPTIONS`, this is the one list of the kinds with pod templates. The policies for objects outside the
queues, the policies for the name of the submitter, the rights to read these policies, and the refusal of components of an AppWrapper follow
from it. ``deploy/chart/kinds.yaml`` has it for Helm.
"""

from __future__ import annotations

from typing import Final

from queuectl.objects.kinds.description import (
    DescriptionPart,
    GroupOrNone,
    Kind,
    NameOrNone,
    PathOrNone,
    Plural,
    PodLabels,
    PodSets,
    Version,
)
from queuectl.objects.kinds.ray import cluster_podsets
from queuectl.objects.kinds.sparkapplication import LABELS


class Created(DescriptionPart, frozen=True, kw_only=True):
    """Objects of a queue that the controller of a kind creates with annotations of its user.

    Attributes:
        plural: of the created objects.
        metadata: path of the metadata with these annotations; "" = those of the object itself.
        controller: the controller of kube-controller-manager that creates them; "" = that of ``operator``.
        operator: the value of the chart with the account of the controller; "" = it is a part of kube-controller-manager.
    """

    plural: Plural
    metadata: PathOrNone
    controller: NameOrNone = ""
    operator: str = ""


class Maker(DescriptionPart, frozen=True, kw_only=True):
    """A kind.

    Attributes:
        kind, group, version, plural: its names in the API.
        podsets: the places of its pod templates, if admission does not check what its controller creates from them. A pod of the other
            kinds is checked when it is created.
        job_set: path of a JobSet with such templates; "" = it has none.
        created: what counts for its user; None = the name of the user does not reach the created objects.
    """

    kind: Kind
    group: GroupOrNone
    version: Version
    plural: Plural
    podsets: tuple[PodSets, ...] = ()
    job_set: PathOrNone = ""
    created: Created | None = None

    @property
    def unchecked(self) -> bool:
        """Whether admission does not check what its controller creates."""
        return bool(self.podsets or self.job_set)


_OF_TEMPLATE: Final = "spec.template.metadata"


def _of_apps(kind: str, controller: str, creates: str = "pods") -> Maker:
    return Maker(
        kind=kind,
        group="apps",
        version="v1",
        plural=f"{kind.lower()}s",
        created=Created(plural=creates, metadata=_OF_TEMPLATE, controller=controller),
    )


def _of_spark(path: str, *names: str, labels: PodLabels | None = None) -> tuple[PodSets, ...]:
    return tuple(PodSets(path=f"{path}.{name}", name=name, labels=labels) for name in names)


MAKERS: Final = (
    _of_apps("Deployment", "deployment-controller", "replicasets"),
    _of_apps("ReplicaSet", "replicaset-controller"),
    _of_apps("StatefulSet", "statefulset-controller"),
    _of_apps("DaemonSet", "daemon-set-controller"),
    Maker(
        kind="ReplicationController",
        group="",
        version="v1",
        plural="replicationcontrollers",
        created=Created(plural="pods", metadata=_OF_TEMPLATE, controller="replication-controller"),
    ),
    Maker(
        kind="CronJob",
        group="batch",
        version="v1",
        plural="cronjobs",
        created=Created(
            plural="jobs", metadata="spec.jobTemplate.metadata", controller="cronjob-controller"
        ),
    ),
    Maker(
        kind="RayService",
        group="ray.io",
        version="v1",
        plural="rayservices",
        podsets=cluster_podsets("spec.rayClusterConfig"),
        created=Created(plural="rayclusters", metadata="", operator="kubeRayOperator"),
    ),
    Maker(
        kind="RayCronJob",
        group="ray.io",
        version="v1",
        plural="raycronjobs",
        podsets=(
            *cluster_podsets("spec.jobTemplate.rayClusterSpec"),
            PodSets(
                path="spec.jobTemplate.submitterPodTemplate",
                name="submitter",
                template="",
                optional=True,
            ),
        ),
    ),
    Maker(
        kind="TrainingRuntime",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainingruntimes",
        job_set="spec.template",
    ),
    Maker(
        kind="ClusterTrainingRuntime",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="clustertrainingruntimes",
        job_set="spec.template",
    ),
    Maker(
        kind="ScheduledSparkApplication",
        group="sparkoperator.k8s.io",
        version="v1beta2",
        plural="scheduledsparkapplications",
        podsets=_of_spark("spec.template", "driver", "executor", labels=LABELS),
    ),
    Maker(
        kind="SparkConnect",
        group="sparkoperator.k8s.io",
        version="v1alpha1",
        plural="sparkconnects",
        podsets=_of_spark("spec", "server", "executor"),
    ),
)
