"""Why documents that look like gangs are not planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuectl.objects import keys
from queuectl.objects.documents import Document

_QUEUE_KEYS: Final = (keys.PREFIX + keys.QUEUE_NAME, keys.KUEUE_PREFIX + keys.QUEUE_NAME)


def without_queue(document: Document) -> str:
    """Why an object of a kind that queuectl runs is in no queue. The name of the queue is often in another place."""
    meta = document.body.get("metadata") or {}
    text = "it has no queue label"
    if _names_queue(meta.get("annotations")):
        return f"{text}; an annotation names the queue, and only a label counts"
    if any(map(_names_queue, _labels(document.body.get("spec")))):
        return f"{text}; only its pod template has one"
    return text


def _names_queue(found: Any) -> bool:
    return isinstance(found, Mapping) and any(key in found for key in _QUEUE_KEYS)


def _labels(spec: Any) -> Iterator[Any]:
    """The labels of all templates in a spec, however deep."""
    stack = [spec]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping):
            metadata = part.get("metadata")
            if isinstance(metadata, Mapping):
                yield metadata.get("labels")
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
