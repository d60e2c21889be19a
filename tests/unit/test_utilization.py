"""The use that a gang makes of its GPUs, from samples: never idle without a sample of each of its GPUs over the whole window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.queues import IdleReclaim
from queuectl.domain.utilization import GangUse, PodUse, SourceFault, UseState, UtilizationSample
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.utilization import COVERED, UseTracker, source_faults

SCRAPE = 30.0
RULE = IdleReclaim(window=1800, warmup=600, memory_window=7200)
READY = 1000.0
LATER = READY + RULE.warmup + 10 * RULE.window  # long after its warm-up
U = UseState


def pod(number: int = 0, gpus: int = 8, **changes: object) -> HeldPod:
    made = HeldPod("team", f"train-{number}", f"uid-{number}", gpus, READY - 60)
    return replace(made, **changes)  # type: ignore[arg-type]


def gang(*pods: HeldPod, rule: IdleReclaim = RULE, ready_at: float | None = READY) -> HeldGang:
    return HeldGang("job", 1, "queue", rule, ready_at, pods or (pod(),))


def row(of: HeldPod, busy: float = 0.9, **changes: object) -> PodUse:
    """A row of a pod with full coverage; computing unless the test sets something else."""
    made = PodUse(
        of.namespace, of.name, of.gpus, busy, busy, coverage=1.0, age=20.0, uid=None,
        tensor=busy / 2, memory_busy=busy / 2, memory_held=0.01,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def sample(rows: Sequence[PodUse], window: float = 120.0, at: float = LATER) -> UtilizationSample:
    return UtilizationSample(at, window, window, gpus=64, pods=tuple(rows))


def judged(
    one: HeldGang,
    recent: Sequence[PodUse],
    longer: Sequence[PodUse] | None = None,
    *,
    at: float = LATER,
    tracker: UseTracker | None = None,
) -> GangUse:
    """The evaluation of a sample; all longer windows show the same unless the test sets something else."""
    tracker = tracker or UseTracker(SCRAPE)
    now = sample(recent, at=at)
    windows = tracker.windows([one], now)
    over = {w: sample(recent if longer is None else longer, w, at) for w in windows}
    return tracker.judge([one], now, over)["job"]


def test_a_gang_that_computes_is_active_and_weighs_what_it_uses() -> None:
    one = gang()
    tracker = UseTracker(SCRAPE)
    first = judged(one, [row(pod())], tracker=tracker)
    assert (first.state, first.utilization, first.weight) == (U.ACTIVE, 0.9, 1.0)
    for step in range(1, 200):
        last = judged(one, [row(pod())], at=LATER + 60 * step, tracker=tracker)
    assert last.weight == pytest.approx(0.9, abs=0.01)
    assert last.since == LATER


def test_a_gang_none_of_whose_gpus_did_anything_is_idle_and_weighs_nothing() -> None:
    one = gang(pod(0), pod(1))
    use = judged(one, [row(pod(0), 0.0), row(pod(1), 0.01)])
    assert (use.state, use.covered) == (U.IDLE, 1.0)
    assert use.utilization == pytest.approx(0.005)
    assert use.weight == use.utilization


def test_one_busy_rank_keeps_the_whole_gang_from_being_idle() -> None:
    one = gang(*(pod(n) for n in range(64)))
    rows = [row(pod(n), 0.0) for n in range(63)] + [row(pod(63), 0.9)]
    assert judged(one, rows).state is U.LOW


QUIET = row(pod(), 0.0)
DOUBTS = {
    "no series at all": [],
    "another pod's": [row(pod(1), 0.0)],
    "the same name elsewhere": [replace(QUIET, namespace="other")],
    "the uid of the pod before": [replace(QUIET, uid="uid-before")],
    "one of its GPUs is missing": [replace(QUIET, gpus=7)],
    "more GPUs than it holds": [replace(QUIET, gpus=16)],
    "samples are missing": [replace(QUIET, coverage=COVERED - 0.01)],
    "its exporter is silent": [replace(QUIET, age=120.0)],
    "its GPU is shared": [replace(QUIET, shared=True)],
    "two pods of its name, both without a uid": [QUIET, replace(QUIET, gpus=4)],
}


@pytest.mark.parametrize("rows", DOUBTS.values(), ids=DOUBTS)
@pytest.mark.parametrize("where", ["lately", "over the window"])
def test_whatever_is_not_seen_is_unknown_and_weighs_as_if_fully_used(
    rows: list[PodUse], where: str
) -> None:
    use = (
        judged(gang(), rows, [QUIET]) if where == "lately" else judged(gang(), [QUIET], longer=rows)
    )
    assert use.state is U.UNKNOWN
    assert (use.utilization, use.weight) == (None, None)
    assert use.text


@pytest.mark.parametrize(("own", "state"), [(False, U.UNKNOWN), (True, U.IDLE)])
def test_a_gang_on_shared_gpus_is_unknown_unless_its_own_part_is_measured(
    own: bool, state: UseState
) -> None:
    one = gang(pod(shared=True))
    assert judged(one, [replace(QUIET, own=own)]).state is state


@pytest.mark.parametrize(("unseen", "more"), [(2, "(and 1 more pod)"), (3, "(and 2 more pods)")])
def test_pods_without_metrics_are_counted(unseen: int, more: str) -> None:
    use = judged(gang(*(replace(pod(), name=f"p{number}") for number in range(unseen))), [])
    assert use.text.endswith(more)


def test_no_answer_at_all_is_unknown() -> None:
    tracker = UseTracker(SCRAPE)
    assert judged(gang(), [QUIET], tracker=tracker).state is U.IDLE
    use = tracker.nothing([gang()], LATER + 60, "Prometheus: connection refused")["job"]
    assert (use.state, use.utilization, use.weight) == (U.UNKNOWN, None, None)
    assert "refused" in use.text


@pytest.mark.parametrize(
    ("at", "ready_at", "state"),
    [
        (LATER, None, U.WARMUP),  # not whole
        (READY + 1, READY, U.WARMUP),
        (READY + RULE.warmup - 1, READY, U.WARMUP),
        (READY + RULE.warmup + 1, READY, U.LOW),  # the window still reaches into the warm-up
        (READY + RULE.warmup + RULE.window - 1, READY, U.LOW),
        (READY + RULE.warmup + RULE.window, READY, U.IDLE),
    ],
)
def test_the_warm_up_is_not_judged_and_a_window_does_not_reach_into_it(
    at: float, ready_at: float | None, state: UseState
) -> None:
    use = judged(gang(ready_at=ready_at), [QUIET], at=at)
    assert use.state is state
    assert (use.utilization is None) is (state is U.WARMUP)


def test_zeros_of_the_run_before_under_the_same_pod_name_count_for_nothing() -> None:
    """Without uids, a window that begins before the pod has no data of it."""
    rule = replace(RULE, warmup=0.0)
    young = pod(started_at=LATER - 100.0)
    assert judged(gang(young, rule=rule), [QUIET]).state is U.UNKNOWN
    # Even where the gang as a whole is older: this pod of it was replaced.
    replaced = pod(started_at=LATER - RULE.window)
    assert judged(gang(replaced, rule=rule), [QUIET]).state is not U.IDLE
    untold = pod(started_at=None)
    assert judged(gang(untold), [QUIET]).state is U.UNKNOWN


def test_a_uid_distinguishes_two_runs_of_one_name() -> None:
    before = replace(QUIET, uid="uid-before")
    now = row(pod(), 0.9, uid="uid-0")
    assert judged(gang(), [before, now]).state is U.ACTIVE


def test_it_takes_less_to_be_idle_still_than_to_become_it() -> None:
    between = row(pod(), 0.04)
    assert judged(gang(), [between]).state is U.LOW
    tracker = UseTracker(SCRAPE)
    assert judged(gang(), [QUIET], tracker=tracker).state is U.IDLE
    still = judged(gang(), [between], at=LATER + 60, tracker=tracker)
    assert (still.state, still.since) == (U.IDLE, LATER)
    awake = judged(gang(), [row(pod(), 0.3)], at=LATER + 120, tracker=tracker)
    assert awake.state is U.ACTIVE
    assert judged(gang(), [between], at=LATER + 180, tracker=tracker).state is U.LOW


def test_another_attempt_starts_from_nothing() -> None:
    tracker = UseTracker(SCRAPE)
    judged(gang(), [QUIET], tracker=tracker)
    again = replace(gang(), attempt=2)
    use = judged(again, [row(pod(), 0.04)], at=LATER + 60, tracker=tracker)
    assert (use.state, use.weight) == (U.LOW, 1.0)


def test_a_burst_in_the_window_is_not_idle_yet() -> None:
    assert judged(gang(), [QUIET], longer=[row(pod(), 0.5)]).state is U.LOW


def test_a_gang_that_holds_memory_has_loaded_data_and_has_a_longer_grace() -> None:
    held = replace(QUIET, memory_held=0.8)
    one = gang()
    assert UseTracker(SCRAPE).windows([one], sample([held])) == [1800.0, 7200.0]
    assert judged(one, [held]).state is U.IDLE  # quiet for two hours as well
    early = READY + RULE.warmup + RULE.window + 1
    assert judged(one, [QUIET], at=early).state is U.IDLE
    assert judged(one, [held], at=early).state is U.LOW
    unsaid = replace(QUIET, memory_held=None)
    assert judged(one, [unsaid], at=early).state is U.LOW


STUCK = row(pod(), 1.0, tensor=0.0, memory_busy=0.0)


@pytest.mark.parametrize(
    ("recent", "longer", "state"),
    [
        (STUCK, STUCK, U.STUCK),
        (STUCK, row(pod()), U.ACTIVE),  # at the threshold
        (replace(STUCK, tensor=0.4), STUCK, U.ACTIVE),
        (replace(STUCK, memory_busy=0.4), STUCK, U.ACTIVE),
        (replace(STUCK, tensor=None), replace(STUCK, tensor=None), U.ACTIVE),  # cannot be decided
        (STUCK, replace(STUCK, coverage=0.5), U.ACTIVE),
    ],
)
def test_busy_engines_that_compute_nothing_are_stuck_not_idle(
    recent: PodUse, longer: PodUse, state: UseState
) -> None:
    use = judged(gang(), [recent], [longer])
    assert use.state is state
    assert use.utilization == 1.0


def test_thresholds_are_the_queues_own() -> None:
    lenient = replace(RULE, idle_below=0.1, active_above=0.2, window=300.0)
    assert judged(gang(rule=lenient), [row(pod(), 0.09)]).state is U.IDLE
    assert judged(gang(), [row(pod(), 0.09)]).state is U.LOW
    assert judged(gang(), [row(pod(), RULE.low_below)]).state is U.ACTIVE
    assert UseTracker(SCRAPE).windows([gang(rule=lenient)], sample([QUIET])) == [300.0]


@pytest.mark.parametrize(
    ("limit", "says"),
    [(0.07, "stayed below 7% for"), (0.004, "stayed below 0.4% for"), (0.0, "did nothing for")],
)
def test_the_reason_of_an_idle_gang_states_the_threshold_of_its_queue(
    limit: float, says: str
) -> None:
    rule = replace(RULE, idle_below=limit, active_above=0.2)
    assert says in judged(gang(rule=rule), [row(pod(), 0.0)]).text


def test_one_rank_that_works_again_makes_its_gang_active_although_the_window_was_quiet() -> None:
    """The window is queried because of another gang, and nine tenths of it are quiet."""
    woken, idle = gang(pod(0), pod(1)), replace(gang(pod(2)), uid="idle")
    recent = sample([row(pod(0), 0.0), row(pod(1), 0.9), row(pod(2), 0.0)])
    quiet = sample([row(pod(n), 0.0) for n in range(3)], RULE.window)
    tracker = UseTracker(SCRAPE)
    assert tracker.windows([woken, idle], recent) == [RULE.window]
    uses = tracker.judge([woken, idle], recent, {RULE.window: quiet})
    assert (uses["job"].state, uses["idle"].state) == (U.ACTIVE, U.IDLE)


def test_longer_windows_are_queried_only_where_a_gang_can_be_idle() -> None:
    assert UseTracker(SCRAPE).windows([gang()], sample([row(pod())])) == []


PODS = st.integers(1, 4)
ROWS = st.builds(
    PodUse,
    namespace=st.just("team"),
    pod=st.sampled_from([f"train-{n}" for n in range(4)]),
    gpus=st.sampled_from([7, 8, 8, 8, 9]),
    busy=st.sampled_from([0.0, 0.01, 0.04, 0.5]),
    mean=st.just(0.0),
    coverage=st.sampled_from([0.0, 0.79, 0.8, 1.0, 1.0]),
    age=st.sampled_from([10.0, 20.0, 90.0]),
    uid=st.sampled_from([None, "uid-0", "uid-1", "other"]),
    tensor=st.sampled_from([None, 0.0, 0.5]),
    memory_busy=st.sampled_from([None, 0.0, 0.5]),
    memory_held=st.sampled_from([None, 0.0, 0.9]),
    shared=st.sampled_from([False, False, False, True]),
)


def seen_well(of: HeldPod, rows: Sequence[PodUse], limit: float) -> bool:
    """The same rule, written independently: some row of the pod, not of another run of it, whole, fresh, of its own GPUs, quiet."""
    return any(
        r.pod == of.name and r.uid in (None, of.uid) and r.gpus == of.gpus
        and r.coverage >= 0.8 and r.age <= 75 and not r.shared and r.busy <= limit
        for r in rows
    )  # fmt: skip


@given(
    PODS,
    st.lists(
        st.tuples(st.lists(ROWS, max_size=6), st.lists(ROWS, max_size=6)), min_size=1, max_size=4
    ),
    st.floats(0, 4000),
)
def test_never_idle_unless_every_pod_was_seen_quiet_lately_and_over_the_window(
    pods: int, samples: list[tuple[list[PodUse], list[PodUse]]], age: float
) -> None:
    one = gang(*(pod(n) for n in range(pods)))
    tracker = UseTracker(SCRAPE)
    for step, (recent, longer) in enumerate(samples):
        at = READY + age + 60 * step
        use = judged(one, recent, longer, at=at, tracker=tracker)
        assert (use.utilization is None) == (use.state in (U.UNKNOWN, U.WARMUP))
        if use.state is U.IDLE:
            assert at >= READY + RULE.warmup + RULE.window
            for held in one.pods:
                assert seen_well(held, recent, RULE.active_above)
                assert seen_well(held, longer, RULE.active_above)
        if use.weight is not None and use.state is not U.IDLE:
            assert use.utilization is not None
            assert use.weight >= min(use.utilization, 1.0)


# ---- what is wrong with the set-up


def found(rows: Sequence[PodUse], *, gpus: int = 64) -> Mapping[SourceFault, int]:
    one = gang(pod(0), pod(1))
    return source_faults([one], replace(sample(rows), gpus=gpus), SCRAPE)


GOOD = [row(pod(0)), row(pod(1))]


@pytest.mark.parametrize(
    ("rows", "gpus", "wrong"),
    [
        (GOOD, 64, {}),
        ([], 0, {SourceFault.NO_MATCH: 2}),
        ([], 64, {SourceFault.WRONG_LABELS: 2}),
        ([replace(QUIET, pod="dcgm-exporter-x")], 64, {SourceFault.WRONG_LABELS: 2}),
        (GOOD[:1], 64, {SourceFault.PARTIAL: 1}),
        ([GOOD[0], replace(GOOD[1], gpus=7)], 64, {SourceFault.PARTIAL: 1}),
        ([GOOD[0], replace(GOOD[1], age=300.0)], 64, {SourceFault.STALE: 1}),
        ([replace(r, profiled=False) for r in GOOD], 64, {SourceFault.DCP_MISSING: 2}),
        ([replace(r, profiled=False, own=True) for r in GOOD], 64, {}),
    ],
)
def test_a_wrong_set_up_has_its_own_reason(
    rows: list[PodUse], gpus: int, wrong: Mapping[SourceFault, int]
) -> None:
    assert found(rows, gpus=gpus) == wrong


def test_gpus_of_untrusted_jobs_alone_are_a_separate_reason() -> None:
    seen = replace(sample([]), gpus=0, untrusted=("kubernetes-pods",))
    assert source_faults([gang(pod(0))], seen, SCRAPE) == {SourceFault.UNTRUSTED: 1}


def test_pods_that_started_a_moment_ago_raise_no_alarm() -> None:
    young = gang(pod(started_at=LATER - 60))
    assert source_faults([young], replace(sample([]), gpus=0), SCRAPE) == {}
