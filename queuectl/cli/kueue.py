"""``queuectl kueue``: the way back to Kueue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.connection import Context, Kubeconfig
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.words import counted

if TYPE_CHECKING:
    from queuectl.cluster.client import Api
    from queuectl.handover.gangs import Adopted, Queued

app = typer.Typer(name="kueue", help="Hand the running gangs over to Kueue.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Hand the running gangs over to Kueue."""


@app.command(name="hand-over")
def hand_over(
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the fate of each job in Kueue, and write nothing."),
    ] = False,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Only jobs of this namespace. Can be repeated. Default: all namespaces.",
        ),
    ] = None,
    allow_stops: Annotated[
        bool,
        typer.Option(
            "--allow-stops", help="Write the Workloads although Kueue will stop other jobs."
        ),
    ] = False,
    _kubeconfig: Kubeconfig = None,
    _context: Context = None,
) -> None:
    """Write Kueue's Workloads of running gangs before Kueue starts.

    Kueue then adopts these gangs: their pods continue. Suspended jobs lose queuectl's gate, and Kueue queues them. A job that has
    only queuectl's labels gets those of Kueue. queuectl must be scaled to 0, and its admission policies must be deleted.
    If Kueue would stop a running gang, nothing is written, and the exit code is 4.
    """
    asyncio.run(_hand_over(dry_run, namespaces or [], allow_stops))


async def _hand_over(dry_run: bool, namespaces: list[str], allow_stops: bool) -> None:
    from queuectl.cli.reads import cluster_connection
    from queuectl.cluster.client import Api

    api = await Api.connect(cluster_connection())
    try:
        typer.echo(f"cluster {api.address}")
        await _with_api(api, dry_run, namespaces, allow_stops)
    finally:
        await api.close()


async def _with_api(api: Api, dry_run: bool, namespaces: list[str], allow_stops: bool) -> None:
    from queuectl.cli.handover import (
        lower_class,
        missing_job_rights,
        missing_rights,
        obstacle,
        read_hand_over,
        write_each,
    )
    from queuectl.handover.gangs import Adopted, Queued, Stopped

    _require(await missing_rights(api))
    if text := await obstacle(api):
        raise CommandFailed(text, Exit.CONFLICT)
    planned = await read_hand_over(api, namespaces)
    _require(await missing_job_rights(api, planned.fates))
    for warning in planned.warnings:
        typer.echo(f"warning: {warning}", err=True)
    continuing = [one for one in planned.fates if isinstance(one, (Adopted, Queued))]
    stopped = [one for one in planned.fates if isinstance(one, Stopped)]
    for one in stopped:
        typer.echo(f"{one.owner.ref}: stops: {one.reason}")
    if stopped and not (dry_run or allow_stops):
        text = f"nothing is written: Kueue would stop {counted(len(stopped), 'job')}; give --allow-stops to write the others"
        raise CommandFailed(text, Exit.CONFLICT)
    handled = list(continuing) if dry_run else []
    if dry_run:
        for fate in continuing:
            typer.echo(f"{fate.owner.ref}: {_said(fate)}")
    else:
        async for fate, error in write_each(api, planned, continuing):
            if not error:
                handled.append(fate)
            typer.echo(f"{fate.owner.ref}: {f'not written: {error}' if error else _said(fate)}")
    if not dry_run and await lower_class(api):
        typer.echo("PriorityClass queuectl-managed: its value is 0 now")
    adopted = sum(isinstance(one, Adopted) for one in handled)
    queued = len(handled) - adopted
    what = "would be adopted" if dry_run else "adopted"
    typer.echo(f"{adopted} {what}, {queued} queued, {len(stopped)} stopped by Kueue")
    if failed := len(continuing) - len(handled):
        text = f"{counted(failed, 'job')} not written: run the command again before you start Kueue"
        raise CommandFailed(text, Exit.CONFLICT)


def _require(missing: list[str]) -> None:
    """Raise CommandFailed if the caller lacks rights."""
    if missing:
        raise CommandFailed(f"you lack these rights: {', '.join(missing)}", Exit.NOT_ALLOWED)


def _said(fate: Adopted | Queued) -> str:
    from queuectl.handover.gangs import Adopted

    if not isinstance(fate, Adopted):
        return "queued"
    workload = fate.workload
    admission = workload["status"]["admission"]
    flavors = {
        flavor for one in admission["podSetAssignments"] for flavor in one["flavors"].values()
    }
    return f"continues as Workload {workload['metadata']['name']} in ClusterQueue {admission['clusterQueue']}, flavor {', '.join(sorted(flavors))}"
