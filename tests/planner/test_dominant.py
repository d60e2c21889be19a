"""Dominant resource share, as Kueue defines it: what is borrowed, of what can be lent, by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import pytest

from queuectl.domain.queues import Cohort, QueueConfig
from queuectl.planner.quota import (
    FlavorResource,
    QuotaNode,
    QuotaUse,
    Share,
    build_pools,
    passed_up,
    share_of,
)
from tests.planner.build import FLAVOR
from tests.planner.queues import GPUS, cohort, cq, quotas

ROW = (FLAVOR, GPUS)


def shares_above(
    use: QuotaUse, queue: str, charges: Mapping[FlavorResource, int]
) -> Iterator[tuple[QuotaNode, Share]]:
    """Each pool from a ClusterQueue up to its root with its share if the queue used this much more."""
    for pool in use.pools[queue].path:
        yield pool, share_of(pool, use, charges)
        charges = passed_up(pool, use, charges)


def used(config: QueueConfig, **amounts: int) -> QuotaUse:
    use = QuotaUse(build_pools(config))
    for name, amount in amounts.items():
        use.add((name, *ROW), amount)
    return use


def two(weight: int = 1000, lending: int | None = None) -> QueueConfig:
    """a has 2, b has 8."""
    queues = [cq("a", 2, weight=weight), cq("b", quotas(8, lending=lending))]
    return QueueConfig(1, {q.name: q for q in queues})


@pytest.mark.parametrize(
    ("weight", "use", "asked", "ratio"),
    [
        (1000, 2, 0, Fraction(0)),  # all inside its quota: nothing borrowed
        (1000, 3, 0, Fraction(1, 10)),
        (1000, 2, 1, Fraction(1, 10)),  # the candidate counts as if it ran
        (1000, 4, -1, Fraction(1, 10)),  # and one that leaves as if it did not
        (2000, 4, 0, Fraction(1, 10)),  # twice the weight, half the share
        (500, 3, 0, Fraction(1, 5)),
        (3000, 3, 0, Fraction(1, 30)),  # exact: no float is equal to this
    ],
)
def test_a_share_is_borrowed_quota_by_lendable_quota_by_weight(
    weight: int, use: int, asked: int, ratio: Fraction
) -> None:
    books = used(two(weight), a=use)
    share = share_of(books.pools["a"], books, {ROW: asked})
    assert (share.endless, share.ratio) == (False, ratio)
    assert share.resource == (GPUS if ratio else "")


def test_the_shown_share_is_in_thousandths_rounded_up() -> None:
    books = used(two(3000), a=3)
    assert share_of(books.pools["a"], books).weighted == 34  # 33.3


def test_weight_zero_is_infinite_only_while_it_borrows_and_then_larger_than_any() -> None:
    within, beyond = used(two(0), a=2), used(two(0), a=3)
    assert share_of(within.pools["a"], within).rank == (False, Fraction(0))
    endless = share_of(beyond.pools["a"], beyond)
    assert endless.weighted is None
    most = used(two(1), a=10)
    assert endless.rank > share_of(most.pools["a"], most).rank
    more = used(two(0), a=4)
    assert endless.rank < share_of(more.pools["a"], more).rank


def test_quota_that_is_not_lent_does_not_count_as_lendable() -> None:
    books = used(two(lending=3), a=3)
    assert share_of(books.pools["a"], books).ratio == Fraction(1, 5)  # 2 + 3 can be had


def test_a_cohort_has_a_share_of_its_parent_and_the_root_has_none() -> None:
    """west has 4 in all and takes 6: 2 of the 10 that the root can give."""
    queues = [cq("a", 2, "west"), cq("b", 2, "west"), cq("c", 6, "east")]
    cohorts: list[Cohort] = [cohort("west", parent="root"), cohort("east", parent="root")]
    config = QueueConfig(1, {q.name: q for q in queues}, cohorts={c.name: c for c in cohorts})
    books = used(config, a=3)
    shares = {pool.name: share.ratio for pool, share in shares_above(books, "a", {ROW: 3})}
    assert shares == {"a": Fraction(4, 10), "west": Fraction(2, 10), "root": Fraction(0)}


def test_quota_that_a_queue_does_not_lend_is_not_passed_up() -> None:
    """a lends 1 of its 3: of the 3 that it would use more, one is charged to the cohort."""
    queues = [cq("a", quotas(3, lending=1), "west"), cq("c", 7, "east")]
    cohorts = [cohort("west", parent="root"), cohort("east", parent="root")]
    config = QueueConfig(1, {q.name: q for q in queues}, cohorts={c.name: c for c in cohorts})
    books = used(config, a=1)
    shares = {pool.name: share for pool, share in shares_above(books, "a", {ROW: 3})}
    assert shares["a"].borrowed == {ROW}
    assert shares["west"].ratio == Fraction(1, 8)  # 2 beyond the local 2, 1 of them its own
