"""Changes of the configuration, or of the requests of jobs, that advice compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from queuectl.objects.documents import Document
from queuectl.simulate.trace import TraceJob

Body = dict[str, Any]
Jobs = tuple[TraceJob, ...]
Edit = Callable[[Body], None]
"""Changes the body of a ClusterQueue in place."""


class Kind(StrEnum):
    """The subject of a change. Changes of several kinds can be combined."""

    QUOTA = "quota"
    STRATEGY = "strategy"
    PREEMPTION = "preemption"
    TOPOLOGY = "topology"
    IDLE_RECLAIM = "idle reclaim"


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        kinds: what it is about.
        name: in one line, for people.
        queues: changes the ClusterQueues.
        jobs: changes the requests of the jobs.
        instruction: what else is to be done to apply it; empty = nothing.
    """

    kinds: tuple[Kind, ...]
    name: str
    queues: Edit = lambda _: None
    jobs: Callable[[Jobs], Jobs] = lambda jobs: jobs
    instruction: str = ""

    def documents(self, given: Sequence[Document]) -> list[Document]:
        """The input after the change. Objects that do not change stay the same objects."""
        return [self._changed(document) for document in given]

    def _changed(self, document: Document) -> Document:
        if document.kind != "ClusterQueue":
            return document
        body = deepcopy(document.body)
        self.queues(body)
        return document if body == document.body else replace(document, body=body)

    def differs(self, given: Sequence[Document], jobs: Jobs) -> bool:
        """Whether it changes anything."""
        after = self.documents(given)
        return any(a is not b for a, b in zip(after, given, strict=True)) or self.jobs(jobs) != jobs


def combined(changes: Sequence[Change]) -> Change:
    """All of these changes together, one after the other."""

    def queues(body: Body) -> None:
        for change in changes:
            change.queues(body)

    def jobs(given: Jobs) -> Jobs:
        for change in changes:
            given = change.jobs(given)
        return given

    return Change(
        tuple(kind for change in changes for kind in change.kinds),
        " + ".join(change.name for change in changes),
        queues,
        jobs,
        " ".join(change.instruction for change in changes if change.instruction),
    )


def set_field(*path: str, value: object) -> Edit:
    """Sets a field of the spec."""

    def edit(body: Body) -> None:
        at = body.setdefault("spec", {})
        for name in path[:-1]:
            below = at.get(name)
            at[name] = at = dict(below) if isinstance(below, dict) else {}
        at[path[-1]] = value

    return edit


def only_if(wanted: Callable[[Body], bool], edit: Edit) -> Edit:
    """The edit, of the ClusterQueues that match."""

    def checked(body: Body) -> None:
        if wanted(body):
            edit(body)

    return checked


def changed_objects(before: Iterable[Document], after: Iterable[Document]) -> list[Body]:
    """The bodies of the objects that differ."""
    return [b.body for a, b in zip(before, after, strict=True) if a is not b]
