"""Progress of the demo: a live line on a terminal, else one line for each step."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.status import Status

_HEARTBEAT_SECONDS: Final = 30.0


class Steps:
    """A Progress (queuectl.localcluster.progress) that removes its live line after an error, too."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._what = self._coming = ""
        self._began = self._step_began = self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def step(self, what: str, coming: str = "") -> None:
        """End the previous step and begin this one. ``coming`` names the next step."""
        self._close()
        self._what = what
        self._step_began = self._printed_at = time.monotonic()
        self._coming = f"  next: {coming}" if coming else ""
        if self._console.is_terminal:
            self._status = self._console.status(what)
            self._status.start()

    def tick(self, detail: str = "") -> None:
        """Show that the current step continues; without a live line, every 30 s."""
        now = time.monotonic()
        passed = now - self._step_began
        if self._status is None and now - self._printed_at >= _HEARTBEAT_SECONDS:
            self._printed_at = now
            self._console.print(f"  {self._what}: {passed:.0f} s  {detail}", highlight=False)
        elif self._status is not None:
            self._status.update(f"{self._what}  [dim]{passed:.0f} s  {detail}{self._coming}")

    def finish(self, what: str) -> None:
        """End the current step, and print a summary."""
        self._close()
        self._console.print(what, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        self._stop()
        if self._what:
            passed = time.monotonic() - self._step_began
            self._console.print(f"[green]✓[/] {self._what}  [dim]{passed:.1f} s", highlight=False)
            self._what = ""

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
