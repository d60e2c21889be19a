"""One draw alongside Reservations in advance, and with gangs that Budgets hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.reservations import AdvanceReservation, Occurrence, ReservedCapacity
from queuectl.domain.workload import Duration
from tests.estimates.build import scene, starts
from tests.estimates.test_forward import ENDS, FULL, RACKS, job
from tests.planner.build import NOW, gang, holding, podset, queue, world
from tests.planner.test_budgets import budget, of, spending

X0 = "x0"  # a node that is free at 100


def reserved(begins: float, *, whole_node: bool = False) -> Occurrence:
    """Node ``x0`` until 300, for ClusterQueue ``own`` or for no gang."""
    made = AdvanceReservation("talk", NOW + begins, NOW + 300.0)
    if whole_node:
        made = replace(made, nodes=(X0,))
        return Occurrence(made, made.begins, made.ends)
    capacity = ReservedCapacity(1, Resources({GPU: 4, "pods": 1}))
    made = replace(made, cluster_queue="own", capacity=capacity)
    return Occurrence(made, made.begins, made.ends, ((X0, 1),))


@pytest.mark.parametrize("whole_node", [False, True])
@pytest.mark.parametrize(
    ("begins", "pods", "seconds", "expected"),
    [
        (120.0, 1, 10.0, 100.0),  # it is over before the Reservation begins
        (105.0, 1, 10.0, 150.0),  # it would not be over
        (120.0, 1, 60.0, 150.0),
        (120.0, 1, None, 150.0),
        (-10.0, 1, 10.0, 150.0),  # the Reservation has begun
        (120.0, 2, 60.0, 200.0),
        (120.0, 3, 60.0, 300.0),  # the Reservation ends
        (-10.0, 3, 60.0, 300.0),
        (120.0, 4, 60.0, 400.0),
    ],
)
def test_a_gang_starts_alongside_a_reservation_until_that_ends(
    whole_node: bool, begins: float, pods: int, seconds: float | None, expected: float
) -> None:
    asked = replace(job("p", pods), duration=None if seconds is None else Duration(seconds))
    snapshot = world(RACKS, [asked], FULL)
    snapshot = replace(snapshot, reservations=(reserved(begins, whole_node=whole_node),))
    assert starts(snapshot, ENDS) == {"p": expected}


@pytest.mark.parametrize("begins", [120.0, -10.0])
def test_a_gang_that_a_reservation_admits_starts_on_its_nodes(begins: float) -> None:
    own, other = replace(job("p", 1, 1.0), queue="own"), job("q", 1)
    snapshot = world(RACKS, [own, other], FULL, queue("main"), queue("own"))
    snapshot = replace(snapshot, reservations=(reserved(begins),))
    assert starts(snapshot, ENDS) == {"p": 100.0, "q": 150.0}


def test_equal_gangs_of_two_users_start_alongside_different_reservations() -> None:
    """Both Reservations begin at one time, so that only their users differ."""
    ann, bob = (
        replace(job(uid, 1, at), queue="own", user=uid, duration=Duration(60.0))
        for uid, at in (("ann", 1.0), ("bob", 0.0))
    )
    both = tuple(
        replace(made, reservation=replace(made.reservation, name=user, users=frozenset({user})))
        for user, made in (
            ("ann", reserved(120.0)),
            ("bob", replace(reserved(120.0), placed=(("y1", 1),))),
        )
    )
    snapshot = world(RACKS, [ann, bob], FULL, queue("main"), queue("own"))
    snapshot = replace(snapshot, reservations=both)
    assert starts(snapshot, ENDS) == {"ann": 100.0, "bob": 150.0}


def test_a_reservation_has_no_run_time() -> None:
    snapshot = replace(world(RACKS, [job("p", 1)], FULL), reservations=(reserved(120.0),))
    assert scene(snapshot).uids == {"p", "a", "b", "c", "d"}


@pytest.mark.parametrize(("hours", "expected"), [(100, {"p": 100.0}), (10, {})])
def test_a_gang_that_a_budget_holds_has_no_estimate(
    hours: float, expected: Mapping[str, float]
) -> None:
    full = [holding(gang(f"r{i}", podset(gpu=8)), {f"n{i}": 1}) for i in range(4)]
    snapshot = spending(budget(hours), [of("p", 8, run=1)], full, spent=10)
    assert starts(snapshot, {"r0": 100.0}) == expected


def test_a_gang_that_a_budget_holds_delays_no_other_gang() -> None:
    full = [holding(gang(f"r{i}", podset(gpu=8)), {f"n{i}": 1}) for i in range(4)]
    held, other = of("p", 8, run=1, queued_at=0.0), of("q", 8, run=1, queued_at=1.0, queue="free")
    snapshot = spending(budget(10), [held, other], full, spent=10)
    queues = world([], [], [], queue("main"), queue("free")).config
    config = replace(queues, budgets=snapshot.config.budgets)
    assert starts(replace(snapshot, config=config), {"r0": 100.0}) == {"q": 100.0}
