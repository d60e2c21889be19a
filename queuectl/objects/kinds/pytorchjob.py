"""``kubeflow.org/v1`` PyTorchJob, run by the training operator: podsets ``master`` and ``worker``.

The operator names pods by replica type and index. An index counts inside its type, so it is the pod's rank in its podset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from queuectl.domain.needs import ContainerNeeds, incidental, limited, requested
from queuectl.domain.quantity import CPU, MEMORY
from queuectl.domain.records import JobRecord, Outcome
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import (
    NO_COUNTS,
    SpecFields,
    attempt_frame,
    holds,
    notice,
    patch_frame,
    read_job,
    relabelled,
    start_frame,
    starting_template,
    template_patch,
    withdraws,
)
from queuectl.objects.kubernetes.templates import check_count, check_groups, read_podset
from queuectl.objects.kubernetes.wire import Condition, Meta, Template, Wire

_TYPES = {"Master": "master", "Worker": "worker"}  # replica type to podset, in podset order
_REPLICAS = {podset: replica for replica, podset in _TYPES.items()}
_OPERATOR = "kubeflow.org/training-operator"


# Where there is a master, the operator gives each worker an init container that waits for it, with these resources (its
# built-in template, v1.9). They count like any init container's: as a floor under the pod's own.
_INIT = ContainerNeeds(
    requests=((CPU, 50), (MEMORY, 10 << 20)),
    limits=((CPU, 100), (MEMORY, 20 << 20)),
    incidental=True,
)


class ReplicaSpec(Wire):
    replicas: int | None = None
    template: Template | None = None


class SchedulingPolicy(Wire):
    priority_class: str | None = None


class RunPolicy(Wire):
    suspend: bool | None = None
    managed_by: str | None = None
    scheduling_policy: SchedulingPolicy | None = None


class ElasticPolicy(Wire):
    metrics: list[Any] | None = None


class PyTorchSpec(Wire):
    run_policy: RunPolicy | None = None
    elastic_policy: ElasticPolicy | None = None
    pytorch_replica_specs: dict[str, ReplicaSpec | None] | None = None


class PyTorchStatus(Wire):
    conditions: list[Condition] | None = None


class WirePyTorchJob(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PyTorchSpec | None = None
    status: PyTorchStatus | None = None


class PyTorchJob:
    """See :class:`queuectl.objects.kinds.JobKind`."""

    kind = "PyTorchJob"
    group = "kubeflow.org"
    version = "v1"
    plural = "pytorchjobs"
    wire = WirePyTorchJob

    def read(
        self, document: WirePyTorchJob, *, kueue: bool = True, strict: bool = False
    ) -> JobRecord:
        spec = document.spec or PyTorchSpec()
        policy = spec.run_policy or RunPolicy()
        scheduling = policy.scheduling_policy or SchedulingPolicy()
        conditions = (document.status or PyTorchStatus()).conditions or []
        replicas = spec.pytorch_replica_specs or {}
        specs = [replicas.get(name) or ReplicaSpec() for name in _TYPES if name in replicas]
        return read_job(
            self.kind,
            document.metadata,
            [replica.template for replica in specs],
            conditions,
            suspended=bool(policy.suspend),
            outcome=_outcome(conditions),
            own_priority_class=scheduling.priority_class,
            ask=lambda: _ask(spec, policy, kueue),
            kueue=kueue,
            strict=strict,
        )

    def start_patch(
        self,
        record: JobRecord,
        attempt: int,
        status: str,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> dict[str, Any]:
        assert not counts, "no podset of a PyTorchJob may start with fewer pods"
        replicas = {
            _REPLICAS[podset.name]: {"template": _starting(record, attempt, podset.name)}
            for podset in record.podsets
        }
        patch = start_frame(record, status)
        if record.ungated and record.pod_priority_class is not None:
            own = {keys.ORIGINAL_PRIORITY_CLASS: record.pod_priority_class}
            patch["metadata"]["annotations"].update(own)
        spec = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": replicas}
        return {**patch, "spec": spec}

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        spec: dict[str, Any] = {"runPolicy": {"suspend": True}}
        if withdraws(record, attempt):
            spec.update(_templates(record, attempt))
        return {**attempt_frame(record, status), "spec": spec}

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        return patch_frame(record, status)

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        return relabelled(record, status, queue)

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        return notice(record, status, deadline)

    def pod_selector(self, name: str) -> str:
        return f"training.kubeflow.org/job-name={name}"


def _outcome(conditions: list[Condition]) -> Outcome | None:
    if holds(conditions, "Succeeded"):
        return Outcome.SUCCEEDED
    return Outcome.FAILED if holds(conditions, "Failed") else None


def _starting(record: JobRecord, attempt: int, podset: str) -> dict[str, Any]:
    """With the gate and the PriorityClass that the admission policy would have put there, if it has not."""
    template = starting_template(record, attempt, podset)
    if "spec" in template:
        template["spec"]["priorityClassName"] = keys.POD_PRIORITY_CLASS
    return template


def _templates(record: JobRecord, attempt: int) -> dict[str, Any]:
    present = {podset.name for podset in record.podsets}
    return {
        "pytorchReplicaSpecs": {
            replica: {"template": template_patch(record, attempt, podset)}
            for replica, podset in _TYPES.items()
            if podset in present
        }
    }


def _ask(spec: PyTorchSpec, policy: RunPolicy, kueue: bool) -> SpecFields:
    replicas = spec.pytorch_replica_specs or {}
    path = "spec.pytorchReplicaSpecs"
    for name in replicas:
        if name not in _TYPES:
            raise RequestError(f"{path}: {name!r} is neither Master nor Worker")
    if not replicas:
        raise RequestError(f"{path}: has neither Master nor Worker")
    if policy.managed_by not in (None, _OPERATOR):
        raise RequestError(
            f"spec.runPolicy.managedBy: {policy.managed_by!r} runs this job elsewhere",
            unsupported=True,
        )
    if spec.elastic_policy is not None and spec.elastic_policy.metrics:
        raise RequestError(
            "spec.elasticPolicy.metrics: a number of workers that changes while the job runs is not supported",
            unsupported=True,
        )
    podsets = []
    for name, podset in _TYPES.items():
        if name in replicas:
            replica = replicas[name] or ReplicaSpec()
            count = 1 if replica.replicas is None else replica.replicas
            check_count(count, f"{path}.{name}.replicas")
            template = f"{path}.{name}.template"
            podsets.append(read_podset(podset, count, replica.template, template, kueue=kueue))
    check_groups(podsets)
    if "Master" in replicas:
        podsets = [_with_init(p) if p.name == _TYPES["Worker"] else p for p in podsets]
    # The operator keeps a replica that succeeded, unless the job is elastic: then a restart may bring it back.
    return SpecFields(tuple(podsets), followed=spec.elastic_policy is not None)


def _with_init(worker: PodSet) -> PodSet:
    assert worker.needs is not None
    needs = replace(worker.needs, init=(*worker.needs.init, _INIT))
    shape = replace(worker.shape, requests=requested(needs), incidental=incidental(needs))
    return replace(worker, shape=shape, limits=limited(needs), needs=needs)
