"""``queuectl completion``: the lines that make a shell complete commands, options and kinds."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(
    shell: Annotated[Shell, typer.Argument(help="Whose lines.")],
) -> None:
    """Print what a shell reads: ``source <(queuectl completion bash)``. Or install it by --install-completion."""
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="queuectl", complete_var="_QUEUECTL_COMPLETE", shell=shell
    )
    typer.echo(script)
