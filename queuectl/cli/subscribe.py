"""``queuectl subscribe``: subscribe to events of your jobs, of a namespace or of a ClusterQueue; ``sendtest``: send a test event."""

from __future__ import annotations

from typing import Annotated

import typer

from queuectl.cli import complete
from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.listings import show
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import ListFormat
from queuectl.client.requests import segment
from queuectl.domain.words import comma_separated
from queuectl.objects.configuration.config_kinds import PREFIX

Receiver = Annotated[
    str,
    typer.Argument(
        metavar="RECEIVER",
        help="Name of a receiver, as `queuectl get receivers` lists it.",
        autocompletion=complete.receivers,
    ),
]


def subscribe_command(
    receiver: Receiver,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Events of this namespace. Default: of your own jobs.",
            autocompletion=complete.namespaces,
        ),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Events of this ClusterQueue.",
            autocompletion=complete.cluster_queues,
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE,...",
            help="Only events of these types, for example failed or budget.spent. Default: all.",
            autocompletion=complete.event_types,
        ),
    ] = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Collect the events, and send them together.")
    ] = False,
    output: Annotated[ListFormat, OUTPUT] = ListFormat.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Subscribe to events. A second subscription to the same events at the same receiver replaces the first."""
    if namespace is not None and queue is not None:
        raise CommandFailed("--namespace excludes --queue", Exit.BAD_INPUT)
    types = comma_separated(events or "")
    with connect(server) as client:
        made = dict(
            client.subscribe(
                receiver, namespace=namespace, queue=queue, events=types, digest=digest
            )
        )
    if output in (ListFormat.TABLE, ListFormat.WIDE):
        typer.echo(_sentence(made))
    else:
        show(made, [made], output, (), lambda row: f"subscription/{row['id']}")
    if made["warning"]:
        typer.echo(f"warning: {made['warning']}", err=True)


def sendtest_command(receiver: Receiver, server: Server = DEFAULT_SERVER) -> None:
    """Send a test event to a receiver. `queuectl get receivers` shows whether it was delivered."""
    with connect(server) as client:
        made = client.post(f"{PREFIX}/receivers/{segment(receiver)}/test", {})
    place = f" for {made['to']}" if made["to"] else ""
    typer.echo(f"receiver/{made['receiver']}: a test event{place} is sent")


def _sentence(subscription: Json) -> str:
    scope = "your jobs" if subscription["scope"] == "user" else f"{subscription['scope']} {subscription['target']}"  # fmt: skip
    events = ", ".join(subscription["events"]) or "all events"
    how = "in digests" if subscription["mode"] == "digest" else "immediately"
    return f"subscription/{subscription['id']}: {events} of {scope} to {subscription['receiver']} {how}"
