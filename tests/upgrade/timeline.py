"""The steps of an upgrade with their times, as a table of Markdown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.upgrade.load import Starts


@dataclass
class Step:
    """One step. Times are Unix seconds."""

    name: str
    began: float
    ended: float = 0.0
    result: str = ""


@dataclass
class Timeline:
    """The steps so far."""

    began: float = field(default_factory=time.time)
    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A step; the block sets its result."""
        step = Step(name, time.time())
        print(f"{step.began - self.began:6.1f} s  {name}", flush=True)
        yield step
        step.ended = time.time()
        self.steps.append(step)
        print(f"{step.ended - self.began:6.1f} s  {name}: {step.result}", flush=True)

    def table(self, starts: Starts) -> str:
        """The steps with the gangs that started and the longest wait for a start in each."""
        lines = [
            "| at | step | duration | result | gangs started | longest wait for a start |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for step in self.steps:
            count, longest = starts.between(step.began, step.ended)
            cells = (
                f"{step.began - self.began:.0f} s",
                step.name,
                f"{step.ended - step.began:.1f} s",
                step.result,
                str(count),
                f"{longest:.1f} s",
            )
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)
