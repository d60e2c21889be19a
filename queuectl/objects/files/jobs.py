"""Which documents are jobs, and which of them were not created yet."""

from __future__ import annotations

from queuectl.objects.documents import Document
from queuectl.objects.kinds import KINDS, JobKinds, descriptions_of
from queuectl.objects.kinds.ray import is_service


def is_job(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether queuectl runs jobs of its kind, or the clusters of a service."""
    if is_service(document.api_version, document.kind):
        return True
    kind = kinds.get(document.kind)
    return kind is not None and document.api_version == f"{kind.group}/{kind.version}"


def is_child(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether the controller of another job made it, so that its pods belong to that job."""
    makers = {
        one.kind
        for one in descriptions_of(kinds)
        if document.kind in [child.kind for child in one.children]
    }
    meta = document.body.get("metadata") or {}
    return any(
        owner.get("controller") and owner.get("kind") in makers
        for owner in meta.get("ownerReferences") or ()
    )


def unseen(document: Document) -> bool:
    """Whether the object was not created yet: it has no fields of the API server."""
    meta = document.body.get("metadata") or {}
    return not (meta.get("uid") or meta.get("creationTimestamp") or document.body.get("status"))
