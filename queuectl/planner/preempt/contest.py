"""What a blocked gang lacks of quota, on its own side of the cohort tree, and how exits make up for it.

Let u(X) be what a pool uses and over(X) the part of it that is passed up, beyond what its lending limit keeps to itself.
Along the pools from the gang's ClusterQueue to the root, with all of the gang's charge counted in,

    asked(0) = charge + u(0),   asked(i+1) = asked(i) - kept(i) + sum of over(X), X the other members of pool i+1

must stay within what pool i may use at most. That is what :meth:`QuotaUse.fits` says, written so that the use of others
stands in it as a sum. Who leaves the gang's own queue lowers every line by what he used; who leaves another queue lowers
over() of all pools from there up to where the two sides meet, but no further than to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from queuectl.planner.capacity.state import State
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.roster import Bench
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.problem.topology import Ints
from queuectl.planner.quota.tree import FlavorResource, Pool, QuotaRow, QuotaUse

Deficits: TypeAlias = list[
    tuple[int, Ints]
]  # what must come free, and what each gang frees of it at most
Charges: TypeAlias = Mapping[
    int, tuple[tuple[QuotaRow, int], ...]
]  # gang of a bench to what it is charged
_Terms: TypeAlias = dict[int, int]  # variable to coefficient


@dataclass(frozen=True, slots=True)
class Shortage:
    """By ``amount`` the pool at ``level`` of the gang's path is asked for more of ``row`` than it may use."""

    row: FlavorResource
    amount: int
    level: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where another ClusterQueue meets the gang's side of the tree.

    Attributes:
        level: index in the gang's path of the lowest pool that both are in.
        below: the other's pools from its queue up to below that one.
    """

    level: int
    below: tuple[Pool, ...]

    @property
    def top(self) -> Pool:
        """The member of the common pool that the other queue is in."""
        return self.below[-1]


@dataclass(frozen=True, eq=False, slots=True)
class Contest:
    """One gang under one choice of flavors, against what others use.

    Attributes:
        use: what is used once everything leaving has left.
        path: the pools from the gang's ClusterQueue to the root; empty for a gang that has none.
        needs: what it is charged; of contested rows that it is not charged for, 0.
        borrows: whether it may use more than the nominal quota of its ClusterQueue.
        rows: flavors and resources it contends for: those it is short of, and all that its pods on nodes use.
    """

    use: QuotaUse
    path: tuple[Pool, ...]
    needs: Mapping[FlavorResource, int]
    rows: frozenset[FlavorResource]
    borrows: bool = True
    _meetings: dict[str, Meeting | None] = field(default_factory=dict)
    _known: dict[str, bool] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return self.path[0].name

    def used(self, pool: Pool, row: FlavorResource) -> int:
        return self.use.used.get(pool, {}).get(row, 0)

    def over(self, pool: Pool, row: FlavorResource) -> int:
        """What a pool passes up now."""
        return pool.passed_up(row, self.used(pool, row))

    def beyond(self, pool: Pool, row: FlavorResource) -> int:
        """What a pool uses beyond its own quota and what its members lend; 0 or less = nothing."""
        return self.used(pool, row) - pool.subtree.get(row, 0)

    def meeting(self, queue: str) -> Meeting | None:
        """Where another queue meets the gang's side; None for its own and for those that share nothing with it."""
        if queue not in self._meetings:
            self._meetings[queue] = self._meet(queue)
        return self._meetings[queue]

    def _meet(self, queue: str) -> Meeting | None:
        pool: Pool | None = self.use.pools.get(queue)
        below = []
        while pool is not None and pool not in self.path:
            below.append(pool)
            pool = pool.parent
        return Meeting(self.path.index(pool), tuple(below)) if pool is not None and below else None

    @property
    def kept(self) -> bool:
        """Whether lending limits of others keep part of what the gang is short of, so that :meth:`deficits` promise too much."""
        if "kept" not in self._known:
            self._known["kept"] = any(
                _keeps(other, short.row)
                for short in self.shortages()
                for pool in self.path[1 : short.level + 1]
                for other in pool.members
                if other not in self.path
            )
        return self._known["kept"]

    def shortages(self) -> Iterator[Shortage]:
        """Where on its path the gang asks for more than there may be."""
        for row, need in self.needs.items():
            if not need:
                continue
            asked = need + self.used(self.path[0], row)
            for level, pool in enumerate(self.path):
                most = self._most(pool, row)
                if most is not None and asked > most:
                    yield Shortage(row, asked - most, level)
                if pool.parent is not None:
                    others = self.used(pool.parent, row) - self.over(pool, row)
                    asked += others - pool.local.get(row, 0)

    def _most(self, pool: Pool, row: FlavorResource) -> int | None:
        """What may be used of a pool; None where only those above it limit it."""
        if pool.parent is None or (pool is self.path[0] and not self.borrows):
            return pool.subtree.get(row, 0)
        limit = pool.borrowing.get(row)
        return None if limit is None else pool.subtree.get(row, 0) + limit

    def deficits(self, bench: Bench) -> Deficits:
        """The shortages with what each gang could make up of them at most; exact but for what :meth:`exactly` adds."""
        by_row: dict[FlavorResource, list[tuple[str, Ints]]] = {}
        for (queue, *row), amounts in bench.quota.items():
            by_row.setdefault((row[0], row[1]), []).append((queue, amounts))
        found: dict[tuple[FlavorResource, tuple[str, ...]], tuple[int, Ints]] = {}
        for short in self.shortages():
            frees = np.zeros(bench.size, dtype=np.int64)
            helpers = []
            for queue, amounts in by_row.get(short.row, ()):
                most = self.makes_up(queue, short)
                if most is None or most > 0:
                    frees += amounts if most is None else np.minimum(amounts, most)
                    helpers.append(queue)
            key = (short.row, tuple(helpers))
            if key not in found or found[key][0] < short.amount:
                found[key] = (short.amount, frees)
        return list(found.values())

    def makes_up(self, queue: str, short: Shortage) -> int | None:
        """The most of a shortage that all exits from one queue make up; None = all that leaves it."""
        if queue == self.queue:
            return None
        meeting = self.meeting(queue)
        if meeting is None or meeting.level > short.level:
            return 0
        if all(pool.local.get(short.row, 0) == 0 for pool in meeting.below):
            return None
        return min(self.over(pool, short.row) for pool in meeting.below)

    def met_without(self, victims: Iterable[int], charges: Charges) -> bool:
        """Whether the gang has its quota once these have left: exact."""
        rows = [charge for victim in victims for charge in charges[victim]]
        with self.use.hypothetically(rows, -1):
            return self.use.fits(self.queue, self.needs, borrows=self.borrows)

    def exactly(self, building: VictimModel) -> None:
        """Rows for what lending limits keep: the deficits count it as free for others, though it never was."""
        for short in self.shortages():
            members = [
                (pool, other)
                for pool in self.path[1 : short.level + 1]
                for other in pool.members
                if other not in self.path
            ]
            if not any(_keeps(other, short.row) for _, other in members):
                continue
            own = _Over(self, building, short.row)
            sums, constant = own.uses(self.path[0])
            total, now = dict(sums), self.used(self.path[0], short.row)
            for _, other in members:
                parts, fixed = own.passes(other)
                _add(total, parts)
                constant += fixed
                now += self.over(other, short.row)
            most = now - short.amount - constant
            building.model.at_most(list(total), list(total.values()), most)


@dataclass(frozen=True, slots=True)
class _Over:
    """What pools use and pass up of one row, as sums of a model's variables."""

    contest: Contest
    building: VictimModel
    row: FlavorResource

    def uses(self, pool: Pool) -> tuple[_Terms, int]:
        if self.contest.use.pools.get(pool.name) is not pool:
            sums: _Terms = {}
            constant = self.contest.used(pool, self.row)
            for member in pool.members:
                constant -= self.contest.over(member, self.row)
                parts, fixed = self.passes(member)
                _add(sums, parts)
                constant += fixed
            return sums, constant
        building = self.building
        amounts = building.bench.quota.get((pool.name, *self.row))
        if amounts is None:
            return {}, self.contest.used(pool, self.row)
        sums = {building.of[g]: -int(amounts[g]) for g in building.gangs if amounts[g]}
        return sums, self.contest.used(pool, self.row)

    def passes(self, pool: Pool) -> tuple[_Terms, int]:
        kept = pool.local.get(self.row, 0)
        sums, constant = self.uses(pool)
        if not sums:
            return {}, pool.passed_up(self.row, constant)
        if not kept:
            return sums, constant
        over = self.building.model.var(0, self.contest.over(pool, self.row))
        self.building.model.at_most([*sums, over], [*sums.values(), -1], kept - constant)
        return {over: 1}, 0


def _add(sums: _Terms, more: Mapping[int, int]) -> None:
    for variable, coeff in more.items():
        sums[variable] = sums.get(variable, 0) + coeff


def _keeps(pool: Pool, row: FlavorResource) -> bool:
    """Whether a lending limit at or below a pool keeps some of a row."""
    return pool.local.get(row, 0) > 0 or any(_keeps(member, row) for member in pool.members)


def contest_of(state: State, request: GangRequest, queue: str) -> Contest:
    """What a demand contends for, with a ClusterQueue's name to be used where it is charged nothing (a repair)."""
    use = state.later.quota
    pool = use.pools.get(queue)
    path = pool.path if pool is not None else ()
    needs = dict(request.charges) if request.queue is not None else {}
    borrows = state.may_borrow(request)
    rows = {row for row, _ in use.short(queue, needs, borrows=borrows)} if path else set()
    for pods in request.pods:
        rows |= {(flavor, resource) for resource, flavor in request.flavors[pods.podset].items()}
    asked = dict.fromkeys(sorted(rows), 0) | needs
    return Contest(use, path, asked, frozenset(rows), borrows)
