"""The sums of shadow mode, against a count second by second, on random histories of observations."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.shadow import (
    AMOUNTS,
    GangName,
    GangRecord,
    GangState,
    LastObservation,
    Observation,
    ShadowSums,
    UnboundGang,
    WaitingGang,
)
from queuectl.shadow.folding import fold

LONGEST = 180.0
START = 3600 * 1000 + 3500  # a full hour is soon
UIDS = ("a", "b", "c")


def name(uid: str, gpus: float = 8.0) -> GangName:
    return GangName(uid, "team", uid, "Job", "train", "pool", gpus, 1)


def waits(uid: str, fits: float | None = None, code: str = "WaitingForQuota") -> WaitingGang:
    return WaitingGang(name(uid), fits, "" if fits is not None else code, "why")


class Recorder:
    """Folds one observation after the other, as a leader with its database does."""

    def __init__(self) -> None:
        self.last: LastObservation | None = None
        self.hours: dict[int, ShadowSums] = {}
        self.gangs: dict[str, GangRecord] = {}

    def see(self, observation: Observation) -> None:
        step = fold(self.last, observation, self.gangs, LONGEST)
        self.last = step.last
        self.gangs |= {one.gang.uid: one for one in step.gangs}
        for hour, sums in step.hours.items():
            self.hours[hour] = self.hours.get(hour, ShadowSums()) + sums

    @property
    def total(self) -> ShadowSums:
        return sum(self.hours.values(), ShadowSums())


def recorded(*observations: Observation) -> Recorder:
    recorder = Recorder()
    for observation in observations:
        recorder.see(observation)
    return recorder


def test_a_gang_that_fits_at_one_observation_only_is_in_no_sum():
    """It was about to start, or a list of pods was older than the list of Workloads."""
    first = Observation(0.0, 16.0, 8.0, (waits("a", 8.0),))
    total = recorded(first, Observation(60.0, 16.0, 8.0, (waits("a"),))).total
    assert (total.observed, total.fitting, total.startable) == (60.0, 0.0, 0.0)
    assert total.waiting == 60.0
    total = recorded(first, Observation(60.0, 16.0, 8.0)).total
    assert (total.fitting, total.startable, total.waiting) == (0.0, 0.0, 0.0)


def test_the_smaller_amounts_of_both_observations_count():
    first = Observation(0.0, 32.0, 16.0, (waits("a", 8.0), waits("b", 8.0)))
    second = Observation(60.0, 32.0, 12.0, (waits("a", 4.0), waits("b")))
    total = recorded(first, second).total
    assert (total.free_while_fitting, total.startable) == (720.0, 240.0)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(Observation(LONGEST + 1, 16.0, 8.0, (waits("a", 8.0),)), id="too late"),
        pytest.param(Observation(60.0, 16.0, 8.0, (waits("a", 8.0),), decided=False), id="no plan"),
        pytest.param(Observation(0.0, 16.0, 8.0, (waits("a", 8.0),)), id="the same time"),
        pytest.param(
            Observation(-60.0, 16.0, 8.0, (waits("a", 8.0),)), id="a clock that was set back"
        ),
    ],
)
def test_time_without_a_plan_or_an_observation_is_not_observed(second: Observation):
    recorder = recorded(Observation(0.0, 16.0, 8.0, (waits("a", 8.0),)), second)
    assert recorder.total == ShadowSums()
    assert recorder.gangs["a"].fitted == 0.0


def test_a_gang_fits_since_the_first_of_the_observations_that_follow_each_other():
    recorder, since = Recorder(), []
    for number, fits in enumerate([8.0, 8.0, 8.0, None, 8.0]):
        recorder.see(Observation(60.0 * number, 16.0, 8.0, (waits("a", fits),)))
        since.append(recorder.gangs["a"].fits_since)
    assert since == [0.0, 0.0, 0.0, None, 240.0]
    assert recorder.gangs["a"].fitted == 120.0


def test_the_state_of_a_gang_is_that_of_the_last_observation_that_shows_it():
    unbound = UnboundGang(name("a"), 90.0, 1, 4.0)
    recorder = recorded(
        Observation(0.0, 16.0, 8.0, (waits("a", 8.0),)),
        Observation(60.0, 16.0, 8.0, unbound=(unbound,)),
        Observation(120.0, 16.0, 8.0, unbound=(unbound,)),
    )
    record = recorder.gangs["a"]
    assert (record.state, record.unbound_since) == (GangState.UNBOUND, 90.0)
    assert (record.unbound, record.unbound_gpus, record.fits_since) == (60.0, 240.0, None)
    recorder.see(Observation(180.0, 16.0, 8.0))
    record = recorder.gangs["a"]
    assert (record.state, record.unbound_since, record.last_at) == (
        GangState.ELSEWHERE,
        None,
        120.0,
    )


# ---- Random histories

states = st.sampled_from(["absent", "waits", "fits", "fits partly", "unbound"])


@st.composite
def histories(draw: st.DrawFn) -> list[Observation]:
    observations = []
    at = float(START)
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.sampled_from([1, 30, 60, 170, 180, 181, 4000]))
        shown = {uid: draw(states) for uid in UIDS}
        fits = {"fits": 8.0, "fits partly": 2.0, "waits": None}
        waiting = [waits(uid, fits[state]) for uid, state in shown.items() if state in fits]
        wanted = sum(one.fits or 0.0 for one in waiting)
        observations.append(
            Observation(
                at,
                gpus=64.0,
                free=wanted + draw(st.sampled_from([0.0, 8.0])),
                waiting=tuple(waiting),
                unbound=tuple(
                    UnboundGang(name(uid), at, 1, 4.0)
                    for uid, state in shown.items()
                    if state == "unbound"
                ),
                decided=draw(st.sampled_from([True, True, True, False])),
            )
        )
    return observations


def second_by_second(
    observations: list[Observation],
) -> tuple[defaultdict[tuple[int, str], float], Counter[str]]:
    """The same sums, each second on its own: (hour, amount) to its sum, and uid to seconds of fitting."""
    sums: defaultdict[tuple[int, str], float] = defaultdict(float)
    fitted: Counter[str] = Counter()
    for before, after in itertools.pairwise(observations):
        if after.at - before.at > LONGEST or not (before.decided and after.decided):
            continue
        fits = [{one.gang.uid: one.fits for one in m.waiting if one.fits} for m in (before, after)]
        waiting = [{one.gang.uid for one in m.waiting} for m in (before, after)]
        unbound = [{one.gang.uid for one in m.unbound} for m in (before, after)]
        free = min(before.free, after.free)
        for second in range(int(before.at), int(after.at)):
            hour = second // 3600 * 3600
            both = fits[0].keys() & fits[1].keys()
            amounts = {
                "observed": 1.0,
                "gpus": 64.0,
                "free": free,
                "fitting": float(bool(both)),
                "free_while_fitting": free if both else 0.0,
                "startable": sum(min(fits[0][uid], fits[1][uid]) for uid in both),
                "waiting": len(waiting[0] & waiting[1]),
                "waiting_gpus": 8.0 * len(waiting[0] & waiting[1]),
                "unbound": len(unbound[0] & unbound[1]),
                "unbound_gpus": 4.0 * len(unbound[0] & unbound[1]),
            }
            for amount, quantity in amounts.items():
                sums[hour, amount] += quantity
            fitted.update(both)
    return sums, fitted


@given(histories())
def test_the_sums_are_those_of_each_second(observations: list[Observation]):
    recorder = recorded(*observations)
    sums, fitted = second_by_second(observations)
    for hour in recorder.hours.keys() | {hour for hour, _ in sums}:
        own = recorder.hours.get(hour, ShadowSums())
        assert {a: getattr(own, a) for a in AMOUNTS} == pytest.approx(
            {a: sums[hour, a] for a in AMOUNTS}
        )
    assert {uid: one.fitted for uid, one in recorder.gangs.items() if one.fitted} == fitted


@given(histories())
def test_the_sums_never_exceed_what_was_free(observations: list[Observation]):
    for sums in recorded(*observations).hours.values():
        assert 0.0 <= sums.startable <= sums.free_while_fitting + 1e-6
        assert sums.free_while_fitting <= sums.free + 1e-6 <= sums.gpus + 1e-6
        assert sums.fitting <= sums.observed + 1e-9
        assert sum(sums.reasons.values()) <= sums.waiting + 1e-6


@given(histories(), st.integers(0, 7), st.integers(1, 3))
def test_a_change_of_the_leader_loses_only_the_observations_in_between(
    observations: list[Observation], first: int, count: int
):
    """Without these observations, only the time next to them is not observed."""
    missed = observations[:first] + observations[first + count :]
    with_all, without = recorded(*observations), recorded(*missed)
    lost = {one.at for one in observations} - {one.at for one in missed}
    beside = sum(
        b.at - a.at
        for a, b in itertools.pairwise(observations)
        if (a.at in lost or b.at in lost) and b.at - a.at <= LONGEST and a.decided and b.decided
    )
    assert without.total.observed >= with_all.total.observed - beside - 1e-6


@given(histories())
def test_a_gang_is_recorded_as_waiting_no_longer_than_it_was_seen(observations: list[Observation]):
    for record in recorded(*observations).gangs.values():
        assert record.fitted <= record.waited + 1e-9
        assert record.waited + record.unbound <= record.last_at - record.first_at + 1e-9
        assert record.fits_since is None or record.first_at <= record.fits_since <= record.last_at
        assert sum(record.reasons.values()) <= record.waited + 1e-9


def test_a_calm_cluster_reports_nothing():
    """Where each gang starts as soon as it fits, none is shown as fitting: shadow mode alongside queuectl itself reports no gain."""
    observations = [Observation(60.0 * n, 16.0, 0.0, (waits("a"),)) for n in range(10)]
    total = recorded(*observations).total
    assert replace(total, reasons={}) == ShadowSums(
        observed=540.0, gpus=8640.0, waiting=540.0, waiting_gpus=4320.0
    )
    assert total.reasons == {"WaitingForQuota": 540.0}
