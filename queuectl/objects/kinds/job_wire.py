"""The fields of a ``batch/v1`` Job that are read."""

from __future__ import annotations

import msgspec

from queuectl.objects.kubernetes.wire import Condition, Meta, Template, Wire


class PodCondition(Wire):
    type: str = ""
    status: str | None = None


class FailureRule(Wire):
    action: str = ""
    on_pod_conditions: list[PodCondition] | None = None


class PodFailurePolicy(Wire):
    rules: list[FailureRule] | None = None


class SuccessRule(Wire):
    succeeded_indexes: str | None = None
    succeeded_count: int | None = None


class SuccessPolicy(Wire):
    rules: list[SuccessRule] | None = None


class JobSpec(Wire):
    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    managed_by: str | None = None
    template: Template | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: SuccessPolicy | None = None


class JobStatus(Wire):
    active: int | None = None
    succeeded: int | None = None
    failed_indexes: str | None = None
    completed_indexes: str | None = None
    conditions: list[Condition] | None = None


class WireJob(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: JobSpec | None = None
    status: JobStatus | None = None
