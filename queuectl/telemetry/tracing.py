"""Spans of OpenTelemetry for the way of each gang: a trace for each attempt, and in it a span for each stage.

A span is made from the times of the ledger when its stage has ended, with identifiers that follow from the workload, the attempt and
the line of history. A leader that takes over continues after the last line that was exported, so that no span is lost, and one that is
exported twice has the same identifiers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter

from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.pacing import doubling
from queuectl.domain.reasons import Code
from queuectl.domain.stages import EndedStage, EndedStages

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

# ---- Spans


@dataclass(frozen=True, slots=True)
class Span:
    """A span before it has the form of a library.

    Attributes:
        trace: 128 bits.
        id, parent: 64 bits; a parent of 0 = none.
        since, until: unix seconds.
        failed: the attempt ended with a failure.
    """

    trace: int
    id: int
    parent: int
    name: str
    since: float
    until: float
    attributes: Mapping[str, str | int]
    failed: bool = False


def trace_id(uid: str, attempt: int) -> int:
    """The trace of an attempt of a workload."""
    return _identifier(16, "trace", uid, attempt)


def spans_of(stages: Iterable[EndedStage]) -> Iterator[Span]:
    """A span for each stage, and one for each attempt that has ended, which is the parent of its stages."""
    for stage in stages:
        trace = trace_id(stage.uid, stage.attempt)
        whole = _identifier(8, "attempt", stage.uid, stage.attempt)
        attributes: dict[str, str | int] = {
            "k8s.namespace.name": stage.namespace,
            "queuectl.workload.kind": stage.kind,
            "queuectl.workload.name": stage.name,
            "queuectl.workload.uid": stage.uid,
            "queuectl.cluster_queue": stage.cluster_queue,
            "queuectl.attempt": stage.attempt,
            "queuectl.reason": stage.code,
        }
        failed = stage.code == Code.FAILED
        identifier = _identifier(8, "stage", stage.uid, stage.line)
        yield Span(
            trace, identifier, whole, stage.state, stage.since, stage.until, attributes, failed
        )
        if stage.ends_attempt:
            yield Span(trace, whole, 0, "Attempt", stage.begun, stage.until, attributes, failed)


def _identifier(size: int, of: str, uid: str, number: int) -> int:
    """An identifier of so many bytes, the same in each process. It is not 0, which is not valid."""
    digest = hashlib.sha256(f"{of}/{uid}/{number}".encode()).digest()
    return int.from_bytes(digest[:size]) or 1


# ---- Export


class SpanSink(Protocol):
    """A collector of spans."""

    async def export(self, spans: Sequence[Span]) -> bool:
        """Send the spans. Returns whether the collector has them."""


class StageStore(Protocol):
    """The stages of the ledger, as :class:`queuectl.db.ports.LeaderStore` has them."""

    async def ended_stages(self, after: int, limit: int) -> EndedStages: ...

    async def exported_upto(self, *, epoch: int) -> int: ...

    async def keep_exported(self, line: int, *, epoch: int) -> None: ...


PAGE: Final = 500  # lines of history
POLL_SECONDS: Final = 2.0
LONGEST_AGE: Final = 3600.0
"""Seconds; an older stage is not exported, so that a collector that was down for long gets no flood."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


class SpanMetrics:
    """Counts of spans and of failed exports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._spans = Counter(
            "queuectl_spans_total",
            "Spans of stages and attempts: exported, or dropped because they were too old.",
            ["result"],
            registry=registry,
        )
        self._failures = Counter(
            "queuectl_span_exports_failed_total",
            "Exports that the collector did not accept; they are repeated.",
            registry=registry,
        )

    def exported(self, count: int) -> None:
        self._spans.labels("exported").inc(count)

    def dropped(self, count: int) -> None:
        self._spans.labels("dropped").inc(count)

    def failed(self) -> None:
        self._failures.inc()


class TraceExport:
    """Exports the stages of all gangs while this process leads."""

    def __init__(
        self,
        store: StageStore,
        sink: SpanSink,
        metrics: SpanMetrics,
        clock: Callable[[], float],
        epoch: int,
    ) -> None:
        """``clock``: of the database, unix seconds."""
        self._store = store
        self._sink = sink
        self._metrics = metrics
        self._clock = clock
        self._epoch = epoch
        self._failures = 0
        self._after: int | None = None  # the line up to which stages are exported

    async def run(self) -> None:
        """Export until the task is canceled. Can raise Fenced."""
        log = structlog.get_logger()
        while True:
            try:
                more = await self.step()
            except StoreUnavailable as error:
                log.warning("traces_delayed", error=str(error))
                more = None
            if more is None:
                self._failures += 1
                await asyncio.sleep(doubling(_FIRST_PAUSE, _LONGEST_PAUSE, self._failures))
                continue
            self._failures = 0
            if not more:
                await asyncio.sleep(POLL_SECONDS)

    async def step(self) -> bool | None:
        """Export one page. Returns whether there can be more; None = the collector did not accept it."""
        if self._after is None:
            self._after = await self._store.exported_upto(epoch=self._epoch)
        page = await self._store.ended_stages(self._after, PAGE)
        oldest = self._clock() - LONGEST_AGE
        spans = list(spans_of(stage for stage in page.stages if stage.until > oldest))
        late = spans_of(stage for stage in page.stages if stage.until <= oldest)
        if spans and not await self._sink.export(spans):
            self._metrics.failed()
            return None
        if page.upto == self._after:
            return False
        await self._store.keep_exported(page.upto, epoch=self._epoch)
        self._after = page.upto
        self._metrics.exported(len(spans))
        self._metrics.dropped(sum(1 for _ in late))
        return True


# ---- OTLP


def _resource(version: str) -> Resource:
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource

    return Resource.create({SERVICE_NAME: "queuectl", SERVICE_VERSION: version})


def _exporter(endpoint: str) -> OTLPSpanExporter:
    """``endpoint``: the base URL of a collector, without the path of traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")


class OtlpSink:
    """A collector that speaks OTLP over HTTP. The variables OTEL_EXPORTER_OTLP_* of the SDK set headers and certificates."""

    def __init__(self, endpoint: str, version: str) -> None:
        """``endpoint``: its base URL, without the path of traces."""
        self._resource = _resource(version)
        self._exporter = _exporter(endpoint)

    async def export(self, spans: Sequence[Span]) -> bool:
        """See the Protocol. The SDK repeats an export for a few seconds, in a thread."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        converted = [self._converted(span) for span in spans]
        answer = await asyncio.to_thread(self._exporter.export, converted)
        return answer is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End the connections."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _converted(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(identifier: int) -> SpanContext:
            sampled = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(span.trace, identifier, is_remote=False, trace_flags=sampled)

        return ReadableSpan(
            span.name,
            context=context(span.id),
            parent=context(span.parent) if span.parent else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=int(span.since * 1e9),
            end_time=int(span.until * 1e9),
        )


_UNTRACED: Final = "healthz,readyz,metrics"


@asynccontextmanager
async def traced_requests(app: FastAPI, endpoint: str, version: str) -> AsyncIterator[None]:
    """Send a span for each request to an application. ``endpoint``: of the collector; empty = no spans.

    The SDK collects the spans in memory, at most 2048, and drops more.
    """
    if not endpoint:
        yield
        return
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource(version))
    provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint)))
    app.add_middleware(
        OpenTelemetryMiddleware,
        tracer_provider=provider,
        excluded_urls=_UNTRACED,
        exclude_spans=["receive", "send"],
    )
    try:
        yield
    finally:
        await asyncio.to_thread(provider.shutdown)
