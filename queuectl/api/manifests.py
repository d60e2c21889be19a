"""Manifests in the body of a what-if question: one text with jobs and configuration objects, sorted into the two lists."""

from __future__ import annotations

from typing import Any, Final

from queuectl.api.plans import MOST_JOBS, MOST_OBJECTS, PlanBody
from queuectl.api.problems import wrong_members
from queuectl.api.reading import read_yaml_stream
from queuectl.objects.configuration.queue_config import is_config
from queuectl.objects.documents import documents_of

_FIELD: Final = "manifests"


def with_manifests(body: PlanBody) -> PlanBody:
    """The question with the documents of ``manifests`` in ``submit`` and ``config``.

    Raises:
        Problem: the text is not YAML, has too many values, or holds too many documents.
        DocumentError: a document is not an object.
    """
    documents = documents_of(_values(body.manifests), _FIELD, plain=True)
    submit, config = list(body.submit), list(body.config)
    for document in documents:
        (config if is_config(document) else submit).append(document.body)
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
