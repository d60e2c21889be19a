"""The jobs of the past as a trace for simulations. Each replica answers."""

# No postponed annotations here: see routes/config.py.

import time
from typing import Final

from fastapi import APIRouter
from pydantic import Field

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.params import Cursor, Limit, cursor_after, name_before
from queuectl.api.routes.usage import Since, Until, period_of
from queuectl.api.schemas import View
from queuectl.db.ports import ApiStore
from queuectl.domain.past_jobs import RecordedJob, recorded_job
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/reports/jobs"


class RecordedUtilizationView(View):
    after_seconds: float = Field(description="Seconds of work after which it begins.")
    utilization: float = Field(description="Measured GPU utilization, 0 to 1.")


class RecordedJobView(View):
    uid: str
    kind: str
    namespace: str
    name: str
    queue: str = Field(description="Its LocalQueue.")
    user: str = Field(description="Its user; empty = not known.")
    priority: int
    pods: int
    gpus_per_pod: int = Field(description="GPUs of each pod, rounded up.")
    submit_seconds: float = Field(
        description="From `since` to its creation; 0 = it was there before."
    )
    duration_seconds: float = Field(
        description="Time in which it held its nodes after `since`, without the work that evictions lost."
    )
    finished: bool = Field(description="false: it still ran at `until`.")
    evictions: int
    utilization: list[RecordedUtilizationView] = Field(
        description="By hour, where it changes; empty = not measured."
    )


class RecordedJobPage(View):
    since: int = Field(description="Begin of the trace: a full hour, in unix seconds.")
    until: int = Field(description="End of the trace, in unix seconds.")
    items: list[RecordedJobView] = Field(description="By uid.")
    next_cursor: str | None = Field(
        description="Value of `cursor` for the next page; null = this is the last page."
    )


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        tags=["Reports"],
        operation_id="reportJobs",
        summary="The jobs that ran in a period, as a trace for simulations",
        description="For callers that are allowed to get reports and to list workloads in all namespaces.",
        responses=responses(),
        dependencies=[guard.needs("get", "reports"), guard.needs("list", "workloads")],
    )
    async def report_jobs(
        since: Since = "720h",
        until: Until = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> RecordedJobPage:
        now = time.time()
        period = period_of(since, until, now)
        found = await store.usage.recorded(period, name_before(cursor), limit + 1)
        more, found = len(found) > limit, found[:limit]
        end = min(period.until, int(now))
        jobs = [recorded_job(one, period.since, end) for one in found]
        return RecordedJobPage(
            since=period.since,
            until=end,
            items=[_view(job) for job in jobs if job is not None],
            next_cursor=cursor_after(found[-1].entry.uid) if more else None,
        )


def _view(job: RecordedJob) -> RecordedJobView:
    entry = job.entry
    return RecordedJobView(
        uid=entry.uid,
        kind=entry.kind,
        namespace=entry.namespace,
        name=entry.name,
        queue=entry.queue,
        user=entry.user,
        priority=entry.priority,
        pods=entry.pods,
        gpus_per_pod=job.gpus_per_pod,
        submit_seconds=round(job.submit, 3),
        duration_seconds=round(job.duration, 3),
        finished=job.finished,
        evictions=entry.evictions,
        utilization=[
            RecordedUtilizationView(after_seconds=round(at, 3), utilization=round(share, 4))
            for at, share in job.utilization
        ],
    )
