"""MPIJobs of ``kubeflow.org/v2beta1``, run by the MPI operator. The launcher and the workers are podsets.

The operator creates a Job for the launcher, whose pod the Job controller creates, and the pods of the workers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import BATCH_JOB, Description, Manager, PodSets
from queuectl.objects.kinds.places import PodSetPlace, entries, field

_LAUNCHER: Final = "launcher"
_WORKER: Final = "worker"
_LAUNCHER_WORKS: Final = "spec.runLauncherAsWorker"
_LAUNCHER_CREATION: Final = "spec.launcherCreationPolicy"
_CLEANING: Final = "spec.runPolicy.cleanPodPolicy"
_REPLICAS: Final = "replicas"


class MPIJob(DescribedKind):
    """Adds the numbers of pods that the operator accepts, a launcher that comes late, and how the operator counts and keeps workers."""

    more: ClassVar[Mapping[str, object]] = {
        _LAUNCHER_WORKS: bool | None,
        _LAUNCHER_CREATION: str | None,
        _CLEANING: str | None,
    }

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        _check({one.podset: one for one in entries(self.description.podsets, document)})
        workers = any(podset.name == _WORKER for podset in fields.podsets)
        waits = field(document, _LAUNCHER_CREATION) == "WaitForWorkersReady"
        shifted = bool(field(document, _LAUNCHER_WORKS))
        return replace(
            fields,
            # The launcher comes as soon as the workers are ready, so the gang is ready when all its pods are.
            late=(_LAUNCHER,) if waits and workers else (),
            # The launcher has the index 0 then, and the workers those from 1.
            first_ranks=((_WORKER, 1),) if shifted and workers else (),
            # A worker has the name of its index. With another policy, a suspension also deletes those that have ended.
            kept_podsets=(_WORKER,) if field(document, _CLEANING) == "Running" else (),
        )


def _check(replicas: dict[str, PodSetPlace]) -> None:
    """Check what the operator checks only after the creation. Raises RequestError."""
    launcher, worker = replicas.get(_LAUNCHER), replicas.get(_WORKER)
    if launcher is None:
        raise RequestError("spec.mpiReplicaSpecs: has no Launcher")
    if (count := launcher.count()) != 1:
        raise RequestError(f"{launcher.path}.{_REPLICAS}: {count} is not 1")
    if worker is not None and not field(worker.content, _REPLICAS):
        raise RequestError(f"{worker.path}.{_REPLICAS}: is missing: a number of workers from 1")


MPIJOB: Final = MPIJob(
    Description(
        kind="MPIJob",
        group="kubeflow.org",
        version="v2beta1",
        plural="mpijobs",
        suspend="spec.runPolicy.suspend",
        podsets=(PodSets(path="spec.mpiReplicaSpecs", types=("Launcher", "Worker")),),
        # The operator checks the others, and never stops the pods of a job that it finds invalid.
        fixed=(
            _LAUNCHER_WORKS,
            _CLEANING,
            "spec.slotsPerWorker",
            "spec.sshAuthMountPath",
            "spec.runPolicy.ttlSecondsAfterFinished",
            "spec.runPolicy.activeDeadlineSeconds",
            "spec.runPolicy.backoffLimit",
        ),
        priority_class="spec.runPolicy.schedulingPolicy.priorityClass",
        manager=Manager(path="spec.runPolicy.managedBy", name="kubeflow.org/mpi-operator"),
        operator="mpiOperator",
        children=(BATCH_JOB,),
    )
)
