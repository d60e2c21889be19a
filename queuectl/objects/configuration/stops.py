"""The stop policy of a queue: the field of its document, and the operation of a person, of which the stronger one acts.

Where objects of the cluster are the configuration, their tools would undo a stop that is written to the field. There, a stop through REST,
CLI or dashboard is an annotation of the stored document, which no object has and which survives each edit of the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuectl.domain.ledger import Document
from queuectl.domain.queues import StopPolicy
from queuectl.objects.errors import RequestError
from queuectl.objects.keys import PREFIX

STOP_ANNOTATION: Final = f"{PREFIX}stop-policy"
"""The stop policy that an operation has set."""


def acting_stop(field: StopPolicy | None, annotations: Mapping[str, str] | None) -> StopPolicy:
    """The stop policy that acts.

    Args:
        field: ``spec.stopPolicy``.
        annotations: of the document.

    Raises:
        RequestError: the annotation is not a stop policy.
    """
    text = (annotations or {}).get(STOP_ANNOTATION, StopPolicy.NONE.value)
    if text not in tuple(StopPolicy):
        listed = ", ".join(StopPolicy)
        raise RequestError(f"metadata.annotations[{STOP_ANNOTATION}]: is not one of {listed}")
    return max(field or StopPolicy.NONE, StopPolicy(text), key=lambda policy: policy.strength)


def stop_field(document: Document) -> StopPolicy:
    """``spec.stopPolicy`` of a valid stored queue."""
    return StopPolicy(_part(document, "spec").get("stopPolicy") or StopPolicy.NONE)


def stop_of(document: Document) -> StopPolicy:
    """The stop policy that acts for a valid stored queue."""
    return acting_stop(
        stop_field(document), _part(_part(document, "metadata"), "annotations") or None
    )


def with_operation(document: Document, policy: StopPolicy) -> dict[str, Any]:
    """The document of a queue with the stop policy of an operation; ``NONE`` ends the operation."""
    metadata = dict(_part(document, "metadata"))
    annotations = dict(_part(metadata, "annotations"))
    annotations.pop(STOP_ANNOTATION, None)
    if policy is not StopPolicy.NONE:
        annotations[STOP_ANNOTATION] = policy.value
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return {**document, "metadata": metadata}


def keep_operation(document: Document, before: Document) -> Document:
    """The new document of an object, with the operation that the stored document before it has."""
    stored = _part(_part(before, "metadata"), "annotations").get(STOP_ANNOTATION)
    return document if stored is None else with_operation(document, StopPolicy(stored))


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
