"""The struct to which objects of a described kind are decoded: only the fields that its description names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from queuectl.objects.kinds.description import (
    Description,
    Patches,
    PodSets,
    Unsupported,
    merged,
    nested,
)
from queuectl.objects.kubernetes.wire import Condition, Meta, Template

CONDITIONS: Final = "status.conditions"
_METADATA: Final = "metadata."


def field(document: Any, path: str) -> Any:
    """The value in a struct, or in a document; None if it is absent."""
    value = document
    for name in path.split(".") if path else ():
        if value is None:
            return None
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
    return value


def wire(
    description: Description, more: Mapping[str, object], more_of_entries: Mapping[str, object]
) -> type[msgspec.Struct]:
    """The struct of a kind. ``more``, ``more_of_entries``: types of other fields, and of those of an entry of a podset, by path."""
    leaves: dict[str, object] = (
        {description.replaces_finished: Any} if description.replaces_finished else {}
    )
    leaves |= {**dict.fromkeys(_paths(description.unsupported), Any), **more}
    leaves[description.suspend] = bool | None
    leaves |= dict.fromkeys((required.path for required in description.required), bool | None)
    if description.phase is not None:
        leaves[description.phase.path] = str | None
    else:
        leaves[CONDITIONS] = list[Condition] | None
    for where in description.podsets:
        if where.only is not None:
            leaves[where.only.path] = str | None
    if description.patches is not None:
        patch = _patch(description.patches)
        leaves[description.patches.path] = list[patch] | None  # type: ignore[valid-type]
    if description.priority_class:
        leaves[description.priority_class] = str | None
    if description.manager is not None:
        leaves[description.manager.path] = str | None
    places = [(where.path, _entries(where, more_of_entries)) for where in description.podsets]
    tree = merged(nested(path, leaf) for path, leaf in (*leaves.items(), *places))
    return _struct(description.kind, {"metadata": Meta, **tree})


def _patch(patches: Patches) -> type[msgspec.Struct]:
    labels = nested(f"{patches.changes}.metadata.labels", dict[str, str] | None)
    return _struct("Patch", merged([nested(patches.owner, str | None), labels]))


def _entries(where: PodSets, more: Mapping[str, object]) -> object:
    if not where.template:
        return Template | None
    leaves: dict[str, object] = {**dict.fromkeys(_paths(where.unsupported), Any), **more}
    numbers = [path for factor in where.count for path in factor]
    leaves |= dict.fromkeys([*numbers, *([where.least] if where.least else [])], int | None)
    leaves[where.template] = Any if where.labels else Template | None
    if where.key:
        leaves[where.key] = str
    tree = merged(nested(path, leaf) for path, leaf in leaves.items())
    if where.name:
        return tree
    entry = _struct("Entry", tree)
    if where.key:
        return list[entry] | None  # type: ignore[valid-type]
    return dict[str, entry | None] | None  # type: ignore[valid-type]


def _paths(fields: Iterable[Unsupported]) -> Iterable[str]:
    return (one.path for one in fields if not one.path.startswith(_METADATA))


def _struct(name: str, tree: Mapping[str, object]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            fields.append((key, _struct(key.title(), value) | None, None))
        elif value is Meta:
            fields.append((key, Meta, msgspec.field(default_factory=Meta)))
        elif value is str:
            fields.append((key, str, ""))
        else:
            fields.append((key, value, None))
    return msgspec.defstruct(name, fields, gc=False)
