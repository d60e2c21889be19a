"""The code blocks of a page of the documentation: the commands that it shows, each with its output.

A page shows commands in a block ``shell``. The next block shows the output of the last command in it, unless text is between the two.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

COMMANDS: Final = "shell"
"""The language of a block of commands."""

_FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_INDENTED: Final = re.compile(r"(?:^(?: {4}.*)?\n)*^ {4}.*\n", re.MULTILINE)
_CONTINUES: Final = ("\\", "|", "; do")
_HEREDOC: Final = re.compile(r"<<-?\s*['\"]?(\w+)")
_INLINE: Final = re.compile(r"(queuectl|kubectl|curl) \S+ \S+|queuectl (top|doctor)$")
_GAP: Final = re.compile(r"…|\b[A-Z]{4,}\b")


@dataclass(frozen=True)
class Block:
    """A block between fences, without its indentation. ``language`` is empty if the page names none."""

    language: str
    text: str
    start: int
    """The index of its first character in the page."""
    end: int


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the lines that the page shows as its output."""

    command: str
    output: tuple[str, ...]


def fenced(text: str) -> list[Block]:
    """Each block between fences, in the order of the page."""
    return [
        Block(m["language"].strip(), textwrap.dedent(m["body"]), m.start(), m.end())
        for m in _FENCED.finditer(text)
    ]


def transcript(text: str) -> list[Shown]:
    """Each command of a page, in order."""
    return list(_transcript(text))


def _transcript(text: str) -> Iterator[Shown]:
    blocks = fenced(text)
    for block, after in pairwise([*blocks, None]):
        if block is None or block.language != COMMANDS:
            continue
        *before, last = commands(block.text)
        yield from (Shown(command, ()) for command in before)
        follows = after is not None and after.language != COMMANDS
        if after is not None and follows and not text[block.end : after.start].strip():
            yield Shown(last, tuple(after.text.splitlines()))
        else:
            yield Shown(last, ())


def commands(block: str) -> list[str]:
    """The commands of a block. A command can have several lines. Comments and blank lines between commands are skipped.

    Raises ValueError if the block has no command, or ends within one.
    """
    separate: list[str] = []
    lines: list[str] = []
    for line in block.splitlines():
        if not lines and (not line.strip() or line.startswith("#")):
            continue
        lines.append(line)
        if _ends(lines):
            separate.append("\n".join(lines))
            lines = []
    if lines:
        raise ValueError(f"the block ends within the command {lines[0]!r}")
    if not separate:
        raise ValueError("the block has no command")
    return separate


def _ends(lines: Sequence[str]) -> bool:
    """Whether a command ends with the last of its lines."""
    if heredoc := _HEREDOC.search(lines[0]):
        return len(lines) > 1 and lines[-1].strip() == heredoc[1]
    if lines[-1].endswith(_CONTINUES):
        return False
    try:
        shlex.split("\n".join(lines), comments=True)
    except ValueError:  # an open quotation mark
        return False
    return True


def inline_commands(text: str) -> list[str]:
    """Each whole command in the sentences and tables of a page, in order; neither a mere name, nor one with a gap to fill in."""
    prose = re.sub(r"^ {4}.*$", "", _FENCED.sub("", text), flags=re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [span for span in spans if _INLINE.match(span) and not _GAP.search(span)]


def code(text: str) -> list[str]:
    """Each block of a page: between fences, or indented. A command and its output are two blocks."""
    blocks = _INDENTED.findall(_FENCED.sub(_indented, text))
    return [textwrap.dedent(block) for block in blocks]


def _indented(block: re.Match[str]) -> str:
    return f"fence\n{textwrap.indent(textwrap.dedent(block['body']), '    ')}fence"
