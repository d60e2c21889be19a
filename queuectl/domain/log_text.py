"""The text of a container's log, from bytes that the container wrote.

A container writes what it likes: no text at all, colors, sequences that control a terminal, lines without an end.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

from queuectl.domain.words import printable

LONGEST_LINE: Final = 8192
"""Characters of a line on a page, after which it is divided."""
_COLORS: Final = re.compile(r"\x1b\[[0-9;]{0,64}m")
_BEGUN: Final = re.compile(r"(?:\r|\x1b(?:\[[0-9;]{0,64})?)\Z")
"""The end of a part that can be the beginning of a color, or of the end of a line."""


class LogText:
    """Decodes one log, whose bytes come in parts. Where the parts are divided does not matter.

    Colors are left out, and the lines that a progress bar writes over each other become separate lines. Bytes that are not UTF-8
    become U+FFFD. The text can still have control characters: see :func:`printable`.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def add(self, part: bytes) -> str:
        """The text of the next part, as far as it does not depend on the bytes that follow."""
        text = self._begun + self._decoder.decode(part)
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        return _plain(text.removesuffix(self._begun))

    def end(self) -> str:
        """The rest of the text. The log has ended."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        return _plain(text)


class PageText:
    """The same for a page: printable text whose lines have at most :data:`LONGEST_LINE` characters."""

    def __init__(self) -> None:
        self._text = LogText()
        self._column = 0  # characters of the last line so far

    def add(self, part: bytes) -> str:
        """The text of the next part, as far as it does not depend on the bytes that follow."""
        return self._divided(printable(self._text.add(part)))

    def end(self) -> str:
        """The rest of the text. The log has ended."""
        return self._divided(printable(self._text.end()))

    def _divided(self, text: str) -> str:
        parts: list[str] = []
        begin = position = 0
        room = LONGEST_LINE - self._column
        while len(text) - position > room:
            newline = text.rfind("\n", position, position + room + 1)
            position = newline + 1 if newline >= 0 else position + room
            if newline < 0:
                parts.append(text[begin:position])
                begin = position
            room = LONGEST_LINE
        divided = "\n".join([*parts, text[begin:]])
        last = divided.rfind("\n")
        self._column = len(divided) - last - 1 + (self._column if last < 0 else 0)
        return divided


def _plain(text: str) -> str:
    return _COLORS.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
