"""The objects of a file with the pod templates of other jobs of it: JobSets of TrainJobs, or the runtimes from which they are created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from queuectl.domain.jobs import JobRecord
from queuectl.objects import keys
from queuectl.objects.documents import Document
from queuectl.objects.errors import RequestError
from queuectl.objects.files.records import controller_of
from queuectl.objects.kinds.description import BATCH_JOB
from queuectl.objects.kinds.job import BatchJob
from queuectl.objects.kinds.jobset import JOBSET, ended_in, without_ended
from queuectl.objects.kinds.trainjob import GROUP_VERSION, KINDS, composed, jobset_of, runtime_of

_CLUSTER_WIDE: Final = KINDS[0]


def is_runtime(document: Document) -> bool:
    """Whether it is a runtime of TrainJobs."""
    return document.api_version == GROUP_VERSION and document.kind in KINDS


@dataclass(frozen=True)
class Children:
    """Those of an input.

    Attributes:
        runtimes: by kind, namespace ("" for those of the cluster) and name.
        created: JobSets by namespace and name of their TrainJob.
        jobs: Jobs by namespace and name of their JobSet.
    """

    runtimes: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    created: dict[tuple[str, str], Document] = field(default_factory=dict)
    jobs: dict[tuple[str, str], list[Document]] = field(default_factory=dict)

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Children:
        children = cls()
        for document in documents:
            namespace, _, name = document.name.partition("/")
            if is_runtime(document):
                place = "" if document.kind == _CLUSTER_WIDE else namespace
                children.runtimes[document.kind, place, name] = document
            elif document.kind == JOBSET.kind:
                kind, parent = controller_of(document) or ("", "")
                if kind in keys.PARENT_KINDS:
                    children.created[namespace, parent.partition("/")[2]] = document
            elif document.kind == BATCH_JOB.kind:
                kind, parent = controller_of(document) or ("", "")
                if kind == JOBSET.kind:
                    children.jobs.setdefault((namespace, parent.partition("/")[2]), []).append(
                        document
                    )
        return children

    def completed(self, document: Document, record: JobRecord) -> JobRecord:
        """The record of a job with what its children state. Other jobs stay as they are.

        Raises:
            DocumentError: the input has neither its child nor its runtime, or they do not fit.
        """
        if record.kind == JOBSET.kind:
            return self._left(record)
        if record.kind not in keys.PARENT_KINDS or record.error is not None:
            return record
        child = self.created.get((record.namespace, record.name))
        if child is None:
            body = self._made_from_runtime(document, record)
            child = Document(document.address, body)
        try:
            made = JOBSET.read(child.convert(JOBSET.wire), strict=True)
        except RequestError as error:
            raise child.error("", f"its JobSet: {error}") from None
        return composed(record, self._left(made))

    def _left(self, jobset: JobRecord) -> JobRecord:
        """Without the pods that have ended in Jobs that have not."""
        job = BatchJob()
        found = self.jobs.get((jobset.namespace, jobset.name), ())
        ended = Counter[str]()
        for one in found:
            record = job.read(one.convert(job.wire))
            if record.parent:
                ended.update(ended_in(record))
        return without_ended(jobset, ended)

    def _made_from_runtime(self, document: Document, record: JobRecord) -> dict[str, object]:
        kind, name = runtime_of(document.body)
        if kind not in KINDS:
            raise document.error(
                "spec.runtimeRef.kind", f"{kind!r} is neither {' nor '.join(KINDS)}"
            )
        place = "" if kind == _CLUSTER_WIDE else record.namespace
        runtime = self.runtimes.get((kind, place, name))
        if runtime is None:
            where = f" of namespace {place}" if place else ""
            raise document.error(
                "spec.runtimeRef.name",
                f"{kind} {name}{where} is not in the input: it has the pods of the TrainJob",
            )
        try:
            return jobset_of(document.body, runtime.body)
        except RequestError as error:
            raise document.error("", str(error)) from None
        except (AttributeError, KeyError, TypeError, msgspec.ValidationError):
            raise runtime.error("spec.template", "is not the template of a JobSet") from None


NO_CHILDREN: Final = Children()
