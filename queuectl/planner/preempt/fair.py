"""Whether some victims may all leave by fair shares: an order in which each exit passes a strategy when its turn comes.

Shares are compared at the two members of the lowest common pool, one with the preemptor below it (its demand counted in),
one with the victim. By ``LessThanOrEqualToFinalShare`` the preemptor's is at most what the victim's is after the exit; by
``LessThanInitialShare`` it is less than what that is before. And the victim's queue, and every pool up to the common one,
must borrow something until then. A preemptor whose queue stays within its nominal quota needs no comparison.

Exits on the preemptor's side make its share smaller, so they go first, the nearest before the farther. On the victims' side
exits make the share smaller; by the first strategy only the share after all of them counts, by the second the one before
the last. Where both are in force the second comes after the first, once for each ClusterQueue, as in Kueue.

By the second strategy a side may end with the smaller share, and then it could take the place back. So where a gang leaves
by it, none of that side may be one that would: with it in its queue again, and without the gangs there that yield to it
(:mod:`queuectl.planner.preempt.returning`), its share must not be smaller than the preemptor's. Kueue does not ask this, and turns
in circles.

A gang that yields for being idle may leave at any time, whatever shares say: on the preemptor's side with the others, and on the
victims' side after all whose share is compared, so that no other exit fails by theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, product
from typing import Final, TypeAlias

from queuectl.domain.rules import FairStrategy
from queuectl.planner.preempt.legality import Cut, OtherQueues, smallest
from queuectl.planner.preempt.model import VictimModel
from queuectl.planner.preempt.shortage import Meeting
from queuectl.planner.quota.shares import share_of
from queuectl.planner.quota.tree import Pool, QuotaUse

Rank: TypeAlias = tuple[bool, Fraction]
_SPLITS: Final = 512  # ways to say who leaves by the second strategy


@dataclass(eq=False, slots=True)
class Fair:
    """The strategies in force, first to last.

    Attributes:
        use: what is used, the preemptor's demand counted in.
        unordered: candidates that shares say nothing of.
        unbound: the preemptor's queue stays within its nominal quota of what it contends for.
    """

    others: OtherQueues
    strategies: tuple[FairStrategy, ...]
    unordered: frozenset[int] = frozenset()
    certain: bool = True
    narrowing: bool = False
    use: QuotaUse = field(init=False)
    unbound: bool = field(init=False)

    def __post_init__(self) -> None:
        shortfall = self.others.shortfall
        tree = list(_pools(shortfall.path[-1]))
        used = {pool: dict(shortfall.use.used[pool]) for pool in tree if pool in shortfall.use.used}
        self.use = QuotaUse(shortfall.use.pools, used)
        for row, need in shortfall.needs.items():
            self.use.add((shortfall.queue, *row), need)
        own = shortfall.path[0]
        self.unbound = all(
            self.use.of(own.name, row) <= own.subtree.get(row, 0) for row in shortfall.rows
        )

    def legal(self, victims: Collection[int]) -> bool:
        inside = [v for v in victims if v not in self.others.owner]
        return self._leave(list(self.others.by_top(victims).items()), inside, [])

    def may_join(self, where: Meeting, theirs: list[int], everyone: Collection[int], /) -> bool:
        return any(True for _ in self._ways(where.level, where.top, theirs, list(everyone), []))

    def _leave(
        self, tops: Sequence[tuple[tuple[int, Pool], list[int]]], gone: list[int], late: list[int]
    ) -> bool:
        """Whether the victims below one member after the other may leave, who leaves ``late`` said in any way that works."""
        if not tops:
            return True
        ((level, top), theirs), *rest = tops
        for split in self._ways(level, top, theirs, gone, late):
            if self._leave(rest, [*gone, *theirs], [*late, *split]):
                return True
            if not any(further > level for (further, _), _ in rest):
                return False  # how these leave changes nothing for the others
        return False

    def _ways(
        self, level: int, top: Pool, theirs: list[int], gone: list[int], late: list[int]
    ) -> Iterator[list[int]]:
        """Who of one member's victims leaves by the second strategy, every way in which all of them may leave.

        Args:
            level: where the member meets the preemptor's path.
            top: the member.
            theirs: the victims below it.
            gone: who has left before.
            late: of those, who left by the second strategy.
        """
        theirs = [v for v in theirs if v not in self.unordered]
        if not theirs:
            yield []
            return
        if not self._borrow_again(theirs):
            return
        first, second = self._ranks(level, gone, late)
        for split in self._splits(theirs):
            if self._passes(top, theirs, split, first, second):
                if split and not self._stay_out(top, theirs, second):
                    return  # nor by any split after it
                yield split

    def _ranks(self, level: int, gone: list[int], late: list[int]) -> tuple[Rank, Rank]:
        """The preemptor's share below a level while the first strategy is in force, and when all on its side have left."""
        use, others = self.use, self.others
        own = others.shortfall.path[level - 1]
        mine = [g for g in gone if self._inside(g, level)]
        early = [g for g in mine if g not in late]
        with others.without(use, early):
            first = share_of(own, use).rank
        with others.without(use, mine):
            second = share_of(own, use).rank
        return first, second

    def _borrow_again(self, theirs: list[int]) -> bool:
        """Whether each of them that is a danger to the preemptor would have to borrow in its ClusterQueue if it came back."""
        use, others = self.use, self.others
        with others.without(use, theirs):
            return all(
                others.stays_out(
                    use, theirs, victim, others.meeting(victim).below[:1], alone=not self.unbound
                )
                for victim in theirs
                if others.returning.threatens(others.table.gangs[victim])
            )

    def _stay_out(self, top: Pool, theirs: list[int], ours: Rank) -> bool:
        """Whether none of them that is a danger to the preemptor would have the smaller share if it came back."""
        use, others = self.use, self.others
        with others.without(use, theirs):
            return all(
                others.with_back(use, theirs, victim, lambda: ours <= share_of(top, use).rank)
                for victim in theirs
                if others.returning.threatens(others.table.gangs[victim])
            )

    def _inside(self, gang: int, level: int) -> bool:
        """Whether a gang's exit counts on the preemptor's side below this level."""
        return gang not in self.others.owner or self.others.meeting(gang).level < level

    def _splits(self, theirs: Sequence[int]) -> Iterator[list[int]]:
        """Which may leave by the last strategy while the others leave by the first: none, then ever more."""
        if self.unbound or not self._late:
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
        self, top: Pool, theirs: list[int], late: list[int], first: Rank, second: Rank
    ) -> bool:
        """Whether all may leave, ``late`` by their share before, the others by the one after."""
        use, others = self.use, self.others
        able = others.lasts(use, top, theirs, self._borrows, late)
        if not able or self.unbound:
            return bool(able)
        early = [v for v in theirs if v not in late]
        with others.without(use, early):
            if early and first > share_of(top, use).rank:
                return False
        with others.without(use, theirs):
            for victim in able if late else ():
                with others.without(use, (victim,), 1):
                    if second < share_of(top, use).rank:
                        return True
        return not late

    def _borrows(self, pool: Pool) -> bool:
        return bool(share_of(pool, self.use).borrowed)

    # What an illegal set says of others.

    def cuts(self, victims: Collection[int]) -> Iterator[Cut]:
        """Too many below one pool, as long as the preemptor's share does not fall any further."""
        everyone = range(self.others.table.size)
        bound = [v for v in victims if v not in self.unordered]
        for (level, top), theirs in self.others.by_top(bound).items():
            now = [v for v in victims if self._inside(v, level)]
            best = [g for g in everyone if self._inside(g, level)]
            for gone in (best, now):

                def illegal(
                    some: list[int], gone: list[int] = gone, level: int = level, top: Pool = top
                ) -> bool:
                    return bool(some) and not any(
                        True for _ in self._ways(level, top, some, gone, [])
                    )

                if illegal(theirs):
                    core = smallest(theirs, illegal)
                    among = core  # what yields to one victim may not yield to another one like it
                    ranks = self._ranks(level, gone, [])
                    if not any(self._passes(top, core, s, *ranks) for s in self._splits(core)):
                        among = self.others.lifted(core, top.parent.subtree if top.parent else ())
                    left = set(best) - set(gone)
                    among = [g for g in among if g not in self.unordered]
                    cut = dict.fromkeys(among, 1) | dict.fromkeys(sorted(left), -len(among))
                    yield cut, len(core) - 1
                    break

    def constrain(self, building: VictimModel) -> None:
        """Nothing: shares are compared on whole sets, and what fails is cut off."""

    @property
    def _late(self) -> bool:
        """Whether the second strategy is in force."""
        return FairStrategy.LESS_THAN_INITIAL_SHARE in self.strategies


def _pools(pool: Pool) -> Iterator[Pool]:
    yield pool
    for member in pool.members:
        yield from _pools(member)
