"""Whether some victims may all be evicted: there must be an order in which each exit is one that Kueue's rules allow.

A gang of another ClusterQueue is a legal victim only while its queue, and every cohort below the one that both sides share, uses
more than its own. Exits make that use smaller, so what counts is the last one below each pool: without all the others the
pool must still be over. Two pools, one in the other, that both have victims agree on it: the gang that is last below the outer one is
last below the inner one that it is in. A set of victims is legal if every pool finds its last victim; a
part of such a set is one as well, and every order that puts the last ones last, innermost pools first, does.

The two rules about which candidates can be evicted together: by the borrowing of their ClusterQueues, and by fair shares.

By the first (:class:`Reclaim`), each ClusterQueue of a victim uses more than its own until its last victim leaves. By the second
(:class:`Fair`), there is an order in which each exit passes a strategy. Shares are compared at the two members of the
lowest common pool, one with the preemptor below it (its request counted in), one with the victim. By ``LessThanOrEqualToFinalShare``
the preemptor's share is at most what the victim's is after the exit; by ``LessThanInitialShare`` it is less than what that is before.
And the victim's queue, and every pool up to the common one, must borrow something until then. A preemptor whose queue stays within its nominal quota needs no comparison.

Exits on the preemptor's side make its share smaller, so they go first, the nearest before the farther. On the victims' side
exits make the share smaller; by the first strategy only the share after all of them counts, by the second the one before
the last. Where both are in force the second comes after the first, once for each ClusterQueue, as in Kueue.

By the second strategy a side may end with the smaller share, and then it could take the place back. So where a gang leaves
by it, no gang of that side can be one that would: with it in its queue again, and without the gangs there that yield to it
(:mod:`queuectl.planner.preempt.returning`), its share must not be smaller than the preemptor's. Kueue does not ask this, and its
evictions can repeat indefinitely.

A gang that yields for being idle may leave at any time, whatever shares say: on the preemptor's side with the others, and on the
victims' side after all whose share is compared, so that no other exit fails by theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product
from math import inf
from typing import Final, Protocol, TypeAlias

import numpy as np

from queuectl.domain.rules import FairStrategy
from queuectl.planner.preempt.candidates import CandidateTable
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.returning import Place, Returning, place_of
from queuectl.planner.preempt.shortage import CommonPool, QuotaShortfall
from queuectl.planner.quota import FlavorResource, QuotaNode, QuotaUse, share_of

# Of the gangs that leave, the sum of coefficients is at most the bound: what every legal set obeys.
Cut: TypeAlias = tuple[dict[int, int], int]
Rank: TypeAlias = tuple[bool, Fraction]
_LAST_ASKED: Final = 8  # sets of victims below one member, whose answers are kept
_SPLITS: Final = 512  # sets of victims that could leave by the second strategy
_LOWEST: Final[Place] = (-(2**62), -inf)
_HIGHEST: Final[Place] = (2**62, inf)


class CandidateOrder(Protocol):
    """A rule about which candidates can be evicted together.

    Attributes:
        other_queues: the candidates that it is about.
        unordered: those among them that can be evicted whatever the others do.
        certain: it refuses no set that is legal.
        narrowing: a part of a legal set is legal.
    """

    other_queues: OtherQueues
    unordered: frozenset[int]
    certain: bool = True
    narrowing: bool = True

    @abstractmethod
    def allows(
        self, common_pool: CommonPool, theirs: Sequence[int], gone: Collection[int], /
    ) -> bool:
        """Whether all of ``theirs``, below one member of a common pool, can be evicted alongside the rest of ``gone``."""

    @abstractmethod
    def constrain(self, building: VictimModel) -> None:
        """Add rows that legal sets obey; what they leave open, cuts refuse."""

    @abstractmethod
    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Rows that exclude an illegal set, and no legal one."""

    def legal(self, victims: Collection[int]) -> bool:
        """Whether these may all be evicted."""
        return all(
            self.allows(common_pool, theirs, victims)
            for common_pool, theirs in self.other_queues.by_top(victims)
        )

    def joining(self, order: Iterable[int], before: Iterable[int]) -> Iterator[int]:
        """Of gangs that would be evicted one after the other, those that are legal with the ones before."""
        gone = set(before)
        below = {common_pool.top: theirs for common_pool, theirs in self.other_queues.by_top(gone)}
        for gang in order:
            if gang in self.other_queues.owner:
                common_pool = self.other_queues.common_pool(gang)
                theirs = below.setdefault(common_pool.top, [])
                if not self.allows(common_pool, [*theirs, gang], gone):
                    continue
                theirs.append(gang)
            gone.add(gang)
            yield gang

    def core(self, common_pool: CommonPool, illegal: list[int], gone: Collection[int]) -> list[int]:
        """A set that is not allowed without those it is not allowed without; many at once, then ever fewer."""
        core, chunk = illegal, max(1, len(illegal) // 2)
        while True:
            for at in range(0, len(core), chunk):
                fewer = core[:at] + core[at + chunk :]
                if len(fewer) < len(core) and not self.allows(common_pool, fewer, gone):
                    core = fewer
                    break
            else:
                if chunk == 1:
                    return core
                chunk //= 2


@dataclass(eq=False, slots=True)
class OtherQueues:
    """Candidates of other ClusterQueues in the tree, by where their queues meet the gang's side.

    Attributes:
        owner: others gang to the name of its ClusterQueue.
    """

    shortfall: QuotaShortfall
    table: CandidateTable
    returning: Returning
    owner: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        own = self.shortfall.queue
        owners = ((g, rows[0][0][0]) for g, rows in self.table.charges.items() if rows)
        self.owner = {
            g: name for g, name in owners if name != own and self.shortfall.common_pool(name)
        }

    def common_pool(self, gang: int) -> CommonPool:
        common_pool = self.shortfall.common_pool(self.owner[gang])
        assert common_pool is not None, "owners meet the gang's side"
        return common_pool

    def by_top(self, gangs: Iterable[int]) -> list[tuple[CommonPool, list[int]]]:
        """Some gangs by the member of the common pool they are in, the lowest common pool first."""
        found: dict[QuotaNode, tuple[CommonPool, list[int]]] = {}
        for gang in sorted(gangs):
            if gang in self.owner:
                common_pool = self.common_pool(gang)
                found.setdefault(common_pool.top, (common_pool, []))[1].append(gang)
        return sorted(found.values(), key=lambda pair: pair[0].level)

    def below(self, pool: QuotaNode, gangs: Iterable[int]) -> dict[QuotaNode, list[int]]:
        """Gangs somewhere below a pool, by the member of it that they are in; none for a ClusterQueue."""
        found: dict[QuotaNode, list[int]] = {}
        for gang in gangs:
            chain = self.common_pool(gang).below
            at = chain.index(pool)
            if at:
                found.setdefault(chain[at - 1], []).append(gang)
        return found

    def without(
        self, use: QuotaUse, gangs: Iterable[int], sign: int = -1
    ) -> AbstractContextManager[None]:
        """For the time of a ``with`` block some gangs have left, or, with ``sign`` 1, are back."""
        charges = (charge for gang in gangs for charge in self.table.charges[gang])
        return use.hypothetically(charges, sign)

    def with_back(
        self, use: QuotaUse, gone: Collection[int], victim: int, holds: Callable[[], bool]
    ) -> bool:
        """Whether something holds once a victim is back, and the gangs that yield to it in its own ClusterQueue have left.

        Args:
            use: a view in which all of ``gone`` have left.
            gone: the victims that the question is about.
            victim: one of them.
            holds: what is asked of ``use``.
        """
        gangs, charges = self.table.gangs, self.table.charges
        left = ((gangs[g], charges[g]) for g in gone)
        yields = self.returning.yields(gangs[victim], self.owner[victim], left)
        with self.without(use, (victim,), 1), use.hypothetically(yields.items(), -1):
            return holds()

    def stays_out(
        self,
        use: QuotaUse,
        gone: Collection[int],
        victim: int,
        pools: Iterable[QuotaNode],
        *,
        alone: bool = False,
    ) -> bool:
        """Whether a gang that has left would have to borrow to return, in each of some pools: see ``with_back``.

        Only rows count for which the preemptor contends and the victim is charged: the victim requests nothing else.
        ``alone``: no gang yields to it.
        """
        charged = (row[1:] for row, amount in self.table.charges[victim] if amount)
        rows = [row for row in charged if row in self.shortfall.rows]

        def borrows() -> bool:
            return all(any(use.beyond(pool, row) > 0 for row in rows) for pool in pools)

        if not alone:
            return self.with_back(use, gone, victim, borrows)
        with self.without(use, (victim,), 1):
            return borrows()

    def lasts(
        self,
        use: QuotaUse,
        pool: QuotaNode,
        victims: Sequence[int],
        over: Callable[[QuotaNode], bool],
        final: Collection[int] = (),
    ) -> list[int]:
        """Which of some victims below a pool may leave it last; empty = they may not all leave.

        Args:
            use: a view in which none of them has left.
            pool: where to look.
            victims: all victims below it.
            over: whether a pool uses more than its own, by ``use``.
            final: of the victims, those that leave after all others.
        """
        inside = self.below(pool, victims)
        able: list[int] = []
        for member, theirs in inside.items():
            found = self.lasts(use, member, theirs, over, final)
            if not found:
                return []
            able += found
        able = able if inside else list(victims)
        if any(v in final for v in victims):
            able = [v for v in able if v in final]
        lasting: dict[tuple[object, ...], bool] = {}  # by charges: gangs with equal ones are alike
        with self.without(use, victims):
            for victim in able:
                charges = self.table.charges[victim]
                if charges not in lasting:
                    with self.without(use, (victim,), 1):
                        lasting[charges] = over(pool)
        return [victim for victim in able if lasting[self.table.charges[victim]]]

    def hardest_to_keep_out(self, victims: Iterable[int]) -> Iterable[int]:
        """Of victims with equal charges, the one to which most gangs yield: if it stays out, so do the others."""
        hardest: dict[tuple[object, ...], tuple[Place, int]] = {}
        for victim in victims:
            charges = self.table.charges[victim]
            bound = self.returning.bound(self.table.gangs[victim]) or _LOWEST
            if charges not in hardest or hardest[charges][0] < bound:
                hardest[charges] = bound, victim
        return [victim for _, victim in hardest.values()]

    def lifted(self, core: Sequence[int], rows: Iterable[FlavorResource]) -> list[int]:
        """Some gangs and, if all are of one queue, those of it charged as much of each row as any of them."""
        owners = {self.owner[g] for g in core}
        if len(owners) > 1:
            return list(core)
        (owner,) = owners
        amounts = [self.table.quota.get((owner, *row)) for row in rows]
        known = [a for a in amounts if a is not None]
        return [
            g
            for g, name in self.owner.items()
            if name == owner and (g in core or all(a[g] >= max(a[c] for c in core) for a in known))
        ]


# By borrowing.


@dataclass(eq=False)
class Reclaim(CandidateOrder):
    """Kueue's classic rule: a queue is over while it uses more than its own of a row that the preemptor contends for.

    Attributes:
        unordered: candidates that another rule names, whatever their ClusterQueue uses; they leave after all others.
        must_stay_out: candidates taken by a preemptor that borrows, and those that might take its place. None of them can be one that its
            queue could take back within its own quota, those left out that yield to it there
            (:mod:`queuectl.planner.preempt.returning`): it, or they, would evict the preemptor again where the sum of quotas is larger
            than the cluster. (Kueue asks this of the last one only, and counts every gang.)
    """

    other_queues: OtherQueues
    unordered: frozenset[int] = frozenset()
    must_stay_out: frozenset[int] = frozenset()
    _rows: dict[QuotaNode, _ReturnRows] = field(default_factory=dict)
    _allowed: dict[QuotaNode, dict[tuple[int, ...], bool]] = field(default_factory=dict)

    def allows(
        self, common_pool: CommonPool, theirs: Sequence[int], _gone: Collection[int], /
    ) -> bool:
        """The victims below other members do not count. While a search changes those, it asks for the same ones again."""
        known, asked = self._allowed.setdefault(common_pool.top, {}), tuple(theirs)
        if asked not in known:
            known[asked] = self._allows(common_pool, theirs)
            if len(known) > _LAST_ASKED:
                del known[next(iter(known))]
        return known[asked]

    def _allows(self, common_pool: CommonPool, theirs: Sequence[int]) -> bool:
        victims = [v for v in theirs if v not in self.unordered]
        if not victims:
            return True
        if not self._stay_over(common_pool.top, victims):
            return False
        if self.must_stay_out.isdisjoint(victims):
            return True
        others, use = self.other_queues, self.other_queues.shortfall.use
        returning = others.hardest_to_keep_out(v for v in victims if v in self.must_stay_out)
        with others.without(use, victims):
            return all(
                others.stays_out(use, victims, v, others.common_pool(v).below) for v in returning
            )

    def _stay_over(self, top: QuotaNode, victims: list[int]) -> bool:
        """Whether a member, and all pools in it, use more than their own until their last victims leave."""
        shortfall, quota = self.other_queues.shortfall, self.other_queues.table.quota
        if top.members:
            return bool(self.other_queues.lasts(shortfall.use, top, victims, shortfall.over))
        for row in (
            shortfall.rows
        ):  # of one ClusterQueue sums say the same: the last victim is the one with most
            beyond, amounts = shortfall.use.beyond(top, row), quota.get((top.name, *row))
            leaving = amounts[victims] if amounts is not None else np.zeros(1, dtype=np.int64)
            if beyond > 0 and leaving.sum() - leaving.max() < beyond:
                return True
        return False

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        for common_pool, theirs in self.other_queues.by_top(victims):
            if self.allows(common_pool, theirs, victims):
                continue
            core = self.core(common_pool, [v for v in theirs if v not in self.unordered], victims)
            among = core  # what yields to one victim may not yield to another one like it
            if not self._stay_over(common_pool.top, core):
                among = self.other_queues.lifted(core, self.other_queues.shortfall.rows)
            yield dict.fromkeys((g for g in among if g not in self.unordered), 1), len(core) - 1

    def constrain(self, building: VictimModel) -> None:
        """Sums per ClusterQueue of the gangs that must not be able to return; cuts cover the rest."""
        bound = [g for g in building.gangs if g not in self.unordered]
        for common_pool, theirs in self.other_queues.by_top(bound):
            queue = common_pool.top
            if not queue.members:
                rows = self._rows.get(queue) or _ReturnRows(
                    self.other_queues, queue, self.must_stay_out
                )
                self._rows[queue] = rows
                rows.constrain(building, theirs)


@dataclass(eq=False, slots=True)
class _ReturnRows:
    """The rows of a model for the candidates of one ClusterQueue that must not be able to return within its own quota.

    For a victim v, L(v) is the sum of charges of the gangs that yield to v in its queue. With v back, without those gangs and without the
    other victims, the queue uses more than its own of a row as long as the other victims that do not yield to v are charged at most
    spare(v) = use - quota - L(v) - 1.

    Cuts alone would say the same: 128 pods in a block of 5,000 nodes, with gangs of ten ClusterQueues, then take five times the models.

    Attributes:
        pool: of the ClusterQueue.
        must_stay_out: the candidates that must not be able to come back within the queue's own.
    """

    other_queues: OtherQueues
    pool: QuotaNode
    must_stay_out: frozenset[int]
    _over: list[FlavorResource] = field(init=False)
    _spare: dict[int, dict[FlavorResource, int]] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shortfall = self.other_queues.shortfall
        self._over = [
            row for row in sorted(shortfall.rows) if shortfall.use.beyond(self.pool, row) > 0
        ]

    def constrain(self, building: VictimModel, gangs: Collection[int]) -> None:
        """Rows of a model for candidates that are charged of one row only that the queue is over of; cuts do the rest."""
        for row in self._over:
            charged = self._charged(gangs, row)
            others = set().union(*(self._charged(gangs, r) for r in self._over if r != row))
            bound: dict[Place, list[int]] = {}
            for v in charged:
                if v in self.must_stay_out and v not in others:
                    bound.setdefault(self._bound(v) or _LOWEST, []).append(v)
            self._add(building, row, charged, bound)

    def _add(
        self,
        building: VictimModel,
        row: FlavorResource,
        charged: dict[int, int],
        bound: dict[Place, list[int]],
    ) -> None:
        """``bound``: candidates by the place below which all yield to them. Gangs that do not yield are summed up from the highest on."""
        model = building.model
        waiting = sorted(charged, key=lambda gang: (self._place(gang), charged[gang], gang))
        beside: list[tuple[int, int]] = []  # variables and coefficients of a sum
        total = 0
        for place in sorted(bound, reverse=True):
            while waiting and self._place(waiting[-1]) >= place:
                gang = waiting.pop()
                beside.append((building.exits[gang], charged[gang]))
                total += charged[gang]
            leaving = model.var(0, total)
            model.at_most([v for v, _ in beside] + [leaving], [n for _, n in beside] + [-1], 0)
            beside = [(leaving, 1)]
            alike: dict[int, list[int]] = {}
            for v in bound[place]:
                alike.setdefault(self._spared(v, row) + charged[v], []).append(v)
            for most, gangs in alike.items():
                if total > most:
                    any_leaves = building.any_of(gangs)
                    model.at_most([leaving, any_leaves], [1, total - most], total)

    def _amount(self, gang: int, row: FlavorResource) -> int:
        amounts = self.other_queues.table.quota.get((self.pool.name, *row))
        return int(amounts[gang]) if amounts is not None else 0

    def _charged(self, gangs: Iterable[int], row: FlavorResource) -> dict[int, int]:
        """The charges of those gangs that are charged part of a row."""
        return {gang: amount for gang in gangs if (amount := self._amount(gang, row))}

    def _spared(self, gang: int, row: FlavorResource) -> int:
        """The largest charges of other victims alongside one; -1 for one that asks nothing of the row."""
        if gang not in self._spare:
            victim, name = self.other_queues.table.gangs[gang], self.pool.name
            below = self.other_queues.returning.yields(victim, name, ())
            use = self.other_queues.shortfall.use
            self._spare[gang] = {
                at: use.beyond(self.pool, at) - below.get((name, *at), 0) - 1
                for at in self._over
                if self._amount(gang, at)
            }
        return self._spare[gang].get(row, -1)

    def _bound(self, gang: int) -> Place | None:
        return self.other_queues.returning.bound(self.other_queues.table.gangs[gang])

    def _place(self, gang: int) -> Place:
        """The place of a gang among those that yield to others of its ClusterQueue; the highest for one that yields to none."""
        if gang not in self._places:
            victim = self.other_queues.table.gangs[gang]
            gives_way = victim.evictable and self.other_queues.returning.gives_way(victim.workload)
            self._places[gang] = place_of(victim.workload) if gives_way else _HIGHEST
        return self._places[gang]


# By fair shares.


@dataclass(eq=False)
class Fair(CandidateOrder):
    """The strategies in force, first to last.

    Attributes:
        use: what is used, the preemptor's request counted in.
        unordered: candidates that shares say nothing of.
        unbound: the preemptor's queue stays within its nominal quota of what it contends for.
    """

    other_queues: OtherQueues
    strategies: tuple[FairStrategy, ...]
    unordered: frozenset[int] = frozenset()
    use: QuotaUse = field(init=False)
    narrowing = False

    def __post_init__(self) -> None:
        shortfall = self.other_queues.shortfall
        self.use = shortfall.use.copy()
        for row, need in shortfall.needs.items():
            self.use.add((shortfall.queue, *row), need)
        self.unbound = shortfall.within_nominal

    def legal(self, victims: Collection[int]) -> bool:
        inside = [v for v in victims if v not in self.other_queues.owner]
        return self._leave(self.other_queues.by_top(victims), inside, [])

    def allows(
        self, common_pool: CommonPool, theirs: Sequence[int], gone: Collection[int], /
    ) -> bool:
        return any(True for _ in self._ways(common_pool, theirs, gone, []))

    def _leave(
        self, tops: Sequence[tuple[CommonPool, list[int]]], gone: list[int], last: list[int]
    ) -> bool:
        """Whether the victims below one member after the other may leave, those that leave ``last`` chosen in any way."""
        if not tops:
            return True
        (common_pool, theirs), *rest = tops
        for split in self._ways(common_pool, theirs, gone, last):
            if self._leave(rest, [*gone, *theirs], [*last, *split]):
                return True
            if not any(further.level > common_pool.level for further, _ in rest):
                return False  # how these leave changes nothing for the others
        return False

    def _ways(
        self,
        common_pool: CommonPool,
        theirs: Sequence[int],
        gone: Collection[int],
        last: Collection[int],
    ) -> Iterator[list[int]]:
        """The sets of one member's victims that can leave by the second strategy so that all of them may leave.

        Args:
            common_pool: of the member.
            theirs: the victims below it.
            gone: the gangs that have left before.
            last: of those, the gangs that left by the second strategy.
        """
        level, top = common_pool.level, common_pool.top
        theirs = [v for v in theirs if v not in self.unordered]
        if not theirs:
            yield []
            return
        if not self._borrow_again(theirs):
            return
        first, second = self._ranks(level, gone, last)
        for split in self._splits(theirs):
            if self._passes(top, theirs, split, first, second):
                if split and not self._stay_out(top, theirs, second):
                    return  # nor by any split after it
                yield split

    def _ranks(self, level: int, gone: Collection[int], last: Collection[int]) -> tuple[Rank, Rank]:
        """The preemptor's share below a level while the first strategy is in force, and when all on its side have left."""
        use, others = self.use, self.other_queues
        own = others.shortfall.path[level - 1]
        mine = [g for g in gone if self._inside(g, level)]
        early = [g for g in mine if g not in last]
        with others.without(use, early):
            first = share_of(own, use).rank
        with others.without(use, mine):
            second = share_of(own, use).rank
        return first, second

    def _borrow_again(self, theirs: list[int]) -> bool:
        """Whether each of them that could displace the preemptor would have to borrow in its ClusterQueue to return."""
        use, other_queues = self.use, self.other_queues
        with other_queues.without(use, theirs):
            return all(
                other_queues.stays_out(
                    use,
                    theirs,
                    victim,
                    other_queues.common_pool(victim).below[:1],
                    alone=not self.unbound,
                )
                for victim in self._threats(theirs)
            )

    def _stay_out(self, top: QuotaNode, theirs: list[int], ours: Rank) -> bool:
        """Whether none of them that could displace the preemptor would have the smaller share if it returned."""
        use, others = self.use, self.other_queues
        with others.without(use, theirs):
            return all(
                others.with_back(use, theirs, victim, lambda: ours <= share_of(top, use).rank)
                for victim in self._threats(theirs)
            )

    def _threats(self, theirs: Iterable[int]) -> Iterable[int]:
        """Those of them that could displace the preemptor, of equal ones the hardest to keep out."""
        others = self.other_queues
        gangs = others.table.gangs
        return others.hardest_to_keep_out(v for v in theirs if others.returning.threatens(gangs[v]))

    def _inside(self, gang: int, level: int) -> bool:
        """Whether a gang's exit counts on the preemptor's side below this level."""
        return (
            gang not in self.other_queues.owner or self.other_queues.common_pool(gang).level < level
        )

    def _splits(self, theirs: Sequence[int]) -> Iterator[list[int]]:
        """Which may leave by the last strategy while the others leave by the first: none, then ever more."""
        if self.unbound or FairStrategy.LESS_THAN_INITIAL_SHARE not in self.strategies:
            yield []
            return
        if self.strategies[0] is FairStrategy.LESS_THAN_INITIAL_SHARE:
            yield list(theirs)
            return
        yield []
        queues: dict[str, list[int]] = {}
        for gang in theirs:
            queues.setdefault(self.other_queues.owner[gang], []).append(gang)
        tried = 0
        for size in range(1, len(queues) + 1):
            for some in combinations(queues.values(), size):
                for split in product(*some):
                    tried += 1
                    if tried > _SPLITS:
                        self.certain = False
                        return
                    yield list(split)

    def _passes(
        self, top: QuotaNode, theirs: list[int], last: list[int], first: Rank, second: Rank
    ) -> bool:
        """Whether all may leave, ``last`` by their share before, the others by the one after."""
        use, others = self.use, self.other_queues
        able = others.lasts(use, top, theirs, self._borrows, last)
        if not able or self.unbound:
            return bool(able)
        early = [v for v in theirs if v not in last]
        with others.without(use, early):
            if early and first > share_of(top, use).rank:
                return False
        with others.without(use, theirs):
            for victim in able if last else ():
                with others.without(use, (victim,), 1):
                    if second < share_of(top, use).rank:
                        return True
        return not last

    def _borrows(self, pool: QuotaNode) -> bool:
        return bool(share_of(pool, self.use).borrowed)

    # Cuts of an illegal set.

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Too many below one pool, as long as the preemptor's share does not fall any further."""
        bound = [v for v in victims if v not in self.unordered]
        for common_pool, theirs in self.other_queues.by_top(bound):
            level, top = common_pool.level, common_pool.top
            now = [v for v in victims if self._inside(v, level)]
            best = [g for g in range(self.other_queues.table.size) if self._inside(g, level)]
            for gone in (best, now):
                if self.allows(common_pool, theirs, gone):
                    continue
                core = self.core(common_pool, theirs, gone)
                among = core  # what yields to one victim may not yield to another one like it
                ranks = self._ranks(level, gone, [])
                if not any(self._passes(top, core, s, *ranks) for s in self._splits(core)):
                    among = self.other_queues.lifted(core, top.parent.subtree if top.parent else ())
                left = sorted(set(best) - set(gone))
                among = [g for g in among if g not in self.unordered]
                yield dict.fromkeys(among, 1) | dict.fromkeys(left, -len(among)), len(core) - 1
                break

    def constrain(self, building: VictimModel) -> None:
        """Nothing: shares are compared on whole sets, and what fails is cut off."""
