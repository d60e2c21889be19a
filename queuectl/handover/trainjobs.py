"""TrainJobs as Kueue reads them.

A TrainJob has no pod templates. Kueue (0.17, ``getChildJobSet``) builds its JobSet from the runtime and the TrainJob, with the library of
the Kubeflow trainer (2.2). It omits what the plugins of an ``mlPolicy`` add to the containers: the environment and the port of PyTorch, for
example. The containers of the JobSet in the cluster are other ones, and Kueue finds no matching Workload with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.places import field
from queuectl.objects.kinds.trainjob import ANCESTOR_STEP, jobset_of

Document = Mapping[str, Any]
_Entry = dict[str, Any]

TRAINJOB: Final = "TrainJob"
_KUEUE: Final = "kueue.x-k8s.io/manager"
_TUNE: Final = ["tune", "run"]
_NODE: Final = "node"
_INITIALIZERS: Final = {"dataset-initializer": "dataset", "model-initializer": "model"}
_MERGE_KEYS: Final = {"env": "name", "volumeMounts": "mountPath"}
_CONTAINERS: Final = ("initContainers", "containers")


def jobset_for_kueue(job: Document, runtime: Document | None) -> _Entry:
    """The JobSet from which Kueue reads the podsets of a TrainJob.

    Args:
        job: the TrainJob.
        runtime: that of the TrainJob, as it is now; None = it does not exist.

    Raises:
        RequestError: Kueue reads no podsets, or other containers than a rule of this module gives.
    """
    if runtime is None:
        raise RequestError("its runtime does not exist, from which Kueue reads its podsets")
    policy = field(runtime, "spec.mlPolicy") or {}
    if policy.get("flux") is not None or field(job, "spec.trainer.command") == _TUNE:
        raise RequestError("Kueue reads other containers where Flux or TorchTune adds to them")
    jobset = jobset_of(job, runtime)
    templates = {
        one["name"]: field(one, "template.spec.template.spec") or {}
        for one in field(runtime, "spec.template.spec.replicatedJobs") or ()
    }
    for replicated in jobset["spec"].get("replicatedJobs") or ():
        pod = field(replicated, "template.spec.template.spec") or {}
        for name in _CONTAINERS:
            if name in pod:
                changes = _patches(job, replicated["name"], name)
                pod[name] = _containers(templates[replicated["name"]][name], changes)
        for container in pod.get("containers") or ():
            _trained(container, replicated, job, policy)
            _initialized(container, replicated, job)
    return jobset


def queued_patches(job: Document, queue: str) -> list[_Entry]:
    """The ``runtimePatches`` of a suspended TrainJob, as Kueue's webhook writes them at its creation, without the entry of queuectl.

    Kueue starts no TrainJob that lacks its entry.
    """
    own = (keys.PATCHES_OWNER, _KUEUE)
    entries = field(job, "spec.runtimePatches") or ()
    others = [deepcopy(one) for one in entries if one.get("manager") not in own]
    labels = {"labels": {keys.KUEUE_PREFIX + keys.QUEUE_NAME: queue}}
    entry = {"template": {"metadata": labels, "spec": {}}}
    return [*others, {"manager": _KUEUE, "trainingRuntimeSpec": entry}]


def _patches(job: Document, replicated_job: str, containers: str) -> list[Document]:
    """The changes of these containers, in the order in which the trainer applies them."""
    changes: list[Document] = []
    for entry in field(job, "spec.runtimePatches") or ():
        for one in field(entry, "trainingRuntimeSpec.template.spec.replicatedJobs") or ():
            if one.get("name") == replicated_job:
                changes += field(one, f"template.spec.template.spec.{containers}") or ()
    return changes


def _containers(originals: Iterable[Document], changes: Sequence[Document]) -> list[_Entry]:
    containers = []
    for original in originals:
        container = dict(deepcopy(original))
        for change in changes:
            if change.get("name") == container.get("name"):
                container = _merged(container, change)
        containers.append(container)
    return containers


def _merged(original: Document, change: Document) -> _Entry:
    """A strategic merge patch of Kubernetes: maps by key, and the lists of a container by the key of their entries."""
    result = dict(original)
    for name, new in change.items():
        old = original.get(name)
        if name in _MERGE_KEYS:
            result[name] = _merged_list(old or [], new or [], _MERGE_KEYS[name])
        elif isinstance(old, dict) and isinstance(new, dict):
            result[name] = _merged(old, new)
        else:
            result[name] = deepcopy(new)
    return result


def _merged_list(old: Sequence[Document], new: Sequence[Document], key: str) -> list[_Entry]:
    """The entries of both. As in Kubernetes, those of the patch keep their order, and an old one goes before the first that followed it."""
    before = {one.get(key): (place, one) for place, one in enumerate(old)}
    merged = [_merged(before.get(one.get(key), (0, {}))[1], one) for one in new]
    names = {one.get(key) for one in new}
    result: list[_Entry] = []
    for place, one in enumerate(old):
        if one.get(key) in names:
            continue
        while merged and before.get(merged[0].get(key), (-1, one))[0] < place:
            result.append(merged.pop(0))
        result.append(dict(one))
    return result + merged


def _trained(container: _Entry, replicated_job: Document, job: Document, policy: Document) -> None:
    """Give the container of the nodes what ``spec.trainer`` states."""
    if container.get("name") != _NODE:
        return
    trainer = field(job, "spec.trainer") or {}
    leads = bool(field(policy, "mpi.runLauncherAsNode"))
    is_trainer = _step(replicated_job) == "trainer"
    if is_trainer:
        container |= {n: trainer[n] for n in ("image", "command", "args") if n in trainer}
    if is_trainer or (leads and replicated_job["name"] == _NODE):
        requested = trainer.get("resourcesPerNode") or {}
        resources = {n: requested[n] for n in ("limits", "requests") if requested.get(n)}
        if resources:
            container["resources"] = resources
        _add_environment(container, trainer.get("env") or ())


def _initialized(container: _Entry, replicated_job: Document, job: Document) -> None:
    """Give the container of an initializer what ``spec.initializer`` states."""
    name = _step(replicated_job)
    if name not in _INITIALIZERS or container.get("name") != name:
        return
    stated = field(job, f"spec.initializer.{_INITIALIZERS[name]}") or {}
    if stated.get("storageUri") is not None:
        _add_environment(container, [{"name": "STORAGE_URI", "value": stated["storageUri"]}])
    _add_environment(container, stated.get("env") or ())
    if stated.get("secretRef"):
        source = {"secretRef": {"name": stated["secretRef"].get("name", "")}}
        container["envFrom"] = [*(container.get("envFrom") or ()), source]


def _add_environment(container: _Entry, added: Iterable[Document]) -> None:
    """A variable that exists is replaced at its place."""
    variables = {one["name"]: one for one in container.get("env") or ()}
    for one in added:
        variables[one["name"]] = _variable(one)
    if variables:
        container["env"] = list(variables.values())


def _variable(stated: Document) -> _Entry:
    """The fields of a variable that the trainer copies."""
    source = stated.get("valueFrom")
    if source is None:
        return {"name": stated["name"], "value": stated.get("value", "")}
    copied = {}
    if reference := source.get("fieldRef"):
        copied["fieldRef"] = {"fieldPath": reference.get("fieldPath", "")}
    for name in ("resourceFieldRef", "configMapKeyRef", "secretKeyRef"):
        if source.get(name):
            copied[name] = deepcopy(source[name])
    return {"name": stated["name"], "valueFrom": copied}


def _step(replicated_job: Document) -> str:
    labels = field(replicated_job, "template.metadata.labels") or {}
    return str(labels.get(ANCESTOR_STEP) or "")
