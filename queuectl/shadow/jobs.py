"""From the trace of shadow mode to the jobs of a simulation: with the shortest, the usual, or the longest run times that the records permit.

Facts that the records do not show have bounds. A gang that still runs has run at least until then. A gang that was evicted needs at least its
last attempt, and at most all of them. A gang that never ran can end at once, or never.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.queues import LocalQueue, QueueConfig, StopPolicy
from queuectl.domain.shadow_trace import (
    Between,
    NodeVersion,
    ShadowTrace,
    TracedAttempt,
    TracedGang,
    TracedState,
)
from queuectl.domain.snapshot import Snapshot
from queuectl.shadow.replay import ReplayedAttempt
from queuectl.simulate.trace import NodeEvent, TraceJob

LEAST_SECONDS: Final = 1.0
"""The shortest run time."""


class RunTimeCase(StrEnum):
    """The run times of a simulation, within the bounds of the records."""

    SHORTEST = "shortest"
    USUAL = "usual"
    LONGEST = "longest"

    def start(self, between: Between) -> float:
        """A later start makes a shorter run time."""
        return self._of(between.most, between.least)

    def end(self, between: Between) -> float:
        return self._of(between.least, between.most)

    def _of(self, shorter: float, longer: float) -> float:
        match self:
            case RunTimeCase.SHORTEST:
                return shorter
            case RunTimeCase.LONGEST:
                return longer
            case RunTimeCase.USUAL:
                return (shorter + longer) / 2


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A gang under one choice of run times. Times are in seconds after the begin.

    Attributes:
        job: for the planner.
        replayed: for the replay of the records.
        ran_before: it ran at the start.
        attempts: of the records.
    """

    job: TraceJob
    replayed: TraceJob
    ran_before: bool
    attempts: tuple[ReplayedAttempt, ...]


class TraceJobs:
    """The gangs of a trace that take part from a time on."""

    def __init__(self, trace: ShadowTrace, config: QueueConfig, begin: float) -> None:
        """``begin``: unix seconds. Gangs that left before it do not take part."""
        self.begin = begin
        self.seconds = max(trace.span.until - begin, 0.0)
        present = [one for one in trace.gangs if one.gone is None or one.gone.most > begin]
        self.gangs = sorted(
            (one for one in present if one.gang.cluster_queue in config.cluster_queues),
            key=lambda one: (one.arrived, one.gang.uid),
        )
        self.left_out = len(present) - len(self.gangs)
        self._lengths = _lengths(self.gangs)

    def under(self, times: RunTimeCase) -> list[ObservedJob]:
        """All gangs, in the order of their arrival."""
        return [self._observed(one, rank, times) for rank, one in enumerate(self.gangs)]

    def _observed(self, traced: TracedGang, rank: int, times: RunTimeCase) -> ObservedJob:
        recent = [a for a in traced.attempts if a.ended is None or a.ended.most > self.begin]
        attempts = list(self._replayed(recent, times))
        before = bool(recent) and recent[0].started.most <= self.begin
        gone = self._at(times.end(traced.gone)) if traced.gone is not None else None
        submit = 0.0 if before else self._at(traced.arrived)
        ended = traced.state is not TracedState.WAITING and bool(recent) and _runs_last(traced)
        if ended and gone is not None and attempts:
            gone = max(gone, attempts[-1].start)
            attempts[-1] = replace(attempts[-1], end=None)
        gone = max(gone, submit) if gone is not None else None
        job = TraceJob(
            rank=rank,
            line=rank + 1,
            submit=submit,
            duration=self._duration(traced, attempts, gone, times, ended=ended),
            pods=traced.gang.pods,
            gpus_per_pod=0,
            queue=queue_of(traced),
            job_id=traced.gang.uid,
            name=traced.gang.name,
            priority=traced.priority,
            limit=traced.limit,
            user=traced.user,
            podsets=traced.podsets,
            placement=recent[0].placement if before else None,
            deleted=None if ended else gone,
        )
        replayed = replace(job, duration=inf, limit=None, placement=None, deleted=gone)
        return ObservedJob(job, replayed, before, tuple(attempts))

    def _replayed(
        self, attempts: Iterable[TracedAttempt], times: RunTimeCase
    ) -> Iterator[ReplayedAttempt]:
        """Each begins when the one before has ended, at the earliest: both can be between the same two observations."""
        earliest = 0.0
        for attempt in attempts:
            start = max(self._at(times.start(attempt.started)), earliest)
            end: float | None = None
            if attempt.ended is not None:
                earliest = end = max(self._at(times.end(attempt.ended)), start)
            yield ReplayedAttempt(start, end, attempt.placement, attempt.interrupted)

    def _duration(
        self,
        traced: TracedGang,
        attempts: Sequence[ReplayedAttempt],
        gone: float | None,
        times: RunTimeCase,
        *,
        ended: bool,
    ) -> float:
        """Seconds of its work."""
        if not ended:
            return self._unknown(traced, 0.0, times)
        last = attempts[-1]
        worked = (gone if gone is not None else self.seconds) - last.start
        if gone is None:
            return self._unknown(traced, worked, times)
        if times is RunTimeCase.LONGEST:
            worked += sum(a.end - a.start for a in attempts[:-1] if a.end is not None)
        return max(worked, LEAST_SECONDS)

    def _unknown(self, traced: TracedGang, worked: float, times: RunTimeCase) -> float:
        """The work of a gang whose end the records do not have, after so many seconds of it."""
        match times:
            case RunTimeCase.SHORTEST:
                return max(worked, LEAST_SECONDS)
            case RunTimeCase.LONGEST:
                return inf
            case RunTimeCase.USUAL:
                lengths = self._lengths.get(traced.gang.cluster_queue, ())
                longer = bisect_right(lengths, worked)
                return lengths[(longer + len(lengths)) // 2] if longer < len(lengths) else inf

    def _at(self, at: float) -> float:
        return min(max(at - self.begin, 0.0), self.seconds)


def queue_of(traced: TracedGang) -> tuple[str, str]:
    """Namespace and name of its LocalQueue."""
    return traced.gang.namespace, traced.gang.queue


def _runs_last(traced: TracedGang) -> bool:
    """Whether it ran at the last observation that shows it."""
    if traced.state is TracedState.RUNNING:
        return True
    return (
        bool(traced.attempts)
        and traced.gone is not None
        and traced.attempts[-1].ended == traced.gone
    )


def _lengths(gangs: Iterable[TracedGang]) -> Mapping[str, Sequence[float]]:
    """By ClusterQueue, the seconds for which gangs ran that have ended, shortest first."""
    lengths: dict[str, list[float]] = {}
    for one in gangs:
        if one.state is TracedState.GONE and _runs_last(one):
            last = one.attempts[-1]
            assert last.ended is not None
            seconds = RunTimeCase.USUAL.end(last.ended) - RunTimeCase.USUAL.start(last.started)
            lengths.setdefault(one.gang.cluster_queue, []).append(seconds)
    return {queue: sorted(of_queue) for queue, of_queue in lengths.items()}


# ---- Nodes and configuration


def nodes_of(trace: ShadowTrace, begin: float) -> tuple[Fleet, list[NodeEvent]]:
    """The nodes at the begin, and their changes. A node that comes later is there from the begin, and fails until it comes."""
    versions: dict[str, list[NodeVersion]] = {}
    for one in sorted(trace.nodes, key=lambda version: (version.at, version.name)):
        versions.setdefault(one.name, []).append(one)
    nodes, events = list[Node](), list[NodeEvent]()
    for _, of_node in sorted(versions.items()):
        shown = [one.node for one in of_node if one.node is not None]
        if not shown:
            continue
        first = [one.node for one in of_node if one.at <= begin][-1:]
        nodes.append(first[0] if first and first[0] is not None else replace(shown[0], ready=False))
        events += [_event(one, begin) for one in of_node if one.at > begin]
    return Fleet(tuple(nodes)), sorted(events, key=lambda event: event.time)


def _event(version: NodeVersion, begin: float) -> NodeEvent:
    up = version.node is not None and version.node.ready
    return NodeEvent(version.at - begin, version.name, up, version.node)


def simulated_setting(setting: Snapshot, fleet: Fleet, gangs: Iterable[TracedGang]) -> Snapshot:
    """The configuration of the last observation on the nodes of the trace.

    Queues admit without stops and without admission checks: when these end is not recorded. A LocalQueue that was deleted in the meantime is there.
    """
    config = setting.config
    queues = {
        name: replace(queue, stop_policy=StopPolicy.NONE, admission_checks=())
        for name, queue in config.cluster_queues.items()
    }
    deleted = {
        queue_of(one): LocalQueue(*queue_of(one), one.gang.cluster_queue)
        for one in gangs
        if queue_of(one) not in config.local_queues
    }
    local = {
        key: replace(queue, stop_policy=StopPolicy.NONE)
        for key, queue in config.local_queues.items()
    }
    changed = replace(config, cluster_queues=queues, local_queues={**deleted, **local})
    return replace(setting, fleet=fleet, config=changed)
