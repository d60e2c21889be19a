"""Use of nodes and quota by running gangs, carried from one plan to the next.

Thousands of gangs run, and few of them change between two plans. The sums are exact integers, so adding and removing gangs gives the same
numbers as counting afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from queuectl.domain.snapshot import Admitted
from queuectl.domain.workload import Placement, Workload
from queuectl.planner.verify.cohorts import Row, add_rows

Use: TypeAlias = dict[str, dict[str, int]]  # node name -> resource -> amount
Charges: TypeAlias = tuple[tuple[Row, int], ...]  # amounts by row of quota


def add_use(
    use: Use,
    workload: Workload,
    placement: Placement,
    on: Container[str] | None = None,
    sign: int = 1,
) -> None:
    """Add what a gang uses on a placement; with ``sign`` -1, take it off. ``on``: only on these nodes."""
    for podset in workload.podsets:
        placed = placement.of(podset.name)
        for name, count in placed.nodes if placed is not None else ():
            if on is not None and name not in on:
                continue
            row = use.setdefault(name, {})
            for resource, amount in podset.shape.requests.items():
                row[resource] = row.get(resource, 0) + sign * amount * count


class ChargedGang(NamedTuple):
    """One gang as counted. It keeps the gang alive, so that its id names it for as long as the entry exists."""

    gang: Admitted
    charges: Charges


@dataclass(frozen=True)
class RunningUse:
    """Sums over running gangs, including those that are leaving.

    Attributes:
        has_nodes: whether the cluster has nodes. Without nodes, gangs are charged for all their pods.
        gangs: by id of the object.
        quota: amounts by row.
        nodes: amounts by node and resource; not of nodes on which no gang runs.
    """

    has_nodes: bool
    gangs: Mapping[int, ChargedGang] = field(default_factory=dict)
    quota: Mapping[Row, int] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def followed_by(
        self, running: Iterable[Admitted], charges: Callable[[Admitted], Charges]
    ) -> RunningUse:
        """The sums over other gangs. ``charges``: of one that was not counted with the same workload and placement."""
        current = {id(gang): gang for gang in running}
        gone = [self.gangs[key] for key in self.gangs.keys() - current.keys()]
        new = [current[key] for key in current.keys() - self.gangs.keys()]
        if not gone and not new:
            return self
        left = {_parts(one.gang): one for one in gone}
        gangs = dict(self.gangs)
        for one in gone:
            del gangs[id(one.gang)]
        change = _Change(dict(self.quota), dict(self.nodes))
        for gang in new:
            same = left.pop(_parts(gang), None)
            counted = ChargedGang(gang, charges(gang) if same is None else same.charges)
            gangs[id(gang)] = counted
            if same is None:
                change.add(counted, 1)
        for one in left.values():
            change.add(one, -1)
        return RunningUse(self.has_nodes, gangs, change.quota, change.used())


def _parts(gang: Admitted) -> tuple[int, int]:
    """The fields on which its use depends: a new record of it with another utilization is not counted again."""
    return id(gang.workload), id(gang.placement)


class _Change:
    """New sums. The rows of nodes that do not change stay those of the sums before."""

    def __init__(self, quota: dict[Row, int], nodes: dict[str, Mapping[str, int]]) -> None:
        self.quota = quota
        self._nodes = nodes
        self._changed: Use = {}

    def add(self, counted: ChargedGang, sign: int) -> None:
        gang = counted.gang
        add_rows(self.quota, counted.charges, sign)
        for placed in gang.placement.podsets:
            for name, _ in placed.nodes:
                if name not in self._changed:
                    self._changed[name] = dict(self._nodes.get(name, {}))
        add_use(self._changed, gang.workload, gang.placement, sign=sign)

    def used(self) -> Mapping[str, Mapping[str, int]]:
        for name, row in self._changed.items():
            if any(row.values()):
                self._nodes[name] = row
            else:
                self._nodes.pop(name, None)
        return self._nodes


@dataclass
class KnownUse:
    """The use at the last plan under one configuration.

    Another thread can verify a plan at the same time. Each of them replaces the sums as a whole, so they are those of one plan.
    """

    last: RunningUse | None = None

    def of(
        self,
        running: Iterable[Admitted],
        charges: Callable[[Admitted], Charges],
        *,
        has_nodes: bool,
    ) -> RunningUse:
        """The use by running gangs of a plan."""
        last = self.last
        if last is None or last.has_nodes is not has_nodes:
            last = RunningUse(has_nodes)
        self.last = followed = last.followed_by(running, charges)
        return followed
