"""The flavor of a gang: preference, quota, nodes and ``flavorFungibility`` together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.planner.documents import (
    TOPOLOGY,
    Planned,
    cluster_queue,
    flavor,
    nodes,
    planned,
    quota,
    workload,
)

PREEMPTS = {"withinClusterQueue": "LowerPriority"}
BOTH = [flavor("one"), flavor("two")]
HELD = [*BOTH, *cluster_queue("lender", cohort="all", flavors={"one": 4, "two": 4})]


def test_the_second_flavor_is_used_where_only_its_racks_fit() -> None:
    """Kueue picks the flavor by quota, then fails on topology, cycle after cycle, with the second flavor idle."""
    made = planned(
        TOPOLOGY,
        flavor("one", topology=True, model="a"),
        flavor("two", topology=True, model="b"),
        *(nodes(f"a{i}", 1, model="a") for i in range(3)),
        nodes("b", 2, model="b"),
        cluster_queue("q", flavors={"one": 24, "two": 16}),
        workload("g", "q", 2, gpu=8, rack=True),
    )
    assert made.flavor("g") == "two"
    assert made.podset("g")["nodes"] == {"b0": 1, "b1": 1}


def lent(rule: dict[str, Any], *running: dict[str, Any], one: int = 2, two: int = 2) -> Planned:
    """Queue q with its own quota in both flavors, and a cohort that lends 4 of each; a gang of 3."""
    return planned(
        HELD,
        cluster_queue(
            "q",
            cohort="all",
            flavors={"one": one, "two": two},
            flavorFungibility=rule,
            preemption=PREEMPTS,
        ),
        *running,
        workload("g", "q", 3, priority=1, at=9),
    )


TRY_BORROW = {"whenCanBorrow": "TryNextFlavor"}
STOP_PREEMPT = {"whenCanPreempt": "MayStopSearch"}


@pytest.mark.parametrize(
    ("rule", "one", "two", "gets"),
    [
        ({}, 3, 3, "one"),
        ({}, 2, 3, "one"),
        (TRY_BORROW, 2, 3, "two"),
        (TRY_BORROW, 2, 2, "one"),
        ({"whenCanBorrow": "Borrow"}, 2, 3, "one"),
    ],
    ids=[
        "the first where both fit",
        "borrowing ends the search",
        "borrowing passes on to a flavor that fits",
        "the first where both must borrow",
        "the old word for ending it",
    ],
)
def test_the_search_ends_or_continues_at_a_flavor_with_borrowing(
    rule: dict[str, Any], one: int, two: int, gets: str
) -> None:
    assert lent(rule, one=one, two=two).flavor("g") == gets


LOW_ON_ONE = workload("low", "q", 3, flavor="one")
LENT_OUT = [workload(f"out-{f}", "lender", 4, flavor=f) for f in ("one", "two")]


@pytest.mark.parametrize(
    ("rule", "gets", "victims"),
    [
        ({}, "two", []),
        (STOP_PREEMPT, None, ["low"]),
        ({"whenCanPreempt": "Preempt"}, None, ["low"]),
    ],
    ids=["preemption comes after the other flavors", "preemption ends the search", "its old word"],
)
def test_the_search_ends_or_continues_at_a_flavor_with_preemption(
    rule: dict[str, Any], gets: str | None, victims: list[str]
) -> None:
    made = lent(rule, LOW_ON_ONE, *LENT_OUT, one=3, two=3)
    assert made.victims == victims
    assert made.started == (["g"] if gets else [])
    if gets:
        assert made.flavor("g") == gets


@pytest.mark.parametrize(
    ("preference", "gets", "victims"),
    [("BorrowingOverPreemption", "two", []), ("PreemptionOverBorrowing", None, ["low"])],
)
def test_where_no_flavor_fits_as_it_is_preference_decides(
    preference: str, gets: str | None, victims: list[str]
) -> None:
    """Flavor one is full of gangs of lower priority; flavor two has too little own quota, but more to borrow."""
    made = lent(
        {**TRY_BORROW, "whenCanPreempt": "TryNextFlavor", "preference": preference},
        LOW_ON_ONE,
        LENT_OUT[0],
        one=3,
        two=2,
    )
    assert made.victims == victims
    if gets:
        assert made.flavor("g") == gets


def test_preemption_without_a_legal_victim_does_not_end_the_search() -> None:
    """Gangs of equal priority hold the first flavor: no victim is legal there, so the search continues with the second."""
    equal = workload("equal", "q", 3, priority=1, flavor="one")
    made = lent(STOP_PREEMPT, equal, *LENT_OUT, one=3, two=3)
    assert made.flavor("g") == "two"


def test_a_kept_gang_is_not_moved_to_a_worse_flavor_for_a_later_one() -> None:
    """The second gang could only run on flavor one; the first, which could run on either, keeps it."""
    made = planned(
        TOPOLOGY,
        flavor("one", topology=True, model="a"),
        flavor("two", topology=True, model="b"),
        nodes("a", 1, model="a"),
        nodes("b", 1, gpu=4, model="b"),
        cluster_queue("q", flavors={"one": 8, "two": 8}),
        workload("first", "q", 1, gpu=4, at=1),
        workload("second", "q", 1, gpu=8, at=2),
    )
    assert made.flavor("first") == "one"
    assert made.started == ["first"]


def test_podsets_choose_flavors_one_after_the_other() -> None:
    """The first podset finds a flavor without borrowing; it does not borrow because the second one must."""
    gang = workload("g", "q", 3)
    (first,) = gang["spec"]["podSets"]
    gang["spec"]["podSets"].append({**first, "name": "second"})
    made = planned(
        HELD,
        cluster_queue(
            "q",
            cohort="all",
            flavors={"one": 2, "two": 3},
            flavorFungibility={"whenCanBorrow": "TryNextFlavor"},
        ),
        gang,
    )
    (admitted,) = made.document["admitted"]
    assert [list(p["flavors"].values()) for p in admitted["podSets"]] == [["two"], ["one"]]


def test_each_flavor_has_its_own_limits() -> None:
    """The limit of the first flavor is reached; the second has none and can be borrowed."""
    made = planned(
        HELD,
        cluster_queue("q", cohort="all", flavors={"one": quota(2, borrowing=0), "two": 2}),
        workload("g", "q", 3),
    )
    assert made.flavor("g") == "two"
