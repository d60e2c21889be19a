"""The ignored documents of an input as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

MOST_REASONS: Final = 20
"""Reasons that are shown. The JSON output has all."""


def ignored_lines(ignored: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """A line for each reason, with its first document and the number of the others; the most frequent reasons first.

    Args:
        ignored: ``object`` and ``reason`` of each document.
    """
    by_reason: dict[str, list[str]] = {}
    for each in ignored:
        by_reason.setdefault(each["reason"], []).append(each["object"])
    ranked = sorted(by_reason.items(), key=lambda entry: -len(entry[1]))
    for reason, objects in ranked[:MOST_REASONS]:
        others = f" and {len(objects) - 1} more" if objects[1:] else ""
        yield f"ignored: {objects[0]}{others}: {reason}"
    if rest := ranked[MOST_REASONS:]:
        count = sum(len(objects) for _, objects in rest)
        yield f"ignored: {count} more documents for {len(rest)} other reasons; -o json lists all"
