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


def controller_of(document: Document) -> tuple[str, str] | None:
    """Kind, and namespace/name, of the object whose controller made it; None if none did."""
    namespace = document.name.partition("/")[0]
    meta = document.body.get("metadata") or {}
    owners = meta.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller"):
            return str(owner.get("kind")), f"{namespace}/{owner.get('name')}"
    return None


def is_child(document: Document, kinds: JobKinds = KINDS) -> bool:
    """Whether the controller of another job made it, so that its pods belong to that job."""
    controller = controller_of(document)
    return controller is not None and controller[0] in {
        one.kind
        for one in descriptions_of(kinds)
        if document.kind in [child.kind for child in one.children]
    }


def unseen(document: Document) -> bool:
    """Whether the object was not created yet: it has no fields of the API server."""
    meta = document.body.get("metadata") or {}
    return not (meta.get("uid") or meta.get("creationTimestamp") or document.body.get("status"))
