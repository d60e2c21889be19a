"""The simulated report on histories that a simulation of queuectl itself made: it finds what was observed, within its interval."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.shadow import GangName, Observation, SeenGang
from queuectl.domain.shadow_trace import (
    Between,
    FigureInterval,
    NodeVersion,
    ShadowTrace,
    SideFigures,
    SimulatedReport,
    TraceBook,
    TracedGang,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.shadow.configuration import on_hosts
from queuectl.shadow.simulating import simulated
from queuectl.shadow.tracing import after, trace
from queuectl.simulate.parts import PODSET, podsets_of
from queuectl.simulate.planned import Planned
from queuectl.simulate.setting import make_setting
from queuectl.simulate.simulation import Durations, Policy, Run, World
from queuectl.simulate.trace import NodeEvent, TraceJob
from tests.unit.test_shadow_observing import SPACE, node, queues

STEP = 60.0
LONGEST = 180.0
BEGIN = 1_800_000_000.0
FLAVORS = {GPU: "gpu"}


def setting(nodes: int = 2) -> Snapshot:
    bodies = [*queues(), *(node(f"n{number}") for number in range(nodes))]
    return read_snapshot(map(as_document, on_hosts(bodies)), BEGIN).snapshot


SETTING = setting()


class Records:
    """The trace that a leader with its database keeps."""

    def __init__(self) -> None:
        self.book = TraceBook()
        self.gangs: dict[str, TracedGang] = {}
        self.nodes: list[NodeVersion] = []

    def see(self, at: float, *seen: SeenGang, nodes: tuple[Node, ...] | None = None) -> None:
        shown = SETTING.fleet.nodes if nodes is None else nodes
        observation = Observation(at, 0.0, 0.0, gangs=tuple(seen), nodes=shown)
        step = trace(self.book, observation, LONGEST)
        self.book = after(self.book, step)
        if step.begins:
            self.gangs, self.nodes = {}, []
        self.gangs |= {one.gang.uid: one for one in step.gangs}
        self.nodes += step.nodes

    @property
    def trace(self) -> ShadowTrace:
        assert self.book.span is not None
        return ShadowTrace(self.book.span, tuple(self.gangs.values()), tuple(self.nodes))

    def report(self, *, seconds: float = 60.0, resolution: float = STEP) -> SimulatedReport:
        return simulated(
            self.trace,
            SETTING,
            begin=0.0,
            resolution=resolution,
            seconds=seconds,
            clock=time.monotonic,
            now=BEGIN,
        )


def seen(
    uid: str,
    gpus: int = 8,
    *,
    on: str | None = None,
    pods: int = 1,
    created: float = BEGIN,
    since: float | None = None,
    **fields: Any,
) -> SeenGang:
    """A gang of equal pods; ``on``: the node of all of them."""
    job = TraceJob(0, 1, 0.0, 1.0, pods, gpus, (SPACE, "train"))
    placement = placed({on: pods}) if on is not None else None
    gang = GangName(uid, SPACE, uid, "Job", "train", "pool", float(gpus * pods), pods)
    return SeenGang(
        gang, podsets_of(job), 0, "", None, created, placement=placement, since=since, **fields
    )


def placed(nodes: dict[str, int]) -> Placement:
    return Placement((PodSetPlacement(PODSET, tuple(nodes.items()), FLAVORS),))


# ---- Calibration


@dataclass
class Live:
    """A queuectl that runs jobs, and shadow mode, which sees them once a minute."""

    jobs: list[TraceJob]
    events: list[NodeEvent]
    until: float
    starts: dict[Run, list[tuple[float, Placement]]] = field(default_factory=dict)
    records: Records = field(default_factory=Records)

    def run(self, nodes: Snapshot = SETTING) -> Records:
        made = make_setting(nodes, "jobs", self.jobs, self.events, begins=BEGIN)
        world = World(made.free_gpus())
        policy = Policy(durations=Durations.LEARNED)
        runs = [Run(job) for job in made.jobs]
        self._down: set[str] = set()
        self._observations: Iterator[float] = itertools.count(0.0, STEP)
        self._next = next(self._observations)
        self._shown: dict[Run, SeenGang] = {}
        self._runs = runs
        world.run(runs, made.events, Planned(made, policy, world), self._note, self.until)
        while self._next <= self.until:
            self._see()
        return self.records

    def _note(self, world: World) -> None:
        """The state after an instant. Observations before it show the state before."""
        while self._next < world.now:
            self._see()
        for event in self.events:
            if event.time == world.now:
                (self._down.discard if event.up else self._down.add)(event.node)
        shown = {}
        for run in self._runs:
            if run.job.submit > world.now or run.finished_at is not None:
                continue
            running = run.running_since is not None
            place = dict(world.placed[run]) if running else {}
            pods = {name: gpus // run.job.gpus_per_pod for name, gpus in place.items()}
            shown[run] = SeenGang(
                GangName(
                    f"{run.job.rank:09d}",
                    SPACE,
                    str(run.job.rank),
                    "Job",
                    "train",
                    "pool",
                    float(run.job.gpus),
                    run.job.pods,
                ),
                podsets_of(run.job),
                0,
                "",
                None,
                BEGIN + run.job.submit,
                placed(pods) if running else None,
                BEGIN + run.running_since if run.running_since is not None else None,
                admitted=run.held_since is not None,
            )
        self._shown = shown

    def _see(self) -> None:
        nodes = tuple(replace(one, ready=one.name not in self._down) for one in SETTING.fleet.nodes)
        self.records.see(BEGIN + self._next, *self._shown.values(), nodes=nodes)
        self._next = next(self._observations)


def history(chance: random.Random, jobs: int, *, failures: bool = False) -> Records:
    """A random history of queuectl: jobs that arrive, wait, run and end, and nodes that fail in turn."""
    listed = []
    at = 0.0
    for number in range(jobs):
        at += chance.choice((0.0, 30.0, 400.0, 1000.0))
        duration = chance.choice((90.0, 700.0, 1900.0, 5000.0))
        pods, gpus = chance.choice(((1, 8), (2, 8), (1, 4), (1, 2), (2, 4)))
        listed.append(TraceJob(number, number, at, duration, pods, gpus, (SPACE, "train")))
    until = at + chance.choice((0.0, 3000.0))
    times = itertools.takewhile(lambda at: at < until, itertools.count(1500.0, 5000.0))
    failed = [(at, f"n{number % 2}") for number, at in enumerate(times)] if failures else []
    events = [NodeEvent(at, name, up=False) for at, name in failed]
    events += [NodeEvent(at + 1507.0, name, up=True) for at, name in failed]
    return Live(listed, sorted(events, key=lambda event: event.time), until).run()


def differences(report: SimulatedReport) -> list[str]:
    """The figures of which both sides are apart."""

    def pairs(side: SideFigures) -> dict[str, FigureInterval]:
        figures = {"idle": side.idle, "utilization": side.utilization}
        for name, waits in {"all": side.total, **side.queues}.items():
            figures |= {f"{name} p50": waits.p50, f"{name} p95": waits.p95}
        return figures

    mine, others = pairs(report.simulated), pairs(report.observed)
    return [name for name in others if not mine[name].meets(others[name])]


def test_the_history_of_queuectl_shows_no_gain():
    """Longer histories are in tests/operations/test_shadow_calibration.py."""
    records = history(random.Random(0), 25)
    report = records.report()
    assert report.gangs == len(records.gangs)
    assert differences(report) == []


def test_the_history_of_queuectl_shows_no_gain_if_nodes_fail():
    report = history(random.Random(2004), 40, failures=True).report()
    assert report.observed.evictions.most != 0.0
    assert differences(report) == []


def test_a_gang_that_left_a_failed_node_holds_its_new_one():
    """Its second node is idle before the failure only, and up to one time between two observations of it."""
    first, second = SETTING.fleet.nodes
    records = Records()
    for minute in range(10):
        failed = minute >= 4
        nodes = (replace(first, ready=not failed), second)
        moves = seen("moves", on="n1" if failed else "n0", admitted=True)
        records.see(BEGIN + minute * STEP, moves, seen("waits", 16), nodes=nodes)
    gang = records.gangs["moves"]
    assert [one.interrupted for one in gang.attempts] == [True, False]
    report = records.report()
    assert report.observed.evictions == report.simulated.evictions == FigureInterval(0.0, 0.0)
    assert report.observed.idle == FigureInterval(8 * 4 * STEP, 8 * 5 * STEP)
    assert differences(report) == []


@pytest.mark.parametrize("evicted", [False, True])
def test_a_gang_that_lost_a_node_holds_no_gpus_in_the_figures_until_it_runs_again(evicted: bool):
    """It waits, and the node that it still has is idle."""
    first, second = SETTING.fleet.nodes
    records = Records()
    for minute in range(12):
        failed = 4 <= minute < 9
        nodes = (first, replace(second, ready=not failed))
        keeps = not (evicted and minute in (6, 7, 8))
        gang = seen("a", 8, pods=2, admitted=keeps)
        if not failed:
            gang = replace(gang, placement=placed({"n0": 1, "n1": 1}))
        records.see(BEGIN + minute * STEP, gang, nodes=nodes)
    assert [one.interrupted for one in only(records).attempts] == [not evicted, False]
    report = records.report()
    assert report.observed.evictions == FigureInterval(float(evicted), float(evicted))
    for side in (report.observed, report.simulated):
        assert side.idle.least is not None
        assert side.idle.most is not None
        assert side.idle.least <= 8 * 5 * STEP <= side.idle.most
    assert differences(report) == []


def test_pods_that_end_and_are_replaced_elsewhere_do_not_interrupt_their_gang():
    records = Records()
    for minute, on in enumerate(("n0", "n1", "n0")):
        records.see(BEGIN + minute * STEP, seen("a", on=on, admitted=True))
    assert len(only(records).attempts) == 1


def test_alongside_a_controller_that_starts_late_the_waits_are_shorter():
    """Two gangs fit at once, and start after an hour each."""
    records = Records()
    for minute in range(200):
        at = BEGIN + minute * STEP
        shown = []
        for uid, start, end in (("a", 60, 120), ("b", 120, 180)):
            on = "n0" if start <= minute < end else None
            if minute < end:
                since = BEGIN + start * STEP if on else None
                shown.append(seen(uid, on=on, since=since))
        records.see(at, *shown)
    report = records.report()
    assert {"idle", "all p50", "all p95"} <= set(differences(report))
    assert report.simulated.total.p95.most == STEP
    assert report.observed.total.p95.least == pytest.approx(120 * STEP)
    assert report.simulated.idle.least == 0.0
    assert report.observed.idle.least is not None
    assert report.observed.idle.least > 0.0


# ---- Bounds of the records


def only(records: Records) -> TracedGang:
    [gang] = records.gangs.values()
    return gang


def test_a_gang_that_ran_at_the_first_observation_is_the_initial_state():
    records = Records()
    for minute in range(4):
        shown = [seen("new", 8, on="n1" if minute == 3 else None, created=BEGIN)]
        shown += [seen("old", 8, on="n1", since=BEGIN - 900.0)] if minute < 3 else []
        records.see(BEGIN + minute * STEP, *shown, seen("other", 8, on="n0"))
    report = records.report()
    assert (report.running_at_begin, report.arrived, report.unfinished) == (
        2,
        {f"{SPACE}/train": 1},
        2,
    )
    assert differences(report) == []
    assert report.observed.total.p50 == FigureInterval(120.0, 180.0)


def test_gangs_that_run_or_wait_at_the_end_are_censored():
    records = Records()
    for minute in range(3):
        records.see(BEGIN + minute * STEP, seen("runs", 8, on="n0"), seen("waits", 32, pods=4))
    report = records.report()
    assert (report.gangs, report.unfinished) == (2, 2)
    for side in (report.observed, report.simulated):
        assert side.total.waiting == FigureInterval(1.0, 1.0)
        assert side.total.p50.most is None
    assert report.observed.total.p50.least == 120.0


def test_a_deleted_gang_that_waited_is_deleted_in_the_simulation():
    records = Records()
    for minute in range(4):
        shown = [seen("gone", 32, pods=4)] if minute < 2 else []
        records.see(BEGIN + minute * STEP, seen("other", 8, on="n0"), *shown)
    report = records.report()
    assert report.observed.total.p50 == FigureInterval(60.0, 120.0)
    assert report.simulated.total.waiting == FigureInterval(0.0, 0.0)


def test_an_evicted_gang_waits_again_and_is_counted():
    records = Records()
    places = [None, "n0", "n0", None, None, "n1", None]
    for minute, on in enumerate(places[:-1]):
        records.see(BEGIN + minute * STEP, seen("a", on=on))
    records.see(BEGIN + 6 * STEP)
    assert [one.placement.podsets[0].nodes[0][0] for one in only(records).attempts] == ["n0", "n1"]
    report = records.report()
    assert report.observed.evictions == FigureInterval(1.0, 1.0)
    assert report.simulated.evictions == FigureInterval(0.0, 0.0)
    assert report.simulated.total.p95.most == STEP


def test_a_gap_of_two_days_makes_wide_intervals_and_no_gain():
    records = Records()
    days = 2 * 86400.0
    records.see(BEGIN, seen("a", on="n0"), seen("b"))
    records.see(BEGIN + STEP, seen("a", on="n0"), seen("b"))
    later = BEGIN + STEP + days
    for minute in range(2):
        records.see(
            later + minute * STEP, seen("b", on="n0"), seen("c", on="n1", created=later - 60)
        )
    assert records.gangs["a"].gone == Between(BEGIN + STEP, later)
    report = records.report()
    assert report.gaps == days
    p95 = report.observed.total.p95
    assert p95.least == pytest.approx(STEP, abs=STEP)
    assert p95.most == days + STEP
    assert "all p95" not in differences(report)


def test_a_gang_whose_size_changes_has_the_last_size_before_its_start():
    records = Records()
    for minute, (gpus, on) in enumerate([(8, None), (4, None), (4, "n0"), (8, "n0")]):
        records.see(BEGIN + minute * STEP, seen("a", gpus, on=on))
    gang = only(records)
    assert (gang.gang.gpus, gang.podsets[0].shape.requests[GPU], gang.resized) == (4.0, 4, True)
    assert records.report().resized == 1


def test_an_object_that_could_not_be_read_at_one_observation_has_not_left():
    records = Records()
    for minute in range(5):
        shown = [] if minute == 2 else [seen("a", on="n0"), seen("b", 32, pods=4)]
        records.see(BEGIN + minute * STEP, *shown)
    assert [len(records.gangs[uid].attempts) for uid in ("a", "b")] == [1, 0]
    assert [one.gone for one in records.gangs.values()] == [None, None]


def test_a_gang_that_must_not_be_planned_arrives_when_it_can_start():
    records = Records()
    for minute in range(4):
        shown = seen("a", blocked=minute < 2, created=BEGIN - 9000.0)
        records.see(BEGIN + minute * STEP, shown, seen("self", blocked=True))
    assert (only(records).gang.uid, only(records).arrived) == ("a", BEGIN + STEP)


def test_a_clock_that_is_set_back_by_years_begins_the_trace_again():
    records = Records()
    years = 10 * 365 * 86400.0
    for at in (BEGIN, BEGIN + years, BEGIN + years + STEP, BEGIN + 3 * STEP, BEGIN + 4 * STEP):
        records.see(at, seen("a"), seen("b", on="n0"))
    report = records.report()
    assert (report.began, report.until, report.gaps) == (BEGIN + 3 * STEP, BEGIN + 4 * STEP, 0)
    assert (report.gangs, report.running_at_begin) == (2, 1)
    records.see(BEGIN + 2 * STEP, seen("a"))
    assert records.trace.span.until == BEGIN + 4 * STEP, "a small step counts as no time"


def test_a_trace_without_gangs_has_no_figures():
    records = Records()
    records.see(BEGIN)
    report = records.report()
    assert report.gangs == 0
    assert report.observed.total.p50 == FigureInterval(None, None)
    assert report.simulated.utilization == FigureInterval(None, None)


def test_nodes_come_change_and_go():
    first, second = SETTING.fleet.nodes
    records = Records()
    bigger = replace(second, allocatable=Resources({**second.allocatable, GPU: 16}))
    fleets = [
        (first,),
        (first, second),
        (first, bigger),
        (first, replace(bigger, ready=False)),
        (first,),
    ]
    for minute, fleet in enumerate(fleets):
        records.see(BEGIN + minute * STEP, seen("a", 16), nodes=fleet)
    report = records.report()
    assert [one.node is None for one in records.nodes] == [False] * 4 + [True]
    # It starts on the larger node, which fails a minute later.
    assert report.simulated.total.p50 == FigureInterval(STEP, None)
    assert report.observed.total.p50 == FigureInterval(4 * STEP, None)


def test_cpu_of_other_pods_is_recorded_once_an_hour():
    first, _ = SETTING.fleet.nodes
    records = Records()
    for minute in range(130):
        used = replace(first, allocatable=Resources({**first.allocatable, "cpu": 60000 - minute}))
        records.see(BEGIN + minute * STEP, nodes=(used,))
    assert len(records.nodes) == 3


def test_a_simulation_that_takes_too_long_ends_earlier_for_both_sides():
    report = history(random.Random(1), 10).report(seconds=-1.0)
    assert not report.whole
    assert report.until < BEGIN + 10_000.0
    assert report.gangs < 10


# ---- Random and hostile records

clocks = st.lists(
    st.sampled_from([60.0, 60.0, 60.0, 0.0, -4000.0, 170_000.0, 1e9]), min_size=1, max_size=12
)
states = st.sampled_from([None, "waits", "n0", "n1", "blocked", "large"])


def bounded(figure: FigureInterval) -> bool:
    least, most = figure.least, figure.most
    return least is None or (least >= 0.0 and (most is None or least <= most))


@settings(max_examples=12)
@given(
    steps=clocks,
    columns=st.lists(st.lists(states, min_size=12, max_size=12), max_size=3),
    created=st.sampled_from([0.0, BEGIN, BEGIN + 90.0, 1e12]),
)
def test_whatever_the_records_show_each_figure_has_its_bounds_in_order(
    steps: list[float], columns: list[list[str | None]], created: float
):
    records, at = Records(), BEGIN
    for number, step in enumerate(steps):
        at += step
        shown = []
        for number_of_gang, column in enumerate(columns):
            state = column[number]
            if state is not None:
                on = state if state in ("n0", "n1") else None
                gpus = 3 if state == "large" else 8
                blocked = state == "blocked"
                one = seen(
                    f"g{number_of_gang}",
                    gpus,
                    on=on,
                    created=created,
                    since=created,
                    blocked=blocked,
                )
                shown.append(one)
        records.see(at, *shown)
    for recorded in records.gangs.values():
        for attempt in recorded.attempts:
            assert attempt.started.least <= attempt.started.most
            assert attempt.ended is None or attempt.ended.most >= attempt.started.least
    report = records.report()
    for side in (report.observed, report.simulated):
        for figure in (side.idle, side.utilization, side.evictions, side.total.p50):
            assert bounded(figure)
    assert 0 <= report.gaps <= report.until - report.began
    assert differences(report) is not None
