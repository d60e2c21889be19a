"""A plan is made without the gangs with which planning fails, and with all others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.control.checked_plan import CheckedPlan
from queuectl.control.contained_plan import MOST_PLANS, ContainedPlan, contained_plan
from queuectl.domain.containment import TOGETHER, UnitFailed, place_of
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import CapacityLease, Pending, Snapshot
from queuectl.planner import StopSignal
from queuectl.planner.verify import PlanRule, PlanViolation
from tests.planner import build


def snapshot(gangs: int, namespace: Callable[[int], str] = str) -> Snapshot:
    """Pending gangs g0, g1, ... in the order of their age, the oldest first."""
    workloads = [
        build.gang(f"g{number}", build.podset("main", 1, gpu=1)) for number in range(gangs)
    ]
    pending = [
        Pending(replace(one, namespace=namespace(number), queued_at=float(number)))
        for number, one in enumerate(workloads)
    ]
    return build.world([], pending)


Sets = Collection[frozenset[str]]


class Planner:
    """Fails on each snapshot that has all gangs of one of the failing sets."""

    def __init__(self, failing: Sets, *, names: bool = False, refuses: bool = False) -> None:
        self.failing = failing
        self.names = names
        self.refuses = refuses
        self.calls = 0

    def __call__(self, given: Snapshot) -> CheckedPlan:
        self.calls += 1
        there = {p.workload.uid for p in given.pending}
        broken = next((s for s in self.failing if s <= there), None)
        violations: tuple[PlanViolation, ...] = ()
        if broken is not None:
            if not self.refuses:
                error = ValueError("no plan")
                raise UnitFailed(min(broken)) if self.names else error
            subject = min(broken) if self.names else "a node"
            violations = (PlanViolation(PlanRule.CAPACITY, subject, "is over"),)
        return CheckedPlan(given, given, Plan(), Plan(), violations)


def planned(given: Snapshot, planner: Planner, aside: Collection[str] = ()) -> ContainedPlan:
    return contained_plan(given, aside, planner, StopSignal())


def left_out(given: Snapshot, found: ContainedPlan) -> set[str]:
    assert found.checked is not None
    kept = {p.workload.uid for p in found.checked.snapshot.pending}
    return {p.workload.uid for p in given.pending} - kept


def test_a_plan_that_passes_is_made_once() -> None:
    planner = Planner(())
    found = planned(snapshot(5), planner)
    assert (planner.calls, found.failures, found.put_off) == (1, (), ())


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("names", "most"), [(True, 3), (False, MOST_PLANS)])
@pytest.mark.parametrize("bad", ["g0", "g37", "g99"])
def test_one_gang_at_fault_is_found(bad: str, names: bool, most: int, refuses: bool) -> None:
    given = snapshot(100)
    planner = Planner([frozenset({bad})], names=names, refuses=refuses)
    found = planned(given, planner)
    assert [failure.uid for failure in found.failures] == [bad]
    assert left_out(given, found) == {bad}
    assert planner.calls <= most


@pytest.mark.parametrize("changes", ["is repaired", "is moved"])
def test_a_running_gang_at_fault_is_found(changes: str) -> None:
    running = build.holding(build.gang("r", build.podset("main", 2, gpu=1)), {"n0": 1, "n1": 1})
    lease = CapacityLease(running.placement, (), 0.0, 600.0)
    given = replace(
        snapshot(3),
        admitted=(
            replace(running, lost=(("main", "n1", 1),))
            if changes == "is repaired"
            else replace(running, lease=lease, leaving=True),
        ),
    )

    def planner(tried: Snapshot) -> CheckedPlan:
        if any(gang.lost or gang.lease is not None for gang in tried.admitted):
            raise ValueError("no plan")
        return CheckedPlan(tried, tried, Plan(), Plan(), ())

    found = contained_plan(given, (), planner, StopSignal())
    assert [failure.uid for failure in found.failures] == ["r"]
    assert left_out(given, found) == set()


def test_of_two_gangs_that_fail_together_the_newer_one_is_left_out() -> None:
    given = snapshot(50)
    found = planned(given, Planner([frozenset({"g3", "g30"})]))
    assert left_out(given, found) == {"g30"}


def test_a_gang_that_is_named_and_not_at_fault_is_not_left_out() -> None:
    class Wrong(Planner):
        def __call__(self, given: Snapshot) -> CheckedPlan:
            try:
                return super().__call__(given)
            except ValueError as error:
                raise UnitFailed("g5") from error

    given = snapshot(20)
    found = planned(given, Wrong([frozenset({"g9"})]))
    assert left_out(given, found) == {"g9"}


@pytest.mark.parametrize("error", [RuntimeError("another thread"), UnitFailed("g5")])
def test_no_gang_is_set_aside_for_an_error_that_does_not_occur_again(error: Exception) -> None:
    """The error of another thread, for example."""

    class Once(Planner):
        def __call__(self, given: Snapshot) -> CheckedPlan:
            made = super().__call__(given)
            if self.calls == 1:
                raise error
            return made

    given, planner = snapshot(20), Once(())
    found = planned(given, planner)
    assert (planner.calls, found.failures, found.put_off) == (2, (), ())
    assert left_out(given, found) == set()


def test_gangs_that_are_set_aside_are_not_tried() -> None:
    given, planner = snapshot(20), Planner([frozenset({"g9"})])
    found = planned(given, planner, aside={"g9"})
    assert (planner.calls, found.failures) == (1, ())


def test_many_failures_of_one_namespace_take_its_untried_gangs_along() -> None:
    """The gangs of another namespace, and those that were in a plan before, are not concerned."""
    given = snapshot(1000, lambda number: "good" if number % 10 == 0 else "bad")
    bad = {p.workload.uid for p in given.pending if p.workload.namespace == "bad"}
    proven = {"g1", "g11"}
    planner = Planner([frozenset({uid}) for uid in bad - proven], names=True)
    found = contained_plan(given, (), planner, StopSignal(), proven=proven)
    assert left_out(given, found) == bad - proven
    assert len(found.failures) == TOGETHER
    assert planner.calls <= TOGETHER + 3
    places = {place_of(failure.error) for failure, _ in found.with_them}
    assert places == {place_of(found.failures[0].error)}


def test_more_gangs_at_fault_than_the_limit_of_plans_delay_only_gangs_that_were_never_planned() -> (
    None
):
    given = snapshot(500)
    bad = {f"g{number}" for number in range(0, 500, 5)}
    planner = Planner([frozenset({uid}) for uid in bad])
    proven = {p.workload.uid for p in given.pending} - bad
    found = contained_plan(given, (), planner, StopSignal(), proven=proven)
    assert found.checked is not None
    assert left_out(given, found) == bad
    assert planner.calls <= MOST_PLANS + 1


def test_planning_that_always_fails_ends_after_a_limited_number_of_plans() -> None:
    planner = Planner([frozenset()])
    found = planned(snapshot(100), planner)
    assert (found.checked, found.failures) == (None, ())
    assert isinstance(found.error, ValueError)
    assert planner.calls <= MOST_PLANS + 1


def test_a_plan_that_is_stopped_is_not_made_again() -> None:
    stop, planner = StopSignal(), Planner([frozenset({"g1"})])
    stop.stop()
    contained_plan(snapshot(10), (), planner, stop)
    assert planner.calls == 1


@given(
    st.integers(1, 40).flatmap(
        lambda gangs: st.tuples(
            st.just(gangs),
            st.lists(st.frozensets(st.integers(0, gangs - 1), min_size=1, max_size=3), max_size=3),
        )
    ),
    st.booleans(),
)
def test_what_is_left_out_is_needed_and_enough(
    world: tuple[int, list[frozenset[int]]], names: bool
) -> None:
    """The plan passes, and no gang that is set aside can be put back."""
    gangs, sets = world
    failing = [frozenset(f"g{number}" for number in one) for one in sets]
    given = snapshot(gangs)
    found = planned(given, Planner(failing, names=names))
    out = left_out(given, found)
    assert found.checked is not None
    assert not found.checked.violations
    if found.put_off:
        return
    assert out == {failure.uid for failure in found.failures}
    everything = {p.workload.uid for p in given.pending}
    first = min(out, default=None)
    assert first is None or any(one <= everything for one in failing)
    for uid in out:
        assert any(uid in one for one in failing), "a gang that is in no failing set"
