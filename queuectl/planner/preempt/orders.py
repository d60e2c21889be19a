"""The two rules about which candidates can be evicted together: by the borrowing of their ClusterQueues, and by fair shares.

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
evictions can repeat without end.

A gang that yields for being idle may leave at any time, whatever shares say: on the preemptor's side with the others, and on the
victims' side after all whose share is compared, so that no other exit fails by theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product
from typing import Final, TypeAlias

import numpy as np

from queuectl.domain.rules import FairStrategy
from queuectl.planner.preempt.legality import CandidateOrder, Cut, OtherQueues
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.returning import Settled
from queuectl.planner.preempt.shortage import CommonPool
from queuectl.planner.quota.shares import share_of
from queuectl.planner.quota.tree import QuotaNode, QuotaUse

Rank: TypeAlias = tuple[bool, Fraction]
_SPLITS: Final = 512  # sets of victims that could leave by the second strategy


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

    others: OtherQueues
    unordered: frozenset[int] = frozenset()
    must_stay_out: frozenset[int] = frozenset()
    _settled: dict[QuotaNode, Settled] = field(default_factory=dict)

    def allows(
        self, common_pool: CommonPool, theirs: Sequence[int], _gone: Collection[int], /
    ) -> bool:
        victims = [v for v in theirs if v not in self.unordered]
        if not victims:
            return True
        if not self._stay_over(common_pool.top, victims):
            return False
        if self.must_stay_out.isdisjoint(victims):
            return True
        if not common_pool.top.members:
            return self._settled_in(common_pool.top).stay_out(victims)
        others, use = self.others, self.others.shortfall.use
        with others.without(use, victims):
            return all(
                others.stays_out(use, victims, v, others.common_pool(v).below)
                for v in victims
                if v in self.must_stay_out
            )

    def _settled_in(self, queue: QuotaNode) -> Settled:
        if queue not in self._settled:
            self._settled[queue] = Settled(
                self.others.shortfall,
                self.others.table,
                self.others.returning,
                queue,
                self.must_stay_out,
            )
        return self._settled[queue]

    def _stay_over(self, top: QuotaNode, victims: list[int]) -> bool:
        """Whether a member, and all pools in it, use more than their own until their last victims leave."""
        shortfall, quota = self.others.shortfall, self.others.table.quota
        if top.members:
            return bool(self.others.lasts(shortfall.use, top, victims, shortfall.over))
        for row in (
            shortfall.rows
        ):  # of one ClusterQueue sums say the same: the last victim is the one with most
            beyond, amounts = shortfall.use.beyond(top, row), quota.get((top.name, *row))
            leaving = amounts[victims] if amounts is not None else np.zeros(1, dtype=np.int64)
            if beyond > 0 and leaving.sum() - leaving.max() < beyond:
                return True
        return False

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        for common_pool, theirs in self.others.by_top(victims):
            if self.allows(common_pool, theirs, victims):
                continue
            core = self.core(common_pool, [v for v in theirs if v not in self.unordered], victims)
            among = core  # what yields to one victim may not yield to another one like it
            if not self._stay_over(common_pool.top, core):
                among = self.others.lifted(core, self.others.shortfall.rows)
            yield dict.fromkeys((g for g in among if g not in self.unordered), 1), len(core) - 1

    def constrain(self, building: VictimModel) -> None:
        """Sums per ClusterQueue of the gangs that must not be able to return; cuts cover the rest."""
        bound = [g for g in building.gangs if g not in self.unordered]
        for common_pool, theirs in self.others.by_top(bound):
            if not common_pool.top.members:
                self._settled_in(common_pool.top).constrain(building, theirs)


@dataclass(eq=False)
class Fair(CandidateOrder):
    """The strategies in force, first to last.

    Attributes:
        use: what is used, the preemptor's request counted in.
        unordered: candidates that shares say nothing of.
        unbound: the preemptor's queue stays within its nominal quota of what it contends for.
    """

    others: OtherQueues
    strategies: tuple[FairStrategy, ...]
    unordered: frozenset[int] = frozenset()
    use: QuotaUse = field(init=False)
    narrowing = False

    def __post_init__(self) -> None:
        shortfall = self.others.shortfall
        self.use = shortfall.use.copy()
        for row, need in shortfall.needs.items():
            self.use.add((shortfall.queue, *row), need)
        self.unbound = shortfall.within_nominal

    def legal(self, victims: Collection[int]) -> bool:
        inside = [v for v in victims if v not in self.others.owner]
        return self._leave(self.others.by_top(victims), inside, [])

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
        use, others = self.use, self.others
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
        use, others = self.use, self.others
        with others.without(use, theirs):
            return all(
                others.stays_out(
                    use,
                    theirs,
                    victim,
                    others.common_pool(victim).below[:1],
                    alone=not self.unbound,
                )
                for victim in theirs
                if others.returning.threatens(others.table.gangs[victim])
            )

    def _stay_out(self, top: QuotaNode, theirs: list[int], ours: Rank) -> bool:
        """Whether none of them that could displace the preemptor would have the smaller share if it returned."""
        use, others = self.use, self.others
        with others.without(use, theirs):
            return all(
                others.with_back(use, theirs, victim, lambda: ours <= share_of(top, use).rank)
                for victim in theirs
                if others.returning.threatens(others.table.gangs[victim])
            )

    def _inside(self, gang: int, level: int) -> bool:
        """Whether a gang's exit counts on the preemptor's side below this level."""
        return gang not in self.others.owner or self.others.common_pool(gang).level < level

    def _splits(self, theirs: Sequence[int]) -> Iterator[list[int]]:
        """Which may leave by the last strategy while the others leave by the first: none, then ever more."""
        if self.unbound or not self._second:
            yield []
            return
        if self.strategies[0] is FairStrategy.LESS_THAN_INITIAL_SHARE:
            yield list(theirs)
            return
        yield []
        queues: dict[str, list[int]] = {}
        for gang in theirs:
            queues.setdefault(self.others.owner[gang], []).append(gang)
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
        use, others = self.use, self.others
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
        for common_pool, theirs in self.others.by_top(bound):
            level, top = common_pool.level, common_pool.top
            now = [v for v in victims if self._inside(v, level)]
            best = [g for g in range(self.others.table.size) if self._inside(g, level)]
            for gone in (best, now):
                if self.allows(common_pool, theirs, gone):
                    continue
                core = self.core(common_pool, theirs, gone)
                among = core  # what yields to one victim may not yield to another one like it
                ranks = self._ranks(level, gone, [])
                if not any(self._passes(top, core, s, *ranks) for s in self._splits(core)):
                    among = self.others.lifted(core, top.parent.subtree if top.parent else ())
                left = sorted(set(best) - set(gone))
                among = [g for g in among if g not in self.unordered]
                yield dict.fromkeys(among, 1) | dict.fromkeys(left, -len(among)), len(core) - 1
                break

    def constrain(self, building: VictimModel) -> None:
        """Nothing: shares are compared on whole sets, and what fails is cut off."""

    @property
    def _second(self) -> bool:
        """Whether the second strategy is in force."""
        return FairStrategy.LESS_THAN_INITIAL_SHARE in self.strategies
