"""The arithmetic of the usage ledger: what marks and looks make of a span of time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.accounting import (
    HOUR,
    MILLISECONDS,
    UNITS,
    Accounting,
    AccountingTerms,
    Amounts,
    ClusterGpus,
    FlavorGpus,
    LostWork,
    Mark,
    Meter,
    Price,
    Subject,
    UsagePhase,
    by_hour,
)
from queuectl.domain.folding import Fold
from queuectl.domain.measured import FRESH_SECONDS, pieces
from queuectl.domain.usage_reports import ReportRow
from queuectl.domain.utilization import GangUse, UseState
from tests.support.gpu_seconds import GpuSeconds, gpu_seconds

T = 1_700_000_000 - 1_700_000_000 % HOUR  # a full hour
WHO = Subject("u1", "Job", "team-a", "train", "research", "gpus", "", "ann", (("team", "nlp"),))
TERMS = AccountingTerms({"gpus": "all"}, {"spot": 1.5})
H100 = (FlavorGpus("h100", "", 8),)


def mark(
    at: float, phase: UsagePhase, *, held: tuple[FlavorGpus, ...] | None = H100, attempt: int = 1
) -> Mark:
    return Mark("u1", at, at, phase, attempt, 8, held if phase is UsagePhase.HOLDS else (), WHO)


def sample(
    state: UseState, utilization: float | None, *, at: float = T + 100, attempt: int = 1
) -> GangUse:
    return GangUse("u1", attempt, state, T, at, utilization, 1.0, "")


def folded(
    since: float, until: float, meter: Meter | None, *marks: Mark, samples: Sequence[GangUse] = ()
) -> Fold:
    fold = Fold(since, until, TERMS)
    fold.workload(meter, marks, samples)
    return fold


def units(*folds: Fold) -> Amounts:
    sums = Amounts()
    for fold in folds:
        for row in fold.hours.values():
            sums.add(row)
    return sums


def total(*folds: Fold) -> GpuSeconds:
    return gpu_seconds(units(*folds))


RUNS = Meter(UsagePhase.HOLDS, 1, 8, H100, WHO)


def test_a_span_is_cut_at_full_hours() -> None:
    assert list(by_hour(T - 10, T + HOUR + 5)) == [
        (T - HOUR, 10_000),
        (T, 1000 * HOUR),
        (T + HOUR, 5000),
    ]


def test_a_span_that_runs_backwards_counts_negative() -> None:
    assert list(by_hour(T + 5, T - 10)) == [(T - HOUR, -10_000), (T, -5000)]


def test_waiting_and_held_time_are_summed_by_flavor_hour_and_cohort() -> None:
    fold = folded(T, T + 100, None, mark(T - 30, UsagePhase.WAITS), mark(T + 60, UsagePhase.HOLDS))
    by_key = {(hour, f): gpu_seconds(row) for (hour, _, f, _), row in fold.hours.items()}
    assert by_key[T - HOUR, ""].waited == 8 * 30
    assert by_key[T, ""].waited == 8 * 60
    assert by_key[T, ""].waiting == 60
    assert by_key[T, "h100"].allocated == by_key[T, "h100"].unknown == 8 * 40
    assert {s.cohort for s in fold.accounts.new.values()} == {"all"}
    assert fold.meters == {"u1": RUNS}


@pytest.mark.parametrize(
    ("state", "utilization", "amounts"),
    [
        (UseState.ACTIVE, 0.75, {"used": 600.0}),
        (UseState.LOW, 0.25, {"used": 200.0}),
        (UseState.WARMUP, 0.0, {}),
        (UseState.IDLE, 0.0, {"idle": 800.0}),
        (UseState.IDLE, 0.25, {"idle": 800.0, "used": 200.0}),
        (UseState.STUCK, 1.0, {"stuck": 800.0}),
        (UseState.UNKNOWN, 0.0, {"unknown": 800.0}),
        (UseState.ACTIVE, None, {"unknown": 800.0}),
    ],
)
def test_what_was_measured_splits_what_was_allocated(
    state: UseState, utilization: float | None, amounts: dict[str, float]
) -> None:
    found = total(folded(T, T + 100, RUNS, samples=[sample(state, utilization)]))
    assert found == GpuSeconds(allocated=800.0, unpriced=800.0, **amounts)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(UseState.IDLE, 0.0, attempt=2)],
        [sample(UseState.IDLE, 0.0, at=T - FRESH_SECONDS)],
        [sample(UseState.IDLE, 0.0, at=T + 100 + FRESH_SECONDS)],
    ],
    ids=["nothing", "another attempt", "long ago", "much later"],
)
def test_samples_without_evidence_leave_the_span_unknown(samples: list[GangUse]) -> None:
    found = total(folded(T, T + 100, RUNS, samples=samples))
    assert (found.unknown, found.idle) == (800.0, 0.0)


def test_each_sample_covers_the_time_since_the_one_before_and_the_newest_also_what_follows() -> (
    None
):
    samples = [
        sample(UseState.ACTIVE, 1.0, at=T + 10),
        sample(UseState.IDLE, 0.0, at=T + 40),
        sample(UseState.ACTIVE, 0.5, at=T + 70),
    ]
    found = total(folded(T, T + 100, RUNS, samples=samples))
    assert found.idle == 8 * 30
    assert found.used == 8 * (10 + 0.5 * 60)
    assert found.unknown == 0.0


def test_of_a_time_without_looks_nothing_is_known_but_what_is_near_to_one() -> None:
    """For example hours without a leader: the gang can have worked, so it was not idle."""
    samples = [sample(UseState.IDLE, 0.0, at=T), sample(UseState.IDLE, 0.0, at=T + HOUR)]
    found = total(folded(T, T + HOUR, RUNS, samples=samples))
    assert found.idle == 8 * 2 * FRESH_SECONDS
    assert found.unknown == 8 * (HOUR - 2 * FRESH_SECONDS)


def test_a_correction_subtracts_what_the_samples_of_its_time_added() -> None:
    """It ended before the last entry, and that is known only after another look."""
    early, late = sample(UseState.IDLE, 0.0, at=T + 20), sample(UseState.ACTIVE, 1.0, at=T + 70)
    first = folded(T, T + 60, RUNS, samples=[early])
    second = folded(T + 60, T + 100, RUNS, mark(T + 50, UsagePhase.GONE), samples=[early, late])
    assert total(first, second) == GpuSeconds(allocated=400.0, idle=400.0, unpriced=400.0)


LOOKED = st.lists(
    st.tuples(st.floats(-700, 4700), st.integers(1, 2)), max_size=8, unique_by=lambda one: one[0]
)


@given(
    times=LOOKED, span=st.tuples(st.floats(0, 4000), st.floats(0, 4000)), since=st.floats(0, 4000)
)
def test_pieces_cover_the_span_and_each_has_a_near_sample_of_its_own_attempt(
    times: list[tuple[float, int]], span: tuple[float, float], since: float
) -> None:
    samples = [
        sample(UseState.ACTIVE, 0.5, at=T + at, attempt=attempt) for at, attempt in sorted(times)
    ]
    start, end = T + span[0], T + span[1]
    found = pieces(start, end, samples, 1, T + since)
    assert (found[0].start, found[-1].end) == (start, end)
    assert all(one.end == other.start for one, other in pairwise(found))
    for piece in found:
        low, high = sorted(piece[:2])
        known = [x for x in samples if x.attempt == 1 and (low >= T + since or x.at <= T + since)]
        if piece.sample is None:
            middle = (low + high) / 2
            assert all(abs(x.at - middle) > FRESH_SECONDS - 1e-3 for x in known) or low == high
        else:
            assert piece.sample in known
            far = max(abs(piece.sample.at - low), abs(piece.sample.at - high))
            assert far <= 2 * FRESH_SECONDS


def test_cost_uses_the_price_of_each_gpu_and_gpus_without_a_price_are_reported() -> None:
    mixed = replace(RUNS, held=(FlavorGpus("h100", "", 2), FlavorGpus("h100", "spot", 6)))
    found = total(folded(T, T + HOUR, mixed))
    assert found.cost == 6 * 1.5
    assert found.unpriced == 2 * HOUR


def test_the_first_price_that_holds_is_the_price() -> None:
    spot = Price("spot", 1.0, "h100", (("capacity", "spot"),))
    rules = Accounting(prices=(spot, Price("h100", 3.0, "h100"), Price("rest", 2.0)))
    assert rules.price_of("h100", {"capacity": "spot"}) == "spot"
    assert rules.price_of("h100", {"capacity": "reserved"}) == "h100"
    assert rules.price_of("a100", {"capacity": "spot"}) == "rest"
    assert Accounting(prices=(spot,)).price_of("a100", {}) == ""


def test_lost_work_is_in_the_hour_of_the_eviction_by_flavor() -> None:
    mixed = replace(RUNS, held=(FlavorGpus("a100", "", 2), FlavorGpus("h100", "spot", 6)))
    evicted = replace(mark(T + 10, UsagePhase.HOLDS, held=None), loss=LostWork("Preempted", 800.0))
    fold = folded(T, T + 100, mixed, evicted)
    found = {
        flavor: (lost.gpu_seconds, lost.evictions)
        for (_, _, flavor, _), lost in fold.losses.items()
    }
    assert found == {"a100": (200.0, 1), "h100": (600.0, 0)}
    assert total(fold).allocated == 800.0, "it holds its GPUs until its pods are deleted"


def test_a_recreated_workload_does_not_count_its_earlier_wait_again() -> None:
    back = replace(mark(T - 5000, UsagePhase.WAITS), written_at=T + 50)
    fold = Fold(T, T + 100, TERMS)
    fold.workload(None, [back], at_start=True)
    assert total(fold).waiting == 50.0
    fold = Fold(T, T + 100, TERMS)
    fold.workload(RUNS, [mark(T + 10, UsagePhase.GONE), back])
    assert (total(fold).allocated, total(fold).waiting) == (80.0, 50.0)


@pytest.mark.parametrize("begins", [T - HOUR - 900, T - 600, T])
def test_no_gpus_are_missing_before_the_ledger_began(begins: int) -> None:
    """A gang that Kueue started can hold GPUs for hours before queuectl observes the cluster."""
    fold = Fold(T, T + 60, TERMS, begins=begins)
    fold.workload(None, [mark(T - 2 * HOUR, UsagePhase.HOLDS)])
    fold.divide(ClusterGpus(physical=20))
    held = {hour: row.allocated // UNITS for hour, row in fold.cluster.items()}
    assert held == {T - 2 * HOUR: 8 * HOUR, T - HOUR: 8 * HOUR, T: 8 * 60}
    before = (span for hour, span in by_hour(begins, T) if hour < T)
    missing = -8 * sum(before) / MILLISECONDS
    unallocated = sum(row.unallocated for hour, row in fold.cluster.items() if hour < T) / UNITS
    assert unallocated == missing, "earlier foldings have divided this time"
    assert fold.cluster[T].unallocated // UNITS == 12 * 60

    back = Fold(T, T, TERMS, begins=begins)
    back.workload(RUNS, [mark(T - 2 * HOUR, UsagePhase.GONE)])
    back.divide(ClusterGpus())
    assert {hour: (-row.physical, -row.unallocated) for hour, row in back.cluster.items()} == {
        hour: (row.physical, row.unallocated) for hour, row in fold.cluster.items() if hour < T
    }, "a correction takes the same back"


STEPS = st.lists(
    st.tuples(st.floats(0, 4000), st.sampled_from(list(UsagePhase)[:3]), st.integers(0, 16)),
    max_size=8,
)


@given(steps=STEPS, cuts=st.lists(st.floats(0, 9000), max_size=5), seed=st.integers(0, 99))
def test_it_does_not_matter_when_marks_are_folded(
    steps: list[tuple[float, UsagePhase, int]], cuts: list[float], seed: int
) -> None:
    """At once, or in any batches that keep their order, each before or after its time: the sums are the same."""
    at, marks = float(T), []
    for span, phase, gpus in steps:
        at += span
        marks.append(replace(mark(at, phase, held=(FlavorGpus("h100", "", gpus),)), gpus=gpus))
    end = T + 40_000.0
    times = sorted({float(T), *(T + cut for cut in cuts), end})
    drawn = random.Random(seed)
    taken = sorted(drawn.randint(0, len(marks)) for _ in times[2:])
    folds, meter = [], None
    for since, until, low, high in zip(
        times, times[1:], [0, *taken], [*taken, len(marks)], strict=False
    ):
        fold = folded(since, until, meter, *marks[low:high])
        meter = fold.meters.get("u1", meter)
        folds.append(fold)
    assert units(*folds) == units(folded(T, end, None, *marks))


def test_efficiency_and_waste_are_of_what_was_measured() -> None:
    row = ReportRow({}, Amounts(allocated=1000, used=300, unknown=400, cost=10.0))
    assert row.efficiency == 0.5
    assert row.wasted == 300
    assert row.wasted_cost == 3.0
    assert ReportRow({}, Amounts(allocated=5, unknown=5)).efficiency is None
