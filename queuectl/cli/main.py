"""``queuectl``: the entry points, and how a command ends when it fails."""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from queuectl.cli import program
from queuectl.cli.commands import COMMANDS, FIRST
from queuectl.cli.errors import Exit, exit_code, message
from queuectl.cli.lazy import lazy_group
from queuectl.cli.program import tune_interpreter, version_line
from queuectl.domain.errors import QueuectlError
from queuectl.domain.words import printable

_EXTRA_ARGUMENT: Final = re.compile(r"Got unexpected extra argument\(s\) \((.*)\)")
_NEGATIVE: Final = re.compile(r"No such option: -\d")
app = typer.Typer(
    cls=lazy_group(COMMANDS, FIRST), pretty_exceptions_enable=False, rich_markup_mode=None
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Queue gangs of GPU pods on Kubernetes."""


def run() -> None:
    """Run the program. An error that it raises on purpose, or of the system, becomes a line on stderr and an exit code."""
    tune_interpreter()
    _replace_closed()
    codecs.register_error("json-escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="json-escape")
    try:
        code = app(prog_name=program.called(), standalone_mode=False)
        sys.stdout.flush()
    except QueuectlError as error:
        typer.echo(printable(f"error: {message(error)}"), err=True)
        code = exit_code(error)
    except typer.TyperException as error:
        _print_wrong_usage(error)
        code = Exit.BAD_INPUT
    except typer.Abort:
        code = Exit.FAILURE
    except (OSError, UnicodeError) as error:
        if not isinstance(error, BrokenPipeError):
            typer.echo(printable(f"error: {_system_error(error)}"), err=True)
        _discard_output()
        code = Exit.FAILURE
    sys.exit(code or Exit.OK)


def _replace_closed() -> None:
    """Drop the output to a stream that the caller has closed, as the interpreter does for ``print``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the program ends


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that the encoding of the output does not have, as JSON and quoted YAML read them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _system_error(error: OSError | UnicodeError) -> str:
    """The file and the cause, without the number of the operating system."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _discard_output() -> None:
    """Drop output that cannot be written. The interpreter would try again at its end, and print another error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_wrong_usage(error: typer.TyperException) -> None:
    """In the form of all other errors, with the command that shows the right usage."""
    text = _usage_message(error)
    if text.startswith("Usage: "):  # a group of commands without one of them
        typer.echo(text, err=True)
        return
    typer.echo(printable(f"error: {text[:1].lower()}{text[1:].rstrip('.')}"), err=True)
    context = getattr(error, "ctx", None)
    if context is not None:
        typer.echo(f"Use `{context.command_path} --help` to show the right usage.", err=True)


def _usage_message(error: typer.TyperException) -> str:
    """The message of typer in the words and on the line of the other errors."""
    if possibilities := getattr(error, "possibilities", None):
        near = " or ".join(map(repr, sorted(possibilities)))
        return f"{error.message}; did you mean {near}?"
    text = error.format_message()
    if extra := _EXTRA_ARGUMENT.fullmatch(text):
        return f"unexpected argument: {extra[1]}"
    if _NEGATIVE.search(text):
        return f"{text}; write -- before a negative number"
    before, choose, choices = text.partition(". Choose from:")
    return f"{before}; choose from {' '.join(choices.split())}" if choose else text
