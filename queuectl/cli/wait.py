"""``queuectl wait``: until a workload is in a state."""

from __future__ import annotations

from typing import Annotated

import typer

from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_ref
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import Kind, Workload
from queuectl.domain.words import one_line


def wait_command(
    workload: Workload,
    state: Annotated[
        str,
        typer.Option("--for", metavar="STATE", help="running, finished or another state."),
    ] = "running",
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Fail after this time (30s, 2h). Default: no limit."),
    ] = None,
    namespace: Namespace = None,
    kind: Kind = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Wait until a workload runs or has finished. The exit code is 1 after the timeout, and 4 if it ends in another state."""
    from queuectl.cli.times import span
    from queuectl.client.errors import WorkloadEnded

    seconds = None if timeout is None else span(timeout, "--timeout")
    with connect(server, waits=True) as client:
        try:
            reached = client.wait(workload_ref(workload, namespace), state, seconds, kind)
        except WorkloadEnded as error:
            raise CommandFailed(str(error), Exit.CONFLICT) from error
    name = f"{reached['kind'].lower()}/{reached['namespace']}/{reached['name']}"
    typer.echo(f"{name} is {reached['state']}: {one_line(reached['reason']['message'])}")
