"""Everything that a command prints passes here: text of servers, files and clusters controls no terminal.

A name, an annotation or a message can hold escape sequences that clear the screen, change its title or write the clipboard. While a
command runs, standard output and standard error replace control characters by escapes. Only :func:`console` writes sequences for colors
and positions, which rich makes, and replaces the controls of the text in between.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from queuectl.domain.words import printable

if TYPE_CHECKING:
    from rich.console import Console


class PrintableStream(io.TextIOBase):
    """A text stream that writes printable text to another one.

    Attributes:
        raw: the other one.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text. Returns the length of the text."""
        if not isinstance(text, str):  # typer asks so whether bytes are accepted
            raise TypeError("only text")
        self.raw.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream."""
        self.raw.flush()

    def isatty(self) -> bool:
        """Whether the other stream is a terminal."""
        return self.raw.isatty()

    def fileno(self) -> int:
        """The descriptor of the other stream."""
        return self.raw.fileno()

    def writable(self) -> bool:
        """Text can be written."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the other stream."""
        return self.raw.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Of the other stream."""
        return self.raw.errors


@contextmanager
def printable_output() -> Iterator[None]:
    """A context in which standard output and standard error are printable."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_printable(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _printable(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, PrintableStream) else cast(TextIO, PrintableStream(stream))


def _raw(stream: TextIO) -> TextIO:
    return stream.raw if isinstance(stream, PrintableStream) else stream


def raw_output() -> BinaryIO | None:
    """Standard output for bytes that are copied unchanged; None if it is a terminal."""
    stream = _raw(sys.stdout)
    return None if stream.isatty() else getattr(stream, "buffer", None)


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich for text that is not its own: no markup, no emoji codes, no control characters."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None and segment.text != "\n":
                    yield Segment(printable(segment.text), segment.style)
                else:
                    yield segment

    stream = _raw(sys.stderr if stderr else sys.stdout)
    return PrintableConsole(file=stream, markup=False, emoji=False, highlight=False, **options)
