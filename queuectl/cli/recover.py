"""``queuectl recover``: rebuild the ledger from the cluster after the database was lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.targets import Files, read_objects
from queuectl.domain.words import counted

if TYPE_CHECKING:
    from queuectl.control.leader.recovery import Recovered


def recover_command(
    files: Files,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Change nothing; check the files and that the database has no workload.",
        ),
    ] = False,
) -> None:
    """Rebuild an empty database from configuration files and the workloads of the cluster. Stop all controllers first.

    It reads the settings of `queuectl serve`: QUEUECTL_DATABASE_URL, QUEUECTL_KUBECONFIG, QUEUECTL_NAMESPACE.
    """
    from queuectl.control.composition import recovered, recovery_check
    from queuectl.control.settings import read_settings

    settings, documents = read_settings(), read_objects(files)
    if dry_run:
        typer.echo(asyncio.run(recovery_check(settings, documents)))
    else:
        _print(asyncio.run(recovered(settings, documents)))


def _print(recovered: Recovered) -> None:
    for state, count in recovered.states.items():
        typer.echo(f"{state:<12}{count}")
    typer.echo(
        f"{counted(sum(recovered.states.values()), 'workload')} recovered; start the controller again"
    )
    for sentence in recovered.left_alone:
        typer.echo(f"warning: {sentence}", err=True)
