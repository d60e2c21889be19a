"""Search of workloads, as the API answers it.

Each replica answers. Workloads that have not finished are searched in a copy of their names, which is read again for a search if it is
older than two seconds. The database searches the finished ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import Field

from queuectl.api.schemas import View, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.gpus import rounded
from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from queuectl.domain.search import MOST_MATCHES, NEWEST_FINISHED, SearchText, WorkloadSummary
from queuectl.domain.words import utc

_FRESH_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matches of a search.

    Attributes:
        matches: in the order of results.
        more: there are more than these.
        only_newest: the text is so short that only the newest of the finished workloads were searched.
    """

    matches: tuple[WorkloadSummary, ...] = ()
    more: bool = False
    only_newest: bool = False


class WorkloadSearch:
    """The search of one process. Requests at the same time share one read of the names."""

    def __init__(self, store: ApiStore, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._store = store
        self._clock = clock
        self._lock = asyncio.Lock()
        self._unfinished: tuple[WorkloadSummary, ...] = ()
        self._read_at = float("-inf")

    async def find(
        self, text: str, visible: frozenset[str] | None, limit: int = MOST_MATCHES
    ) -> SearchResult:
        """The workloads that match a text. Raises StoreUnavailable.

        Args:
            text: of the user.
            visible: namespaces whose workloads the caller may list; None = all.
            limit: of the matches, at most :data:`MOST_MATCHES`.
        """
        search = SearchText(text.strip())
        if not search.possible or (visible is not None and not visible):
            return SearchResult()
        unfinished, finished = await asyncio.gather(
            self._names(), self._store.finished_matches(search, visible, limit + 1)
        )
        # A workload that finished between the two reads is in both.
        matches = {each.uid: each for each in (*_visible(unfinished, visible), *finished)}
        ordered = search.in_order(filter(search.matches, matches.values()))
        return SearchResult(tuple(ordered[:limit]), len(ordered) > limit, not search.indexed)

    async def _names(self) -> tuple[WorkloadSummary, ...]:
        async with self._lock:
            began = self._clock()
            if began - self._read_at >= _FRESH_SECONDS:
                self._unfinished = await self._store.unfinished()
                self._read_at = began
            return self._unfinished


def _visible(
    workloads: tuple[WorkloadSummary, ...], visible: frozenset[str] | None
) -> list[WorkloadSummary]:
    return [each for each in workloads if visible is None or each.namespace in visible]


class WorkloadMatchView(View):
    uid: str
    kind: str
    namespace: str
    name: str
    state: State
    reason: Code = Field(description="Code of its reason.")
    cluster_queue: str
    user: str = Field(description="User of the job; empty if unknown.")
    gpus: float = Field(description="GPUs that it requests.")
    queued_at: datetime
    finished_at: datetime | None = Field(description="null = it has not finished.")


class SearchResultView(View):
    items: list[WorkloadMatchView] = Field(
        description="Exact matches first, then workloads that have not finished, then finished ones; among these, the newest first."
    )
    more: bool = Field(description="true = more workloads match.")
    only_newest: bool = Field(
        description=f"true = the text has fewer than three characters, so only the newest {NEWEST_FINISHED} finished workloads were searched."
    )


def search_result_view(search_result: SearchResult) -> SearchResultView:
    """The matches for an answer."""
    return SearchResultView(
        items=[
            WorkloadMatchView(
                uid=each.uid,
                kind=each.kind,
                namespace=each.namespace,
                name=each.name,
                state=each.state,
                reason=each.code,
                cluster_queue=each.cluster_queue,
                user=each.user,
                gpus=rounded(each.gpus),
                queued_at=utc(each.queued_at),
                finished_at=maybe(each.finished_at),
            )
            for each in search_result.matches
        ],
        more=search_result.more,
        only_newest=search_result.only_newest,
    )
