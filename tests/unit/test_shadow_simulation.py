"""The simulated report on histories that a simulation of queuectl itself made: it finds what was observed, within its interval."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from queuectl.domain.fleet import Node
from queuectl.domain.quantity import GPU
from queuectl.domain.shadow import GangName, Moment, SeenGang
from queuectl.domain.shadow_trace import (
    Interval,
    NodeVersion,
    RecordedTrace,
    SideFigures,
    SimulatedReport,
    TraceBook,
    TracedGang,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.workload import Placement, PodSetPlacement
from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from queuectl.shadow.configuration import with_configuration
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
    return read_snapshot(map(as_document, with_configuration(bodies, [])), BEGIN).snapshot


SETTING = setting()


class Records:
    """The trace that a leader with its database keeps."""

    def __init__(self) -> None:
        self.book = TraceBook()
        self.gangs: dict[str, TracedGang] = {}
        self.nodes: list[NodeVersion] = []

    def see(self, at: float, *seen: SeenGang, nodes: tuple[Node, ...] | None = None) -> None:
        shown = SETTING.fleet.nodes if nodes is None else nodes
        moment = Moment(at, 0.0, 0.0, seen=tuple(seen), nodes=shown)
        step = trace(self.book, moment, LONGEST)
        self.book = after(self.book, step)
        self.gangs |= {one.gang.uid: one for one in step.gangs}
        self.nodes += step.nodes

    @property
    def trace(self) -> RecordedTrace:
        assert self.book.span is not None
        return RecordedTrace(self.book.span, tuple(self.gangs.values()), tuple(self.nodes))

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
        self._moments: Iterator[float] = itertools.count(0.0, STEP)
        self._next = next(self._moments)
        self._shown: dict[Run, SeenGang] = {}
        self._runs = runs
        world.run(runs, made.events, Planned(made, policy, world), self._note, self.until)
        while self._next <= self.until:
            self._see()
        return self.records

    def _note(self, world: World) -> None:
        """The state after an instant. Moments before it show the state before."""
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
            )
        self._shown = shown

    def _see(self) -> None:
        nodes = tuple(replace(one, ready=one.name not in self._down) for one in SETTING.fleet.nodes)
        self.records.see(BEGIN + self._next, *self._shown.values(), nodes=nodes)
        self._next = next(self._moments)


def history(chance: random.Random, jobs: int, *, failures: bool = False) -> Records:
    """A random history of queuectl: jobs that arrive, wait, run and end, and a node that fails."""
    listed = []
    at = 0.0
    for number in range(jobs):
        at += chance.choice((0.0, 30.0, 400.0, 1000.0))
        duration = chance.choice((90.0, 700.0, 1900.0, 5000.0))
        pods, gpus = chance.choice(((1, 8), (2, 8), (1, 4), (1, 2), (2, 4)))
        listed.append(TraceJob(number, number, at, duration, pods, gpus, (SPACE, "train")))
    events = [NodeEvent(1500.0, "n1", up=False), NodeEvent(3000.0, "n1", up=True)]
    return Live(listed, events if failures else [], at + chance.choice((0.0, 3000.0))).run()


def differences(report: SimulatedReport) -> list[str]:
    """The figures of which both sides are apart."""

    def pairs(side: SideFigures) -> dict[str, Interval]:
        figures = {"idle": side.idle, "utilization": side.utilization}
        for name, waits in {"all": side.total, **side.queues}.items():
            figures |= {f"{name} p50": waits.p50, f"{name} p95": waits.p95}
        return figures

    mine, others = pairs(report.simulated), pairs(report.observed)
    return [name for name in others if not mine[name].meets(others[name])]


@pytest.mark.parametrize("seed", range(2))
def test_the_history_of_queuectl_shows_no_gain(seed: int):
    report = history(random.Random(seed), 40).report()
    assert report.gangs == 40
    assert differences(report) == []
