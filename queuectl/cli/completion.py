"""``queuectl completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the completion script of a shell, for example for `source <(queuectl completion bash)`."""
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="queuectl", complete_var="_QUEUECTL_COMPLETE", shell=shell
    )
    typer.echo(script)
