"""Spans of gangs: which stage belongs to which trace, and that none is lost when a leader or a collector ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import exposition as openmetrics

from queuectl.api.app import create_app
from queuectl.domain.errors import Fenced
from queuectl.domain.events import Admit, Drained, Ended, PodsReady
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import State
from queuectl.domain.stages import EndedStage, EndedStages
from queuectl.telemetry.metrics import MetricsRecorder
from queuectl.telemetry.tracing import (
    LONGEST_AGE,
    OtlpSink,
    Span,
    SpanMetrics,
    TraceExport,
    spans_of,
    trace_id,
    traced_requests,
)
from tests.api.conftest import talking_to
from tests.api.support import PLACED, PREEMPT, FixedHealth, job, live_through
from tests.doubles.store import MemoryStore

LIFE = (
    Admit(PLACED),
    PodsReady(),
    PREEMPT,
    Drained(),
    Admit(PLACED),
    PodsReady(),
    Ended(JobOutcome.FAILED),
)


@dataclass
class ListSink:
    """A collector in memory, which can be down."""

    spans: list[Span] = field(default_factory=list)
    down: bool = False

    async def export(self, spans: Sequence[Span]) -> bool:
        if not self.down:
            self.spans += spans
        return not self.down


async def lived(store: MemoryStore, *names: str) -> None:
    for name in names:
        for change in live_through(job(name), *LIFE):
            store._write(change, 1)


def exporter(store: MemoryStore, sink: ListSink, now: float = 0.0, epoch: int = 1) -> TraceExport:
    return TraceExport(store, sink, SpanMetrics(CollectorRegistry()), lambda: now, epoch)


async def test_an_attempt_is_a_trace_and_each_of_its_stages_a_span() -> None:
    store, sink = MemoryStore(), ListSink()
    epoch = await store.take_over("a", 0)
    await store.exported_upto(epoch=epoch)
    await lived(store, "train")
    while await exporter(store, sink, epoch=epoch).step():
        pass
    uid = job("train").uid
    first = [span for span in sink.spans if span.trace == trace_id(uid, 1)]
    second = [span for span in sink.spans if span.trace == trace_id(uid, 2)]
    assert [span.name for span in first] == [
        "Pending",
        "Starting",
        "Running",
        "Evicting",
        "Attempt",
    ]
    assert [span.name for span in second] == ["Pending", "Starting", "Running", "Attempt"]
    assert len(first) + len(second) == len(sink.spans) == len({span.id for span in sink.spans})
    for *stages, attempt in (first, second):
        assert attempt.parent == 0
        assert {span.parent for span in stages} == {attempt.id}
        assert (attempt.since, attempt.until) == (stages[0].since, stages[-1].until)
        assert all(a.until == b.since for a, b in pairwise(stages))
    assert [span.failed for span in second] == [False, False, True, True]


async def test_a_workload_that_ends_before_it_starts_has_a_trace() -> None:
    stage = EndedStage(
        *(7, "uid", "Job", "team-a", "train", "", 0, State.HELD, State.FINISHED, "Deleted"),
        *(5.0, 9.0, 1.0),
    )
    held, attempt = spans_of([stage])
    assert held.trace == attempt.trace == trace_id("uid", 1)
    assert (attempt.since, attempt.until) == (1.0, 9.0)


async def test_a_new_leader_continues_where_the_last_one_ended_and_the_old_one_writes_nothing() -> (
    None
):
    store, sink = MemoryStore(), ListSink()
    epoch = await store.take_over("a", 0)
    old = exporter(store, sink, epoch=epoch)
    assert await old.step() is False
    await lived(store, "one")
    assert await old.step()
    seen = len(sink.spans)
    await lived(store, "two")
    later = await store.take_over("b", 0)
    with pytest.raises(Fenced):
        await old.step()
    new = exporter(store, sink, epoch=later)
    assert await new.step()
    assert {span.id for span in sink.spans[:seen]}.isdisjoint(
        span.id for span in sink.spans if span.attributes["queuectl.workload.name"] == "two"
    )
    again = [s for s in sink.spans if s.attributes["queuectl.workload.name"] == "two"]
    assert len({span.id for span in again}) == len(again) / 2, "exported twice, with the same ids"


async def test_a_collector_that_is_down_loses_nothing_within_an_hour() -> None:
    store, sink = MemoryStore(), ListSink(down=True)
    epoch = await store.take_over("a", 0)
    export = exporter(store, sink, epoch=epoch)
    await export.step()
    await lived(store, "train")
    assert await export.step() is None
    sink.down = False
    assert await export.step()
    assert len(sink.spans) == 9
    await lived(store, "old")
    assert await exporter(store, sink, now=LONGEST_AGE * 1e6, epoch=epoch).step()
    assert len(sink.spans) == 9, "stages of more than an hour ago are dropped"


async def test_a_long_history_is_exported_by_pages() -> None:
    store, sink = MemoryStore(), ListSink()
    epoch = await store.take_over("a", 0)
    export = exporter(store, sink, epoch=epoch)
    await export.step()
    await lived(store, *(f"job-{number}" for number in range(100)))
    steps = 0
    while await export.step():
        steps += 1
    assert steps > 1
    assert len({span.id for span in sink.spans}) == 900


@dataclass
class Collector:
    """An HTTP server that takes OTLP.

    Attributes:
        url: its base URL.
        status: of its responses; only what it answers with 200 counts.
        requests: that it accepted.
    """

    url: str = ""
    status: int = 200
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[Any]:
        """All spans that it has."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a port of this machine."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            if collector.status == 200:
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_collector_gets_the_spans_by_otlp() -> None:
    span = Span(trace_id("uid", 1), 5, 7, "Running", 1.5, 2.25, {"queuectl.attempt": 1}, True)
    with collecting() as collector:
        sink = OtlpSink(collector.url, "0.1.0")
        collector.status = 400
        assert not await sink.export([span])
        collector.status = 200
        assert await sink.export([span, Span(1, 2, 0, "Attempt", 0.0, 3.0, {})])
        await asyncio.to_thread(sink.close)
    (resource,) = collector.requests[0].resource_spans
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (names["service.name"], names["service.version"]) == ("queuectl", "0.1.0")
    first, second = collector.spans()
    assert int.from_bytes(first.trace_id) == span.trace
    assert int.from_bytes(first.parent_span_id) == 7
    assert not second.parent_span_id
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (1_500_000_000, 2_250_000_000)
    assert first.attributes[0].value.int_value == 1


async def test_nothing_is_exported_without_an_ended_stage() -> None:
    class Empty:
        async def ended_stages(self, after: int, limit: int) -> EndedStages:
            return EndedStages(after + limit, ())

        async def exported_upto(self, *, epoch: int) -> int:
            return epoch

        async def keep_exported(self, line: int, *, epoch: int) -> None:
            assert line > epoch

    sink = ListSink(down=True)
    assert await TraceExport(Empty(), sink, SpanMetrics(CollectorRegistry()), lambda: 0.0, 1).step()


async def test_a_request_is_a_span_without_those_of_health() -> None:
    app = create_app(MemoryStore(), FixedHealth(), MetricsRecorder().registry)
    with collecting() as collector:
        async with traced_requests(app, collector.url, "0.1.0"), talking_to(app) as client:
            assert (await client.get("/api/v1/workloads")).status_code == 200
            assert (await client.get("/healthz")).status_code == 200
    (span,) = collector.spans()
    attributes = {each.key: each.value for each in span.attributes}
    assert span.name == "GET /api/v1/workloads"
    assert attributes["http.status_code"].int_value == 200


def test_waits_have_the_trace_of_their_attempt_as_an_exemplar() -> None:
    metrics = MetricsRecorder()
    metrics.add_traces()
    metrics.committed(live_through(job("train"), Admit(PLACED), PodsReady()))
    exposed = str(openmetrics.generate_latest(metrics.registry), "utf-8")  # type: ignore[no-untyped-call]
    expected = f"{trace_id(job('train').uid, 1):032x}"
    lines = [line for line in exposed.splitlines() if expected in line]
    assert {line.partition("_bucket")[0] for line in lines} >= {
        "queuectl_admission_wait_time_seconds",
        "queuectl_ready_wait_time_seconds",
        "queuectl_admitted_until_ready_wait_time_seconds",
    }
