"""Processor time and memory of the processes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tests.bench.stage import cpu_of, peak_of, resident_of


@dataclass(frozen=True, slots=True)
class Usage:
    """Of each program, up to now: CPU seconds, and resident and peak resident MiB, summed over its processes."""

    cpu: Mapping[str, float]
    memory: Mapping[str, float]
    peak: Mapping[str, float]

    @classmethod
    def of(cls, programs: Mapping[str, Sequence[int]]) -> Self:
        """Read the processes of each program."""
        return cls(
            {name: sum(map(cpu_of, pids)) for name, pids in programs.items()},
            {name: sum(map(resident_of, pids)) for name, pids in programs.items()},
            {name: sum(map(peak_of, pids)) for name, pids in programs.items()},
        )

    def cpu_since(self, before: Usage) -> dict[str, float]:
        """CPU seconds of each program between two readings."""
        return {name: seconds - before.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}
