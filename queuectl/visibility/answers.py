"""Workloads as objects for one caller, and the bodies of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from queuectl.api.presenter import WorkloadPresenter
from queuectl.domain.errors import StoreUnavailable
from queuectl.domain.ledger import Entry
from queuectl.visibility.objects import API_VERSION, LIST_KIND, QueuedJob, queued_job
from queuectl.visibility.rows import KnownWorkloads, LastKnown
from queuectl.visibility.status import JSON
from queuectl.visibility.tables import IncludeObject, rows_of, table

LONG_LIST: Final = 500
"""Objects of a list that waits for other such lists, so that together they do not fill the memory."""
PAGE: Final = 50
"""Objects that are encoded before other tasks can continue: about 10 ms."""


class JobAnswers:
    """The answers of one process."""

    def __init__(self, presenter: WorkloadPresenter, rows: LastKnown) -> None:
        self._presenter = presenter
        self._rows = rows
        self._long_lists = asyncio.Lock()

    async def jobs(
        self, request: Request, entries: Sequence[Entry], versions: Mapping[str, int]
    ) -> list[QueuedJob]:
        """The objects of workloads, without explanations. ``versions``: by uid."""
        views = await self._presenter.workloads(request, entries)
        return [
            queued_job(entry, view, versions[entry.uid])
            for entry, view in zip(entries, views, strict=True)
        ]

    async def explained(self, request: Request, entry: Entry, version: int) -> QueuedJob:
        """The object of a workload with its explanation; without blocking constraints while the database does not answer."""
        (view,) = await self._presenter.workloads(request, (entry,))
        try:
            explanation = await self._presenter.explained(request, entry)
        except StoreUnavailable:
            explanation = await self._presenter.explained(request, entry, solve=False)
        return queued_job(entry, view, version, explanation)

    async def listed(
        self,
        request: Request,
        workloads: KnownWorkloads,
        entries: Sequence[Entry],
        metadata: Mapping[str, Any],
        include: IncludeObject | None,
    ) -> Response:
        """A list. ``include``: of its rows as a Table; None = as objects."""
        if len(entries) <= LONG_LIST:
            return await self._listed(request, workloads, entries, metadata, include)
        async with self._long_lists:
            return await self._listed(request, workloads, entries, metadata, include)

    async def _listed(
        self,
        request: Request,
        workloads: KnownWorkloads,
        entries: Sequence[Entry],
        metadata: Mapping[str, Any],
        include: IncludeObject | None,
    ) -> Response:
        parts = []
        for start in range(0, len(entries), PAGE):
            page = entries[start : start + PAGE]
            jobs = await self.jobs(request, page, workloads.versions)
            rows = rows_of(jobs, include) if include is not None else list(map(document, jobs))
            parts.append(orjson.dumps(rows)[1:-1])
            await asyncio.sleep(0)
        if include is not None:
            around = table((), include, dict(metadata))
        else:
            kind = {"kind": LIST_KIND, "apiVersion": API_VERSION}
            around = {**kind, "metadata": metadata, "items": []}
        head = orjson.dumps(around).removesuffix(b"]}")  # the list is the last field
        return self.response(workloads, b"".join((head, b",".join(parts), b"]}")))

    def response(self, workloads: KnownWorkloads, body: bytes) -> Response:
        """An answer, which states its age while the database does not answer."""
        headers = {}
        age = self._rows.age(workloads)
        if age is not None:
            text = f"queuectl's database does not answer: this is what was known {age:.0f} s ago"
            headers = {"Warning": f'299 - "{text}"', "Age": f"{age:.0f}"}
        return Response(body, headers=headers, media_type=JSON)


def document(job: QueuedJob) -> dict[str, Any]:
    """An object as JSON values."""
    return job.model_dump(mode="json", by_alias=True)
