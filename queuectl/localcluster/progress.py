"""Progress of builds and starts: one line for each step, with its time and the next step."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from rich.status import Status


class StepProgress(Protocol):
    """Receives the steps of a long operation, in order."""

    def step(self, what: str, coming: str = "") -> None:
        """End the previous step and begin the step `what`.  `coming` names the next step, if there is one."""

    def tick(self, detail: str = "") -> None:
        """The current step continues; `detail` is its newest detail."""

    def finish(self, what: str) -> None:
        """All steps are done; `what` is a summary."""


class NoProgress:
    """Shows nothing, for callers with their own display."""

    def step(self, what: str, coming: str = "") -> None:
        """Nothing to show."""

    def tick(self, detail: str = "") -> None:
        """Nothing to show."""

    def finish(self, what: str) -> None:
        """Nothing to show."""


class LineProgress:
    """Plain lines for logs and CI: one for each step, and one every `every` seconds during a step."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self._stream = stream or sys.stderr
        self._every = every
        self._what = ""
        self._began = self._printed_at = time.monotonic()

    def step(self, what: str, coming: str = "") -> None:
        """Print the step and the next one."""
        self._what, self._began = what, time.monotonic()
        self._print(what + (f" (next: {coming})" if coming else ""))

    def tick(self, detail: str = "") -> None:
        """Print the step with its elapsed time, at most every `every` seconds."""
        if time.monotonic() - self._printed_at >= self._every:
            elapsed = time.monotonic() - self._began
            self._print(f"{self._what}: {_clock(elapsed)}" + (f", {detail}" if detail else ""))

    def finish(self, what: str) -> None:
        """Print the summary."""
        self._print(what)

    def _print(self, text: str) -> None:
        self._printed_at = time.monotonic()
        self._stream.write(f"localcluster: {text}\n")
        self._stream.flush()


class Spinner:
    """A live line for a terminal, below the finished steps with their times."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._what = self._coming = ""
        self._began = time.monotonic()

    def step(self, what: str, coming: str = "") -> None:
        """End the previous line and begin a new one."""
        self._close()
        self._what, self._coming, self._began = what, coming, time.monotonic()
        self._status = self._console.status(what)
        self._status.start()
        self.tick()

    def tick(self, detail: str = "") -> None:
        """Refresh the live line."""
        if self._status is not None:
            parts = [f"{self._what}  [dim]{_clock(time.monotonic() - self._began)}"]
            parts += [detail] if detail else []
            parts += [f"next: {self._coming}"] if self._coming else []
            self._status.update("  ·  ".join(parts))

    def finish(self, what: str) -> None:
        """End the live line and print the summary."""
        self._close()
        self._console.print(what, highlight=False)

    def _close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
            elapsed = _clock(time.monotonic() - self._began)
            self._console.print(f"[green]✓[/] {self._what}  [dim]{elapsed}", highlight=False)


def for_terminal() -> StepProgress:
    """The display for standard error: a live line on a terminal, otherwise plain lines."""
    return Spinner() if sys.stderr.isatty() else LineProgress()


def _clock(seconds: float) -> str:
    return (
        f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    )
