"""``queuectl recover``: rebuild the ledger from the cluster after the database was lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from queuectl.control.leader.recovery import Recovered
    from queuectl.objects.documents import Document


def recover_command(
    file: Annotated[
        list[Path],
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="YAML or JSON file with the configuration. Can be repeated.",
        ),
    ],
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
    from queuectl.control.settings import Settings
    from queuectl.domain.errors import QueuectlError

    try:
        documents = [document for path in file for document in _read(path)]
        if dry_run:
            typer.echo(asyncio.run(recovery_check(Settings(), documents)))
            return
        found = asyncio.run(recovered(Settings(), documents))
    except QueuectlError as error:
        typer.echo(f"queuectl recover: {error}", err=True)
        raise typer.Exit(1) from None
    _print(found)


def _read(path: Path) -> list[Document]:
    from queuectl.domain.errors import BadInput
    from queuectl.objects.documents import read_documents

    try:
        return read_documents(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None


def _print(recovered: Recovered) -> None:
    for state, count in recovered.states.items():
        typer.echo(f"{state:<12}{count}")
    typer.echo(f"{sum(recovered.states.values())} workloads recovered; start the controller again")
    for sentence in recovered.left_alone:
        typer.echo(f"warning: {sentence}", err=True)
