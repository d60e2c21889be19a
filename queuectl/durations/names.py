"""The pattern of a name: what remains without numbers, dates and generated parts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARTS: Final = re.compile(r"[-._]+")
_DIGITS: Final = re.compile(r"[0-9]+")
_GENERATED: Final = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")
"""The suffix that the API server adds to ``generateName``: it has no vowel, and no 0, 1 or 3."""
_HASH: Final = re.compile(r"(?=[a-z]*[0-9])[0-9a-f]{6,}|(?=(.*[0-9]){3})(?=.*[a-z])[0-9a-z]{8,}")
"""Hexadecimal digits, or letters among at least three digits."""


@lru_cache(maxsize=4096)
def name_pattern(name: str) -> str:
    """The pattern of the name of an object; "" if nothing of it is constant.

    ``train-resnet50-20261123-x7k2p`` and ``train-resnet18-20261124-9zqvw`` have the pattern ``train-resnet``.
    """
    parts = _PARTS.split(_UUID.sub("", name.lower()))
    if len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        parts.pop()
    constant = (_DIGITS.sub("", part) for part in parts if not _HASH.fullmatch(part))
    return "-".join(part for part in constant if part)
