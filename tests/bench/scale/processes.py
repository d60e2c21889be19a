"""CPU time and memory of the processes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from tests.bench.stage import cpu_of, peak_of, private_of


@dataclass(frozen=True, slots=True)
class Usage:
    """Of each program, up to now: CPU seconds and peak resident MiB, and of some how often they were started again.

    Of a program with several processes, such as Postgres, the memory is the sum of their private memory now: they share the rest.
    """

    cpu: Mapping[str, float]
    peak: Mapping[str, float]
    restarts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, programs: Mapping[str, Sequence[int]]) -> Self:
        """Read the processes of each program."""
        return cls(
            {name: sum(map(cpu_of, pids)) for name, pids in programs.items()},
            {name: _peak(pids) for name, pids in programs.items()},
        )

    def __or__(self, other: Usage) -> Usage:
        """Of the programs of both."""
        return Usage(
            {**self.cpu, **other.cpu},
            {**self.peak, **other.peak},
            {**self.restarts, **other.restarts},
        )

    def cpu_since(self, before: Usage) -> dict[str, float]:
        """CPU seconds of each program between two readings."""
        return {name: seconds - before.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}


def _peak(pids: Sequence[int]) -> float:
    return peak_of(pids[0]) if len(pids) == 1 else sum(map(private_of, pids))
