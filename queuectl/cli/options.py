"""Options that several commands have."""

from __future__ import annotations

from typing import Any, Final

import typer

from queuectl.cli.errors import CommandFailed, Exit

OUTPUT: Final[Any] = typer.Option("--output", "-o", help="Format of the output.")


def files_option(content: str) -> Any:
    """The option ``-f`` for files of YAML or JSON. ``content``: what they contain, after the word "file"."""
    text = f"YAML or JSON file{content}; - reads stdin. Can be repeated."
    return typer.Option("--filename", "-f", metavar="FILE", help=text)


def check_exclusive(**chosen: bool) -> None:
    """Refuse a command line with more than one of these options.

    Raises:
        CommandFailed: the message names them.
    """
    names = [f"--{name.replace('_', '-')}" for name, is_set in chosen.items() if is_set]
    if len(names) > 1:
        raise CommandFailed(f"{' and '.join(names)} exclude each other", Exit.BAD_INPUT)
