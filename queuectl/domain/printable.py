"""Text of users for terminals: characters that control a terminal, or reorder what it shows, as escapes."""

from __future__ import annotations

import re
from typing import Final

# C0 without tab and line feed, DEL and C1; line and paragraph separators; marks that change the direction of text.
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""The text with each control character as ``\uXXXX``, which JSON and quoted YAML read as the character."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def has_controls(text: str) -> bool:
    """Whether :func:`printable` changes the text."""
    return _CONTROLS.search(text) is not None
