"""The fields of a job that the description of its kind names: the struct to which they are decoded, and the entries of its podsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

import msgspec

from queuectl.objects.errors import RequestError
from queuectl.objects.kinds.description import (
    Description,
    Only,
    Patches,
    PodSets,
    Unsupported,
    alternatives,
    below,
    merged,
    nested,
)
from queuectl.objects.kubernetes.templates import check_count
from queuectl.objects.kubernetes.wire import Condition, Meta, Template
from queuectl.objects.names import is_label_value

CONDITIONS: Final = "status.conditions"
_METADATA: Final = "metadata."


def field(document: Any, path: str) -> Any:
    """The value in a struct, or in a document; None if it is absent."""
    value = document
    for name in _names(path):
        if value is None:
            return None
        if isinstance(value, msgspec.Struct) or not isinstance(value, Mapping):
            value = getattr(value, name)
        else:
            value = value.get(name)
    return value


@lru_cache(maxsize=1024)
def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def wire(
    description: Description, more: Mapping[str, object], more_of_entries: Mapping[str, object]
) -> type[msgspec.Struct]:
    """The struct of a kind. ``more``, ``more_of_entries``: types of other fields, and of fields in an entry of a podset, by path."""
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


# ---- The entries of podsets


@dataclass(frozen=True, slots=True)
class PodSetPlace:
    """One podset.

    Attributes:
        where: its place.
        podset: its name.
        path: in the object, for messages.
        content: a struct, or a document.
        index: in a list; None in other places.
    """

    where: PodSets
    podset: str
    path: str
    content: Any
    index: int | None = None

    @property
    def template(self) -> Template | None:
        """The pod template, of the kind of its content."""
        found: Template | None = field(self.content, self.where.template)
        return found

    @property
    def template_path(self) -> str:
        return below(self.path, self.where.template)

    @property
    def is_empty(self) -> bool:
        """Whether a number of its pods is 0."""
        return 0 in map(self._factor, range(len(self.where.count)))

    def count(self) -> int:
        """The number of pods. Raises RequestError."""
        for number, paths in enumerate(self.where.count):
            self._check(number, paths)
        [first, *_], *_ = *self.where.count, ["template"]
        pods = prod(map(self._factor, range(len(self.where.count))))
        return check_count(pods, f"{self.path}.{first}")

    def group(self) -> int | None:
        """The number of indexes in a group of its pods; None without groups."""
        sizes = (field(self.content, path) for path in self.where.ranks)
        known = [size for size in sizes if size is not None]
        return (known or [1])[0] if self.where.ranks else None

    def _factor(self, number: int) -> int:
        """The value of a factor in the number of pods."""
        first, *others = (field(self.content, path) for path in self.where.count[number])
        least = self._least(number)
        values = [1 if least is None else least] if first is None else [first]
        highest: int = min([*values, *(one for one in others if one is not None)])
        return max(highest, least or 0)

    def _least(self, number: int) -> int | None:
        """The lower limit of a factor; None without one."""
        limited = self.where.least and number == 0
        return (field(self.content, self.where.least) or 0) if limited else None

    def _check(self, number: int, paths: Sequence[str]) -> None:
        if self._least(number) is not None:
            check_count(self._factor(number), f"{self.path}.{paths[0]}")
            return
        for path in paths:
            value = field(self.content, path)
            if value is not None:
                check_count(value, f"{self.path}.{path}")


def entries(places: Iterable[PodSets], document: Any) -> Iterator[PodSetPlace]:
    """All entries of an object, in podset order. ``document``: a struct or a document."""
    for where in places:
        listed = field(document, where.path)
        if where.only is not None and not _counts(where.only, document):
            continue
        if where.name:
            if listed is not None or where.default is not None:
                yield PodSetPlace(where, where.name, where.path, listed)
        elif where.key:
            for index, content in enumerate(listed or ()):
                name = (field(content, where.key) or "").lower()
                yield PodSetPlace(where, name, f"{where.path}[{index}]", content, index)
        else:
            for key in where.types:
                if key in (listed or {}):
                    yield PodSetPlace(where, key.lower(), f"{where.path}.{key}", listed[key])


def _counts(only: Only, document: Any) -> bool:
    return (field(document, only.path) or only.value) == only.value


def check(places: Iterable[PodSets], document: Any) -> None:
    """Check that all places have podsets, with different names. Raises RequestError."""
    names: set[str] = set()
    for where in places:
        found = field(document, where.path)
        for key in found or () if where.types else ():
            if key not in where.types:
                known = alternatives(where.types, "is not", "is neither")
                raise RequestError(f"{where.path}: {key!r} {known}")
        if not found and not where.optional:
            missing = (
                alternatives(where.types, "has no", "has neither") if where.types else "is empty"
            )
            raise RequestError(f"{where.path}: {missing}")
        for entry in entries((where,), document):
            if entry.podset in names or not entry.podset:
                raise RequestError(f"{entry.path}: {entry.podset!r} is not unique")
            if not is_label_value(entry.podset):  # its pods have it as a label
                raise RequestError(f"{entry.path}: {entry.podset!r} is not the value of a label")
            names.add(entry.podset)
            refuse(where.unsupported, entry.content, f"{entry.path}.")


def refuse(fields: Iterable[Unsupported], document: Any, prefix: str = "") -> None:
    """Raise RequestError for the first field that has a value."""
    for one in fields:
        value = field(document, one.path)
        if one.annotation:
            value = (value if isinstance(value, Mapping) else {}).get(one.annotation)
        if value:
            name = f": {one.annotation}" if one.annotation else ""
            raise RequestError(f"{prefix}{one.path}{name}: {one.reason}", unsupported=True)
