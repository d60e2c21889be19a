"""Workloads for one caller: their position in queue order, GPU utilization and reasons, without names that it is not allowed to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fastapi import Request

from queuectl.api.access import Guard, redactor_of
from queuectl.api.ports import Diagnoser
from queuectl.api.schemas import ExplainView, WorkloadView
from queuectl.api.views import explain_view, workload_view
from queuectl.db.ports import ApiStore, WorkloadFacts
from queuectl.domain.diagnosis import Diagnosis
from queuectl.domain.estimates import ExpectedRunTime, ExpectedStart
from queuectl.domain.ledger import Entry, State, StoredDecision
from queuectl.domain.queries import (
    IN_QUEUE_ORDER,
    LONGEST_PAGE,
    HistoryLine,
    QueuePosition,
    in_queue_order,
)
from queuectl.domain.redaction import Explanation, Redactor
from queuectl.domain.utilization import GangUse

_AT_ONCE: Final = 50
"""Views that are made before the event loop can run other tasks: about 2 ms."""


class WorkloadPresenter:
    """The views of one process. Methods can raise StoreUnavailable, and ClusterUnavailable if they check rights."""

    def __init__(self, guard: Guard, store: WorkloadFacts, diagnoser: Diagnoser | None) -> None:
        """``diagnoser``: None where no controller runs."""
        self._guard = guard
        self._store = store
        self._diagnoser = diagnoser

    async def workloads(self, request: Request, entries: Sequence[Entry]) -> list[WorkloadView]:
        """Rows of the ledger that the caller is allowed to see."""
        lines = await self.lines(entries)
        awaited = await self._awaited(entries)
        texts: list[Explanation | str] = [*(e.reason for e in entries), *awaited.values()]
        redactor = await redactor_of(self._guard, request, self._store, texts)
        views = []
        for number, entry in enumerate(entries, 1):
            line, use, start = lines.get(entry.uid), self._use(entry), self._start(entry)
            names = _names(entry, awaited, redactor)
            views.append(
                workload_view(redactor.entry(entry), line, use, start, names, self._run_time(entry))
            )
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return views

    async def explained(self, request: Request, entry: Entry, *, solve: bool = True) -> ExplainView:
        """The explanation of a workload that the caller is allowed to see.

        Args:
            request: of the caller.
            entry: its row.
            solve: also compute blocking constraints and suggested fixes, which takes seconds.
        """
        answer = Diagnosis(entry.uid)
        if solve and self._diagnoser is not None and entry.state in IN_QUEUE_ORDER:
            answer = await self._diagnoser.diagnose(entry.uid) or answer
        leaving = entry.lease.victims if entry.lease is not None else ()
        names = await self._store.workload_names(leaving) if leaving else {}
        awaited = await self._awaited((entry,))
        texts: list[Explanation | str] = [
            *awaited.values(),
            entry.reason,
            *answer.conflict,
            *answer.suggested_fixes,
            *names.values(),
        ]
        redactor = await redactor_of(self._guard, request, self._store, texts)
        line = (await self.lines((entry,))).get(entry.uid)
        return explain_view(
            redactor.entry(entry),
            line.cluster_queue if line is not None else None,
            {uid: redactor.name(names.get(uid, uid)) for uid in leaving},
            redactor.diagnosis(answer),
            self._use(entry),
            self._start(entry),
            _names(entry, awaited, redactor),
            self._run_time(entry),
        )

    async def steps(self, request: Request, lines: Sequence[HistoryLine]) -> list[HistoryLine]:
        """Steps of workloads that the caller is allowed to see."""
        redactor = await redactor_of(
            self._guard, request, self._store, (line.reason for line in lines)
        )
        return [redactor.line(line) for line in lines]

    async def decided(
        self, request: Request, store: ApiStore, decided: StoredDecision, after: int = 0
    ) -> tuple[list[HistoryLine], int | None]:
        """The steps of a planning cycle with ids above ``after``, of workloads that the caller is allowed to see.

        Returns:
            The steps, and the id after which to continue; None = these are the last.
        """
        lines = await store.history(None, max(after, decided.after), LONGEST_PAGE)
        own = [line for line in lines if line.id <= decided.upto]

        async def namespaces() -> Iterable[str]:
            return {line.namespace for line in own}

        visible = await self._guard.visible(request, "list", "workloads", namespaces)
        seen = [line for line in own if visible is None or line.namespace in visible]
        more = len(own) == LONGEST_PAGE and own[-1].id < decided.upto
        return await self.steps(request, seen), own[-1].id if more else None

    async def lines(self, entries: Iterable[Entry]) -> Mapping[str, QueuePosition]:
        """The positions of the pending workloads among them, by uid."""
        waiting = [entry.uid for entry in entries if in_queue_order(entry)]
        return await self._store.positions(waiting) if waiting else {}

    async def _awaited(self, entries: Iterable[Entry]) -> Mapping[str, str]:
        """Names of the gangs for which planned starts wait, by uid."""
        starts = (entry.planned_start for entry in entries)
        uids = {uid for start in starts if start is not None for uid, _ in start.awaits}
        return await self._store.workload_names(uids) if uids else {}

    def _use(self, entry: Entry) -> GangUse | None:
        return self._diagnoser.gang_use(entry.uid) if self._diagnoser is not None else None

    def _start(self, entry: Entry) -> ExpectedStart | None:
        if self._diagnoser is None:
            return None
        return self._diagnoser.expected_starts().by_uid.get(entry.uid)

    def _run_time(self, entry: Entry) -> ExpectedRunTime | None:
        if self._diagnoser is None or entry.state is State.FINISHED:
            return None
        return self._diagnoser.expected_starts().run_times.get(entry.uid)


def _names(entry: Entry, awaited: Mapping[str, str], redactor: Redactor) -> Mapping[str, str]:
    """The names of the gangs for which one planned start waits, by uid, as the caller sees them."""
    if entry.planned_start is None:
        return {}
    return {uid: redactor.name(awaited.get(uid, uid)) for uid, _ in entry.planned_start.awaits}
