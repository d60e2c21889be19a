"""The description of a job kind. The reader, the patches, the admission policies and the rights of a kind follow from it.

Paths are fields of the object with dots between them. ``deploy/chart/kinds.yaml`` has the descriptions for Helm, which writes the
policies and the rights; ``make manifests`` writes that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class _Part(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base: camelCase names, unknown fields are errors."""


class PodSets(_Part, frozen=True, kw_only=True):
    """The place of the podsets: a map whose keys are replica types.

    Attributes:
        path: of the map.
        types: the keys of the map, in podset order. The name of a podset is its key in lower case.
        template: path of the pod template in an entry.
        count: path of the number of pods in an entry. Without a value it is 1.
    """

    path: str
    types: tuple[str, ...]
    template: str = "template"
    count: str = "replicas"

    @property
    def names(self) -> dict[str, str]:
        """Key of the map to name of the podset, in podset order."""
        return {replica: replica.lower() for replica in self.types}


class Conditions(_Part, frozen=True, kw_only=True):
    """Types of the status conditions. Each holds while its status is True.

    Attributes:
        succeeded, failed: the job has ended.
        suspended: the controller of the kind stops the pods, or has stopped them.
    """

    succeeded: str = "Succeeded"
    failed: str = "Failed"
    suspended: str = "Suspended"


class Manager(_Part, frozen=True, kw_only=True):
    """The field that names the controller of one job, and the controller whose jobs queuectl manages."""

    path: str
    name: str


class Unsupported(_Part, frozen=True, kw_only=True):
    """A field that queuectl does not support, and the reason."""

    path: str
    reason: str


class Description(_Part, frozen=True, kw_only=True):
    """A job kind.

    Attributes:
        kind, group, version, plural: its names in the API.
        suspend: path of the Boolean by which it is suspended.
        podsets: where its podsets are.
        selector: label of its pods, with the name of the job.
        conditions: its status conditions.
        priority_class: path of a PriorityClass of the pods outside the templates; "" = none.
        manager: the field that names another controller for a job.
        unsupported: fields that no job of a queue can have.
        replaces_finished: path of a field with which its controller can replace finished pods; "" = it never does.
        container: name of the first container in templates, for the check of the policies.
        scale: the kind has the subresource ``scale``.
    """

    kind: str
    group: str
    version: str
    plural: str
    suspend: str
    podsets: PodSets
    selector: str
    conditions: Conditions = Conditions()
    priority_class: str = ""
    manager: Manager | None = None
    unsupported: tuple[Unsupported, ...] = ()
    replaces_finished: str = ""
    container: str = "main"
    scale: bool = False


def alternatives(names: Sequence[str], no: str, neither: str) -> str:
    """``no`` one name, or ``neither`` of several names."""
    if len(names) == 1:
        return f"{no} {names[0]}"
    return f"{neither} {', '.join(names[:-1])} nor {names[-1]}"


def nested(path: str, value: object) -> dict[str, object]:
    """The document with only this value."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def merged(documents: Iterable[dict[str, object]]) -> dict[str, object]:
    """The documents as one, maps by key."""
    result: dict[str, object] = {}
    for document in documents:
        for key, value in document.items():
            present = result.get(key)
            both = isinstance(present, dict) and isinstance(value, dict)
            result[key] = merged([present, value]) if both else value  # type: ignore[list-item]
    return result
