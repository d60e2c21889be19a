"""Job kinds: their requests, their start and stop, and their end.

A new kind is a :class:`~queuectl.objects.kinds.description.Description`, an entry in :data:`KINDS` and a fixture folder
``tests/fixtures/kinds/<kind>``. Only a Job of ``batch/v1`` has its own class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from queuectl.domain.arrays import object_of
from queuectl.domain.jobs import JobRecord
from queuectl.domain.ledger import Document
from queuectl.objects.kinds import appwrapper, leaderworkerset
from queuectl.objects.kinds.appwrapper import AppWrapper
from queuectl.objects.kinds.common import NO_COUNTS
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.description import Description
from queuectl.objects.kinds.job import BatchJob
from queuectl.objects.kinds.jobset import JOBSET
from queuectl.objects.kinds.makers import MAKERS
from queuectl.objects.kinds.mpijob import MPIJOB
from queuectl.objects.kinds.ray import RAYCLUSTER, RAYJOB
from queuectl.objects.kinds.sparkapplication import SPARKAPPLICATION
from queuectl.objects.kinds.training import JAXJOB, PADDLEJOB, PYTORCHJOB, TFJOB, XGBOOSTJOB
from queuectl.objects.kinds.trainjob import TRAINJOB


class JobKind(Protocol):
    """The interface of a kind for other packages. Implementations are stateless.

    Patches apply only to the uid and resourceVersion of their record (:mod:`queuectl.objects.kinds.described`).
    """

    @property
    def kind(self) -> str:
        """The value of ``kind:`` in the object, and of JobRecord.kind."""

    @property
    def group(self) -> str:
        """API group."""

    @property
    def version(self) -> str:
        """API version inside the group."""

    @property
    def plural(self) -> str:
        """The resource name in the API path."""

    @property
    def wire(self) -> type[msgspec.Struct]:
        """The struct to which objects of this kind are decoded before :meth:`read`."""

    @property
    def container(self) -> str:
        """The name that the first container of a template must have, or its own."""

    @property
    def refers(self) -> bool:
        """Whether an object refers to another one with its pod templates, so that the API server can refuse the object of a dry run."""

    def minimal_spec(self, template: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of an object with one pod of this template, for a dry run."""

    def is_suspended(self, document: Mapping[str, Any]) -> bool:
        """Whether an object, as the API server returns it, is suspended."""

    def templates(self, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The pod templates of an object, as the API server returns it."""

    def read(self, document: Any, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        """Project a decoded object (a ``wire``). JobRecord.error has an error of the user, which is not raised.

        Args:
            document: the decoded object.
            kueue: whether Kueue's keys count too.
            strict: for files: raise errors that the API server would refuse.

        Raises:
            MalformedError: only when ``strict``.
        """

    def start_patch(
        self,
        record: JobRecord,
        attempt: int,
        status: str,
        counts: Mapping[str, int] = NO_COUNTS,
    ) -> dict[str, Any]:
        """Resume the job as this attempt: its pods are created with the gate and with the label of the attempt.

        ``counts`` has the number of pods of podsets that start with fewer pods; :meth:`stop_patch` restores it. The nodes are
        written to each pod (:func:`queuectl.objects.kubernetes.pods.pin_patch`), not to the job.
        """

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        """Suspend the job. If it is still suspended and never had ``attempt``, withdraw the attempt."""

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        """Write only the status annotation."""

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        """Write another LocalQueue under each key with the current one."""

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        """Give notice that the job is suspended at ``deadline``; :meth:`stop_patch` removes the notice."""


_WITH_TEMPLATES: Final = (
    PYTORCHJOB,
    TFJOB,
    XGBOOSTJOB,
    PADDLEJOB,
    JAXJOB,
    JOBSET,
    RAYCLUSTER,
    RAYJOB,
    MPIJOB,
    TRAINJOB,
    SPARKAPPLICATION,
)

_DESCRIBED: Final = (
    *_WITH_TEMPLATES,
    AppWrapper(
        appwrapper.DESCRIPTION,
        with_pods=frozenset(
            [
                *(kind.kind for kind in _WITH_TEMPLATES),
                *(maker.kind for maker in MAKERS),
                appwrapper.DESCRIPTION.kind,
                leaderworkerset.KIND,
            ]
        ),
    ),
)

DESCRIPTIONS: Final = tuple(kind.description for kind in _DESCRIBED)
"""Of all kinds but the Job."""

JobKinds = Mapping[str, JobKind]
"""Job kinds by their names."""

KINDS: Final[JobKinds] = MappingProxyType({kind.kind: kind for kind in (BatchJob(), *_DESCRIBED)})
"""The built-in kinds; in the order of this file."""


def with_declared(declared: Iterable[Description]) -> JobKinds:
    """The built-in kinds, then those that the configuration declares (:mod:`queuectl.objects.kinds.declared`)."""
    return MappingProxyType({**KINDS, **{one.kind: DescribedKind(one) for one in declared}})


def descriptions_of(kinds: JobKinds) -> tuple[Description, ...]:
    """Of all kinds but the Job."""
    return tuple(kind.description for kind in kinds.values() if isinstance(kind, DescribedKind))


def unqueued(kinds: JobKinds) -> tuple[str, ...]:
    """Resources of which an object outside a queue can belong to a queued job, or can create pods that seem to."""
    return (
        *(kind.plural for kind in kinds.values()),
        *(maker.plural for maker in MAKERS if maker.unchecked),
    )


def index_labels(kinds: JobKinds) -> tuple[str, ...]:
    """Labels of pods with their index, which kinds add to those of all kinds."""
    return tuple(dict.fromkeys(one.index for one in descriptions_of(kinds) if one.index))


def job_resources(kinds: JobKinds) -> dict[str, str]:
    """By the resource name in the API path: the kinds of objects that are watched as workloads, or as sets of them."""
    own = {kind.plural: kind.kind for kind in kinds.values()}
    return {**own, leaderworkerset.PLURAL: leaderworkerset.KIND}


def path(kind: JobKind, namespace: str | None = None, name: str | None = None) -> str:
    """API path of all objects of a kind, of a namespace's, or of one."""
    parts = ["", "apis", kind.group, kind.version]
    parts += ["namespaces", namespace] if namespace is not None else []
    parts.append(kind.plural)
    return "/".join(parts + ([name] if name is not None else []))


def owner_references(job: JobRecord, kinds: JobKinds) -> list[Document]:
    """The references to the object of a job, with which the API server deletes what is made for it. A workload that consists of pods has none."""
    if job.index is not None:
        job = object_of(job)
    elif job.of_pods:
        return []
    kind = kinds[job.kind]
    return [
        {
            "apiVersion": f"{kind.group}/{kind.version}",
            "kind": job.kind,
            "name": job.name,
            "uid": job.uid,
        }
    ]
