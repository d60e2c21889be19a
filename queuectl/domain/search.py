"""Search of workloads by a part of their names: the text, what it matches, and the order of the matches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from queuectl.domain.gpus import Gpus, of_parts
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code

MOST_MATCHES: Final = 50
LONGEST_SEARCH: Final = 321
"""Characters: a namespace, a slash, a name, and the index of an array."""
INDEXED_CHARACTERS: Final = 3
"""The index has sequences of three characters. From this length on, an index finds the text in the names of all finished workloads."""
NEWEST_FINISHED: Final = 2000
"""Finished workloads in which a shorter text is searched for: the newest that the viewer may see."""
_SHORTEST_UID: Final = 8  # characters of the beginning of a uid


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """The part of a workload that a result of a search shows.

    Attributes:
        gpu_parts: its GPUs, as in :func:`queuectl.domain.gpus.of_parts`.
        code: the code of its reason.
        queued_at: unix seconds.
        finished_at: unix seconds; None = it has not finished.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    state: State
    cluster_queue: str
    user: str
    gpu_parts: int
    code: Code
    queued_at: float
    finished_at: float | None

    @property
    def ref(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def gpus(self) -> Gpus:
        """GPUs that it requests."""
        return of_parts(self.gpu_parts)


@dataclass(frozen=True, slots=True)
class SearchText:
    """A text that is searched for.

    A workload matches if ``namespace/name`` contains the text in lower case, as all names are, or if its uid begins with the text.
    """

    text: str

    @property
    def possible(self) -> bool:
        """Whether anything can match: no name is empty, longer, or has a character that cannot be printed, such as NUL."""
        return 0 < len(self.text) <= LONGEST_SEARCH and self.text.isprintable()

    @property
    def part(self) -> str:
        """The part of ``namespace/name``."""
        return self.text.lower()

    @property
    def indexed(self) -> bool:
        """Whether the names of all finished workloads are searched, not only of the newest."""
        return len(self.part) >= INDEXED_CHARACTERS

    @property
    def trigrams(self) -> list[str]:
        """The distinct sequences of three characters of the part."""
        return sorted({self.part[start : start + 3] for start in range(len(self.part) - 2)})

    @property
    def full_name(self) -> tuple[str, str] | None:
        """Namespace and name, if the text can be both; otherwise None."""
        namespace, _, name = self.part.partition("/")
        return (namespace, name) if namespace and name else None

    @property
    def begins_uid(self) -> bool:
        """Whether the text is long enough to be the beginning of a uid."""
        return len(self.text) >= _SHORTEST_UID and "/" not in self.text

    def matches(self, workload: WorkloadSummary) -> bool:
        """Whether a workload matches."""
        return self.part in workload.ref or (self.begins_uid and workload.uid.startswith(self.text))

    def names(self, workload: WorkloadSummary) -> bool:
        """Whether the text is the whole name, ``namespace/name`` or uid of a workload."""
        return self.part in (workload.name, workload.ref) or self.text == workload.uid

    def in_order(self, workloads: Iterable[WorkloadSummary]) -> list[WorkloadSummary]:
        """Matches in the order of results.

        Those with exactly this name come first, then those that have not finished, then those whose name begins with the text. Among
        these, the newest come first.
        """

        def place(workload: WorkloadSummary) -> tuple[bool, bool, bool, float, str]:
            finished = workload.finished_at is not None
            begins = workload.name.startswith(self.part) or workload.ref.startswith(self.part)
            newest = -(workload.finished_at or workload.queued_at)
            return (not self.names(workload), finished, not begins, newest, workload.uid)

        return sorted(workloads, key=place)
