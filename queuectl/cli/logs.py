"""``queuectl logs``: the output of the pods of a workload, by rank, read with the rights of the user's kubeconfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli import complete
from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_path
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import Kind, Workload
from queuectl.cli.options import check_exclusive

if TYPE_CHECKING:
    from queuectl.cli.log_pods import RankedPod


def logs_command(
    workload: Workload,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="RANK",
            help="Rank of the pod, or PODSET/RANK if several podsets have it. Default: the first pod.",
            autocompletion=complete.ranks,
        ),
    ] = None,
    all_ranks: Annotated[
        bool,
        typer.Option(
            "--all-ranks", help="Print the logs of all pods; each line begins with the rank."
        ),
    ] = False,
    container: Annotated[
        str | None, typer.Option("--container", "-c", metavar="NAME", help="Container of the pod.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the log as it grows, until its end.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(min=0, metavar="LINES", help="Only the last lines. Default: all lines."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Only lines that are newer than a duration (5m, 2h, 7d) or a time (2026-01-31T12:00:00Z).",
        ),
    ] = None,
    previous: Annotated[
        bool,
        typer.Option("--previous", "-p", help="The log of the container before its last restart."),
    ] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Begin each line with the time of the line.")
    ] = False,
    namespace: Namespace = None,
    kind: Kind = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print the log of one pod of a workload, or of all its pods.

    queuectl knows the pods and their ranks. The logs come from the API server of Kubernetes, with the rights of your kubeconfig.
    """
    check_exclusive(rank=rank is not None, all_ranks=all_ranks)
    check_exclusive(previous=previous, follow=follow)
    query = _query(container, tail, since, follow=follow, previous=previous, timestamps=timestamps)
    with connect(server) as client:
        from queuectl.cli.log_pods import pod_of_rank, ranked_pods

        job = client.get(workload_path(workload, namespace), kind=kind)
        pods = ranked_pods(job, client.pods(job))
        options = client.options
    if all_ranks:
        chosen = pods
    elif rank is not None:
        chosen = [pod_of_rank(job, pods, rank)]
    else:
        chosen = [next((pod for pod in pods if not pod.reason), pods[0])]
    if rank is None and len(pods) > len(chosen):
        typer.echo(_choice(chosen[0], len(pods)), err=True)
    import asyncio

    from queuectl.cli.log_streams import MOST_STREAMS, print_logs
    from queuectl.client.kubernetes import context_of, server_of

    if follow and len(chosen) > MOST_STREAMS:
        raise CommandFailed(
            f"{len(chosen)} logs cannot be followed together, only {MOST_STREAMS}: omit -f, or choose a --rank",
            Exit.BAD_INPUT,
        )
    api_server = server_of(context_of(options))
    code = asyncio.run(print_logs(api_server, job["namespace"], chosen, query, prefixed=all_ranks))
    raise typer.Exit(code)


def _choice(pod: RankedPod, pods: int) -> str:
    """Which of several pods it is, and how to choose others."""
    if pod.rank is None:
        return f"{pods} pods; this is {pod.name}: give --all-ranks for the others"
    return f"{pods} pods; this is rank {pod.label}: give --rank RANK or --all-ranks for the others"


def _since(since: str) -> dict[str, str]:
    """The parameter for a time or a duration. The kubelet measures a duration with the clock of the log."""
    from queuectl.cli.times import ago, is_time, span
    from queuectl.domain.words import format_time

    if is_time(since):
        return {"sinceTime": format_time(ago(since, "--since"))}
    return {"sinceSeconds": str(max(math.ceil(span(since, "--since")), 1))}


def _query(
    container: str | None,
    tail: int | None,
    since: str | None,
    *,
    follow: bool,
    previous: bool,
    timestamps: bool,
) -> dict[str, str]:
    """The parameters of the API server of Kubernetes."""
    query: dict[str, str] = {}
    if container is not None:
        query["container"] = container
    if tail is not None:
        query["tailLines"] = str(tail)
    if since is not None:
        query |= _since(since)
    switches = {"follow": follow, "previous": previous, "timestamps": timestamps}
    return query | {name: "true" for name, on in switches.items() if on}
