"""The JobSet that the Kubeflow trainer creates for a TrainJob, from its TrainingRuntime or ClusterTrainingRuntime.

Only the fields on which a plan depends: the numbers of pods, their requests, and where they can run. In a cluster the JobSet itself
counts. A file has the runtime, and not the JobSet. ``tests/kinds/test_trainjobs.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.trainjob import runtime_of
from queuectl.objects.kinds.wires import field

GROUP_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
KINDS: Final = ("ClusterTrainingRuntime", "TrainingRuntime")

_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_TRAINER: Final = "trainer"
_SINGLE: Final = (_TRAINER, "dataset-initializer", "model-initializer")
_NODE: Final = "node"
_BY_NAME: Final = ("replicatedJobs", "schedulingGates")
_Document = dict[str, Any]


def jobset_of(job: Mapping[str, Any], runtime: Mapping[str, Any]) -> _Document:
    """The JobSet, without a uid. Raises RequestError: the TrainJob does not fit the runtime.

    Args:
        job: the TrainJob.
        runtime: with the kind and the name that the TrainJob refers to.
    """
    meta = job["metadata"]
    template = deepcopy(field(runtime, "spec.template") or {})
    policy = field(runtime, "spec.mlPolicy")
    known = {one.get("name") for one in field(template, "spec.replicatedJobs") or ()}
    for entry in field(job, "spec.runtimePatches") or ():
        changes = field(entry, "trainingRuntimeSpec.template") or {}
        _check(changes, known, runtime_of(job))
        template = _patched(template, changes)
    spec = template.get("spec") or {}
    for one in spec.get("replicatedJobs") or ():
        _adjust(one, policy, field(job, "spec.trainer") or {})
    spec["suspend"] = bool(field(job, "spec.suspend"))
    owner = {"kind": "TrainJob", "name": meta["name"], "uid": meta.get("uid", "")}
    own = template.get("metadata") or {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": meta["name"],
            "namespace": meta.get("namespace") or "default",
            "labels": own.get("labels") or {},
            "annotations": own.get("annotations") or {},
            "ownerReferences": [owner | {"controller": True}],
        },
        "spec": spec,
    }


def _check(changes: Mapping[str, Any], known: Iterable[str], runtime: tuple[str, str]) -> None:
    for one in field(changes, "spec.replicatedJobs") or ():
        if one.get("name") not in known:
            kind, name = runtime
            raise RequestError(
                f"spec.runtimePatches: {kind} {name} has no replicated job {one.get('name')!r}"
            )


def _patched(value: Any, change: Any) -> Any:
    """The value with a change: maps by key, some lists by the names of their entries, other values as a whole."""
    if not isinstance(value, dict) or not isinstance(change, dict):
        return deepcopy(change)
    result = dict(value)
    for key, new in change.items():
        old = value.get(key)
        if key in _BY_NAME:
            result[key] = _by_name(old or [], new or [])
        elif key not in ("containers", "initContainers"):  # their patches have no requests
            result[key] = _patched(old, new) if old is not None else deepcopy(new)
    return result


def _by_name(old: list[_Document], new: list[_Document]) -> list[_Document]:
    changes = {one["name"]: one for one in new}
    names = [one["name"] for one in old]
    kept = [_patched(one, changes.get(one["name"], {})) for one in old]
    return kept + [deepcopy(one) for one in new if one["name"] not in names]


def _adjust(one: _Document, policy: Mapping[str, Any] | None, trainer: Mapping[str, Any]) -> None:
    """Give a replicated job its number of pods and their requests, as the trainer does."""
    step = field(one, "template.metadata.labels") or {}
    is_trainer = step.get(_STEP) == _TRAINER
    mpi = (policy or {}).get("mpi")
    leads = mpi is not None and bool(mpi.get("runLauncherAsNode"))
    if step.get(_STEP) in _SINGLE:
        one["replicas"] = 1
    job = one["template"].setdefault("spec", {})
    count = job.get("parallelism", 1)
    if is_trainer and policy is not None:
        count = policy.get("numNodes", 1)
    nodes = trainer.get("numNodes")
    if nodes is not None and (one["name"] == _NODE if mpi is not None else is_trainer):
        # The launcher is one of the nodes.
        count = max(nodes - 1, 1) if leads else nodes
    job["parallelism"] = job["completions"] = max(count, 1)
    asked = trainer.get("resourcesPerNode")
    if asked and policy is not None and (is_trainer or (leads and one["name"] == _NODE)):
        for container in field(job, "template.spec.containers") or ():
            if container.get("name") == _NODE:
                container["resources"] = _patched(container.get("resources") or {}, asked)
