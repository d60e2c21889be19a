"""A part of a published trace: Backfill keeps gangs of several nodes from waiting for small ones, and all jobs wait less than with FIFO."""

from __future__ import annotations

import gzip

import pytest

from queuectl.simulate.outcomes import Figures
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Durations, Order, PlacementRule
from tests.simulate.cases import SLICE, outcome, setting
from tests.traces import records


@pytest.fixture(scope="module")
def given() -> Setting:
    lines = gzip.decompress(SLICE.read_bytes()).decode().splitlines(keepends=True)
    return setting({"cluster03": 12}, "".join(lines[:301]))


def total(given: Setting, placement: PlacementRule, order: Order, *more: Durations) -> Figures:
    return outcome(given, placement, order, *more).total


def test_with_limits_all_jobs_and_gangs_of_several_nodes_wait_less_than_with_fifo(
    given: Setting,
) -> None:
    fifo = total(given, PlacementRule.BEST_FIT, Order.STRICT_FIFO)
    found = total(given, PlacementRule.PLANNER, Order.BACKFILL, Durations.DECLARED)
    assert found.waits.mean is not None
    assert fifo.waits.mean is not None
    assert fifo.several.mean is not None
    assert found.several.mean is not None
    assert found.waits.mean < fifo.waits.mean
    assert found.several.mean < fifo.several.mean


def test_with_learned_run_times_jobs_wait_less_than_with_fifo_and_gangs_of_several_nodes_no_longer(
    given: Setting,
) -> None:
    fifo = total(given, PlacementRule.BEST_FIT, Order.STRICT_FIFO)
    found = total(given, PlacementRule.PLANNER, Order.BACKFILL, Durations.LEARNED)
    assert found.waits.mean is not None
    assert fifo.waits.mean is not None
    assert fifo.several.mean is not None
    assert found.several.mean is not None
    assert found.waits.mean < fifo.waits.mean
    assert found.several.mean <= fifo.several.mean


@pytest.mark.parametrize("durations", ["declared", "learned"])
def test_in_the_recorded_results_backfill_beats_fifo(durations: str) -> None:
    known = records.read()
    traces = {
        trace: fifo
        for (trace, strategy, placement, *_), fifo in known.items()
        if (strategy, placement) == ("StrictFIFO", "best-fit")
    }
    for trace, fifo in traces.items():
        found = known.get((trace, "Backfill", "planner", durations, records.RULE))
        if found is not None:
            assert found.mean < fifo.mean, trace
            assert found.several <= fifo.several, trace


def test_the_page_has_the_recorded_results() -> None:
    page = records.PAGE.read_text()
    assert page == records.with_tables(page, list(records.read().values()))
