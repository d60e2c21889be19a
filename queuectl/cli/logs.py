"""The options of a server command for its log."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

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
