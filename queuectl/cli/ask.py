"""``queuectl hold``, ``release``, ``requeue``, ``deactivate``, ``activate``, ``priority``: ask something of one workload."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Annotated, Any

import typer

from queuectl.api.kinds import PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_path
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import Kind
from queuectl.domain.commands import LARGEST_PRIORITY, Action

Workload = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the job.")]
By = Annotated[
    str | None, typer.Option(help="Who asks, for the history; your user name if not given.")
]


def _command(action: Action, does: str) -> Callable[..., None]:
    """The command that asks just this of a workload."""

    def command(
        workload: Workload,
        namespace: Namespace = None,
        kind: Kind = None,
        by: By = None,
        server: Server = DEFAULT_SERVER,
    ) -> None:
        _ask(action, workload, namespace, kind, by, server)

    command.__doc__ = does
    return command


hold_command = _command(
    Action.HOLD,
    "Keep a workload from starting until it is released. If it runs, it is evicted first.",
)
release_command = _command(Action.RELEASE, "Let a held workload queue again, at its old place.")
requeue_command = _command(
    Action.REQUEUE, "End the back-off of a workload; one that runs is evicted and queued again."
)
deactivate_command = _command(
    Action.DEACTIVATE,
    "Give a workload up until it is activated. If it runs, it is evicted first.",
)
activate_command = _command(
    Action.ACTIVATE,
    "Let a deactivated workload queue again; its failed starts and the time it has used are forgotten.",
)


def priority_command(
    workload: Workload,
    value: Annotated[
        int | None,
        typer.Argument(
            min=-LARGEST_PRIORITY,
            max=LARGEST_PRIORITY,
            help="Larger goes first; none with --reset.",
        ),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="As its classes say again.")] = False,
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Set the priority of a workload, waiting or running, in place of what its classes say."""
    if (value is None) != reset:
        raise CommandFailed("give either a priority or --reset", Exit.BAD_INPUT)
    _ask(Action.PRIORITY, workload, namespace, kind, by, server, priority=value)


def _ask(
    action: Action,
    workload: str,
    namespace: str | None,
    kind: str | None,
    by: str | None,
    server: str,
    **more: Any,
) -> None:
    with connect(server) as client:
        path = workload_path(workload, namespace)
        found = client.get(path, kind=kind)
        kept = client.post(
            f"{PREFIX}/workloads/{found['uid']}/{action}", {"by": by or _user(), **more}
        )
    what = str(action)
    if action is Action.PRIORITY:
        what = f"priority {kept['priority']}" if kept["priority"] is not None else "no own priority"
    typer.echo(f"{found['kind'].lower()}/{kept['workload']}: {what} asked for")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "somebody at the command line"
