"""Which job waits for which, and the jobs that wait for themselves.

The graph follows changes. Edges that are removed from jobs outside cycles cost nothing, and edges that are added cost one pass over
what can be reached from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.gates import (
    ENDED,
    DependencyStatus,
    JobName,
    Standing,
    parsed,
)
from queuectl.domain.jobs import JobOutcome

_NAMED: Final = 10  # jobs of a cycle in a sentence
_STEPS: Final = 1_000  # edges that are followed to name them
_MISSING: Final = Standing(DependencyStatus.MISSING)
_UNFINISHED: Final = Standing(DependencyStatus.UNFINISHED)
_CYCLE: Final = Standing(DependencyStatus.CYCLE)


@dataclass(frozen=True, slots=True)
class JobFound:
    """A job that others may depend on.

    Attributes:
        outcome: None while it has not ended.
        gates: those that still hold it.
    """

    outcome: JobOutcome | None
    gates: tuple[str, ...]


class DependencyGraph:
    """All jobs that others can depend on, by name."""

    def __init__(self, jobs: Mapping[JobName, JobFound | None] | None = None) -> None:
        self._jobs: dict[JobName, JobFound] = {}
        # For each job that has not ended: the jobs for which it waits, as its user wrote them.
        self._waits_for: dict[JobName, dict[JobName, str]] = {}
        self._dependents: dict[JobName, dict[JobName, None]] = {}
        # For each job that waits for itself: all jobs that wait for it and for which it waits, itself too.
        self._cycles: dict[JobName, frozenset[JobName]] = {}
        self.put(jobs or {})

    def put(self, jobs: Mapping[JobName, JobFound | None]) -> set[JobName]:
        """Take over new and changed jobs; None for one that no longer exists.

        Returns:
            The jobs that depend on others whose status can differ now.
        """
        affected: set[JobName] = set()
        begun: dict[JobName, None] = {}  # where a search for cycles begins
        parts: set[frozenset[JobName]] = set()  # cycles without one of their edges
        for name, job in jobs.items():
            before = self._jobs.get(name)
            if job == before:
                continue
            if before is None or job is None or before.outcome is not job.outcome:
                affected.update(self._dependents.get(name, ()))
            known = self._waits_for.get(name, {})
            self._keep(name, job)
            now = self._waits_for.get(name, {})
            if known.keys() - now.keys() and name in self._cycles:
                parts.add(self._cycles[name])
            if now.keys() - known.keys():
                begun[name] = None
        affected = affected.union(*parts)
        begun.update(dict.fromkeys(name for cycle in parts for name in cycle))
        return affected | self._find_cycles(begun)

    def statuses(self, job: JobName, gates: tuple[str, ...]) -> dict[str, Standing]:
        """The states of all jobs that a job depends on, by gate. ``gates``: of this job."""
        cycle = self._cycles.get(job, frozenset())
        named: tuple[str, ...] | None = None  # the cycle of its first dependency that is in one
        by_gate = {}
        for gate, one in parsed(gates).items():
            other = JobName.of(one.kind, job.namespace, one.name)
            known = self._jobs.get(other)
            if known is None:
                by_gate[gate] = _MISSING
            elif known.outcome is not None:
                by_gate[gate] = Standing(ENDED[known.outcome])
            elif other not in cycle:
                by_gate[gate] = _UNFINISHED
            elif named is None:
                named = self._way(other, one.job, job, cycle)
                by_gate[gate] = Standing(DependencyStatus.CYCLE, named)
            else:
                by_gate[gate] = _CYCLE
        return by_gate

    def _keep(self, name: JobName, job: JobFound | None) -> None:
        gates = job.gates if job is not None and job.outcome is None else ()
        waits_for: dict[JobName, str] = {}
        for one in parsed(gates).values():
            waits_for.setdefault(JobName.of(one.kind, name.namespace, one.name), one.job)
        for other in self._waits_for.pop(name, {}):
            del self._dependents[other][name]
            if not self._dependents[other]:
                del self._dependents[other]
        for other in waits_for:
            self._dependents.setdefault(other, {})[name] = None
        if waits_for:
            self._waits_for[name] = waits_for
        if job is not None:
            self._jobs[name] = job
        else:
            self._jobs.pop(name, None)

    def _find_cycles(self, begun: Iterable[JobName]) -> set[JobName]:
        """Search from these jobs. Returns the jobs that are in a cycle now and were not, or the other way round.

        A new cycle has a job with a new edge. A job can leave a cycle only if one of its jobs lost an edge: all of them are searched.
        """
        affected: set[JobName] = set()
        possible = [name for name in begun if name in self._cycles or name in self._dependents]
        for component in _components(possible, lambda name: self._waits_for.get(name, ())):
            first = component[0]
            if len(component) == 1 and first not in self._waits_for.get(first, ()):
                if self._cycles.pop(first, None) is not None:
                    affected.add(first)
                continue
            cycle = frozenset(component)
            if cycle != self._cycles.get(first):
                affected.update(name for name in component if name not in self._cycles)
                self._cycles.update(dict.fromkeys(component, cycle))
        return affected

    def _way(
        self, first: JobName, written: str, target: JobName, cycle: frozenset[JobName]
    ) -> tuple[str, ...]:
        """The shortest way in a cycle from a job, which a user wrote so, to another one; empty if it is too long to be named."""
        ways: dict[JobName, tuple[str, ...]] = {first: (written,)}
        steps = 0
        for job in (queue := [first]):
            if job == target:
                return ways[job]
            if len(ways[job]) == _NAMED or steps > _STEPS:
                break
            for other, text in self._waits_for[job].items():
                steps += 1
                if other in cycle and other not in ways:
                    ways[other] = (*ways[job], text)
                    queue.append(other)
        return ()


def _components(
    begun: Iterable[JobName], targets: Callable[[JobName], Iterable[JobName]]
) -> Iterator[list[JobName]]:
    """The strongly connected components that can be reached from these jobs.

    One depth-first search with two stacks: H. N. Gabow, Path-based depth-first search for strong and biconnected components, 2000.
    """
    numbers: dict[JobName, int] = {}
    placed: set[JobName] = set()  # in a component that is complete
    path: list[JobName] = []  # visited and not placed
    heads: list[
        JobName
    ] = []  # the first jobs of the components on the way, as far as they are known
    walk: list[tuple[JobName, Iterator[JobName]]] = []

    def enter(name: JobName) -> None:
        numbers[name] = len(numbers)
        path.append(name)
        heads.append(name)
        walk.append((name, iter(targets(name))))

    for root in begun:
        if root not in numbers:
            enter(root)
        while walk:
            name, left = walk[-1]
            for target in left:
                if target not in numbers:
                    enter(target)
                    break
                if target not in placed:
                    while numbers[heads[-1]] > numbers[target]:
                        heads.pop()
            else:
                walk.pop()
                if heads[-1] == name:
                    heads.pop()
                    at = _rindex(path, name)
                    component = path[at:]
                    del path[at:]
                    placed.update(component)
                    yield component


def _rindex(path: list[JobName], name: JobName) -> int:
    at = len(path) - 1
    while path[at] != name:
        at -= 1
    return at
