"""Where a controller dies: at one step, or at many steps of one run.

A step is a commit, a write to the API server, or an entry of the usage ledger. Its names say what it does, so that steps of different
runs can be compared. A commit of several workloads has several names.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuectl.domain.commands import Answer
from queuectl.domain.ledger import EntryChange
from tests.doubles.cluster import Moment

EVERY_KILL: Final = bool(os.environ.get("EVERY_KILL"))
"""Whether tests take all moments of faults: `make test-faults`."""
Point = tuple[str, int, Moment]
"""A side of a step: its name, the number of equal steps that were done before, and before or after it."""
ACCOUNT: Final = "account"
"""The name of an entry of the usage ledger."""
WRITES: Final = {
    "create_object",
    "delete_object",
    "evict_pod",
    "patch_job",
    "patch_node",
    "patch_pod",
    "stop_pod",
}
"""The methods of the cluster that write."""
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}")


def commit_names(changes: Sequence[EntryChange], answers: Sequence[Answer]) -> tuple[str, ...]:
    """The effects of a commit: the transition of each workload, and the answers to commands."""
    names = [
        f"commit {change.after.ref} {change.before and change.before.state} {change.after.state}"
        f"@{change.after.attempt} {change.after.intent} {change.note and change.note.reason.code}"
        for change in changes
    ]
    return (*names, *(["answer"] * len(answers))) or ("commit of no workload",)


def write_name(method: str, arguments: Sequence[Any]) -> str:
    """The effect of a write: the method, the object, and the fields of its patch."""
    parts = [method]
    for argument in arguments:
        if isinstance(argument, Mapping):
            parts.extend(sorted(_fields(argument)))
        elif isinstance(argument, str) and not _UID.search(argument):
            parts.append(argument)
    return " ".join(parts)


def _fields(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, content in document.items():
        if isinstance(content, Mapping) and content:
            yield from _fields(content, f"{path}{key}.")
        else:
            yield f"{path}{key}"


class Killed(BaseException):
    """A SIGKILL of the controller: none of its code runs after this."""


@dataclass
class KillPoint:
    """Counts steps of one kind and kills the controller at one of them."""

    at: int | None = None
    moment: Moment = Moment.BEFORE
    seen: int = 0
    done: int = 0
    killed: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """The steps that were done, by name."""

    def before(self, *names: str) -> int:
        """Call this before a step. Returns the number of the step."""
        self.seen += 1
        if self.dies(self.seen, Moment.BEFORE, names):
            self._kill()
        return self.seen

    def after(self, number: int, *names: str) -> None:
        """Call this after the step has had its effect. A step without effect, such as a stale plan, is not followed by a death:
        the next one is."""
        self.done += 1
        dies = self.dies(number, Moment.AFTER, names)
        self.counts.update(names)
        if dies:
            self._kill()

    def dies(self, number: int, moment: Moment, names: Sequence[str]) -> bool:  # for schedules
        """Whether the controller dies on this side of a step."""
        if self.at is None or self.killed or moment is not self.moment:
            return False
        return number == self.at if moment is Moment.BEFORE else number >= self.at

    def points(self, names: Sequence[str], moment: Moment) -> set[Point]:
        """This side of a step. Call it before the step is counted as done."""
        met: Counter[str] = Counter()
        points = set()
        for name in names:
            points.add((name, self.counts[name] + met[name], moment))
            met[name] += 1
        return points

    def _kill(self) -> None:
        self.killed = True
        raise Killed


@dataclass
class KillSchedule(KillPoint):
    """Kills the controller at every ``period``-th allowed point from ``offset`` on, or with the period 0 at each wanted point.

    One schedule counts the steps of all kinds together. It kills at an allowed point once: where each controller begins with the same
    write, another one gets on.

    Attributes:
        sides: the sides of a step on which the controller can die.
        allowed: the points at which it can die.
        wanted: points at which no controller has died. Schedules that share the set remove the points at which they kill.
        met: the steps that the period has counted.
    """

    period: int = 0
    offset: int = 0
    sides: Collection[Moment] = (Moment.AFTER,)
    allowed: frozenset[Point] = frozenset()
    wanted: set[Point] = field(default_factory=set)
    met: int = 0

    def passed(self, sides: Iterable[Moment]) -> set[Point]:
        """These sides of all steps that were done."""
        return {
            (name, number, side)
            for name, count in self.counts.items()
            for number in range(count)
            for side in sides
        }

    def dies(self, number: int, moment: Moment, names: Sequence[str]) -> bool:
        here = self.points(names, moment) & self.allowed if moment in self.sides else set()
        if not here:
            return False
        self.met += 1
        if self.met % self.period != self.offset if self.period else here.isdisjoint(self.wanted):
            return False
        self.wanted -= here
        self.allowed -= here
        return True
