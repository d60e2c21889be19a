"""``queuectl topup``: add GPU-hours to one month of a Budget."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queuectl.cli import complete
from queuectl.cli.client import DEFAULT_SERVER, Server, config_path, connect
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
        typer.Option(metavar="YYYY-MM", help="The month. Default: the current one."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; check the top-up and show it.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Add GPU-hours to one month of a Budget. Held gangs start as soon as it can pay for them."""
    body = {"gpuHours": gpu_hours, "reason": reason, "month": month}
    path = f"{config_path(BY_KIND['Budget'], name, '')}/topups{'?dry_run=true' if dry_run else ''}"
    with connect(server, waits=True) as client:  # typed again, it would be another top-up
        made = client.post(path, body, key=os.urandom(16).hex())
    verb = "would be created" if dry_run else "created"
    typer.echo(
        f"budgettopup/{made['name']} {verb}: {made['gpuHours']:g} GPU-hours for {made['month']}"
    )
