"""LeaderWorkerSets of ``leaderworkerset.x-k8s.io``. Each group of a leader and its workers is a gang.

The set has no field to suspend it, and queuectl writes nothing to it. Its operator creates the pods of a group through StatefulSets. The pods
wait with their gate, and :mod:`queuectl.objects.kinds.groups` assembles their gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from queuectl.domain.jobs import JobRecord
from queuectl.domain.workload import PodSet
from queuectl.objects import keys
from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.common import SpecFields, StatedKeys, bounded, lenient, read_job
from queuectl.objects.kinds.description import Unsupported
from queuectl.objects.kinds.places import refuse
from queuectl.objects.kubernetes.templates import check_count, check_groups, read_podset
from queuectl.objects.kubernetes.wire import Meta, Template, Wire

KIND: Final = "LeaderWorkerSet"
GROUP: Final = "leaderworkerset.x-k8s.io"
VERSION: Final = "v1"
PLURAL: Final = "leaderworkersets"
PATH: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
"""API path of all objects."""

NAME_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
"""On the pods of a set: its name."""
GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-index"
_WORKER_LABEL: Final = "leaderworkerset.sigs.k8s.io/worker-index"

MAIN: Final = "main"
"""The podset of a group without a template for its leader."""
LEADER: Final = "leader"
WORKER: Final = "worker"

_TEMPLATES: Final = "spec.leaderWorkerTemplate"
_NO_AFFINITY: Final = (
    "the affinity of exclusive placement is not supported: use podset-required-topology"
)
_UNSUPPORTED: Final = tuple(
    Unsupported(path="metadata.annotations", annotation=name, reason=_NO_AFFINITY)
    for name in (
        "leaderworkerset.sigs.k8s.io/exclusive-topology",
        "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
    )
)


class LeaderWorkerTemplate(Wire):
    leader_template: Template | None = None
    worker_template: Template | None = None
    size: int | None = None


class SetSpec(Wire):
    replicas: int | None = None
    startup_policy: str = ""
    leader_worker_template: LeaderWorkerTemplate = msgspec.field(
        default_factory=LeaderWorkerTemplate
    )


class WireSet(Wire):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: SetSpec = msgspec.field(default_factory=SetSpec)


def read_set(document: WireSet, *, kueue: bool = True, strict: bool = False) -> JobRecord:
    """The record of a set: the request of one of its groups, and their number. An error of the user is not raised.

    Args:
        document: the decoded object.
        kueue: whether Kueue's keys count too.
        strict: for files: raise errors that the API server would refuse.

    Raises:
        MalformedError: only when ``strict``.
    """
    group_template = document.spec.leader_worker_template
    templates = {
        "leaderTemplate": group_template.leader_template,
        "workerTemplate": group_template.worker_template,
    }

    def ask(stated: StatedKeys) -> SpecFields:
        if stated.queue is None:
            raise RequestError(
                "metadata.labels: the queue label of a template belongs on the LeaderWorkerSet: admission copies it"
            )
        refuse(_UNSUPPORTED, document)
        for field, template in templates.items():
            _check(template, f"{_TEMPLATES}.{field}")
        podsets = tuple(_podsets(group_template, kueue))
        check_groups(podsets)
        return bounded(SpecFields(podsets))

    record = read_job(
        KIND,
        document.metadata,
        [group_template.leader_template, group_template.worker_template],
        suspended=True,
        drained=True,
        outcome=None,
        own_priority_class=None,
        ask=ask,
        kueue=kueue,
        strict=strict,
    )
    replicas = document.spec.replicas
    of_templates = [_queue_of(template, kueue) for template in templates.values()]
    return replace(
        record,
        queue=record.queue or next(filter(None, of_templates), None),
        groups=1 if replicas is None else replicas,
        staged=document.spec.startup_policy == "LeaderReady",
        of_pods=True,
        ungated=(),
        attempt=0,
    )


def group_name(name: str, index: int | str) -> str:
    """The name of a group of the set with this name, which is also that of its leader."""
    return f"{name}-{index}"


def set_name(group: str) -> tuple[str, int]:
    """The set of the group with this name, and the index of the group in it."""
    name, _, index = group.rpartition("-")
    return name, int(index) if index.isdecimal() else 0


def labels_of(name: str, group: int, index: int) -> Mapping[str, str]:
    """The labels by which the operator names the place of a pod."""
    return {
        NAME_LABEL: name,
        GROUP_LABEL: str(group),
        _WORKER_LABEL: str(index),
    }


def _podsets(template: LeaderWorkerTemplate, kueue: bool) -> Iterator[PodSet]:
    size = check_count(1 if template.size is None else template.size, f"{_TEMPLATES}.size")
    path = f"{_TEMPLATES}.workerTemplate"
    if template.leader_template is None:
        yield read_podset(MAIN, size, template.worker_template, path, kueue=kueue)
        return
    yield read_podset(
        LEADER, 1, template.leader_template, f"{_TEMPLATES}.leaderTemplate", kueue=kueue
    )
    if size > 1:
        yield read_podset(WORKER, size - 1, template.worker_template, path, kueue=kueue)


def _queue_of(template: Template | None, kueue: bool) -> str | None:
    meta = template.metadata if template is not None else None
    return lenient(meta.labels if meta is not None else None, keys.QUEUE_NAME, kueue)


def _check(template: Template | None, path: str) -> None:
    """Raise RequestError if a template puts its pods into another group."""
    meta = template.metadata if template is not None else None
    for prefix in (keys.PREFIX, keys.KUEUE_PREFIX):
        key = prefix + keys.POD_GROUP
        if meta is not None and key in (meta.labels or {}):
            raise RequestError(
                f"{path}.metadata.labels: {key}: the pods of each group of a LeaderWorkerSet are a gang already"
            )
