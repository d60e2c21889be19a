"""The kinds of ``kubeflow.org/v1``, run by the training operator. Each replica type is a podset.

The operator names pods by replica type and index. An index counts inside its type, so it is the pod's rank in its podset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.request_rules import ContainerNeeds
from queuectl.domain.workload import PodSet
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import with_init
from queuectl.objects.kinds.described import KEY, DescribedKind
from queuectl.objects.kinds.description import Description, Manager, PodSets, Unsupported
from queuectl.objects.kinds.places import PodSetPlace, field

_MASTER, _WORKER = "Master", "Worker"
_ELASTIC: Final = "spec.elasticPolicy"
_LEAST: Final = f"{_ELASTIC}.minReplicas"
_MOST: Final = f"{_ELASTIC}.maxReplicas"
_BACKOFF: Final = "spec.runPolicy.backoffLimit"
_RESTART: Final = "restartPolicy"

# Where there is a master, the operator gives each worker an init container that waits for it, with these resources (its
# built-in template, v1.9). They count like any init container's: as a floor under the pod's own.
_INIT = ContainerNeeds(
    requests=((CPU, 50), (MEMORY, 10 << 20)),
    limits=((CPU, 100), (MEMORY, 20 << 20)),
    incidental=True,
)


def _described(
    kind: str,
    replicas: str,
    types: tuple[str, ...],
    container: str,
    *,
    unsupported: tuple[Unsupported, ...] = (),
    replaces_finished: str = "",
) -> Description:
    return Description(
        kind=kind,
        group="kubeflow.org",
        version="v1",
        plural=f"{kind.lower()}s",
        suspend="spec.runPolicy.suspend",
        podsets=(PodSets(path=f"spec.{replicas}", types=types),),
        priority_class="spec.runPolicy.schedulingPolicy.priorityClass",
        manager=Manager(path="spec.runPolicy.managedBy", name="kubeflow.org/training-operator"),
        unsupported=unsupported,
        replaces_finished=replaces_finished,
        counts_old_pods=True,
        container=container,
    )


def _changes_workers(path: str) -> Unsupported:
    return Unsupported(
        path=path,
        reason="a number of workers that changes while the job runs is not supported",
    )


class PyTorchJob(DescribedKind):
    """Adds the init container of workers, which the operator adds to no other kind, and elastic jobs of `torchrun`."""

    more: ClassVar[Mapping[str, object]] = {
        _LEAST: int | None,
        _MOST: int | None,
        _BACKOFF: int | None,
    }
    more_of_entries: ClassVar[Mapping[str, object]] = {_RESTART: str | None}

    def can_grow(self, document: Any, entry: PodSetPlace) -> bool:  # noqa: ARG002 - of Growing
        return entry.podset == _WORKER.lower()

    def check_growth(self, document: Any, entry: PodSetPlace, base: int) -> None:
        if field(document, _ELASTIC) is None:
            raise RequestError(
                f"{KEY}: {_ELASTIC} is required: without it, the operator states a fixed number of workers"
            )
        least, most = (field(document, path) for path in (_LEAST, _MOST))
        if least is None or most is None or least > base or most < entry.count():
            raise RequestError(
                f"{KEY}: {_LEAST} must be at most {base}, and {_MOST} at least {entry.count()}: the program gets this range from the "
                "operator"
            )
        if field(entry.content, _RESTART) in (None, "Never"):
            raise RequestError(
                f"{KEY}: {entry.path}.{_RESTART} must be OnFailure, Always or ExitCode: with Never, each eviction of a worker would "
                "be the failure of the job"
            )
        if field(document, _BACKOFF) == 0:
            raise RequestError(
                f"{KEY}: {_BACKOFF}: with 0, an eviction of a worker could be the failure of the job"
            )

    def stated_least(self, document: Any, entry: PodSetPlace) -> int | None:
        return field(document, _LEAST) if entry.podset == _WORKER.lower() else None

    def complete(self, podsets: list[PodSet]) -> list[PodSet]:
        if podsets[0].name != _MASTER.lower():
            return podsets
        return [podsets[0], *(with_init(worker, _INIT) for worker in podsets[1:])]


PYTORCHJOB: Final = PyTorchJob(
    _described(
        "PyTorchJob",
        "pytorchReplicaSpecs",
        (_MASTER, _WORKER),
        "pytorch",
        unsupported=(_changes_workers("spec.elasticPolicy.metrics"),),
        # The operator keeps a replica that succeeded, unless the job is elastic: then a restart may bring it back.
        replaces_finished=_ELASTIC,
    )
)
TFJOB: Final = DescribedKind(
    _described(
        "TFJob",
        "tfReplicaSpecs",
        ("Chief", _MASTER, "PS", _WORKER, "Evaluator"),
        "tensorflow",
        # With it, the job runs on without the workers that failed.
        unsupported=(_changes_workers("spec.enableDynamicWorker"),),
    )
)
XGBOOSTJOB: Final = DescribedKind(
    _described("XGBoostJob", "xgbReplicaSpecs", (_MASTER, _WORKER), "xgboost")
)
PADDLEJOB: Final = DescribedKind(
    _described(
        "PaddleJob",
        "paddleReplicaSpecs",
        (_MASTER, _WORKER),
        "paddle",
        unsupported=(_changes_workers("spec.elasticPolicy.metrics"),),
    )
)
JAXJOB: Final = DescribedKind(_described("JAXJob", "jaxReplicaSpecs", (_WORKER,), "jax"))
