"""The gates that hold a job before it queues: admission gates, which other controllers remove, and dependencies on other jobs.

A dependency is a gate that queuectl removes when the other job has ended as the dependency states. It is stored as one, under a name
that no admission gate can have: the names of these contain no space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from queuectl.domain.job_records import Outcome
from queuectl.domain.reasons import Code, Reason

_PREFIX: Final = "after "
_DEPENDENCY: Final = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9]*)/(?P<name>[a-z0-9]([-a-z0-9.]*[a-z0-9])?)(:(?P<ends>[a-z]+))?"
)


ENDLESS: Final = frozenset(
    {"deployment", "statefulset", "leaderworkerset", "raycluster", "rayservice"}
)
"""Kinds whose objects run until a user deletes them, in lower case."""


class Ends(StrEnum):
    """How a job must end for those that depend on it. The values are those of the annotation."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


_VERBS: Final = {Ends.OK: "succeeds", Ends.ANY: "ends", Ends.FAILED: "fails"}


class DependencyStatus(StrEnum):
    """The state of the job that another one depends on."""

    UNFINISHED = "Unfinished"
    MISSING = "Missing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CYCLE = "Cycle"  # it waits, directly or not, for the job that depends on it


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the job that another one depends on, and why it is a cycle.

    ``cycle``: the jobs of it, from the other job to the one that depends on it, as users wrote them. Each waits for the next.
    """

    status: DependencyStatus
    cycle: tuple[str, ...] = ()


_ENDED: Final = {
    Outcome.SUCCEEDED: DependencyStatus.SUCCEEDED,
    Outcome.FAILED: DependencyStatus.FAILED,
}


_UNFINISHED: Final = Standing(DependencyStatus.UNFINISHED)


@dataclass(frozen=True, slots=True)
class JobName:
    """A job by its names. Kinds are equal without regard to case, so ``kind`` is in lower case."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, kind: str, namespace: str, name: str) -> Self:
        return cls(kind.lower(), namespace, name)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job of the same namespace that must end first. ``kind``: as the user wrote it."""

    kind: str
    name: str
    ends: Ends = Ends.OK

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``kind/name`` or ``kind/name:ok``.

        Raises:
            ValueError: with a sentence that follows the quoted text.
        """
        match = _DEPENDENCY.fullmatch(text)
        if match is None:
            raise ValueError("is not KIND/NAME, KIND/NAME:ok, KIND/NAME:any or KIND/NAME:failed")
        ends = match["ends"] or Ends.OK
        if ends not in tuple(Ends):
            raise ValueError(f"ends with {ends!r}, which is not ok, any or failed")
        if match["kind"].lower() in ENDLESS:
            raise ValueError(f"names a {match['kind']}, which does not end")
        return cls(match["kind"], match["name"], Ends(ends))

    @classmethod
    def of_gate(cls, gate: str) -> Self | None:
        """The dependency that is stored as this gate; None for an admission gate."""
        return cls.parse(gate.removeprefix(_PREFIX)) if gate.startswith(_PREFIX) else None

    @property
    def gate(self) -> str:
        return f"{_PREFIX}{self}"

    @property
    def job(self) -> str:
        return f"{self.kind}/{self.name}"

    def __str__(self) -> str:
        return f"{self.job}:{self.ends}"

    def satisfied(self, status: DependencyStatus) -> bool:
        ended = status in _ENDED.values()
        return ended and (self.ends is Ends.ANY or status == self.ends_as)

    def never_satisfied(self, status: DependencyStatus) -> bool:
        """Whether it waits without end unless a user acts. A job that does not exist can be created later."""
        ended = status in _ENDED.values()
        return status is DependencyStatus.CYCLE or (ended and not self.satisfied(status))

    @property
    def ends_as(self) -> DependencyStatus:
        return DependencyStatus.FAILED if self.ends is Ends.FAILED else DependencyStatus.SUCCEEDED

    def explained(self, standing: Standing) -> str:
        """The missing condition, as a clause after "held until"."""
        clause = f"{self.job} {_VERBS[self.ends]}"
        match standing.status:
            case DependencyStatus.MISSING:
                return f"{clause} (no such job with a queue is in its namespace)"
            case DependencyStatus.CYCLE:
                return f"{clause} (a cycle: {cycle_text(standing.cycle)})"
            case DependencyStatus.SUCCEEDED | DependencyStatus.FAILED:
                return f"{clause} (it {standing.status.lower()})"
            case _:
                return clause


@dataclass(frozen=True, slots=True)
class JobFound:
    """A job that others may depend on.

    Attributes:
        outcome: None while it has not ended.
        gates: those that still hold it.
    """

    outcome: Outcome | None
    gates: tuple[str, ...]


def statuses_of(
    job: JobName, gates: tuple[str, ...], find: Callable[[JobName], JobFound | None]
) -> dict[str, Standing]:
    """The states of all jobs that a job depends on, by gate. ``find``: a job by its names, None if it does not exist."""
    found = {}
    for one in dependencies(gates):
        other = JobName.of(one.kind, job.namespace, one.name)
        known = find(other)
        if known is None:
            found[one.gate] = Standing(DependencyStatus.MISSING)
        elif known.outcome is not None:
            found[one.gate] = Standing(_ENDED[known.outcome])
        elif cycle := _way(other, one.job, job, find):
            found[one.gate] = Standing(DependencyStatus.CYCLE, cycle)
        else:
            found[one.gate] = Standing(DependencyStatus.UNFINISHED)
    return found


def _way(
    first: JobName, written: str, target: JobName, find: Callable[[JobName], JobFound | None]
) -> tuple[str, ...]:
    """The shortest way from a job, which a user wrote so, to another one, over what each waits for; empty if there is none."""
    ways: dict[JobName, tuple[str, ...]] = {first: (written,)}
    for job in (queue := [first]):
        if job == target:
            return ways[job]
        known = find(job)
        for one in dependencies(known.gates) if known is not None and known.outcome is None else ():
            other = JobName.of(one.kind, job.namespace, one.name)
            if other not in ways:
                ways[other] = (*ways[job], one.job)
                queue.append(other)
    return ()


def cycle_text(cycle: tuple[str, ...]) -> str:
    """The jobs of a cycle (:class:`Standing`), from the one that depends on the first, in their order."""
    return " waits for ".join([cycle[-1], ", which waits for ".join(cycle)])


def admission_gates(gates: tuple[str, ...]) -> list[str]:
    """The gates that other controllers remove."""
    return [gate for gate in gates if Dependency.of_gate(gate) is None]


def dependencies(gates: tuple[str, ...]) -> list[Dependency]:
    """The gates that queuectl removes when other jobs have ended."""
    return [found for gate in gates if (found := Dependency.of_gate(gate)) is not None]


def remaining(gates: tuple[str, ...], statuses: Mapping[str, Standing]) -> tuple[str, ...]:
    """The gates without satisfied dependencies. ``statuses``: by gate; a dependency without one is kept."""
    satisfied = {
        one.gate
        for one in dependencies(gates)
        if one.satisfied(statuses.get(one.gate, _UNFINISHED).status)
    }
    return tuple(gate for gate in gates if gate not in satisfied)


def held_by(gates: tuple[str, ...], statuses: Mapping[str, Standing] | None = None) -> Reason:
    """The reason for which a gang with these gates is held. ``statuses``: by gate, as far as they are known."""
    names, jobs = admission_gates(gates), dependencies(gates)
    known = {one: (statuses or {}).get(one.gate, _UNFINISHED) for one in jobs}
    parts = [f"these admission gates are removed: {', '.join(names)}"] if names else []
    parts += [one.explained(standing) for one, standing in known.items()]
    if any(one.never_satisfied(standing.status) for one, standing in known.items()):
        code = Code.DEPENDENCY_NEVER_SATISFIED
    else:
        code = Code.ADMISSION_GATED if names else Code.DEPENDENCY
    details: dict[str, object] = {"gates": names} if names else {}
    if jobs:
        details["after"] = {str(one): str(standing.status) for one, standing in known.items()}
    return Reason(code, f"held until {', and until '.join(parts)}", details)
