"""The program: the name by which it was called, its version, its log, its interpreter, and the completion of a shell."""

from __future__ import annotations

import atexit
import gc
import sys
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Final, Literal

import typer

from queuectl.distribution import conflict, version

# ---- Name

NAME: Final = "queuectl"
PLUGIN: Final = "kubectl-queuectl"


def called() -> str:
    """The words that begin a command line."""
    return f"kubectl {NAME}" if PurePath(sys.argv[0]).stem == PLUGIN else NAME


# ---- Version


def version_line() -> str:
    """The program and its version."""
    return f"{NAME} {version()}"


def version_command() -> None:
    """Print the version of this program. `queuectl doctor` compares it with the version of the server."""
    typer.echo(version_line())
    if (sentence := conflict()) is not None:
        typer.echo(f"warning: {sentence}", err=True)


# ---- Log

Format = Literal["auto", "json", "console"]
Level = Literal["debug", "info", "warning", "error"]
FormatOption = Annotated[
    Format, typer.Option("--log-format", help="Format of a line; auto is console on a terminal.")
]
LevelOption = Annotated[Level, typer.Option("--log-level", help="Lowest level of a line.")]


def configure_log(form: Format, level: Level) -> None:
    """Write the log of this process to standard error."""
    from queuectl.telemetry.logs import LogFormat, configure

    configure(LogFormat(form), level)


# ---- Interpreter

_SWITCH_SECONDS: Final = 0.001


def tune_interpreter() -> None:
    """Shorten the pauses of the event loop, and the time of the garbage collector.

    A thread hands the interpreter over to the event loop after 1 ms instead of 5 ms.

    The program creates few reference cycles, but imports and bursts of gangs create ten thousand or more long-lived objects.
    With the default thresholds the collector used a quarter of the controller's CPU time in a burst, and a sixth of the time
    of its imports. A collection stops all threads. Objects that survive one are examined once more, with the next ten thousand: with
    the next fifty thousand, that took up to 69 ms with 20,000 pending gangs, which is longer than a plan. :class:`FullCollections` of
    ``queuectl.control.process_memory`` shortens the passes over all objects.

    At its end, the interpreter would look through all objects again. That took `queuectl serve` half a second of CPU time.
    """
    atexit.register(gc.freeze)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1, 250)
    sys.setswitchinterval(_SWITCH_SECONDS)


# ---- Completion


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
