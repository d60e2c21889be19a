"""Rows about the end of a leader and of the API server, and about start-up and memory with many pods.

An *admission* is the moment in which the Job controller creates the first pod of a gang: it does so as soon as a queue controller lets it.
Only gangs that were submitted after a fault count, because what was under way before it can end by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from tests.bench.scale.fill import ones_of
from tests.bench.scale.gangs import Gang
from tests.bench.scale.rows import Row, RowFigures, register
from tests.bench.scale.stage import ScaleStage
from tests.bench.scale.streams import Stream, pause_until
from tests.bench.scale.times import Timeline

BEFORE_SECONDS: Final = 20.0
"""A stream runs that long before a fault."""
STREAM_PER_SECOND: Final = 1.0


def faults(stage: ScaleStage, reached: RowFigures) -> None:
    """The leader is killed, and the standby takes over; then the API server is killed and starts again."""
    with Stream(stage, "steady", STREAM_PER_SECOND) as stream:
        if stage.system.lease is not None:
            take_over(stage, reached, stream)
        lost_api_server(stage, reached, stream)
        stream.end()
        _all_bound(stage, reached, stream)


def take_over(stage: ScaleStage, reached: RowFigures, stream: Stream) -> None:
    """Kill the leader, and wait for the first admission by the standby."""
    _run_for(stage, BEFORE_SECONDS)
    expiry = lease_expiry(stage)
    killed = time.time()
    stage.system.kill_leader()
    expiry = max(expiry, lease_expiry(stage))
    pause_until(expiry)
    first = _first_admission(stage, stream, killed)
    reached.add("lease expires after the kill", expiry - killed, "s")
    reached.add("first admission after the expiry of the lease", first - expiry, "s")
    reached.add("first admission after the kill", first - killed, "s")
    waiting = list(stream.gangs)
    stage.wait_bound(waiting)
    last = max(stage.timeline.whole(gang.key, gang.pods) or 0.0 for gang in waiting)
    reached.add("all gangs that waited are bound after the expiry", last - expiry, "s")


def lost_api_server(stage: ScaleStage, reached: RowFigures, stream: Stream) -> None:
    """Kill the API server, start it again, and wait for the first admission and the first binding."""
    _run_for(stage, BEFORE_SECONDS)
    killed = time.time()
    stage.restart_api_server()
    ready = time.time()
    first = _first_admission(stage, stream, ready)
    bound = _first_binding(stage, stream, ready)
    reached.add("API server ready after its end", ready - killed, "s")
    reached.add("first admission after /readyz of the API server", first - ready, "s")
    reached.add("first binding after /readyz of the API server", bound - ready, "s")


def many_pods(stage: ScaleStage, reached: RowFigures) -> None:
    """Start-up of the controller, and the takeover by a standby, with one-GPU pods on three quarters of the GPUs."""
    system = stage.system
    reached.note(f"{ones_of(stage.fleet).pods:,} pods")
    system.stop_leader()
    began = time.time()
    with Stream(stage, "start-up", STREAM_PER_SECOND) as stream:
        system.start_leader()
        reached.add("ready after the start of the process", time.time() - began, "s")
        first = _first_admission(stage, stream, began)
        reached.add("first admission after the start of the process", first - began, "s")
    before = time.monotonic()
    system.add_standby()
    reached.add("standby ready after", time.monotonic() - before, "s")
    stage.settle()
    for name, peak in stage.usage().peak.items():
        reached.add(f"peak memory before the takeover: {name}", peak, "MiB")
    with Stream(stage, "steady", STREAM_PER_SECOND) as stream:
        take_over(stage, reached, stream)


def lease_expiry(stage: ScaleStage) -> float:
    """When the lease of the leader ends if it is not renewed, in unix seconds."""
    assert stage.system.lease is not None
    space, name = stage.system.lease
    path = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/{name}"
    spec = stage.cluster.client.get(path)["spec"]
    return float(datetime.fromisoformat(spec["renewTime"]).timestamp()) + float(
        spec["leaseDurationSeconds"]
    )


def admissions(timeline: Timeline, gangs: Sequence[Gang], moment: float) -> list[float]:
    """The admissions of the gangs that were submitted after a moment.

    The log has the namespace of a created pod, not its name. The gangs of a stream are of other namespaces than those before and after them.
    """
    first: list[float] = []
    for gang in gangs:
        submitted = timeline.submitted.get(gang.key, 0.0)
        if submitted >= moment:
            first += [at for at in timeline.created[gang.team] if at >= submitted][:1]
    return first


def bindings(timeline: Timeline, gangs: Sequence[Gang], moment: float) -> list[float]:
    """The bindings of the pods of the gangs that were submitted after a moment."""
    return [
        at
        for gang in gangs
        if timeline.submitted.get(gang.key, 0.0) >= moment
        for at in timeline.bound.get(gang.key, {}).values()
    ]


def _first_admission(stage: ScaleStage, stream: Stream, moment: float) -> float:
    return _first(stage, lambda timeline: admissions(timeline, list(stream.gangs), moment))


def _first_binding(stage: ScaleStage, stream: Stream, moment: float) -> float:
    return _first(stage, lambda timeline: bindings(timeline, list(stream.gangs), moment))


def _first(stage: ScaleStage, times: Callable[[Timeline], list[float]]) -> float:
    """The first of some times.

    Raises:
        RowCutError: none until the deadline.
    """
    stage.wait(lambda timeline: bool(times(timeline)), lambda _: "no gang starts")
    return min(times(stage.timeline))


def _run_for(stage: ScaleStage, seconds: float) -> None:
    until = time.monotonic() + seconds
    stage.wait(lambda _: time.monotonic() > until, lambda _: "the stream runs")


def _all_bound(stage: ScaleStage, reached: RowFigures, stream: Stream) -> None:
    def bound(timeline: Timeline) -> bool:
        return all(timeline.whole(gang.key, gang.pods) is not None for gang in stream.gangs)

    stage.wait(bound, lambda _: "not all gangs of the stream are bound")
    reached.add("gangs of the stream, all bound", len(stream.gangs))


register(
    Row(
        "f",
        "the leader is killed; then the API server is killed and starts again",
        faults,
        standby=True,
    ),
    Row(
        "i",
        "60,000 one-GPU pods run: start-up, takeover and memory",
        many_pods,
        fill="ones",
    ),
)
