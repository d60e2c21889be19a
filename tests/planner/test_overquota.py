"""The running gangs for which a configuration has no quota."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.diagnosis import Excess
from queuectl.domain.fleet import Fleet
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from queuectl.domain.snapshot import Admitted, Snapshot
from queuectl.domain.workload import Placement, PodSet, PodSetPlacement, PodShape, Workload
from queuectl.reports.over_quota import over_quota


def groups(nominal: int, borrowing: int | None = None, lending: int | None = None) -> tuple[ResourceGroup, ...]:  # fmt: skip
    limits = [{} if limit is None else {GPU: limit} for limit in (borrowing, lending)]
    return (ResourceGroup((GPU,), (FlavorQuotas("h100", {GPU: nominal}, *limits),)),)


def config(cohorts: dict[str, tuple[str | None, int]], **queues: tuple[str | None, tuple[ResourceGroup, ...]]) -> QueueConfig:  # fmt: skip
    """Cohort to its parent and own quota; ClusterQueue to its cohort and groups. LocalQueues are named alike."""
    return QueueConfig(
        cluster_queues={n: ClusterQueue(n, g, cohort=c) for n, (c, g) in queues.items()},
        local_queues={("default", n): LocalQueue("default", n, n) for n in queues},
        flavors={"h100": ResourceFlavor("h100")},
        cohorts={n: Cohort(n, parent, groups(own)) for n, (parent, own) in cohorts.items()},
    )


def gang(name: str, queue: str, gpus: int, started: float = 0.0, *, leaving: bool = False) -> Admitted:  # fmt: skip
    workload = Workload(name, "Job", "default", name, (PodSet("main", 1, PodShape(Resources({GPU: gpus}))),), queue)  # fmt: skip
    placed = Placement((PodSetPlacement("main", (), {GPU: "h100"}),))
    return Admitted(workload, placed, leaving=leaving, started_at=started)


def judge(new: QueueConfig, *gangs: Admitted) -> tuple[Excess, ...]:
    return over_quota(Snapshot(100.0, Fleet(()), QueueConfig(), admitted=gangs), new)


def test_the_youngest_gangs_of_a_reduced_queue_are_named_until_the_rest_fits() -> None:
    running = [gang(name, "a", 4, started) for name, started in (("old", 1.0), ("mid", 2.0), ("new", 3.0))]  # fmt: skip
    (excess,) = judge(config({}, a=(None, groups(8))), *running)
    assert excess == Excess("ClusterQueue", "a", "h100", GPU, 12, 8, ("default/new",))
    assert judge(config({}, a=(None, groups(12))), *running) == ()


def test_a_gang_that_is_leaving_is_over_no_quota() -> None:
    leaving = gang("new", "a", 8, leaving=True)
    assert judge(config({}, a=(None, groups(8))), gang("old", "a", 8), leaving) == ()


def test_borrowing_is_allowed_up_to_the_limit_and_not_beyond() -> None:
    running = gang("one", "a", 8, 1.0), gang("two", "a", 4, 2.0)
    lent = {"b": ("c", groups(8))}
    assert judge(config({}, a=("c", groups(4)), **lent), *running) == ()
    (excess,) = judge(config({}, a=("c", groups(4, borrowing=6)), **lent), *running)
    assert (excess.name, excess.used, excess.allowed) == ("a", 12, 10)
    assert excess.gangs == ("default/two",)


def test_in_a_cohort_borrowers_are_named_and_not_the_owner_that_started_last() -> None:
    running = gang("borrower", "a", 8, 1.0), gang("owner", "b", 8, 2.0)
    (excess,) = judge(config({"c": (None, 4)}, a=("c", groups(0)), b=("c", groups(8))), *running)
    assert (excess.kind, excess.name, excess.used, excess.allowed) == ("Cohort", "c", 16, 12)
    assert excess.gangs == ("default/borrower",)


def test_a_flavor_that_a_queue_no_longer_has_counts_as_zero_quota() -> None:
    bare = config({}, a=(None, ()))
    (excess,) = judge(bare, gang("one", "a", 1))
    assert (excess.used, excess.allowed, excess.gangs) == (1, 0, ("default/one",))


def test_a_deleted_queue_charges_no_gang() -> None:
    assert judge(config({}), gang("one", "a", 1)) == ()


amounts = st.integers(0, 6)
quota = st.tuples(amounts, st.none() | amounts, st.none() | amounts)
sizes = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 5)), max_size=5)


@given(quota, quota, amounts, amounts, sizes)
def test_without_the_named_gangs_that_quota_is_kept_and_without_fewer_of_them_it_is_not(
    a: tuple[int, int | None, int | None],
    b: tuple[int, int | None, int | None],
    own: int,
    root: int,
    running: list[tuple[str, int]],
) -> None:
    new = config({"c": ("r", own), "r": (None, root)}, a=("c", groups(*a)), b=("c", groups(*b)))
    gangs = [gang(f"g{i}", q, gpus, float(i)) for i, (q, gpus) in enumerate(running)]
    for excess in judge(new, *gangs):

        def over(without: frozenset[str], row: Excess = excess) -> bool:
            left = [g for g in gangs if g.workload.ref not in without]
            return any((e.kind, e.name) == (row.kind, row.name) for e in judge(new, *left))

        named = excess.gangs
        assert excess.used > excess.allowed
        assert not over(frozenset(named))
        if len(named) > 1:  # the last one named is needed: without it the walk would have continued
            assert any(over(frozenset(some)) for some in combinations(named, len(named) - 1))
        started = [int(ref.removeprefix("default/g")) for ref in named]
        assert started == sorted(started, reverse=True)
