"""The help of commands: their examples, the options of the connection on a separate page, and the commands `help` and `options`.

It also names what replaces a command of kubectl or Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperOption

from queuectl.cli import program

if TYPE_CHECKING:
    from typer.core import TyperCommand

    from queuectl.client.errors import RequestRefused

OPTION_NAMES: Final = ["-h", "--help"]
_CONNECTION: Final = "Use `{called} options` to list the options of the connection."

_CREATE: Final = "to submit a job, use `kubectl create -f FILE`"
_CANCEL: Final = "to cancel jobs, use `{called} cancel`"
_EDIT: Final = "to edit a job, use `kubectl edit`; to edit a queue, `{called} get clusterqueue NAME -o yaml` and `{called} apply -f FILE`"
_LIST: Final = "to list workloads, use `{called} get workloads`"
_NODES: Final = "to list nodes, use `{called} get nodes`, or `{called} get domains` for sums"
_EXEC: Final = "to run a program in a pod, use `kubectl exec`"
_CORDON: Final = "to cordon a node, use `kubectl cordon`; `{called} drain` then waits for its gangs"
_USED: Final = "to list what jobs used, use `{called} report usage --by workload`"
ELSEWHERE: Final = {
    "attach": "to attach to a pod, use `kubectl attach`",
    "cordon": _CORDON,
    "create": _CREATE,
    "edit": _EDIT,
    "exec": _EXEC,
    "list": _LIST,
    "kill": _CANCEL,
    "patch": _EDIT,
    "run": _CREATE,
    "sacct": _USED,
    "salloc": _CREATE,
    "sbatch": _CREATE,
    "scale": "to change the number of pods of a job, use `kubectl scale`",
    "scancel": _CANCEL,
    "scontrol": "to show one workload in full, use `{called} describe workload NAME`",
    "sinfo": _NODES,
    "squeue": _LIST,
    "srun": _CREATE,
    "submit": _CREATE,
    "uncordon": _CORDON,
}
"""Commands of kubectl and Slurm that users try, and what does the same. ``{called}`` is the name of the program."""
_MOST_NAMESPACES: Final = 3
"""Namespaces that a message names."""
_SIMILAR: Final = 0.7
"""How similar a command must be to be suggested; `edit` is not similar to `audit`."""


def unknown_command(name: str, names: Iterable[str]) -> str:
    """The message about a command that does not exist, with the nearest one that does."""
    message = f"no such command {name!r}"
    if name in ELSEWHERE:
        return f"{message}: {ELSEWHERE[name].format(called=program.called())}"
    near = get_close_matches(name, names, cutoff=_SIMILAR)
    return f"{message}; did you mean {' or '.join(map(repr, near))}?" if near else message


def elsewhere_hint(ctx: typer.Context, error: RequestRefused) -> str:
    """Where a workload is that the server does not find in this namespace, with the command for it; empty if it is nowhere else."""
    refs = error.members.get("elsewhere")
    if not isinstance(refs, list) or not refs:
        return ""
    first = str(refs[0])
    words = [ctx.command_path]
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.param_type_name != "argument" or value is None:
            continue
        typed = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
        is_name = any(each.rpartition("/")[2] == first.rpartition("/")[2] for each in typed)
        words += [first] if is_name else typed
    namespaces = [str(ref).rpartition("/")[0] for ref in refs]
    some = ", ".join(namespaces[:_MOST_NAMESPACES]) + (
        " and others" if len(namespaces) > _MOST_NAMESPACES else ""
    )
    return f"{some} {'have' if namespaces[1:] else 'has'} one: {' '.join(words)}"


def complete_help(command: TyperCommand, path: str, *, calls_server: bool) -> None:
    """Add the examples, and where the options of the connection are, to the help of a command.

    Args:
        command: it is changed.
        path: the words that name it.
        calls_server: it calls the REST API.
    """
    from queuectl.cli.examples import EXAMPLES

    called = program.called()
    lines = [f"  # {what}\n  {called} {words}" for what, words in EXAMPLES.get(path, ())]
    paragraphs = ["\b\nExamples:\n" + "\n".join(lines)] if lines else []
    if calls_server:
        paragraphs.append(_CONNECTION.format(called=called))
    command.epilog = "\n\n".join(paragraphs) or None


def help_command(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The words of a command.")
    ] = None,
) -> None:
    """Show the help of a command. The same as COMMAND --help."""
    from queuectl.cli.main import app

    app([*(words or ()), "--help"], prog_name=program.called(), standalone_mode=False)


def options_command(ctx: typer.Context) -> None:
    """List the options of the connection, which each command that calls the REST API accepts."""
    from queuectl.cli.commands import COMMANDS

    records: list[tuple[str, str]] = []
    for param in COMMANDS["get"].load("get").params:
        if isinstance(param, TyperOption) and param.hidden:
            param.hidden = False
            record = param.get_help_record(ctx)
            assert record is not None
            records.append(record)
    formatter = ctx.make_formatter()
    with formatter.section("Options of each command that calls the REST API"):
        formatter.write_dl(records)
    typer.echo(formatter.getvalue().rstrip("\n"))
