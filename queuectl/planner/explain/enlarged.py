"""The arena of a snapshot after nodes were added to it, from the arena before: what a survey would find, in a tenth of the time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from queuectl.domain.snapshot import Snapshot
from queuectl.planner.problem.problem import Problem
from queuectl.planner.problem.topology import Ints
from queuectl.planner.problem.usage import Entry, Usage


class _Renumbered(Mapping[int, Entry]):
    """Gangs as counted, with the new numbers of their nodes; few of them are looked up."""

    def __init__(self, entries: Mapping[int, Entry], number: Ints) -> None:
        self._entries = entries
        self._number = number

    def __getitem__(self, key: int) -> Entry:
        entry = self._entries[key]
        nodes, amounts = entry.slots
        return replace(entry, slots=(self._number[nodes], amounts))

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def enlarged(problem: Problem, snapshot: Snapshot) -> Problem:
    """The arena of ``snapshot``, which has the nodes and the running gangs of ``problem`` and a few empty nodes more."""
    index = problem.index.with_more(snapshot.fleet)
    old = np.array([index.position[node.name] for node in problem.index.nodes], dtype=np.int64)

    def wider(matrix: Ints) -> Ints:
        wide = index.allocatable.copy()
        wide[:, old] = matrix
        return wide

    def both(now: Ints, later: Ints) -> tuple[Ints, Ints]:
        wide = wider(now)
        return wide, wide if later is now else wider(later)

    free, once_left = both(problem.usage.free, problem.usage.later)
    entries = _Renumbered(problem.usage.entries, old)
    usage: Usage = replace(problem.usage, entries=entries, free=free, later=once_left)
    return Problem(snapshot, index, usage, *both(problem.now, problem.later), problem.cache)
