"""The dependencies near a job as a graph: columns of boxes from left to right, in the order in which the jobs end.

The template draws it as SVG, and lists the same jobs as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from queuectl.domain.gates import JobName
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry, State
from queuectl.domain.related_jobs import RelatedJob, RelatedJobs
from queuectl.web.words import GLYPHS

BOX_WIDTH: Final = 184
BOX_HEIGHT: Final = 44
_GAP_X: Final = 56
_GAP_Y: Final = 14
_MARGIN: Final = 2
_LETTERS: Final = 22  # of a name, in a box
_ENDS: Final = {"ok": "succeeds", "any": "ends", "failed": "fails"}
_OUTCOMES: Final = {JobOutcome.SUCCEEDED: "✓", JobOutcome.FAILED: "×"}
HIDDEN: Final = "a job that you may not see"
_ITSELF: Final = "this job"
_MISSING: Final = "not in the cluster"


@dataclass(frozen=True, slots=True)
class JobBox:
    """A job of the graph.

    Attributes:
        title: in full. ``label``: as much as fits in the box.
        uid: for the link; empty = no link.
        sign, word: its state.
        style: class of its state.
        place: its level in words.
        conditions: what this job waits for among the others, as clauses.
        x, y: of its upper left corner, in pixels.
    """

    title: str
    label: str
    uid: str
    sign: str
    word: str
    style: str
    place: str
    conditions: tuple[str, ...]
    x: int
    y: int
    own: bool


@dataclass(frozen=True, slots=True)
class JobArrow:
    """An edge: an SVG path from the right of a box to the left of another one. ``text``: its condition."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class JobGraph:
    """The parts that the template draws."""

    boxes: tuple[JobBox, ...]
    arrows: tuple[JobArrow, ...]
    width: int
    height: int
    left_out: int


def graph_of(
    related: RelatedJobs, entry: Entry, *, sees_all: bool, finished: Mapping[JobName, Entry]
) -> JobGraph:
    """The graph of the jobs near ``entry``.

    Args:
        related: these jobs, in one namespace.
        entry: the workload in question.
        sees_all: the reader may list the workloads of the namespace. Otherwise only the jobs that its own annotation names have a name.
        finished: workloads of jobs that are no longer in the cluster, which the reader may see.
    """
    root = related.jobs[0].name
    named = {root} | {edge.before for edge in related.edges if edge.after == root}
    titles = {
        job.name: job.title if sees_all or job.name in named else HIDDEN for job in related.jobs
    }
    places = _places(related)
    waits: dict[JobName, list[str]] = {}
    for edge in related.edges:
        clause = f"{titles[edge.before]} {_ENDS[edge.ends]}"
        waits.setdefault(edge.after, []).append(clause)
    boxes = tuple(
        _box(job, entry, titles[job.name], waits.get(job.name, []), places[job.name], sees_all, finished.get)
        for job in related.jobs
    )  # fmt: skip
    arrows = tuple(
        JobArrow(_path(places[edge.before], places[edge.after]), _ENDS[edge.ends])
        for edge in related.edges
    )
    width = max(x for x, _ in places.values()) + BOX_WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + BOX_HEIGHT + _MARGIN
    return JobGraph(boxes, arrows, width, height, related.left_out)


def _places(related: RelatedJobs) -> dict[JobName, tuple[int, int]]:
    """A column for each level, each centered."""
    columns: dict[int, list[JobName]] = {}
    for job in related.jobs:
        columns.setdefault(job.level, []).append(job.name)
    first = min(columns)
    tallest = max(map(len, columns.values()))
    places = {}
    for level, names in columns.items():
        x = _MARGIN + (level - first) * (BOX_WIDTH + _GAP_X)
        top = (tallest - len(names)) * (BOX_HEIGHT + _GAP_Y) // 2
        for row, name in enumerate(names):
            places[name] = (x, _MARGIN + top + row * (BOX_HEIGHT + _GAP_Y))
    return places


def _path(before: tuple[int, int], after: tuple[int, int]) -> str:
    x1, y1 = before[0] + BOX_WIDTH, before[1] + BOX_HEIGHT // 2
    x2, y2 = after[0], after[1] + BOX_HEIGHT // 2
    bend = max((x2 - x1) // 2, _GAP_X // 2)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


def _box(
    job: RelatedJob,
    entry: Entry,
    title: str,
    conditions: list[str],
    place: tuple[int, int],
    sees_all: bool,
    finished: Callable[[JobName], Entry | None],
) -> JobBox:
    own = job.level == 0
    uid, sign, word, style = "", "", "", ""
    if own:
        sign, word, style = GLYPHS[entry.state], str(entry.state), str(entry.state)
    elif sees_all:
        uid, sign, word, style = _state(job, finished(job.name))
    label = title if len(title) <= _LETTERS else f"{title[: _LETTERS - 1]}…"
    return JobBox(
        title, label, uid, sign, word, style, _place(job.level), tuple(conditions), *place, own
    )


def _state(job: RelatedJob, ended: Entry | None) -> tuple[str, str, str, str]:
    """Uid, sign, word and style."""
    seen = job.observed
    finished = str(State.FINISHED)
    if seen is not None and seen.outcome is not None:
        return seen.uid, _OUTCOMES[seen.outcome], str(seen.outcome), finished
    if seen is not None and seen.state is not None:
        return seen.uid, GLYPHS[seen.state], str(seen.state), str(seen.state)
    if seen is not None:
        return "", "○", "not queued", str(State.PENDING)
    if ended is not None:
        return ended.uid, GLYPHS[ended.state], f"{ended.state}, deleted", finished
    return "", "?", _MISSING, finished


def _place(level: int) -> str:
    if level == 0:
        return _ITSELF
    steps = abs(level)
    return ("before it" if level < 0 else "after it") + (f", {steps} steps" if steps > 1 else "")
