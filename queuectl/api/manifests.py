"""Manifests in the body of a what-if question: one text with jobs and configuration objects, sorted into the two lists."""

from __future__ import annotations

from typing import Any, Final

from queuectl.api.plans import MOST_JOBS, MOST_OBJECTS, PlanBody
from queuectl.api.problems import wrong_members
from queuectl.api.reading import read_yaml_stream
from queuectl.objects.configuration.queue_config import CONFIG_KINDS, is_config
from queuectl.objects.documents import Document, documents_of
from queuectl.objects.files.jobs import is_job
from queuectl.objects.kinds import KINDS, JobKinds

_FIELD: Final = "manifests"


def with_manifests(body: PlanBody, kinds: JobKinds = KINDS) -> PlanBody:
    """The question with the documents of ``manifests`` in ``submit`` and ``config``.

    Raises:
        Problem: the text is not YAML, has too many values, or holds too many documents.
        DocumentError: a document is of no kind that can be tried out; it names the document and the field.
    """
    documents = documents_of(_values(body.manifests), _FIELD, plain=True)
    submit, config = list(body.submit), list(body.config)
    for document in documents:
        (submit if _is_submitted(document, kinds) else config).append(document.body)
    for found, most, what in (
        (submit, MOST_JOBS, "jobs"),
        (config, MOST_OBJECTS, "configuration objects"),
    ):
        if len(found) > most:
            reason = f"{len(found)} {what}; at most {most} can be tried out together"
            raise wrong_members([{"field": _FIELD, "reason": reason}])
    return body.model_copy(update={"submit": submit, "config": config, _FIELD: ""})


def _values(text: str) -> list[Any]:
    """A JSON list counts as that many documents."""
    values: list[Any] = []
    for value in read_yaml_stream(text.encode()):
        values += value if isinstance(value, list) else [value]
    return values


def _is_submitted(document: Document, kinds: JobKinds) -> bool:
    """Whether it is a job, else a configuration object."""
    if is_job(document, kinds):
        return True
    if is_config(document):
        return False
    known = ", ".join([*kinds, *CONFIG_KINDS])
    what = f"{document.api_version} {document.kind}"
    raise document.error(
        "kind", f"{what} is neither a job nor a configuration object; known kinds: {known}"
    )
