"""Differences between two versions of a configuration object, field by field, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NAMES: Final = ("name", "nodeLabel", "input")  # fields that identify the members of a list
_IGNORED: Final = ("status",)
_IGNORED_META: Final = ("resourceVersion",)


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed field. ``before`` or ``after`` is None if the field is absent. The path contains the names of list members."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """All fields in which two normalized documents differ, in the order of their paths. A null counts as absent."""
    return tuple(_compare("", _plain(before), _plain(after)))


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in document.items() if key not in _IGNORED}
    meta = kept.get("metadata")
    if isinstance(meta, Mapping):
        kept["metadata"] = {k: v for k, v in meta.items() if k not in _IGNORED_META}
    return kept


def _compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            inner = f"{path}.{key}" if path else key
            yield from _compare(inner, before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _compare_lists(path, before, after)
    elif type(before) is not type(after) or before != after:
        yield Difference(path, before, after)


def _compare_lists(path: str, before: Sequence[Any], after: Sequence[Any]) -> Iterator[Difference]:
    if not any(isinstance(item, (Mapping, list)) for item in (*before, *after)):
        if list(map(type, before)) != list(map(type, after)) or before != after:
            yield Difference(path, before, after)
        return
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        for i in range(max(len(before), len(after))):
            yield from _compare(f"{path}[{i}]", _at(before, i), _at(after, i))
        return
    shared = [name for name in old if name in new]
    if shared != [name for name in new if name in old]:
        yield Difference(
            path, list(old), list(new)
        )  # the order matters: it is the order of flavors
    for name in [*old, *(name for name in new if name not in old)]:
        yield from _compare(f"{path}[{name}]", old.get(name), new.get(name))


def _by_name(members: Sequence[Any]) -> dict[str, Any] | None:
    """The members by name, or None if not all have a unique name."""
    for key in _NAMES:
        names = [item.get(key) if isinstance(item, Mapping) else None for item in members]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return dict(zip(map(str, names), members, strict=True))
    return None


def _at(members: Sequence[Any], i: int) -> Any:
    return members[i] if i < len(members) else None


def _shown(side: Any) -> str:
    if side is None:
        return "(none)"
    return side if isinstance(side, str) and side else json.dumps(side, ensure_ascii=False)
