"""The search for the greatest counts, against enumeration: the same answer, and few questions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.planner.search.count_search import CountColumn, Greatest, PodCounts
from tests.support.examples import examples

Corners = Sequence[tuple[int, ...]]


def below(counts: PodCounts, corners: Corners) -> bool:
    """A request fits if it is below one of the corners; any set closed downwards has this form."""
    return any(all(c <= k for c, k in zip(counts, corner, strict=True)) for corner in corners)


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[int], list[CountColumn], Corners]:
    totals = draw(st.lists(st.integers(1, 5), min_size=1, max_size=2))
    columns = [
        CountColumn(group, kind)
        for group in range(len(totals))
        for kind in draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=3))
    ]
    corner = st.tuples(*(st.integers(0, 5) for _ in columns))
    return totals, columns, draw(st.lists(corner, min_size=1, max_size=5))


@settings(max_examples=examples(300), deadline=None)
@given(questions())
def test_the_greatest_of_all_counts_is_found(
    question: tuple[list[int], list[CountColumn], Corners],
) -> None:
    totals, columns, corners = question

    def complete(counts: PodCounts) -> bool:
        own = [
            [(n, columns[at].kind) for at, n in enumerate(counts) if columns[at].group == group]
            for group in range(len(totals))
        ]
        return all(
            sum(n for n, _ in row) == total and len({kind for n, kind in row if n}) == 1
            for row, total in zip(own, totals, strict=True)
        )

    every = product(*(range(totals[column.group] + 1) for column in columns))
    expected = max((c for c in every if complete(c) and below(c, corners)), default=None)
    search = Greatest(totals, columns, lambda counts: below(counts, corners))
    assert search.find() == expected
    assert search.exact


def asked(total: int, corners: Corners) -> tuple[PodCounts | None, int]:
    """The answer, and the number of questions that it took."""
    questions = 0

    def fits(counts: PodCounts) -> bool:
        nonlocal questions
        questions += 1
        return below(counts, corners)

    columns = [CountColumn(0)] * len(corners[0])
    return Greatest([total], columns, fits).find(), questions


def test_few_questions_decide_the_flavors_of_many_pods() -> None:
    """4,096 pods over three independent flavors: three times the digits, and a few."""
    counts, questions = asked(4096, [(1000, 2000, 1500)])
    assert counts == (1000, 2000, 1096)
    assert questions < 60
    counts, questions = asked(4096, [(1000, 1500, 1500)])
    assert counts is None
    assert questions < 60


def test_domains_with_capacity_for_other_mixtures_are_skipped() -> None:
    """The most of the first flavor is in a domain without the second, and so on down; only the last domain holds all."""
    corners = [(900, 50), (800, 120), (700, 250), (600, 390), (500, 500)]
    counts, questions = asked(1000, corners)
    assert counts == (500, 500)
    assert questions < 100


def test_a_search_that_was_cut_short_reports_it() -> None:
    search = Greatest(
        [100], [CountColumn(0)] * 2, lambda c: below(c, [(90, 9), (9, 90)]), most_questions=3
    )
    assert search.find() is None
    assert not search.exact
