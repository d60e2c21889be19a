"""``queuectl trace``: the jobs that a server recorded, as CSV of jobs and of their GPU utilization over time.

``queuectl simulate`` and ``queuectl advise`` read these files.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.times import ago
from queuectl.client.client import Client
from queuectl.client.requests import by_cursor
from queuectl.domain.words import format_time
from queuectl.objects.configuration.config_kinds import PREFIX

_JOBS: Final = (
    *("job_id", "submit_s", "duration_s", "nodes_or_pods", "gpus_per_pod"),
    *("queue", "name", "user", "priority", "gpu_util_pct", "finished"),
)
_UTILIZATION: Final = ("job_id", "after_s", "gpu_util_pct")


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """The answer of a server. ``until``: its end, in seconds after its begin. ``begins``: unix seconds."""

    jobs: Sequence[Json]
    until: float
    begins: float

    def jobs_csv(self, *, anonymous: bool = False) -> str:
        """A line for each job, in the order of submission.

        ``anonymous``: users and jobs have numbers instead of names. Namespaces and queues keep their names.
        """
        jobs = sorted(self.jobs, key=lambda item: (item["submitSeconds"], item["uid"]))
        users: dict[str, str] = {"": ""}
        rows = []
        for number, job in enumerate(jobs):
            user = users.setdefault(job["user"], f"user-{len(users)}")
            rows.append(
                (
                    _job_id(number) if anonymous else job["uid"],
                    f"{job['submitSeconds']:.10g}",
                    f"{job['durationSeconds']:.10g}",
                    job["pods"],
                    job["gpusPerPod"],
                    f"{job['namespace']}/{job['queue']}",
                    _job_id(number) if anonymous else job["name"],
                    user if anonymous else job["user"],
                    job["priority"],
                    _mean(job),
                    "true" if job["finished"] else "false",
                )
            )
        return _csv(_JOBS, rows)

    def utilization_csv(self, *, anonymous: bool = False) -> str:
        """A line for each job and time at which its utilization changes."""
        jobs = sorted(self.jobs, key=lambda item: (item["submitSeconds"], item["uid"]))
        return _csv(
            _UTILIZATION,
            (
                (
                    _job_id(number) if anonymous else item["uid"],
                    f"{one['afterSeconds']:.10g}",
                    _percent(one["utilization"]),
                )
                for number, item in enumerate(jobs)
                for one in item["utilization"]
            ),
        )


def recorded_trace(client: Client, since: float, until: float | None) -> RecordedTrace:
    """All jobs of a period, page by page. ``since``, ``until``: unix seconds; None = now."""
    # Times, not durations: those begin at another full hour if a later page is read in the next one.
    ends = {"since": format_time(since), "until": None if until is None else format_time(until)}
    pages = list(client.pages(by_cursor(f"{PREFIX}/reports/jobs", **ends)))
    begin, end = pages[0]["since"], max(page["until"] for page in pages)
    return RecordedTrace([item for page in pages for item in page["items"]], end - begin, begin)


def _job_id(number: int) -> str:
    return f"job-{number + 1}"


def _mean(job: Json) -> str:
    """Mean utilization over the work, in percent; empty if it is not known."""
    curve = job["utilization"]
    if not curve:
        return ""
    ends = [one["afterSeconds"] for one in curve[1:]] + [job["durationSeconds"]]
    spans = [max(end - one["afterSeconds"], 0.0) for one, end in zip(curve, ends, strict=True)]
    total = sum(spans)
    if not total:
        return _percent(curve[-1]["utilization"])
    weighed = (one["utilization"] * span for one, span in zip(curve, spans, strict=True))
    return _percent(sum(weighed) / total)


def _percent(share: float) -> str:
    return f"{100 * share:.4g}"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def trace_command(
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Start: a duration before now (30d, 24h) or an RFC 3339 time; full hours.",
        ),
    ] = "30d",
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help="End, in the same form. Default: now.")
    ] = None,
    utilization: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the GPU utilization over time to this file."),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Numbers instead of the names of jobs and users.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print the jobs that ran in a period, as the CSV of a trace.

    Needs the rights to get reports and to list workloads in all namespaces.
    """
    begin = ago(since, "--since")
    end = ago(until, "--until") if until is not None else None
    with connect(server) as client:
        found = recorded_trace(client, begin, end)
    if utilization is not None:
        utilization.write_text(found.utilization_csv(anonymous=anonymous))
    sys.stdout.write(found.jobs_csv(anonymous=anonymous))
