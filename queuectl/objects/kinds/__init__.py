"""Job kinds: what each asks for, how it is started and stopped, when it is finished. One file per kind.

A new kind is a module here, an entry in :data:`KINDS` and a fixture folder ``tests/fixtures/kinds/<kind>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from queuectl.domain.records import JobRecord
from queuectl.objects.kinds.common import NO_COUNTS
from queuectl.objects.kinds.job import BatchJob
from queuectl.objects.kinds.pytorchjob import PyTorchJob


class JobKind(Protocol):
    """All that the other rooms know of a kind. Implementations are stateless.

    Patches are JSON merge patches that hold only for the uid and resourceVersion of the record they were made from.
    """

    @property
    def kind(self) -> str:
        """As in ``kind:`` of the object and in JobRecord.kind."""

    @property
    def group(self) -> str:
        """API group."""

    @property
    def version(self) -> str:
        """API version inside the group."""

    @property
    def plural(self) -> str:
        """As in the API path."""

    @property
    def wire(self) -> type[msgspec.Struct]:
        """What bytes or dicts of this kind are decoded to before :meth:`read`."""

    def read(self, document: Any, *, kueue: bool = True, strict: bool = False) -> JobRecord:
        """Project a decoded object (a ``wire``). A user's mistake is told in JobRecord.error, not raised.

        Args:
            document: the decoded object.
            kueue: whether Kueue's keys count beside ours.
            strict: for files: raise what the API server itself would refuse.

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
        """Resume the job as this attempt: its pods will appear gated and labelled with the attempt.

        ``counts``: pods of the podsets that start with fewer than they ask for; :meth:`stop_patch` puts that back.
        Where they go is said to each pod (:func:`queuectl.objects.kubernetes.pods.pin_patch`), not to the job.
        """

    def stop_patch(self, record: JobRecord, attempt: int, status: str) -> dict[str, Any]:
        """Suspend the job. For one still suspended that never took ``attempt``: withdraw it by taking it suspended."""

    def status_patch(self, record: JobRecord, status: str) -> dict[str, Any]:
        """Only tell the user its state."""

    def queue_patch(self, record: JobRecord, status: str, queue: str) -> dict[str, Any]:
        """Name another LocalQueue, under each key that names the present one."""

    def notice_patch(self, record: JobRecord, status: str, deadline: str) -> dict[str, Any]:
        """Tell the job that it will be suspended at ``deadline``; :meth:`stop_patch` takes that back."""

    def pod_selector(self, name: str) -> str:
        """Label selector of the pods of the job of this name."""


KINDS: Final[Mapping[str, JobKind]] = MappingProxyType(
    {kind.kind: kind for kind in (BatchJob(), PyTorchJob())}
)
"""By kind; the order is that of this file."""


def path(kind: JobKind, namespace: str | None = None, name: str | None = None) -> str:
    """API path of all objects of a kind, of a namespace's, or of one."""
    parts = ["", "apis", kind.group, kind.version]
    parts += ["namespaces", namespace] if namespace is not None else []
    parts.append(kind.plural)
    return "/".join(parts + ([name] if name is not None else []))
