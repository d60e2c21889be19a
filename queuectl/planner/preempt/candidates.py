"""Running gangs as arrays: what each holds of which node, what it is charged and what its eviction costs.

*GangArrays* are any gangs that run. Arrays of some gangs can be joined to those of more gangs, and some of them taken in another order,
without reading each gang, so that a plan carries them over from the plan before. A *CandidateTable* is the part of them that one preemptor may
evict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from queuectl.domain.plan import Cost
from queuectl.domain.snapshot import Admitted
from queuectl.planner.preempt.cost import Ages, Sizes, ages_of, cost_of, sizes_of
from queuectl.planner.preempt.shortage import Charges
from queuectl.planner.problem.fleet import Ints, Mask
from queuectl.planner.problem.problem import Floats, Problem
from queuectl.planner.quota import QuotaRow


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Use of nodes by gangs: gang index (K,), node index (K,), amounts (R, K); each pair once, by gang."""

    gang: Ints
    node: Ints
    use: Ints

    def select(self, mask: Mask) -> Rows:
        return Rows(self.gang[mask], self.node[mask], self.use[:, mask])

    def join(self, more: Rows, size: int) -> Rows:
        """Those of both. ``size``: the number of the first gang of ``more``."""
        return Rows(
            np.concatenate([self.gang, more.gang + size]),
            np.concatenate([self.node, more.node]),
            np.concatenate([self.use, more.use], axis=1),
        )

    def take(self, number: Ints) -> Rows:
        """Those of some gangs. ``number``: the new number of each gang, -1 for one that is left out."""
        gang = number[self.gang]
        order = _by(gang)
        return Rows(gang[order], self.node[order], self.use[:, order])

    def sums(self, nodes: int) -> Ints:
        """Their use of each of ``nodes`` nodes, (R, N)."""
        return _sums(self.use, self.node, nodes)


def _sums(amounts: Ints, at: Ints, size: int) -> Ints:
    """The sums of the amounts (R, .) at each of ``size`` indexes, (R, size)."""
    sums = np.zeros((len(amounts), size), dtype=np.int64)
    for into, row in zip(sums, amounts, strict=True):
        np.add.at(into, at, row)
    return sums


def _by(numbers: Ints) -> Ints:
    """Where the numbers that are not negative stand, least first; those that are equal stay in their order."""
    some = np.flatnonzero(numbers >= 0)
    return some[np.argsort(numbers[some], kind="stable")]


@dataclass(frozen=True, eq=False)
class QuotaCharges(Mapping[QuotaRow, Ints]):
    """The charges of C gangs: each quota row that any of them is charged for, and the amount of each gang, of shape (C,).

    Attributes:
        numbers: of the quota rows, also of some that no gang is charged for.
        row: of a charge: the number of its quota row, in ascending order. Shape (K,).
        gang: the index of its gang. Shape (K,). A gang occurs once in each quota row.
        amount: Shape (K,).
        size: C.
    """

    numbers: dict[QuotaRow, int]
    row: Ints
    gang: Ints
    amount: Ints
    size: int
    _made: dict[QuotaRow, Ints] = field(default_factory=dict, init=False)

    @cached_property
    def _parts(self) -> dict[QuotaRow, slice]:
        """Where the charges of each quota row stand."""
        bounds = np.searchsorted(self.row, np.arange(len(self.numbers) + 1)).tolist()
        parts = {row: slice(bounds[at], bounds[at + 1]) for row, at in self.numbers.items()}
        return {row: part for row, part in parts.items() if part.start < part.stop}

    def __getitem__(self, row: QuotaRow) -> Ints:
        if row not in self._made:
            part = self._parts[row]
            amounts = np.zeros(self.size, dtype=np.int64)
            amounts[self.gang[part]] = self.amount[part]
            self._made[row] = amounts
        return self._made[row]

    def __iter__(self) -> Iterator[QuotaRow]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def join(self, more: QuotaCharges) -> QuotaCharges:
        """Those of both; the gangs of ``more`` follow."""
        numbers = dict(self.numbers)
        known = [numbers.setdefault(row, len(numbers)) for row in more.numbers]
        row = np.concatenate([self.row, np.array(known, dtype=np.int64)[more.row]])
        gang = np.concatenate([self.gang, more.gang + self.size])
        amount = np.concatenate([self.amount, more.amount])
        order = _by(row)
        size = self.size + more.size
        return QuotaCharges(numbers, row[order], gang[order], amount[order], size)

    def take(self, number: Ints, size: int) -> QuotaCharges:
        """Those of some gangs, so many. ``number``: the new number of each gang, -1 for one that is left out."""
        gang = number[self.gang]
        some = gang >= 0
        return QuotaCharges(self.numbers, self.row[some], gang[some], self.amount[some], size)

    def charged(self) -> Iterator[tuple[QuotaRow, Ints]]:
        """The gangs that are charged for each quota row."""
        for row, part in self._parts.items():
            yield row, self.gang[part]

    def of_gangs(self) -> Charges:
        """The charges of each gang, by quota row."""
        charges: list[list[tuple[QuotaRow, int]]] = [[] for _ in range(self.size)]
        for row, part in sorted(self._parts.items()):
            gangs, amounts = self.gang[part].tolist(), self.amount[part].tolist()
            for gang, amount in zip(gangs, amounts, strict=True):
                charges[gang].append((row, amount))
        return dict(enumerate(map(tuple, charges)))


_TABLES: Final = 16  # of the last gangs that wait


@dataclass(frozen=True, eq=False, slots=True)
class GangArrays:
    """Some gangs that run, by priority, then from the newest to the oldest. Shape (C,), C gangs.

    Attributes:
        quota: what each is charged.
    """

    gangs: tuple[Admitted, ...]
    priority: Ints
    queued_at: Floats
    ages: Ages
    rows: Rows
    quota: QuotaCharges
    sizes: Sizes
    _tables: dict[bytes, CandidateTable] = field(default_factory=dict, kw_only=True)

    def join(self, more: GangArrays) -> GangArrays:
        """These gangs, then more; not in order."""
        return GangArrays(
            self.gangs + more.gangs,
            np.concatenate([self.priority, more.priority]),
            np.concatenate([self.queued_at, more.queued_at]),
            self.ages.join(more.ages),
            self.rows.join(more.rows, len(self.gangs)),
            self.quota.join(more.quota),
            more.sizes,
        )

    def take(self, order: Ints) -> GangArrays:
        """Some of the gangs, by index, in this order."""
        number = np.full(len(self.gangs), -1, dtype=np.int64)
        number[order] = np.arange(len(order))
        return GangArrays(
            tuple(map(self.gangs.__getitem__, order.tolist())),
            self.priority[order],
            self.queued_at[order],
            self.ages.take(order),
            self.rows.take(number),
            self.quota.take(number, len(order)),
            self.sizes,
        )

    def table(self, chosen: Mask, now: float) -> CandidateTable:
        """Those of them that one gang may evict, in the same order. Gangs that wait alike may evict the same, so the last ones are kept."""
        key = chosen.tobytes()
        if key not in self._tables:
            if len(self._tables) == _TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = self._table(chosen, now)
        return self._tables[key]

    def _table(self, chosen: Mask, now: float) -> CandidateTable:
        part = self.take(np.flatnonzero(chosen))
        rank = np.unique(part.priority, return_inverse=True)[1].astype(np.int64) + 1
        return CandidateTable(
            part.gangs,
            rank,
            part.ages.lost_work(now),
            part.ages.known_starts(now),
            part.rows,
            part.quota,
            self.sizes,
        )


@dataclass(frozen=True, eq=False)
class CandidateTable:
    """The gangs one preemptor may evict, C of them, numbered by priority, then from the newest to the oldest.

    Attributes:
        gangs: the gangs themselves.
        rank: position of a gang's priority among the distinct ones present, lowest first, from 1. Shape (C,).
        lost: GPU-seconds each would lose. Shape (C,).
        starts: when each started (unix seconds), to decide between equal losses; minus infinity where the loss is a guess. Shape (C,).
        rows: what each holds of which node.
        quota: what each frees of which quota row.
    """

    gangs: tuple[Admitted, ...]
    rank: Ints
    lost: Ints
    starts: Floats
    rows: Rows
    quota: QuotaCharges
    sizes: Sizes

    @property
    def size(self) -> int:
        return len(self.gangs)

    @cached_property
    def charges(self) -> Charges:
        """The charge of each gang."""
        return self.quota.of_gangs()

    def cost(self, at: int) -> Cost:
        return cost_of(self.gangs[at], int(self.lost[at]), self.sizes)

    def freed(self, nodes: int, chosen: Mask | None = None) -> Ints:
        """(R, N) freed on each of ``nodes`` nodes when the chosen gangs (all of them by default) leave."""
        rows = self.rows if chosen is None else self.rows.select(chosen[self.rows.gang])
        return rows.sums(nodes)

    def lowest(self, rank: int) -> CandidateTable:
        """The gangs up to a rank; they keep their numbers."""
        size = int(np.searchsorted(self.rank, rank, side="right"))
        if size == self.size:
            return self
        number = np.arange(self.size)
        number[size:] = -1
        return CandidateTable(
            self.gangs[:size],
            self.rank[:size],
            self.lost[:size],
            self.starts[:size],
            self.rows.take(number),
            self.quota.take(number, size),
            self.sizes,
        )

    def mask(self, victims: Iterable[int]) -> Mask:
        chosen = np.zeros(self.size, dtype=np.bool_)
        chosen[list(victims)] = True
        return chosen


# Make them from records.


def by_priority(gang: Admitted) -> tuple[int, float, str]:
    """The order of gangs in arrays."""
    return gang.workload.priority, -gang.started_at, gang.workload.uid


def arrays_of(problem: Problem, gangs: Iterable[Admitted]) -> GangArrays:
    """Collect what some gangs hold and are charged."""
    ordered = sorted(gangs, key=by_priority)
    sizes = sizes_of(problem.snapshot, problem.cache)
    return GangArrays(
        tuple(ordered),
        np.array([gang.workload.priority for gang in ordered], dtype=np.int64),
        np.array([gang.workload.queued_at for gang in ordered], dtype=np.float64),
        ages_of(ordered, sizes),
        _rows_of(problem, ordered),
        _charges_of(problem, ordered),
        sizes,
    )


def table_of(problem: Problem, gangs: Iterable[Admitted]) -> CandidateTable:
    """All of some gangs as candidates, whatever protects them."""
    arrays = arrays_of(problem, gangs)
    return arrays.table(np.ones(len(arrays.gangs), dtype=np.bool_), problem.snapshot.now)


def _charges_of(problem: Problem, gangs: Sequence[Admitted]) -> QuotaCharges:
    """The charges of some gangs."""
    numbers: dict[QuotaRow, int] = {}
    charged = [
        (numbers.setdefault(row, len(numbers)), i, amount)
        for i, gang in enumerate(gangs)
        for row, amount in problem.usage.charges(gang)
    ]
    rows, at, amounts = np.array(charged, dtype=np.int64).reshape(-1, 3).T
    size = max(len(gangs), 1)
    pairs, (sums,) = _summed(rows * size + at, amounts[np.newaxis])
    some = sums != 0
    return QuotaCharges(numbers, pairs[some] // size, pairs[some] % size, sums[some], len(gangs))


def _rows_of(problem: Problem, gangs: Sequence[Admitted]) -> Rows:
    """Use of nodes by some gangs."""
    slots = [problem.use_of(gang) for gang in gangs]
    pods = np.array([len(nodes) for nodes, _ in slots], dtype=np.int64)
    owner = np.repeat(np.arange(len(gangs)), pods)
    nowhere = np.zeros(0, dtype=np.int64)
    nothing = np.zeros((len(problem.resources), 0), dtype=np.int64)
    nodes = np.concatenate([nowhere, *(nodes for nodes, _ in slots)])
    amounts = np.concatenate([nothing, *(amounts for _, amounts in slots)], axis=1)
    size = max(problem.size, 1)
    pairs, use = _summed(owner * size + nodes, amounts)
    return Rows(pairs // size, pairs % size, use)


def _summed(keys: Ints, amounts: Ints) -> tuple[Ints, Ints]:
    """The distinct keys (K,), in order, and the sums of the amounts (R, .) of each, (R, K)."""
    distinct, at = np.unique(keys, return_inverse=True)
    return distinct, _sums(amounts, at, len(distinct))
