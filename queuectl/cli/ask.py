"""``queuectl hold``, ``release``, ``requeue``, ``preempt``, ``deactivate``, ``activate``, ``priority``, ``move``.

Each sends a command for one workload, which the leader executes.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuectl.cli import complete
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Json,
    Namespace,
    Server,
    connect,
)
from queuectl.cli.client import workload_path as path_of
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import Kind, Workload
from queuectl.cli.options import check_exclusive
from queuectl.cli.render import cost_lines
from queuectl.client.client import Client
from queuectl.client.errors import WaitTimeout
from queuectl.domain.checks import CheckState
from queuectl.domain.commands import HIGHEST_PRIORITY, LOWEST_PRIORITY, Action
from queuectl.domain.words import counted, format_time

if TYPE_CHECKING:
    from queuectl.client.types import CommandJson, PreviewJson

By = Annotated[
    str | None,
    typer.Option(
        metavar="USER",
        help="User for the history, on a server without authentication. Default: your user name here.",
    ),
]
Why = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Reason, for the history.")
]
Wait = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Wait up to this time (30s, 5m) for the result."),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Change nothing; show the change, its cost and the gangs that would start.",
    ),
]


def _command(action: Action, does: str) -> Callable[..., None]:
    """A command line for an action without details."""

    def command(
        workload: Workload,
        namespace: Namespace = None,
        kind: Kind = None,
        by: By = None,
        why: Why = None,
        wait: Wait = None,
        dry_run: DryRun = False,
        server: Server = DEFAULT_SERVER,
    ) -> None:
        with connect(server, waits=wait is not None) as client:
            found = _found(client, workload, namespace, kind)
            _send(client, action, found, by, why, wait, dry_run=dry_run)

    command.__doc__ = does
    return command


hold_command = _command(
    Action.HOLD,
    "Keep a workload from admission until you release it. A running workload is evicted.",
)
release_command = _command(
    Action.RELEASE, "Release a held workload. It keeps its position in the queue order."
)
requeue_command = _command(
    Action.REQUEUE,
    "End the back-off of a workload. A running workload is evicted and queued again.",
)
preempt_command = _command(
    Action.PREEMPT,
    "Evict a running workload. It queues again, behind the workloads of its priority.",
)
deactivate_command = _command(
    Action.DEACTIVATE,
    "Deactivate a workload until you activate it. A running workload is evicted.",
)
activate_command = _command(
    Action.ACTIVATE,
    "Activate a deactivated workload. Its counts of failed starts and of used time start at zero.",
)


def priority_command(
    workload: Workload,
    priority: Annotated[
        int | None,
        typer.Argument(
            min=LOWEST_PRIORITY,
            max=HIGHEST_PRIORITY,
            metavar="PRIORITY",
            help="A larger value is considered first.",
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Reset to the priority of its classes.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="End of this priority: a time (2026-01-31T12:00:00Z), or a duration from now (2h30m). Default: no end.",
        ),
    ] = None,
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    why: Why = None,
    wait: Wait = None,
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Set the priority of a pending or running workload, instead of the priority of its classes."""
    if (priority is None) != reset:
        raise CommandFailed("give a priority or --reset, and not both", Exit.BAD_INPUT)
    check_exclusive(until=until is not None, reset=reset)
    ends = None
    if until is not None:
        from queuectl.cli.times import ahead

        ends = format_time(ahead(until, "--until"))
    with connect(server, waits=wait is not None) as client:
        found = _found(client, workload, namespace, kind)
        _send(
            client,
            Action.PRIORITY,
            found,
            by,
            why,
            wait,
            dry_run=dry_run,
            priority=priority,
            until=ends,
        )


def move_command(
    workload: Workload,
    queue: Annotated[
        str,
        typer.Argument(
            metavar="LOCALQUEUE",
            help="LocalQueue in the namespace of the workload.",
            autocompletion=complete.local_queues,
        ),
    ],
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    why: Why = None,
    wait: Wait = None,
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Move a pending workload to another LocalQueue. It keeps its queue time. Hold a running workload first."""
    with connect(server, waits=wait is not None) as client:
        found = _found(client, workload, namespace, kind)
        _send(client, Action.MOVE, found, by, why, wait, dry_run=dry_run, queue=queue)


def check_command(
    workload: Workload,
    check: Annotated[str, typer.Argument(metavar="CHECK", help="Name of the AdmissionCheck.")],
    state: Annotated[
        CheckState, typer.Argument(metavar="STATE", help="Pending, Ready, Retry or Rejected.")
    ],
    message: Annotated[
        str, typer.Option("--message", metavar="TEXT", help="A line for the users of the workload.")
    ] = "",
    requeue_after: Annotated[
        int | None,
        typer.Option(
            "--requeue-after",
            min=0,
            metavar="SECONDS",
            help="Only of Retry: the time before it queues again. Default: 60, doubled with each retry.",
        ),
    ] = None,
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    why: Why = None,
    wait: Wait = None,
    dry_run: DryRun = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Report the state of an admission check of a workload, instead of the program that does."""
    if requeue_after is not None and state is not CheckState.RETRY:
        raise CommandFailed("--requeue-after is an option of Retry", Exit.BAD_INPUT)
    body: Json = {"check": check, "state": state.value, "message": message}
    if requeue_after is not None:
        body["requeueAfterSeconds"] = requeue_after
    with connect(server, waits=wait is not None) as client:
        found = _found(client, workload, namespace, kind)
        _send(client, Action.CHECK, found, by, why, wait, dry_run=dry_run, **body)


def _found(client: Client, workload: str, namespace: str | None, kind: str | None) -> Json:
    return client.get(path_of(workload, namespace), kind=kind)


def _send(
    client: Client,
    action: Action,
    workload: Json,
    by: str | None,
    why: str | None,
    wait: str | None,
    *,
    dry_run: bool,
    **more: Any,
) -> None:
    if dry_run:
        _preview(client, action, workload, **more)
    else:
        ask(client, action, workload, by, why, wait, **more)


def ask(
    client: Client,
    action: Action,
    workload: Json,
    by: str | None,
    why: str | None,
    wait: str | None,
    **more: Any,
) -> None:
    """Send a command for one workload. ``wait``: how long to wait for its result; None = do not wait.

    Raises:
        CommandFailed: the server or the leader refuses the command, or it has no result in time.
    """
    seconds = None if wait is None else _duration(wait)
    details = {"by": by or _user(), **({"why": why} if why else {}), **more}
    kept = client.command(workload, action, **details)
    named = f"{workload['kind'].lower()}/{kept['workload']}"
    typer.echo(f"{named}: {_what(kept)} requested")
    if seconds is not None:
        _follow(client, kept, named, seconds)


def _duration(wait: str) -> float:
    from queuectl.cli.times import span  # slow, and rarely needed

    return span(wait, "--wait")


def _what(command: CommandJson) -> str:
    if command["action"] == Action.CHECK:
        return f"check {command['check']}: {command['checkState']}"
    if command["action"] == Action.MOVE:
        return f"move to {command['queue']}"
    if command["action"] != Action.PRIORITY:
        return str(command["action"])
    if command["priority"] is None:
        return "reset of the priority"
    return f"priority {command['priority']}" + (
        f" until {command['until']}" if command["until"] else ""
    )


def _follow(client: Client, command: CommandJson, named: str, seconds: float) -> None:
    """Wait until the leader has executed or refused the command."""
    try:
        result = client.outcome(command, seconds)
    except WaitTimeout as error:
        raise CommandFailed(f"{named}: {error}") from error
    if result["state"] != "Done":
        raise CommandFailed(f"{named}: refused: {result['outcome']}", Exit.CONFLICT)
    typer.echo(f"{named}: done")


def _preview(client: Client, action: Action, workload: Json, **more: Any) -> None:
    answer = client.preview(workload, action, **more)
    named = f"{workload['kind'].lower()}/{answer['workload']}"
    if not answer["evicts"]:
        typer.echo(f"{named} would change, and no pod is evicted: {answer['change']}")
        return
    typer.echo(f"{named}: {action} would evict {counted(answer['pods'], 'pod')}")
    gpus, lost, notice = answer["gpus"], answer["lostGpuSeconds"], answer["noticeSeconds"]
    if gpus is None or lost is None:
        typer.echo("  cost not known: this server does not watch the cluster yet")
        return
    for line in cost_lines(gpus, lost):
        typer.echo(line)
    typer.echo(f"  notice  {f'{notice:.0f} s' if notice else 'none'}")
    typer.echo(f"  starts  {_starts(answer)}")


def _starts(answer: PreviewJson) -> str:
    if answer["starts"] is None:
        return "not known: the planning time limit was reached"
    names = [
        "itself again" if one["uid"] == answer["uid"] else str(one["workload"])
        for one in answer["starts"]
    ]
    return ", ".join(names) or "no gang"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "unknown user of the command line"
