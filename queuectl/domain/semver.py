"""Semantic versions, as semver.org defines them."""

from __future__ import annotations

import re
from functools import lru_cache, total_ordering
from typing import Final, NamedTuple

_IDENTIFIER: Final = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_LARGEST_PART: Final = 2**64 - 1


@total_ordering
class _Pre:
    """A pre-release in the order of semver.org: none is the highest, and numbers come before words."""

    __slots__ = ("_parts",)

    def __init__(self, text: str) -> None:
        parts = text.split(".") if text else []
        self._parts = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Pre) and self._parts == other._parts

    def __lt__(self, other: _Pre) -> bool:
        if not self._parts or not other._parts:
            return bool(self._parts) and not other._parts
        return self._parts < other._parts

    __hash__ = None  # type: ignore[assignment]


class Semver(NamedTuple):
    """A semantic version. Build metadata is left out: two versions that differ in it alone are equal."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        return f"{text}-{self.pre}" if self.pre else text

    @property
    def order(self) -> tuple[int, int, int, _Pre]:
        return self.major, self.minor, self.patch, _Pre(self.pre)


@lru_cache(maxsize=4096)
def read_semver(text: str) -> Semver:
    """A semantic version.

    Raises:
        ValueError: it is not one.
    """
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a semantic version")
    found = Semver(int(match[1]), int(match[2]), int(match[3]), match[4] or "")
    if max(found.major, found.minor, found.patch) > _LARGEST_PART:
        raise ValueError(f"{text!r} is not a semantic version")
    return found
