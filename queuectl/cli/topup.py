"""``queuectl topup``: add GPU-hours to one month of a Budget."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queuectl.cli import complete
from queuectl.cli.client import DEFAULT_SERVER, Server, config_path, connect
from queuectl.cli.errors import CommandFailed
from queuectl.client.errors import ClientError
from queuectl.client.retries import passes
from queuectl.domain.words import plain
from queuectl.objects.configuration.config_kinds import BY_KIND


def topup_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="BUDGET", help="Name of the Budget.", autocompletion=complete.budgets
        ),
    ],
    gpu_hours: Annotated[
        str,
        typer.Option("--gpu-hours", metavar="HOURS", help="GPU-hours to add; more than 0."),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, for the audit log.")],
    month: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM",
            help="The current month or a later one, in the time zone of the Budget. Default: the current one.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Idempotency key: a second top-up with the same key is the first one. Default: a new key.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; check the top-up and show it.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Add GPU-hours to one month of a Budget. Held gangs start as soon as it can pay for them."""
    body = {"gpuHours": gpu_hours, "reason": reason, "month": month}
    path = f"{config_path(BY_KIND['Budget'], name, '')}/topups{'?dry_run=true' if dry_run else ''}"
    sent = key if key is not None else os.urandom(16).hex()
    with connect(server, waits=True) as client:
        try:
            made = client.post(path, body, key=sent)
        except ClientError as error:
            if dry_run or not passes(error):
                raise
            advice = f"add --key {sent} to send it again: it counts once"
            raise CommandFailed(f"{error}; the top-up is possibly created: {advice}") from error
    verb = "would be created" if dry_run else "created"
    typer.echo(
        f"budgettopup/{made['name']} {verb}: {plain(made['gpuHours'])} GPU-hours for {made['month']}"
    )
