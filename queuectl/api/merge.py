"""JSON Merge Patch (RFC 7386): a document with the changes only; null removes a member, a list replaces a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MEDIA_TYPE: Final = "application/merge-patch+json"


def merged(target: Any, patch: Any) -> Any:
    """``target`` after the patch; neither is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
