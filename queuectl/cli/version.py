"""``queuectl version``."""

from __future__ import annotations

import typer

from queuectl.cli import program


def version_line() -> str:
    """The program and its version."""
    from importlib.metadata import version

    return f"{program.NAME} {version(program.NAME)}"


def version_command() -> None:
    """Print the version of this program. `queuectl doctor` compares it with the version of the server."""
    typer.echo(version_line())
