"""Rows about queues: a backlog of gangs that cannot start, and many edits of quota."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document
from queuectl.domain.quantity import CPU, GPU
from tests.bench.scale.fleet import (
    GENERATIONS,
    GPUS_PER_NODE,
    NEWEST,
    Fleet,
    cluster_queue,
    department_of,
)
from tests.bench.scale.gangs import NORMAL, Gang
from tests.bench.scale.rows import Row, RowFigures, register
from tests.bench.scale.stage import RowCutError, ScaleStage
from tests.bench.scale.streams import Stream, wait_of, waits
from tests.bench.scale.times import median

NEXT_TO: Final = "wait next to {} pending, median"
"""The figure of a number of pending gangs."""
BACKLOGS: Final = (0, 2_000, 20_000)
SHAPES: Final = 1_000
NEIGHBOR_GANGS: Final = 12
EDITS: Final = 1_000
_FULL_SIZE: Final = 2_400
"""Nodes from which on a load is not scaled."""
_CHUNK: Final = 200
_GPUS: Final = (1, 2, 4, 8)
_PROBE: Final = "probe"


# ---- A backlog


def shape(number: int) -> tuple[int, int]:
    """Pods and GPUs of each pod, of one of the 1,000 shapes."""
    return 1 + number % SHAPES // len(_GPUS), _GPUS[number % len(_GPUS)]


def backlog(fleet: Fleet, first: int, end: int) -> list[Gang]:
    """Gangs of the first team that no GPU is free for: they select the newest generation, of which the fill uses all GPUs and quota.

    They have the priority of the fill and their team borrows, so they preempt none.
    """
    team = fleet.teams()[0]
    gangs: list[Gang] = []
    for number in range(first, end):
        pods, gpus = shape(number)
        gangs.append(Gang(f"waits-{number:05}", team, pods, gpus, product=NEWEST.product))
    return gangs


def neighbor_waits(stage: ScaleStage, reached: RowFigures) -> None:
    """The wait of a small gang of another department, behind nothing and next to a growing backlog of another queue."""
    fleet = stage.fleet
    neighbor = fleet.teams()[len(fleet.teams()) // 2]
    part = 1.0 if fleet.nodes >= _FULL_SIZE else fleet.nodes / _FULL_SIZE
    there = 0
    for number in BACKLOGS:
        depth = int(number * part)
        if part < 1.0 and number:
            reached.note(
                f"{depth:,} instead of {number:,} pending gangs, in proportion to the nodes"
            )
        if depth > there:
            _grow(stage, reached, backlog(fleet, there, depth))
            there = depth
        reached.add(f"API server at rest with {depth:,} pending after", stage.settle(), "s")
        seconds = waits(stage, f"neighbor-{depth}", neighbor, NEIGHBOR_GANGS)
        reached.add(NEXT_TO.format(f"{depth:,}"), median(seconds), "s")
        reached.add(f"wait next to {depth:,} pending, slowest", max(seconds), "s")


def _grow(stage: ScaleStage, reached: RowFigures, gangs: Sequence[Gang]) -> None:
    """Submit a backlog, and a stream of small gangs of all teams in the meantime."""
    began = time.monotonic()
    with Stream(stage, f"while-{gangs[0].name}", 0.5) as stream:
        for start in range(0, len(gangs), _CHUNK):
            stage.submit(gangs[start : start + _CHUNK])
            stage.follow()
            if time.monotonic() > stage.deadline:
                raise RowCutError(f"{start + _CHUNK:,} of {len(gangs):,} gangs submitted")
        reached.add(f"{len(gangs):,} gangs submitted after", time.monotonic() - began, "s")
        stream.end()
        _add_stream(stage, reached, stream, f"while {len(gangs):,} arrive")


def _add_stream(stage: ScaleStage, reached: RowFigures, stream: Stream, when: str) -> None:
    stage.wait_bound(stream.gangs)
    seconds = [wait for gang in stream.gangs if (wait := wait_of(stage, gang)) is not None]
    if seconds:
        reached.add(f"wait of another gang {when}, median", median(seconds), "s")
        reached.add(f"wait of another gang {when}, slowest", max(seconds), "s")


# ---- Edits


def edits(fleet: Fleet, number: int) -> Iterator[Document]:
    """ClusterQueues with a changed quota of the oldest generation, each of another team than the one before."""
    teams, quotas = fleet.teams(), fleet.quotas()
    oldest = GENERATIONS[0].flavor
    for index in range(number):
        team = teams[index % len(teams)]
        quotas[team][oldest] += GPUS_PER_NODE if index // len(teams) % 2 == 0 else -GPUS_PER_NODE
        yield cluster_queue(team, department_of(team), quotas[team])


def probe_queue(gpus: int) -> Document:
    """A ClusterQueue without a cohort, so that only its own quota decides."""
    return m.cluster_queue(_PROBE, GENERATIONS[0].flavor, {GPU: gpus, CPU: "1M"})


def quota_edits(stage: ScaleStage, reached: RowFigures) -> None:
    """1,000 edits one after the other; a gang waits for the quota of the last one."""
    fleet, system = stage.fleet, stage.system
    team = fleet.teams()[0]
    number = EDITS if fleet.nodes >= _FULL_SIZE else 100
    stage.edit(probe_queue(0))
    stage.edit(m.local_queue(team, _PROBE, _PROBE))
    gang = Gang("probe", team, 1, GPUS_PER_NODE, priority=NORMAL, queue=_PROBE)
    stage.submit([gang])
    stage.settle()
    before, began = stage.usage(), time.monotonic()
    with Stream(stage, "meanwhile", 0.5) as stream:
        for done, document in enumerate(edits(fleet, number - 1)):
            stage.edit(document)
            if time.monotonic() > stage.deadline:
                reached.add("edits per second", done / (time.monotonic() - began))
                raise RowCutError(f"{done} of {number} edits are accepted")
        if stage.timeline.bound.get(gang.key):
            reached.note("the gang that waits for the last edit has started before it")
        stage.edit(probe_queue(GPUS_PER_NODE))
        accepted = time.time()
        seconds = time.monotonic() - began
        stage.wait_bound([gang])
        stream.end()
        used = stage.usage().cpu_since(before)
        _add_stream(stage, reached, stream, "during the edits")
    whole = stage.timeline.whole(gang.key, 1)
    assert whole is not None
    reached.add(f"{number:,} edits accepted after", seconds, "s")
    reached.add("the last edit has effect after its acceptance", whole - accepted, "s")
    for name in system.usage().cpu:
        reached.add(f"CPU for each edit: {name}", 1000 * used[name] / number, "ms")


register(
    Row("g", "a neighbor's wait next to 20,000 pending gangs of 1,000 shapes", neighbor_waits),
    Row("h", "1,000 edits of quota", quota_edits),
)
