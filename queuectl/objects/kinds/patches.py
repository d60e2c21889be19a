"""Patches of jobs: maps as in a JSON merge patch, which can also change entries of lists.

A JSON merge patch replaces a list as a whole. A patch with :class:`Items` is therefore sent as a JSON patch. Both have uid and
resourceVersion in their metadata, and apply only to that version: the list that the patch addresses by index is the list that was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


class Items(dict[str, Any]):
    """Changes of entries of a list, by index."""


class Absent(dict[str, Any]):
    """A map that the object does not have."""


def encoded(patch: Mapping[str, Any]) -> tuple[Any, str]:
    """The body of a patch, and its media type."""
    if not _has_items(patch):
        return patch, MERGE_PATCH
    return list(_operations(patch, "")), JSON_PATCH


def escaped(key: str) -> str:
    """A key as part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _has_items(patch: Mapping[str, Any]) -> bool:
    return isinstance(patch, Items) or any(
        _has_items(value) for value in patch.values() if isinstance(value, Mapping)
    )


def _operations(patch: Mapping[str, Any], at: str) -> Iterator[dict[str, Any]]:
    for key, value in patch.items():
        path = f"{at}/{escaped(key)}"
        if value is None:
            yield {"op": "remove", "path": path}
        elif isinstance(value, Mapping) and not isinstance(value, Absent):
            yield from _operations(value, path)
        else:
            yield {"op": "add", "path": path, "value": value}
