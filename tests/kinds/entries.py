"""Each kind of queuectl in the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.localcluster.operators import (
    APPWRAPPER,
    KUBERAY,
    MPI_OPERATOR,
    SPARK_OPERATOR,
    TRAINER,
    TRAINING_OPERATOR,
)
from queuectl.objects.kinds import DESCRIPTIONS
from queuectl.objects.kinds.description import nested
from tests.kinds.entry import NO_PARTIAL, WITHOUT, Entry, Gang, Make
from tests.kinds.pod_entries import NO_END, POD_ENTRIES
from tests.support import trainjobs
from tests.support.appwrappers import appwrapper
from tests.support.appwrappers import job as wrapped_job
from tests.support.jobsets import jobset, replicated
from tests.support.rays import raycluster, rayjob, rayservice, worker_group
from tests.support.simulated_ray import play
from tests.support.sparkapplications import driver_account, sparkapplication
from tests.system.installation import Workspace

NO_INDEX: Final = (
    "Its pods have no index: Spark numbers each executor, including those that replace others."
)
NO_SUBMISSION: Final = "KubeRay submits its entrypoint only when all pods of its cluster run."


def _job(name: str, namespace: str, pods: PodSetManifest, priority_class: str | None) -> Document:
    return m.job(name, namespace, "main", pods, priority_class=priority_class, retries=6)


def _replicas(kind: str, *leaders: str, restart: str = "OnFailure") -> Make:
    """A kind of kubeflow.org: one pod of each leading replica type, and workers. ``restart``: of its replicas."""
    [one] = [described for described in DESCRIPTIONS if described.kind == kind]

    def make(
        name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
    ) -> Document:
        counts = {**dict.fromkeys(leaders, 1), "Worker": pods.count - len(leaders)}
        grouped = replace(pods, group="all" if pods.required and leaders else None)
        replicas = {
            role: {
                "replicas": count,
                "restartPolicy": restart,
                "template": grouped.template(one.container, None, restart="OnFailure"),
            }
            for role, count in counts.items()
        }
        spec: Any = nested(one.podsets[0].path, replicas)["spec"]
        api = f"{one.group}/{one.version}"
        document = m.pytorchjob(name, namespace, "main", priority_class=priority_class)
        # With a clean-up, pods that would run without an end are deleted when the job ends.
        policy = {"runPolicy": {"cleanPodPolicy": "Running"}}
        return document | {"apiVersion": api, "kind": kind, "spec": {**policy, **spec}}

    return make


def _training(
    kind: str,
    *leaders: str,
    deciding: str = "master",
    outlives_deletion: bool = True,
    without: Mapping[str, str] = WITHOUT,
    **how: str,
) -> Entry:
    make = _replicas(kind, *leaders, **how)
    return Entry(kind, make, TRAINING_OPERATOR, deciding, outlives_deletion, without=without)


def _jobset(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Document:
    """Two Jobs of some pods each, and one Job of another podset."""
    grouped = replace(pods, group="all" if pods.required else None)
    workers = replicated("workers", 2, replace(grouped, count=(pods.count - 1) // 2))
    rest = replicated("driver", 1, replace(grouped, count=2 - pods.count % 2))
    return jobset(name, namespace, rest, workers, priority_class=priority_class)


def _raycluster(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Document:
    """The head, and one group of workers."""
    grouped = replace(pods, group="all" if pods.required else None)
    workers = worker_group("workers", replace(grouped, count=pods.count - 1))
    head = replace(grouped, count=1)
    return raycluster(name, namespace, head, workers, priority_class=priority_class)


def _rayservice(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Document:
    """Its cluster has a head, and one group of workers."""
    workers = worker_group("workers", replace(pods, count=pods.count - 1))
    head = replace(pods, count=1)
    return rayservice(name, namespace, head, workers, priority_class=priority_class)


def _clusters(gang: Gang) -> list[str]:
    """The RayClusters that KubeRay has created for a RayService, if queuectl knows them."""
    return [name for name in gang.workspace.workloads() if name.startswith(f"{gang.name}-")]


def _rayjob(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Document:
    """The head, one group of workers, and the pod that submits the entrypoint."""
    grouped = replace(pods, group="all" if pods.required else None)
    workers = worker_group("workers", replace(grouped, count=pods.count - 2))
    one = replace(grouped, count=1)
    submitter = one.template("ray-job-submitter", None, restart="Never")
    return rayjob(
        name,
        namespace,
        one,
        workers,
        priority_class=priority_class,
        submitterPodTemplate=submitter,
    )


def _trainjob(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> list[Document]:
    """Its runtime, and the TrainJob: one pod of another podset, and the nodes."""
    grouped = replace(pods, group="all" if pods.required else None)
    first = trainjobs.replicated("launcher", replace(grouped, count=1))
    nodes = trainjobs.replicated("node", replace(grouped, count=1), step="trainer")
    made = trainjobs.trainjob(
        name, namespace, name, nodes=pods.count - 1, priority_class=priority_class
    )
    return [trainjobs.training_runtime(name, namespace, first, nodes), made]


def _appwrapper(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> Document:
    """A Job of one pod, one of the other pods, and a Service."""
    grouped = replace(pods, group="all" if pods.required else None)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{name}-service"}}
    service |= {"spec": {"selector": {"app": name}, "ports": [{"port": 80}]}}
    one = wrapped_job(f"{name}-first", replace(grouped, count=1))
    rest = wrapped_job(f"{name}-work", replace(grouped, count=pods.count - 1))
    return appwrapper(name, namespace, service, one, rest, priority_class=priority_class)


def _sparkapplication(
    name: str, namespace: str, pods: PodSetManifest, priority_class: str | None
) -> list[Document]:
    """The account of its driver, and the SparkApplication: the driver, and executors."""
    grouped = replace(pods, group="all" if pods.required else None)
    executors, driver = replace(grouped, count=pods.count - 1), replace(grouped, count=1)
    made = sparkapplication(
        name, namespace, executors, driver=driver, priority_class=priority_class
    )
    return [*driver_account(name, namespace), made]


def _ray_job_succeeds(workspace: Workspace, name: str) -> None:
    play(workspace, name, "SUCCEEDED")


ENTRIES: Final = (
    Entry("Job", _job, without={}),
    _training("PyTorchJob", "Master", without={"partial": NO_PARTIAL}),
    # Its PS runs until it is deleted. For the operator, a running pod that is deleted has failed, and fails the TFJob.
    _training("TFJob", "Chief", "PS", deciding="chief", outlives_deletion=False),
    # With another policy, the operator restarts no pod of an XGBoostJob.
    _training("XGBoostJob", "Master", restart="ExitCode"),
    _training("PaddleJob", "Master"),
    _training("JAXJob", deciding=""),
    Entry("JobSet", _jobset, "jobset", without={"partial": NO_PARTIAL}),
    Entry(
        "RayCluster",
        _raycluster,
        KUBERAY,
        unranked=("head",),
        without={"partial": NO_PARTIAL, "finish": NO_END},
    ),
    Entry(
        "RayJob",
        _rayjob,
        KUBERAY,
        deciding="submitter",
        end=_ray_job_succeeds,
        without={"partial": NO_PARTIAL, "elastic": NO_SUBMISSION},
        unranked=("head", "submitter"),
    ),
    Entry("AppWrapper", _appwrapper, APPWRAPPER),
    # The end of the launcher is the end of the job.
    Entry(
        "MPIJob",
        _replicas("MPIJob", "Launcher"),
        MPI_OPERATOR,
        "launcher",
        unranked=("launcher",),
    ),
    Entry("TrainJob", _trainjob, TRAINER),
    # The end of the driver is the end of the application, and its loss is a new run of the application.
    Entry(
        "SparkApplication",
        _sparkapplication,
        SPARK_OPERATOR,
        deciding="driver",
        replaced="executor",
        unranked=("driver", "executor"),
        without=WITHOUT | {"ranks": NO_INDEX},
    ),
    *POD_ENTRIES,
)
OPERATORS: Final = tuple(dict.fromkeys(one.operator for one in ENTRIES if one.operator))
"""The operators that run the kinds."""
RAYSERVICE: Final = Entry("RayService", _rayservice, KUBERAY, gangs=_clusters)
"""Not in the matrix: each of its clusters is a gang of the kind RayCluster."""
