"""The order in which pods are added to elastic gangs: a pod waits while one of a lower rank of its gang is not added."""

from __future__ import annotations

from dataclasses import dataclass, field

from queuectl.domain.workload import Workload


@dataclass(slots=True)
class ElasticRanks:
    """The pods of elastic gangs that a cycle has decided and that do not start.

    Attributes:
        refused: by uid of an elastic gang, the pod of the lowest rank that is not added to it.
        held: by uid of an elastic gang, the pod of the lowest rank that is held for its admission checks.
    """

    refused: dict[str, Workload] = field(default_factory=dict)
    held: dict[str, Workload] = field(default_factory=dict)

    def refused_before(self, workload: Workload) -> Workload | None:
        """The pod of a lower rank that is refused; None for gangs that extend no other."""
        return _lower(workload, self.refused)

    def held_before(self, workload: Workload) -> Workload | None:
        """The pod of a lower rank that is held."""
        return _lower(workload, self.held)

    def refuse(self, workload: Workload) -> None:
        """Note a pod that does not start."""
        if workload.growth is not None:
            first = self.refused.setdefault(workload.growth.base, workload)
            if _rank(workload) < _rank(first):
                self.refused[workload.growth.base] = workload

    def admit(self, workload: Workload, *, held: bool) -> None:
        """Note a pod that starts, or is held."""
        if workload.growth is None:
            return
        if self.refused.get(workload.growth.base) == workload:
            del self.refused[workload.growth.base]
        if held:
            self.held.setdefault(workload.growth.base, workload)


def _lower(workload: Workload, among: dict[str, Workload]) -> Workload | None:
    lower = among.get(workload.growth.base) if workload.growth is not None else None
    return lower if lower is not None and _rank(lower) < _rank(workload) else None


def _rank(workload: Workload) -> int:
    return workload.growth.rank if workload.growth is not None else -1
