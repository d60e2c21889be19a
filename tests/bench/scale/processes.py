"""Processor time and memory of the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tests.bench.stage import cpu_of, peak_of, private_of, resident_of


@dataclass(frozen=True, slots=True)
class Usage:
    """Of each program, up to now: CPU seconds, resident and peak resident MiB.

    Of a program with several processes, such as Postgres, the memory is the sum of their private memory now: they share the rest.
    """

    cpu: Mapping[str, float]
    memory: Mapping[str, float]
    peak: Mapping[str, float]

    @classmethod
    def of(cls, programs: Mapping[str, Sequence[int]]) -> Self:
        """Read the processes of each program."""
        return cls(
            {name: sum(map(cpu_of, pids)) for name, pids in programs.items()},
            {name: _memory(pids, resident_of) for name, pids in programs.items()},
            {name: _memory(pids, peak_of) for name, pids in programs.items()},
        )

    def cpu_since(self, before: Usage) -> dict[str, float]:
        """CPU seconds of each program between two readings."""
        return {name: seconds - before.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}


def _memory(pids: Sequence[int], measure: Callable[[int], float]) -> float:
    return measure(pids[0]) if len(pids) == 1 else sum(map(private_of, pids))
