"""Partial admission: a gang that does not fit whole starts with the most pods that do, and never with fewer than its minimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Pending
from queuectl.domain.workload import Placement, PodSet
from queuectl.planner import plan
from queuectl.planner.problem.request import admissible
from queuectl.planner.search.count_search import Largest
from queuectl.planner.verify import PlanRule, verify
from tests.planner.build import LEVELS, gang, holding, node, podset, queue, world
from tests.planner.documents import (
    TOPOLOGY,
    Planned,
    cluster_queue,
    cohort,
    flavor,
    nodes,
    planned,
    workload,
)
from tests.planner.oracle import starts


def pods(made: Planned, name: str) -> int:
    podset = made.podset(name)
    assert podset["count"] == sum(podset["nodes"].values()) or not podset["nodes"]
    count: int = podset["count"]
    return count


def assert_starts(made: Planned, starts_with: int | None) -> None:
    """Gang ``g`` alone starts, with this many pods; no gang starts for None."""
    assert made.started == ([] if starts_with is None else ["g"])
    if starts_with is not None:
        assert pods(made, "g") == starts_with


RACKS = [TOPOLOGY, flavor(topology=True), *nodes("a", 2, gpu=4), *nodes("b", 1, gpu=4)]


@pytest.mark.parametrize(
    ("least", "starts_with"),
    [(None, None), (9, None), (8, 8), (3, 8)],
    ids=["all or nothing", "least does not fit", "least fits exactly", "more than least fits"],
)
def test_a_gang_starts_with_as_many_pods_as_the_rack_holds(
    least: int | None, starts_with: int | None
) -> None:
    made = planned(RACKS, cluster_queue("q", 100), workload("g", "q", 12, least=least, rack=True))
    assert_starts(made, starts_with)


def test_a_gang_that_fits_as_a_whole_is_not_reduced() -> None:
    made = planned(RACKS, cluster_queue("q", 100), workload("g", "q", 8, least=1, rack=True))
    assert pods(made, "g") == 8


@pytest.mark.parametrize(("left", "starts_with"), [(12, 12), (7, 7), (3, 3), (2, None)])
def test_a_gang_starts_with_as_many_pods_as_quota_allows(
    left: int, starts_with: int | None
) -> None:
    made = planned(flavor(), cluster_queue("q", left), workload("g", "q", 12, least=3))
    assert_starts(made, starts_with)


def test_only_the_pods_that_start_are_charged() -> None:
    made = planned(
        flavor(),
        cluster_queue("q", 10),
        workload("first", "q", 4, at=1),
        workload("part", "q", 9, least=2, at=2),
        workload("rest", "q", 1, at=3),
    )
    assert (made.started, pods(made, "part")) == (["first", "part"], 6)


def test_borrowing_makes_the_part_larger() -> None:
    made = planned(
        flavor(), cohort("all", gpu=3), cluster_queue("q", 4, "all"), workload("g", "q", 9, least=1)
    )
    assert pods(made, "g") == 7


@pytest.mark.parametrize(
    ("sizes", "least", "starts_with"),
    [((5, 4), 1, 6), ((5, 4), 7, None), ((2, 2, 2), 1, None), ((9,), 1, 9), ((6, 5), 2, 9)],
)
def test_slices_stay_whole(sizes: tuple[int, ...], least: int, starts_with: int | None) -> None:
    """12 pods in slices of 3, each in a rack. Racks of 5 and 4 hold two slices, though they hold 9 pods."""
    racks = [nodes(f"r{i}", 1, gpu=size) for i, size in enumerate(sizes)]
    made = planned(
        TOPOLOGY,
        flavor(topology=True),
        *racks,
        cluster_queue("q", 100),
        workload("g", "q", 12, least=least, slices=3),
    )
    assert_starts(made, starts_with)


def test_victims_for_the_whole_gang_come_before_a_start_of_a_part() -> None:
    """As in Kueue: fewer pods are the last resort."""
    made = planned(
        flavor(),
        cluster_queue("q", 8, preemption={"withinClusterQueue": "LowerPriority"}),
        workload("low", "q", 4, flavor="default"),
        workload("g", "q", 8, least=2, priority=1, at=9),
    )
    assert made.waiting == {"g": "WaitingForPreemptedWorkloads"}
    assert made.victims == ["low"]
    (waits,) = made.document["pending"]
    assert waits["podSets"][0]["count"] == 8


def test_a_part_can_need_victims_too() -> None:
    """The whole gang is too large for the queue; the largest part takes all the quota of the queue."""
    made = planned(
        flavor(),
        cluster_queue("q", 8, preemption={"withinClusterQueue": "LowerPriority"}),
        workload("low", "q", 4, flavor="default"),
        workload("g", "q", 9, least=2, priority=1, at=9),
    )
    assert made.victims == ["low"]
    (waits,) = made.document["pending"]
    assert waits["podSets"][0]["count"] == 8


def test_equal_gangs_get_the_remaining_capacity_one_after_the_other() -> None:
    gangs = [workload(f"g{i}", "q", 6, least=2, at=i) for i in range(4)]
    made = planned(flavor(), cluster_queue("q", 15), *gangs)
    assert [pods(made, name) for name in made.started] == [6, 6, 3]
    assert made.reason("g3")["message"].startswith("even with the minimum of 2 pods: 2 more ")


def test_a_lease_keeps_its_number_of_pods() -> None:
    """The gang waits for its victim with 8 pods; when the victim has left, it starts with these 8."""
    made = planned(
        flavor(),
        cluster_queue("q", 8, preemption={"withinClusterQueue": "LowerPriority"}),
        workload("low", "q", 4, flavor="default"),
        workload("g", "q", 9, least=2, priority=1, at=9),
    )
    (refused,) = made.plan.pending
    (entry,) = made.snapshot.pending
    later = replace(made.snapshot, admitted=(), pending=(replace(entry, lease=refused.lease),))
    (admitted,) = plan(later).admitted
    assert refused.lease is not None
    assert admitted.placement == refused.lease.placement
    assert admitted.placement.podsets[0].pods == 8


def test_a_gang_that_runs_with_fewer_pods_is_repaired_with_as_many() -> None:
    workload = gang("g", shrinking("w", 6, 2, gpu=1))
    running = holding(workload, {"n0": 2, "n1": 2}, lost=(("w", "n1", 2),))
    (placed,) = running.placement.podsets
    running = replace(running, placement=Placement((replace(placed, pods=4),)))
    fleet = [node("n0", gpu=2), node("n1", gpu=2, ready=False), node("n2", gpu=2)]
    snapshot = world(fleet, [], [running])
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    (repaired,) = made.admitted[0].placement.podsets
    assert (repaired.nodes, repaired.pods) == ((("n0", 2), ("n2", 2)), 4)


# Several podsets that may shrink.


def shrinking(name: str, count: int, least: int, gpu: int) -> PodSet:
    return replace(podset(name, count, gpu=gpu), min_count=least)


def test_the_largest_total_wins_and_is_reduced_in_proportion() -> None:
    """20 + 30 + 15 pods on 50 GPUs; the second podset may lose 20 pods and the third 10: they lose 10 and 5."""
    gang_of_three = gang(
        "g", podset("x", 20, gpu=1), shrinking("y", 30, 10, gpu=1), shrinking("z", 15, 5, gpu=1)
    )
    (admitted,) = plan(world([node("n0", gpu=50)], [gang_of_three])).admitted
    assert [p.count for p in admitted.placement.podsets] == [20, 20, 10]


def test_the_largest_total_wins_even_where_one_podset_alone_is_reduced() -> None:
    nodes = [node("n0", gpu=10)]
    large = gang("g", shrinking("x", 4, 1, gpu=2), shrinking("y", 8, 1, gpu=1))
    (admitted,) = plan(world(nodes, [large])).admitted
    assert [p.pods for p in admitted.placement.podsets] == [1, 8]


def proportional(spans: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Kueue's counts, smallest cut first."""
    total = sum(more for _, more in spans)
    return [
        tuple(least + more - (more * cut // total if total else 0) for least, more in spans)
        for cut in range(total + 1)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=4),
)
def test_the_search_finds_the_largest_of_all_counts(
    spans: list[tuple[int, int]], corners: list[tuple[int, int, int]]
) -> None:
    """Against enumeration, where exactly the requests below one of the corners fit."""
    choices = [range(least, least + more + 1) for least, more in spans]

    def fits(counts: tuple[int, ...]) -> bool:
        return any(all(c <= k for c, k in zip(counts, corner, strict=False)) for corner in corners)

    top = tuple(choice[-1] for choice in choices)
    every = [counts for counts in product(*choices) if fits(counts)]
    search = Largest(choices, fits, fits(top))
    found = search.find()
    assert search.exact
    assert (found in every) if every else found is None
    largest = [counts for counts in every if found and sum(counts) == max(map(sum, every))]
    fair = [counts for counts in largest if counts in proportional(spans)]
    assert found == (fair[0] if fair else max(largest, default=None))


@pytest.mark.parametrize(
    ("count", "least", "sizes", "counts"),
    [
        (6, None, (), [6]),
        (6, 4, (), [4, 5, 6]),
        (6, 6, (), [6]),
        (12, 2, (3,), [3, 6, 9, 12]),
        (12, 4, (6, 2), [6, 12]),
    ],
)
def test_counts_are_multiples_of_the_coarsest_slice(
    count: int, least: int | None, sizes: tuple[int, ...], counts: list[int]
) -> None:
    layers = list(zip(LEVELS, sizes, strict=False))
    asked = replace(podset(count=count, slices=layers, gpu=1), min_count=least)
    assert list(admissible(asked)) == counts


# Against brute force.


@given(
    racks=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=2), min_size=1, max_size=3),
    gpu=st.integers(1, 3),
    count=st.integers(1, 5),
    least=st.integers(1, 5),
    quota=st.integers(0, 12),
    required=st.booleans(),
)
def test_the_count_is_the_largest_that_brute_force_finds(
    racks: list[list[int]], gpu: int, count: int, least: int, quota: int, required: bool
) -> None:
    machines = [
        node(f"n{r}{i}", f"r{r}", gpu=size)
        for r, sizes in enumerate(racks)
        for i, size in enumerate(sizes)
    ]
    asked = podset(count=count, gpu=gpu, required="rack" if required else None)

    def alone(pods: int) -> bool:
        entry = Pending(gang("g", replace(asked, count=pods)))
        return starts(world(machines, [entry], (), queue(gpu=quota)))["g"]

    least = min(least, count)
    best = max((pods for pods in range(least, count + 1) if alone(pods)), default=None)
    entry = Pending(gang("g", replace(asked, min_count=least)))
    snapshot = world(machines, [entry], (), queue(gpu=quota))
    made = plan(snapshot)
    assert verify(snapshot, made) == ()
    assert [a.placement.podsets[0].count for a in made.admitted] == ([] if best is None else [best])


# The verifier.


@pytest.mark.parametrize(
    ("pods", "said", "fits"),
    [(4, 4, True), (2, 2, True), (1, 1, False), (5, 5, False), (4, 3, False), (3, None, False)],
    ids=["all", "least", "below least", "more than all", "not the stated number", "not stated"],
)
def test_the_verifier_counts_the_pods(pods: int, said: int | None, fits: bool) -> None:
    workload = gang("g", shrinking("w", 4, 2, gpu=1))
    snapshot = world([node("n0", gpu=8)], [workload])
    made = plan(snapshot)
    (admitted,) = made.admitted
    (placed,) = admitted.placement.podsets
    mutated = Placement((replace(placed, nodes=(("n0", pods),), pods=said),))
    found = verify(snapshot, Plan(admitted=(replace(admitted, placement=mutated),)))
    assert {v.rule for v in found} == (set() if fits else {PlanRule.WHOLE})
