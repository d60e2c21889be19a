"""``queuectl trace``: the jobs that the server recorded, as CSV for ``queuectl simulate`` and ``queuectl advise``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from queuectl.cli.client import DEFAULT_SERVER, Server, connect
from queuectl.cli.recorded_trace import recorded_trace


def trace_command(
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="Begin: a duration before now (30d, 24h) or an RFC 3339 time; full hours.",
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
    with connect(server) as client:
        found = recorded_trace(client, since, until)
    if utilization is not None:
        utilization.write_text(found.utilization_csv(anonymous=anonymous))
    sys.stdout.write(found.jobs_csv(anonymous=anonymous))
