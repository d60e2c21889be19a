"""The utilization of a workload over time: bounded, without lost amounts, and the same however often it is stored."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.accounting import FlavorGpus, Mark, Subject, UsagePhase
from queuectl.domain.folding import Fold
from queuectl.domain.use_curve import MOST_POINTS, CurvePoint, UseCurve, UseSpan
from queuectl.domain.utilization import GangUse, UseState
from tests.api.test_reports import TERMS

BEGIN = 1_000_000.0


def _totals(curve: UseCurve) -> tuple[float, float, float]:
    """GPU-seconds: held, measured, used."""
    held = measured = used = 0.0
    for point in curve.points():
        here = point.held * (point.end - point.start)
        held += here
        measured += here * point.measured
        used += here * point.measured * (point.utilization or 0.0)
    return held, measured, used


spans = st.lists(
    st.tuples(
        st.floats(0.0, 40_000.0),
        st.floats(1.0, 4_000.0),
        st.integers(1, 64),
        st.none() | st.floats(0, 1),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(given_spans=spans)
def test_no_amount_is_lost_when_points_are_joined(
    given_spans: list[tuple[float, float, int, float | None]],
) -> None:
    curve = UseCurve(BEGIN)
    expected = [0.0, 0.0, 0.0]
    for at, seconds, gpus, used in given_spans:
        curve.add([UseSpan(BEGIN + at, BEGIN + at + seconds, gpus, used)])
        expected[0] += seconds * gpus
        if used is not None:
            expected[1] += seconds * gpus
            expected[2] += seconds * gpus * used
        curve = UseCurve.stored(curve.begins, curve.spacing, curve.content)
    assert curve.size <= MOST_POINTS
    assert _totals(curve) == pytest.approx(expected, rel=1e-3, abs=2.0)


def test_points_of_a_minute_become_longer_with_the_run_time() -> None:
    curve = UseCurve(BEGIN)
    curve.add([UseSpan(BEGIN, BEGIN + 90.0, 8, 0.5), UseSpan(BEGIN + 90.0, BEGIN + 120.0, 8, None)])
    assert curve.points() == (
        CurvePoint(BEGIN, BEGIN + 60.0, 8.0, 0.5, 1.0),
        CurvePoint(BEGIN + 60.0, BEGIN + 120.0, 8.0, 0.5, 0.5),
    )
    sizes = []
    for minute in range(2, 10_000):
        at = BEGIN + 60.0 * minute
        curve.add([UseSpan(at, at + 60.0, 8, 1.0)])
        sizes.append(curve.size)
    assert max(sizes) == MOST_POINTS
    assert curve.spacing == 60.0 * 128
    assert len(curve.content) <= 3 * 4 * MOST_POINTS
    assert curve.points()[-1].utilization == pytest.approx(1.0)
    weeks = BEGIN + 1e9
    curve.add([UseSpan(weeks, weeks + 1.0, 1, None), UseSpan(BEGIN - 50.0, BEGIN + 1.0, 8, 0.0)])
    assert curve.size <= MOST_POINTS


def test_a_span_that_is_taken_back_leaves_no_point() -> None:
    curve = UseCurve(BEGIN)
    curve.add([UseSpan(BEGIN, BEGIN + 120.0, 8, 0.3), UseSpan(BEGIN + 120.0, BEGIN + 60.0, 8, 0.3)])
    (first, second) = curve.points()
    assert first.utilization == pytest.approx(0.3)
    assert (second.held, second.utilization, second.measured) == (0.0, None, 0.0)


def test_a_curve_is_stored_when_it_gets_a_point_and_when_its_workload_stops() -> None:
    who = Subject("a", "Job", "team", "a", "q", "cq")
    held = (FlavorGpus("h100", "", 8),)
    start = Mark("a", BEGIN, BEGIN, UsagePhase.HOLDS, 1, 8, held, who)
    sample = GangUse("a", 1, UseState.ACTIVE, BEGIN, BEGIN + 40.0, 0.5, 1.0, "")
    curves: dict[str, UseCurve] = {}
    begun = Fold(BEGIN, BEGIN + 20.0, TERMS)
    begun.workload(None, [start], [sample])
    begun.draw(curves)
    assert begun.curves == curves
    meter = begun.meters["a"]
    assert meter is not None
    later = Fold(BEGIN + 20.0, BEGIN + 40.0, TERMS)
    later.workload(meter, [], [sample])
    later.draw(curves)
    assert later.curves == {}
    over = Fold(BEGIN + 40.0, BEGIN + 50.0, TERMS)
    over.workload(meter, [Mark("a", BEGIN + 40.0, BEGIN + 40.0, UsagePhase.GONE, 1, 8)], [sample])
    over.draw(curves)
    (point,) = over.curves["a"].points()
    assert point.held * 60.0 == pytest.approx(320.0)
    assert point.utilization == 0.5


def test_a_workload_without_gpus_has_no_curve() -> None:
    who = Subject("a", "Job", "team", "a", "q", "cq")
    curves: dict[str, UseCurve] = {}
    fold = Fold(BEGIN, BEGIN + 60.0, TERMS)
    held = (FlavorGpus("cpu", "", 0),)
    fold.workload(None, [Mark("a", BEGIN, BEGIN, UsagePhase.HOLDS, 1, 0, held, who)])
    fold.draw(curves)
    assert (curves, fold.curves) == ({}, {})
