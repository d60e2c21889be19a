"""TrainJobs of ``trainer.kubeflow.org``, run by the Kubeflow trainer. Each replicated job of the runtime is a podset.

A TrainJob has no pod templates. The trainer creates a JobSet from its TrainingRuntime or ClusterTrainingRuntime, even while the
TrainJob is suspended, and applies the ``runtimePatches`` of the TrainJob to it. The gang requests what the JobSet requests. queuectl
writes its labels and its gate into an entry of ``runtimePatches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Final

from queuectl.domain.jobs import JobRecord
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    attempt_frame,
    start_frame,
    starting_template,
    withdraws,
)
from queuectl.objects.kinds.described import Absent, DescribedKind, ListPatch
from queuectl.objects.kinds.description import (
    BATCH_JOB,
    JOB_SET,
    Conditions,
    Description,
    Manager,
    Patches,
    merged,
    nested,
)
from queuectl.objects.kinds.places import field
from queuectl.objects.kubernetes.wire import Template, TemplateMeta, Wire

# ---- TrainJobs

_PATCHES: Final = Patches(
    path="spec.runtimePatches", owner="manager", changes="trainingRuntimeSpec.template"
)
_SPEC, _CHANGES = "trainingRuntimeSpec", "template"
_RUNTIME: Final = "spec.runtimeRef"
_DEFAULT_RUNTIME: Final = "ClusterTrainingRuntime"
_STATUSES: Final = "status.jobsStatus"


class _Runtime(Wire):
    kind: str | None = None
    name: str | None = None


class _JobStatus(Wire):
    active: int | None = None


class TrainJob(DescribedKind):
    """Adds the entry of ``runtimePatches``. It is drained when no Job is active: until then the trainer refuses other patches."""

    more: ClassVar[Mapping[str, object]] = {
        _RUNTIME: _Runtime | None,
        _STATUSES: list[_JobStatus] | None,
    }

    def status(self, document: Any) -> tuple[bool, bool, bool]:
        succeeded, failed, drained = super().status(document)
        active = any(one.active for one in field(document, _STATUSES) or ())
        return succeeded, failed, drained and not active

    def written(self, document: Any) -> list[tuple[str, Template | None]]:
        found = (one for one, owner in _entries(document) if owner == keys.PATCHES_OWNER)
        labels = (field(one, f"{_PATCHES.changes}.metadata.labels") for one in found)
        return [("", Template(TemplateMeta(labels=one))) for one in labels]

    def read_fields(self, document: Any, fields: SpecFields) -> SpecFields:
        owners = [owner for _, owner in _entries(document)]
        own = [(name, n) for n, name in enumerate(owners) if name == keys.PATCHES_OWNER]
        meta = document.metadata
        without = [n for n in ("annotations", "labels") if getattr(meta, n) is None]
        missing = [f"/metadata/{name}" for name in without]
        if not owners:
            missing.append("/" + _PATCHES.path.replace(".", "/"))
        return replace(fields, list_indexes=tuple(own), missing=tuple(missing))

    def read(self, document: Any, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        record = super().read(document, kueue=kueue, strict=strict)
        kind, name = runtime_of(document)
        awaits = f"its JobSet does not exist: the Kubeflow trainer creates it from {kind} {name}"
        return replace(record, awaits=awaits)

    def start_patch(
        self,
        record: JobRecord,
        attempt: int,
        status: str,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> dict[str, Any]:
        assert not counts, "no podset of a TrainJob may start with fewer pods"
        suspend = nested(self.description.suspend, False)
        return _with_maps(
            record, start_frame(record, status), suspend, self._entry(record, attempt)
        )

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        patch = [attempt_frame(record, status), nested(self.description.suspend, True)]
        if not withdraws(record, attempt):
            return merged(patch)
        return _with_maps(record, *patch, self._entry(record, attempt))

    def _entry(self, record: JobRecord, attempt: int) -> dict[str, Any]:
        """The patch of the entry: it replaces its changes, or adds an entry to the list, or a list."""
        changes = {_CHANGES: self._changes(record, attempt)}
        entry = {_PATCHES.owner: keys.PATCHES_OWNER, _SPEC: changes}
        if record.list_indexes:
            [(_, index)] = record.list_indexes
            return nested(_PATCHES.path, ListPatch({str(index): {_SPEC: Absent(changes)}}))
        if "/" + _PATCHES.path.replace(".", "/") in record.missing:
            return nested(_PATCHES.path, [entry])
        return nested(_PATCHES.path, ListPatch({"-": Absent(entry)}))

    def _changes(self, record: JobRecord, attempt: int) -> dict[str, Any]:
        own = {keys.KIND_LABEL: self.kind, keys.ATTEMPT_LABEL: str(attempt)}
        labels, jobs = self._own_labels(record), []
        for one in record.podsets:
            parts = starting_template(record, attempt, one.name, ()), labels(one.name)
            jobs.append({"name": one.name, **nested("template.spec.template", merged(parts))})
        spec = {"spec": {"replicatedJobs": jobs}} if jobs else {}
        return {"metadata": {"labels": own}, **spec}


def composed(job: JobRecord, child: JobRecord | None) -> JobRecord:
    """The record of a TrainJob with the request of its JobSet; None = it does not exist."""
    if child is None:
        return job
    error, unsupported = child.error, child.unsupported
    if child.array is not None:
        error, unsupported = (
            f"{keys.ELASTIC_JOB} of its runtime: a TrainJob cannot be elastic",
            True,
        )
    return replace(
        job,
        podsets=child.podsets,
        error=job.error or error,
        unsupported=job.unsupported if job.error else unsupported,
        pod_priority_class=child.pod_priority_class,
        expected=child.expected,
        followed=child.followed,
        restarts=child.restarts,
        ranks=child.ranks,
        late=child.late,
        unborn=child.unborn,
        ungated=child.ungated,
        awaits="",
    )


def runtime_of(document: Any) -> tuple[str, str]:
    """Kind and name of the runtime of a TrainJob. ``document``: a struct or a document."""
    named = field(document, _RUNTIME)
    return field(named, "kind") or _DEFAULT_RUNTIME, field(named, "name") or ""


def _entries(document: Any) -> Iterator[tuple[object, str | None]]:
    """The entries of the list, with their owners."""
    for one in field(document, _PATCHES.path) or ():
        yield one, field(one, _PATCHES.owner)


def _with_maps(record: JobRecord, *parts: dict[str, Any]) -> dict[str, Any]:
    """The parts as one patch. As a JSON patch, it adds the maps of the metadata that the object does not have."""
    patch: dict[str, Any] = merged(parts)
    if isinstance(field(patch, _PATCHES.path), ListPatch):
        metadata = patch["metadata"]
        for name in ("annotations", "labels"):
            if f"/metadata/{name}" in record.missing and name in metadata:
                metadata[name] = Absent(metadata[name])
    return patch


TRAINJOB: Final = TrainJob(
    Description(
        kind="TrainJob",
        group="trainer.kubeflow.org",
        version="v1alpha1",
        plural="trainjobs",
        suspend="spec.suspend",
        podsets=(),
        patches=_PATCHES,
        probe={"spec": {"runtimeRef": {"name": "queuectl-probe"}}},
        conditions=Conditions(succeeded="Complete"),
        manager=Manager(path="spec.managedBy", name="trainer.kubeflow.org/trainjob-controller"),
        operator="trainerOperator",
        children=(JOB_SET, BATCH_JOB),
    )
)


# ---- The JobSet of a TrainJob
#
# Only the fields on which a plan depends: the numbers of pods, their requests, and where they can run. In a cluster the JobSet itself
# counts. A file has the runtime, and not the JobSet. ``tests/kinds/test_trainjobs.py`` compares both.

GROUP_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
KINDS: Final = ("ClusterTrainingRuntime", "TrainingRuntime")

ANCESTOR_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
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


def _check(
    changes: Mapping[str, Any], replicated_jobs: Iterable[str], runtime: tuple[str, str]
) -> None:
    for one in field(changes, "spec.replicatedJobs") or ():
        if one.get("name") not in replicated_jobs:
            kind, name = runtime
            raise RequestError(
                f"spec.runtimePatches: {kind} {name} has no replicated job {one.get('name')!r}"
            )


def _patched(original: Any, change: Any) -> Any:
    """The value with a change: maps by key, some lists by the names of their entries, other values as a whole."""
    if not isinstance(original, dict) or not isinstance(change, dict):
        return deepcopy(change)
    result = dict(original)
    for key, new in change.items():
        old = original.get(key)
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


def _adjust(
    replicated_job: _Document, policy: Mapping[str, Any] | None, trainer: Mapping[str, Any]
) -> None:
    """Give a replicated job its number of pods and their requests, as the trainer does."""
    step = field(replicated_job, "template.metadata.labels") or {}
    is_trainer = step.get(ANCESTOR_STEP) == _TRAINER
    mpi = (policy or {}).get("mpi")
    leads = mpi is not None and bool(mpi.get("runLauncherAsNode"))
    if step.get(ANCESTOR_STEP) in _SINGLE:
        replicated_job["replicas"] = 1
    job = replicated_job["template"].setdefault("spec", {})
    count = job.get("parallelism", 1)
    if is_trainer and policy is not None:
        count = policy.get("numNodes", 1)
    nodes = trainer.get("numNodes")
    if nodes is not None and (replicated_job["name"] == _NODE if mpi is not None else is_trainer):
        # The launcher is one of the nodes.
        count = max(nodes - 1, 1) if leads else nodes
    job["parallelism"] = job["completions"] = max(count, 1)
    asked = trainer.get("resourcesPerNode")
    if asked and policy is not None and (is_trainer or (leads and replicated_job["name"] == _NODE)):
        for container in field(job, "template.spec.containers") or ():
            if container.get("name") == _NODE:
                container["resources"] = _patched(container.get("resources") or {}, asked)
