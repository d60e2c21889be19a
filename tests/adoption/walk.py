"""The time of a person who types the commands of a page: each command with its seconds, and the steps between them in which a person waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queuectl.localcluster.client import wait_until
from tests.real import sandbox
from tests.system.transcript import Page, Shell

SECONDS: Final = 600.0
_LONGEST: Final = 96


@dataclass(frozen=True)
class Step:
    """A command, or a wait for an effect.

    Attributes:
        page: the page that has the command; empty for a wait.
        wall: seconds.
        processor: seconds of all processes of the cluster, and of the command.
    """

    what: str
    page: str
    wall: float
    processor: float


@dataclass
class Part:
    """The way from one state of a cluster to another one."""

    title: str
    steps: list[Step] = field(default_factory=list)

    def summary(self) -> str:
        """A row: title, commands, pages, seconds, CPU seconds."""
        typed = [step for step in self.steps if step.page]
        wall, processor = (
            sum(step.wall for step in self.steps),
            sum(step.processor for step in self.steps),
        )
        pages = len({step.page for step in typed})
        return f"| {self.title} | {len(typed)} | {pages} | {wall:.0f} | {processor:.0f} |"


@dataclass
class Walk:
    """Types commands in a shell, and measures them.

    Attributes:
        instead: parts of commands that have another value in each run, such as the name of an image.
    """

    shell: Shell
    instead: Mapping[str, str] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    def begin(self, title: str) -> None:
        """Measure what is typed from here as one part."""
        self.parts.append(Part(title))

    def read(self, page: Page, begins: str) -> str:
        """Type the next command of a page that begins so. Returns its output."""
        return self.type(page.name, page.take(begins))

    def type(self, page: str, command: str) -> str:
        """Type a command, which must succeed. Returns its output."""
        command = self.command(command)
        ended: list[tuple[int, str]] = []
        self.act(command, page, lambda: ended.append(self.shell.type(command)))
        [(status, printed)] = ended
        assert status == 0, f"{command}\nended with {status}\n{printed}\n{self.shell.errors}"
        return printed

    def command(self, line: str) -> str:
        """A command as it is typed in this run."""
        for written, meant in self.instead.items():
            line = line.replace(written, meant)
        return line

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait for an effect."""
        self.act(what, "", lambda: wait_until(reached, what, SECONDS))

    def act(self, what: str, page: str, effect: Callable[[], object]) -> None:
        """Measure a step."""
        began, used = time.monotonic(), cpu_seconds()
        effect()
        wall, processor = time.monotonic() - began, cpu_seconds() - used
        line = " ".join(what.replace("\\\n", " ").split())
        self.parts[-1].steps.append(Step(line, page, wall, processor))

    def table(self) -> str:
        """The steps of each part, then a row for each part, in Markdown."""
        lines = ["| step | page | s | CPU s |", "| --- | --- | --- | --- |"]
        for part in self.parts:
            lines.append(f"| **{part.title}** | | | |")
            lines += [
                f"| {_short(step.what)} | {step.page or '(wait)'} | {step.wall:.1f} | {step.processor:.1f} |"
                for step in part.steps
            ]
        lines += ["", "| from, to | commands | pages | s | CPU s |"]
        lines += ["| --- | --- | --- | --- | --- |", *(part.summary() for part in self.parts)]
        return "\n".join(lines)


def _short(line: str) -> str:
    line = line.replace("|", "\\|")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def cpu_seconds() -> float:
    """CPU time of all processes that this process can see as its own: its descendants, or in a sandbox all.

    The time of a process that has ended is that of its parent's children.
    """
    ticks = 0
    for line in _own(_processes()):
        ticks += sum(map(int, line[11:15]))
    return ticks / _TICKS


_TICKS: Final = 100
"""USER_HZ of Linux, on each architecture that queuectl supports."""


def _processes() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat after the name of the program."""
    processes: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                text = (path / "stat").read_text()
            except OSError:  # it has ended
                continue
            processes[int(path.name)] = text.rpartition(")")[2].split()
    return processes


def _own(processes: dict[int, list[str]]) -> Iterator[list[str]]:
    """This process and its descendants; in a namespace of processes, those of its first process."""
    children: dict[int, list[int]] = {}
    for number, line in processes.items():
        children.setdefault(int(line[1]), []).append(number)
    waiting = [os.getpid() if sandbox.home() is None else 1]
    while waiting:
        number = waiting.pop()
        if number in processes:
            yield processes[number]
            waiting += children.get(number, ())
