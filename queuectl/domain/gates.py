"""The gates that hold a job before it queues: admission gates, which other controllers remove, and dependencies on other jobs.

A dependency is a gate that queuectl removes when the other job has ended as the dependency states. It is stored as one, under a name
that no admission gate can have: the names of these contain no space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, Self

from queuectl.domain.jobs import JobOutcome
from queuectl.domain.reasons import Code, Reason

MOST_DEPENDENCIES: Final = 100
"""Jobs that one job can depend on."""


_PREFIX: Final = "after "
_DEPENDENCY: Final = re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9]{0,62})/(?P<name>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(:(?P<ends>[a-z]+))?"
)
_NAMED: Final = 10  # jobs in a sentence


ENDLESS: Final = frozenset(
    {"deployment", "statefulset", "leaderworkerset", "raycluster", "rayservice"}
)
"""Kinds whose objects run until a user deletes them, in lower case."""


class Ends(StrEnum):
    """How a job must end for those that depend on it. The values are as in the annotation."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


INVALID: Final = "invalid list of gates"
"""Holds a job while an entry of its lists is invalid. No admission gate has this name, because it has spaces."""

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

    Attributes:
        cycle: the jobs of it, from the other job to the one that depends on it, as users wrote them. Each waits for the next.
            Empty if another dependency names one, and if the cycle is too long.
    """

    status: DependencyStatus
    cycle: tuple[str, ...] = ()

    @property
    def cycle_text(self) -> str:
        """The cycle, from the job that depends on the other one, in the order of its jobs."""
        if not self.cycle:
            return "a cycle"
        return f"a cycle: {' waits for '.join([self.cycle[-1], ', which waits for '.join(self.cycle)])}"


ENDED: Final = {
    JobOutcome.SUCCEEDED: DependencyStatus.SUCCEEDED,
    JobOutcome.FAILED: DependencyStatus.FAILED,
}
"""The status of a job that has ended."""


_UNFINISHED: Final = Standing(DependencyStatus.UNFINISHED)


class JobName(NamedTuple):
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
        ended = status is DependencyStatus.SUCCEEDED or status is DependencyStatus.FAILED
        return ended and (self.ends is Ends.ANY or status is self.ends_as)

    def never_satisfied(self, status: DependencyStatus) -> bool:
        """Whether it waits indefinitely unless a user acts. A job that does not exist can be created later."""
        if status is DependencyStatus.UNFINISHED or status is DependencyStatus.MISSING:
            return False
        return status is DependencyStatus.CYCLE or not self.satisfied(status)

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
                return f"{clause} ({standing.cycle_text})"
            case DependencyStatus.SUCCEEDED | DependencyStatus.FAILED:
                return f"{clause} (it {standing.status.lower()})"
            case _:
                return clause


def admission_gates(gates: tuple[str, ...]) -> list[str]:
    """The gates that other controllers remove."""
    known = parsed(gates)
    return [gate for gate in gates if gate not in known and gate != INVALID]


def dependencies(gates: tuple[str, ...]) -> list[Dependency]:
    """The gates that queuectl removes when other jobs have ended."""
    return list(parsed(gates).values())


@lru_cache(maxsize=1 << 14)
def parsed(gates: tuple[str, ...]) -> Mapping[str, Dependency]:
    """The dependencies by gate. The gates of a job are read several times in each observation of it."""
    return {gate: one for gate in gates if (one := Dependency.of_gate(gate)) is not None}


def remaining(gates: tuple[str, ...], statuses: Mapping[str, Standing]) -> tuple[str, ...]:
    """The gates without satisfied dependencies. ``statuses``: by gate; a dependency without one is kept."""
    known = parsed(gates)
    kept = [
        gate
        for gate in gates
        if gate not in known or not known[gate].satisfied(statuses.get(gate, _UNFINISHED).status)
    ]
    return tuple(kept)


def same_gates(gates: Iterable[str], compared: Iterable[str]) -> tuple[str, ...]:
    """The gates that are also among the others. Kinds are equal without regard to case."""
    known = {_key(gate) for gate in compared}
    return tuple(gate for gate in gates if _key(gate) in known)


def still_listed(held: tuple[str, ...], listed: tuple[str, ...]) -> tuple[str, ...]:
    """The gates that hold a gang, of those that held it before and those that its job lists now.

    A gate that the gang did not have does not count, unless the list was invalid before. An invalid list removes no gate.
    """
    if INVALID in listed:
        return held
    return listed if INVALID in held else same_gates(held, listed)


def distinct_gates(gates: Iterable[str]) -> tuple[str, ...]:
    """The first of those that are equal: kinds are, without regard to case."""
    first: dict[str, str] = {}
    for gate in gates:
        first.setdefault(_key(gate), gate)
    return tuple(first.values())


def _key(gate: str) -> str:
    """Only the kind of a dependency has upper case; the names of admission gates are equal as they are written."""
    return gate.lower() if gate.startswith(_PREFIX) else gate


def held_by(
    gates: tuple[str, ...],
    statuses: Mapping[str, Standing] | None = None,
    error: str | None = None,
) -> Reason:
    """The reason for which a gang with these gates is held.

    It names some of many jobs, and those first that never end as required.

    Args:
        gates: of the gang.
        statuses: by gate, as far as they are known.
        error: why the gang cannot start without its gates either.
    """
    if INVALID in gates:
        return Reason(Code.MISCONFIGURED, error or "held until its lists of gates are valid")
    names, jobs, known = admission_gates(gates), parsed(gates), statuses or {}
    states = {gate: known.get(gate, _UNFINISHED) for gate in jobs}
    never = {gate for gate in jobs if jobs[gate].never_satisfied(states[gate].status)}
    first = sorted(jobs, key=lambda gate: gate not in never) if len(jobs) > _NAMED else [*jobs]
    more = len(first[_NAMED:])
    parts = [f"these admission gates are removed: {', '.join(names)}"] if names else []
    parts += [jobs[gate].explained(states[gate]) for gate in first[:_NAMED]]
    ends = "1 other job ends" if more == 1 else f"{more} other jobs end"
    parts += [f"{ends} as it requires"] if more else []
    if never:
        code = Code.DEPENDENCY_NEVER_SATISFIED
    else:
        code = Code.ADMISSION_GATED if names else Code.DEPENDENCY
    details: dict[str, object] = {"gates": names} if names else {}
    if jobs:
        details["after"] = {str(jobs[gate]): str(states[gate].status) for gate in first[:_NAMED]}
    if more:
        details["moreAfter"] = more
    but = f"; it cannot start then either: {error}" if error is not None else ""
    return Reason(code, f"held until {', and until '.join(parts)}{but}", details)
