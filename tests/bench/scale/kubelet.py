"""The programs of a system, which start again when they end by themselves, as the containers of a Deployment do.

A kubelet starts a container again at once after its first end, then after 10 s, and doubles this delay up to 300 s. After a run of ten
minutes, the delays begin again: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts.

The CPU time and the peak of the memory of a program are those of all its processes. They are read several times a second, so what a
process uses between the last reading and its end is missing.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.bench.scale.processes import Usage
from tests.bench.stage import cpu_of, peak_of

POLL_SECONDS: Final = 0.25
_TAIL_BYTES: Final = 64 * 1024
_WORDS: Final = 3
_WORD_LENGTH: Final = 240
_CAUSE: Final = re.compile(r"panic|fatal|error|failed", re.IGNORECASE)


class Restartable(Protocol):
    """A program with one process at a time, which can be started again after its end."""

    @property
    def pid(self) -> int:
        """Of its newest process."""
        ...

    @property
    def ended(self) -> int | None:
        """Exit code of its newest process, minus the signal if it was killed; None while it runs."""
        ...

    @property
    def log(self) -> Path:
        """Its log, to which all its processes append."""
        ...

    def restart(self) -> None:
        """Start it again after its end."""
        ...


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds before a program starts again: the first delay, the longest one, and the length of a run after which the delays begin again."""

    first: float = 10.0
    longest: float = 300.0
    reset: float = 600.0

    def delay(self, before: float | None, ran: float) -> float:
        """The delay after a run. ``before``: the delay before this run; None for the first run."""
        if before is None or ran >= self.reset:
            return 0.0
        return min(self.longest, max(self.first, 2 * before))


@dataclass(slots=True)
class _Kept:
    """A program and its processes up to now.

    Attributes:
        wanted: it starts again when it ends.
        pid: of its process; None once its end is known.
        delay: seconds before the start of this process; None for the first one.
        due: when it starts again.
        past: CPU seconds of its earlier processes.
        cpu: CPU seconds of its process.
        peak: MiB, of all processes.
        fate: how its process ended by itself the last time.
    """

    program: Restartable
    wanted: bool = True
    pid: int | None = None
    began: float = 0.0
    delay: float | None = None
    due: float = 0.0
    past: float = 0.0
    cpu: float = 0.0
    peak: float = 0.0
    restarts: int = 0
    fate: str = ""

    def begin(self, now: float) -> None:
        """A new process has started."""
        self.pid, self.began = self.program.pid, now
        self.past, self.cpu = self.past + self.cpu, 0.0

    def check(self, now: float, back_off: BackOff) -> None:
        """Read what it has used, and start it again if it is due."""
        if self.pid is not None:
            if (code := self.program.ended) is None:
                # After the end of a process, its files in /proc are absent or read 0.
                self.cpu = max(self.cpu, cpu_of(self.pid))
                self.peak = max(self.peak, peak_of(self.pid))
                return
            self._end(code, now, back_off)
        if self.wanted and now >= self.due:
            self.program.restart()
            self.restarts += 1
            self.begin(now)

    def _end(self, code: int, now: float, back_off: BackOff) -> None:
        self.pid = None
        if self.wanted:
            ran = now - self.began
            self.delay = back_off.delay(self.delay, ran)
            self.due = now + self.delay
            words = "; ".join(last_words(self.program.log))
            self.fate = f"last {exit_of(code)} after {ran:.0f} s, end of its log: {words}"


class Kubelet:
    """Starts the programs of a system again that end by themselves, in a thread, and sums up what their processes use."""

    def __init__(self, back_off: BackOff | None = None, poll: float = POLL_SECONDS) -> None:
        self._back_off = back_off or BackOff()
        self._poll = poll
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, name: str, program: Restartable) -> None:
        """Start a program again from now on when it ends. It runs, for the first time or after :meth:`release`."""
        with self._lock:
            kept = self._kept.setdefault(name, _Kept(program))
            kept.wanted = True
            kept.delay = None
            kept.begin(time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kubelet")
            self._thread.start()

    def release(self, name: str) -> None:
        """The caller ends a program on purpose: it does not start again. Its use of resources still counts."""
        with self._lock:
            self._kept[name].wanted = False

    def usage(self) -> Usage:
        """Of each program up to now."""
        with self._lock:
            self._check()
            return Usage(
                cpu={name: kept.past + kept.cpu for name, kept in self._kept.items()},
                peak={name: kept.peak for name, kept in self._kept.items()},
                restarts={name: kept.restarts for name, kept in self._kept.items()},
            )

    def remarks(self) -> list[str]:
        """A line for each program that has ended by itself."""
        with self._lock:
            return [
                f"{name}: restarts: {kept.restarts}, {kept.fate}"
                + ("; it waits for its next start" if kept.wanted and kept.pid is None else "")
                for name, kept in self._kept.items()
                if kept.fate
            ]

    def close(self) -> None:
        """Start nothing from now on. Without effect if that is done."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._poll):
            with self._lock:
                self._check()

    def _check(self) -> None:
        for kept in self._kept.values():
            kept.check(time.monotonic(), self._back_off)


def exit_of(code: int) -> str:
    """An exit code in words."""
    return f"exit code {code}" if code >= 0 else f"end by {signal.Signals(-code).name}"


def last_words(log: Path) -> Sequence[str]:
    """The last lines of a log that name a cause, otherwise its last lines."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    lines = [line for line in lines if line.strip()]
    causes = [line for line in lines if _CAUSE.search(line)] or lines
    return [_text(line)[:_WORD_LENGTH] for line in causes[-_WORDS:]]


def _text(line: str) -> str:
    """The message and the error of an entry in JSON; another line as it is."""
    try:
        entry = dict(json.loads(line))
    except (ValueError, TypeError):
        return line
    return ": ".join(str(entry[key]) for key in ("event", "msg", "error") if key in entry) or line
