"""Traces: jobs, events of nodes and utilization, read from tables.

Times are in seconds after the start of the trace. Tables are CSV, plain or gzipped. Errors name the file, the line and the column. The
utilization of the GPUs of a job over its work is a curve of steps.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf, isfinite
from typing import Final

from queuectl.domain.errors import BadInput
from queuectl.domain.fleet import Node
from queuectl.domain.workload import Placement, PodSet

# ---- Traces

NAMESPACE: Final = "default"
LATEST: Final = 1e11
"""The last second, 3,000 years from the first, at which a job is submitted or a node changes."""
_NEEDED: Final = ("submit_s", "duration_s", "nodes_or_pods", "gpus_per_pod", "queue")
_EVENT: Final = ("time", "node", "state")
_USE: Final = "gpu_util_pct"
_AFTER: Final = "after_s"
_STATES: Final = ("down", "up")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        rank: its place by time of submission, then duration, then line; from 0.
        line: in the file, from 1.
        submit, duration: in seconds.
        pods, gpus_per_pod: its shape.
        queue: namespace and name of its LocalQueue; an empty name = the trace states none.
        job_id: of the trace, empty if it has none.
        priority: a number, or the name of a WorkloadPriorityClass; None = the trace states none.
        limit: seconds after which it is stopped, over all its attempts; None = no limit.
        expected: seconds for which it is expected to run; None = not stated.
        checkpoint: seconds from one checkpoint to the next; None = it writes none.
        utilization: 0 to 1, of its GPUs, on average; None = unknown.
        curve: its utilization over its work; None = unknown.
        topology_level: node label of the domain that must hold all its pods; empty = any nodes.
        user: of the submitter; empty if unknown.
        podsets: its request, if it is not only GPUs of equal pods; then ``gpus_per_pod`` does not count.
        placement: it runs there when the simulation begins; None = it waits when it is submitted.
        deleted: seconds at which its user deletes it, whether it runs or waits; None = never.
    """

    rank: int
    line: int
    submit: float
    duration: float
    pods: int
    gpus_per_pod: int
    queue: tuple[str, str]
    job_id: str = ""
    name: str = ""
    priority: int | str | None = None
    limit: float | None = None
    expected: float | None = None
    checkpoint: float | None = None
    utilization: float | None = None
    curve: Curve | None = None
    topology_level: str = ""
    user: str = ""
    podsets: tuple[PodSet, ...] = ()
    placement: Placement | None = None
    deleted: float | None = None

    @property
    def gpus(self) -> int:
        return sum(pods * gpus for pods, gpus in self.sizes)

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Numbers of pods with the GPUs of each of them, rounded up."""
        if not self.podsets:
            return ((self.pods, self.gpus_per_pod),)
        return tuple((podset.count, _gpus_of_pod(podset)) for podset in self.podsets)

    def held_on(self, placement: Placement) -> list[tuple[str, int]]:
        """Names of nodes, and the GPUs that the job holds on each with this placement."""
        by_podset = {podset.name: _gpus_of_pod(podset) for podset in self.podsets}
        return [
            (node, pods * by_podset.get(placed.podset, self.gpus_per_pod))
            for placed in placement.podsets
            for node, pods in placed.nodes
        ]

    def used(self, curve: Curve | None) -> TraceJob:
        """The same job with this utilization; None = unknown."""
        mean = curve.mean(0.0, max(self.duration, 1.0)) if curve is not None else None
        return replace(self, curve=curve, utilization=mean)

    @property
    def runs_for(self) -> float:
        """Seconds from a start to the end if nothing interrupts it."""
        return self.duration if self.limit is None else min(self.duration, self.limit)

    @property
    def declared(self) -> float:
        """The run time that its submitter declares, in seconds: the expectation, otherwise the limit, otherwise the true run time."""
        if self.expected is not None:
            return self.expected
        return self.duration if self.limit is None else self.limit


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node fails, recovers or changes.

    Attributes:
        time: seconds after the start of the trace.
        up: pods run on it.
        record: the node from then on; None = as it was.
    """

    time: float
    node: str
    up: bool
    record: Node | None = None

    @property
    def takes_pods(self) -> bool:
        """Whether it offers its free GPUs to new pods."""
        return self.up and (self.record is None or not self.record.unschedulable)


def _gpus_of_pod(podset: PodSet) -> int:
    return ceil(podset.gpus.each)


@dataclass(frozen=True, slots=True)
class ByJob:
    """``curves``: utilization by job_id."""

    curves: Mapping[str, Curve]

    def applied(self, job: TraceJob, draw: Callable[[], float]) -> TraceJob:  # noqa: ARG002 - one signature for both
        """The job with its utilization; that of the trace if this table does not have it."""
        curve = self.curves.get(job.job_id)
        return job if curve is None else job.used(curve)


@dataclass(frozen=True, slots=True)
class Distribution:
    """``quantiles``: percentile and utilization, 0 to 1, in ascending order."""

    quantiles: tuple[tuple[float, float], ...]

    def applied(self, job: TraceJob, draw: Callable[[], float]) -> TraceJob:
        """The job with the utilization at the first percentile that is not less than a random one. ``draw``: gives 0 to 1."""
        at = bisect_left(self.quantiles, (100.0 * draw(), 0.0))
        return job.used(constant(self.quantiles[min(at, len(self.quantiles) - 1)][1]))


Utilization = ByJob | Distribution


def read_trace(content: bytes, name: str) -> tuple[TraceJob, ...]:
    """The jobs in the order of their submission.

    Raises:
        BadInput: naming file, line and column.
    """
    jobs = [_job(row) for row in _read_table(content, name, _NEEDED)]
    lines: dict[str, int] = {}
    for job in jobs:
        if job.job_id and lines.setdefault(job.job_id, job.line) != job.line:
            where = f"also in line {lines[job.job_id]}"
            raise BadInput(f"{name}: line {job.line}: job_id: {job.job_id!r} is {where}")
    jobs.sort(key=lambda job: (job.submit, job.duration, job.line))
    return tuple(replace(job, rank=rank) for rank, job in enumerate(jobs))


def read_events(content: bytes, name: str) -> tuple[NodeEvent, ...]:
    """The failures and recoveries of nodes, by time, then in the order of the file.

    The columns are the time in seconds, the node, and ``down`` or ``up``. A header line is optional, and its names do not matter.

    Raises:
        BadInput: naming file, line and column.
    """
    events = []
    for row in _read_columns(content, name, _EVENT):
        state = row.required("state")
        if state not in _STATES:
            raise row.invalid("state", f"{state!r} is not one of {', '.join(_STATES)}")
        events.append(NodeEvent(row.moment("time"), row.required("node"), state == "up"))
    return tuple(sorted(events, key=lambda event: event.time))


def read_utilization(content: bytes, name: str) -> Utilization:
    """The utilization of the GPUs of jobs, in percent: by job_id, over time, or as a distribution by percentile.

    The header is ``job_id,gpu_util_pct``, with ``after_s`` if it changes over time, or ``percentile`` and the name of a distribution.
    ``after_s`` is the number of seconds of work after which the utilization begins. Further columns are not read.

    Raises:
        BadInput: naming file, line and column.
    """
    rows = list(_read_table(content, name, ()))
    if not rows:
        raise BadInput(f"{name}: has no rows")
    header = list(rows[0].cells)
    if header[0] == "percentile" and len(header) > 1:
        quantiles = ((_percent(row, "percentile"), _percent(row, header[1])) for row in rows)
        return Distribution(tuple(sorted((at, percent / 100) for at, percent in quantiles)))
    if "job_id" not in header or _USE not in header:
        what = f"the header has neither job_id and {_USE} nor percentile and a distribution"
        raise BadInput(f"{name}: line 1: {what}")
    by_job: dict[str, list[tuple[float, float]]] = {}
    last: dict[str, float] = {}
    for row in rows:
        job, at = row.required("job_id"), row.number(_AFTER) or 0.0
        steps = by_job.setdefault(job, [])
        if steps and _AFTER not in header:
            raise row.invalid("job_id", f"{job!r} is given twice")
        if at <= last.get(job, -1.0):
            raise row.invalid(_AFTER, f"is not later than in the row of {job!r} before")
        last[job] = at
        # The first row also gives the utilization before it.
        steps.append((at if steps else 0.0, _percent(row, _USE) / 100))
    return ByJob({job: Curve(tuple(steps)) for job, steps in by_job.items()})


def _percent(row: Row, column: str) -> float:
    row.required(column)
    value = row.number(column)
    if value is None or value > 100:
        raise row.invalid(column, f"{row.text(column)!r} is not a number from 0 to 100")
    return value


def _job(row: Row) -> TraceJob:
    percent = _percent(row, _USE) if row.text(_USE) else None
    namespace, slash, queue = row.text("queue").rpartition("/")
    checkpoint = row.number("checkpoint_s")
    if checkpoint == 0:
        raise row.invalid("checkpoint_s", "'0' is not a number of seconds greater than 0")
    return TraceJob(
        rank=0,
        line=row.line,
        submit=row.moment("submit_s"),
        duration=row.seconds("duration_s"),
        pods=row.integer("nodes_or_pods", 1),
        gpus_per_pod=row.integer("gpus_per_pod", 0),
        queue=(namespace if slash else NAMESPACE, queue),
        job_id=row.text("job_id"),
        name=row.text("name"),
        priority=_priority(row.text("priority")),
        limit=row.number("limit_s"),
        expected=row.number("expected_s"),
        checkpoint=checkpoint,
        utilization=None if percent is None else percent / 100.0,
        curve=None if percent is None else constant(percent / 100.0),
        topology_level=row.text("topology_level"),
        user=row.text("user"),
    )


def _priority(text: str) -> int | str | None:
    try:
        return int(text) if text else None
    except ValueError:
        return text


# ---- Classes of jobs by their GPUs


def size_class(gpus: int) -> int:
    """The smallest power of two that is at least this number; 0 for none."""
    return 1 << (gpus - 1).bit_length() if gpus else 0


def size_name(most: int) -> str:
    """The numbers of GPUs in a class: ``8`` is ``5-8``."""
    return str(most) if most <= 2 else f"{most // 2 + 1}-{most}"


# ---- Curves of utilization


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps``: (seconds of work, utilization from 0 to 1), in ascending order; the first one is at 0."""

    steps: tuple[tuple[float, float], ...]

    def at(self, work: float) -> float:
        """The utilization after so many seconds of work."""
        return self.steps[max(bisect_right(self.steps, (work, inf)) - 1, 0)][1]

    def next_change(self, work: float) -> float | None:
        """The next step after so many seconds of work, or None."""
        place = bisect_right(self.steps, (work, inf))
        return self.steps[place][0] if place < len(self.steps) else None

    def next_at_most(self, work: float, share: float) -> float | None:
        """The seconds of work from which the utilization is at most this, ``work`` at the earliest; None = never."""
        if self.at(work) <= share:
            return work
        place = bisect_right(self.steps, (work, inf))
        return next((at for at, use in self.steps[place:] if use <= share), None)

    def pieces(self, begin: float, end: float) -> list[tuple[float, float]]:
        """(seconds, utilization) of each step between two amounts of work."""
        edges = [begin, *(at for at, _ in self.steps if begin < at < end), end]
        return [(b - a, self.at(a)) for a, b in pairwise(edges) if b > a]

    def mean(self, begin: float, end: float) -> float:
        """The average between two amounts of work."""
        if end <= begin:
            return self.at(begin)
        return sum(seconds * use for seconds, use in self.pieces(begin, end)) / (end - begin)

    def busy(self, begin: float, end: float) -> float:
        """The utilization that is not exceeded for nine tenths of this work."""
        left = 0.9 * (end - begin)
        for seconds, use in sorted(self.pieces(begin, end), key=lambda piece: piece[1]):
            left -= seconds
            if left <= 1e-9:
                return use
        return self.at(begin)


def constant(share: float) -> Curve:
    """The same utilization from the begin to the end."""
    return Curve(((0.0, share),))


# ---- Tables

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, with readers for its cells. An absent column is an empty cell.

    Attributes:
        name: of the file.
        line: from 1.
        cells: by column.
    """

    name: str
    line: int
    cells: Mapping[str, str]

    def invalid(self, column: str, what: str) -> BadInput:
        """An error about one cell."""
        return BadInput(f"{self.name}: line {self.line}: {column}: {what}")

    def text(self, column: str) -> str:
        """The cell without spaces around it; empty without one."""
        return self.cells.get(column, "").strip()

    def required(self, column: str) -> str:
        """The cell; an empty one is an error."""
        text = self.text(column)
        if not text:
            raise self.invalid(column, "is empty")
        return text

    def number(self, column: str) -> float | None:
        """A finite number of at least 0; None for an empty cell."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.invalid(column, f"{text!r} is not a number") from None
        if not isfinite(value) or value < 0:
            raise self.invalid(column, f"{text!r} is not a number of at least 0")
        return value

    def seconds(self, column: str) -> float:
        """A number that must be there."""
        self.required(column)
        found = self.number(column)
        assert found is not None
        return found

    def moment(self, column: str) -> float:
        """A second of the trace."""
        found = self.seconds(column)
        if found > LATEST:
            raise self.invalid(column, f"{self.text(column)!r} is later than second {LATEST:.0e}")
        return found

    def integer(self, column: str, least: int) -> int:
        """An integer of at least ``least``; ``8.0`` is one."""
        text = self.required(column)
        value = self.number(column)
        if value is None or value != int(value) or value < least:
            raise self.invalid(column, f"{text!r} is not an integer of at least {least}")
        return int(value)


def _read_table(content: bytes, name: str, columns: Iterable[str]) -> Iterator[Row]:
    """The rows after the header line.

    Args:
        content: UTF-8 text, or gzip of it.
        name: of the file, for messages.
        columns: that the header must have.

    Raises:
        BadInput: for the first mistake.
    """
    rows = _cells(content, name)
    _, header = next(rows, (1, []))
    header = [cell.strip() for cell in header]
    _check(header, name, columns)
    yield from _rows(rows, name, header)


def _read_columns(content: bytes, name: str, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a table with these columns, whose first one has numbers. A header line is optional.

    Raises:
        BadInput: for the first mistake.
    """
    rows = list(_cells(content, name))
    if rows and rows[0][1] and not _is_number(rows[0][1][0]):
        del rows[0]
    yield from _rows(rows, name, columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(
    rows: Iterable[tuple[int, list[str]]], name: str, columns: Sequence[str]
) -> Iterator[Row]:
    for line, cells in rows:
        if len(cells) != len(columns):
            found = f"{len(cells)} cells instead of {len(columns)} ({', '.join(columns)})"
            raise BadInput(f"{name}: line {line}: {found}")
        yield Row(name, line, dict(zip(columns, cells, strict=True)))


def _cells(content: bytes, name: str) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of each line that is not empty."""
    reader = csv.reader(io.StringIO(_text(content, name)), strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise BadInput(f"{name}: line {reader.line_num}: {error}") from None


def _check(header: list[str], name: str, columns: Iterable[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise BadInput(f"{name}: line 1: {column}: is given twice")
    for column in columns:
        if column not in header:
            raise BadInput(f"{name}: line 1: {column}: the header does not have this column")


def _text(content: bytes, name: str) -> str:
    try:
        plain = gzip.decompress(content) if content.startswith(_GZIP) else content
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{name}: not a complete gzip file: {error}") from None
    try:
        return plain.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from None
