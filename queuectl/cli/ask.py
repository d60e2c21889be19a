"""``queuectl hold``, ``release``, ``requeue``, ``preempt``, ``deactivate``, ``activate``, ``priority``, ``move``.

Each asks something of one workload.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from queuectl.api.kinds import PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Client, Json, Namespace, Server, connect
from queuectl.cli.client import workload_path as path_of
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import Kind
from queuectl.domain.commands import LARGEST_PRIORITY, Action
from queuectl.domain.words import counted, format_time

POLL_SECONDS: Final = 0.3

Workload = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the job.")]
By = Annotated[
    str | None,
    typer.Option(
        help="Who asks, for the history, where nobody is asked who he is; your user name if not given."
    ),
]
Why = Annotated[str | None, typer.Option(help="Why, for the history.")]
Wait = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="SECONDS", help="Wait at most so long until it is carried out, or refused."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Ask for nothing: say what it would cost and bring.")
]


def _command(action: Action, does: str) -> Callable[..., None]:
    """The command that asks just this of a workload."""

    def command(
        workload: Workload,
        namespace: Namespace = None,
        kind: Kind = None,
        by: By = None,
        why: Why = None,
        wait: Wait = None,
        server: Server = DEFAULT_SERVER,
    ) -> None:
        with connect(server) as client:
            _ask(client, action, _found(client, workload, namespace, kind), by, why, wait)

    command.__doc__ = does
    return command


def _evicting(action: Action, does: str) -> Callable[..., None]:
    """The same for what takes a gang down: it can say first what that costs."""

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
        with connect(server) as client:
            found = _found(client, workload, namespace, kind)
            if dry_run:
                _preview(client, action, found)
            else:
                _ask(client, action, found, by, why, wait)

    command.__doc__ = does
    return command


hold_command = _evicting(
    Action.HOLD,
    "Keep a workload from starting until it is released. If it runs, it is evicted first.",
)
release_command = _command(Action.RELEASE, "Let a held workload queue again, at its old place.")
requeue_command = _evicting(
    Action.REQUEUE, "End the back-off of a workload; one that runs is evicted and queued again."
)
preempt_command = _evicting(
    Action.PREEMPT,
    "Evict a running workload for whoever is next: it queues again, behind those of its priority.",
)
deactivate_command = _evicting(
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
    until: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When it ends: 2026-01-31T12:00:00Z, or 2h30m from now; without it, when it is taken back.",
        ),
    ] = None,
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    why: Why = None,
    wait: Wait = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Set the priority of a workload, waiting or running, in place of what its classes say."""
    if (value is None) != reset:
        raise CommandFailed("give either a priority or --reset", Exit.BAD_INPUT)
    if reset and until is not None:
        raise CommandFailed("--until is the end of a priority, not of --reset", Exit.BAD_INPUT)
    ends = None
    if until is not None:
        from queuectl.cli.times import ahead

        ends = format_time(ahead(until, "--until"))
    with connect(server) as client:
        found = _found(client, workload, namespace, kind)
        _ask(client, Action.PRIORITY, found, by, why, wait, priority=value, until=ends)


def move_command(
    workload: Workload,
    queue: Annotated[str, typer.Argument(help="LocalQueue of the workload's own namespace.")],
    namespace: Namespace = None,
    kind: Kind = None,
    by: By = None,
    why: Why = None,
    wait: Wait = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Move a waiting workload to another LocalQueue; it keeps its place in time. One that runs is held first."""
    with connect(server) as client:
        found = _found(client, workload, namespace, kind)
        _ask(client, Action.MOVE, found, by, why, wait, queue=queue)


def _found(client: Client, workload: str, namespace: str | None, kind: str | None) -> Json:
    return client.get(path_of(workload, namespace), kind=kind)


def _ask(
    client: Client,
    action: Action,
    found: Json,
    by: str | None,
    why: str | None,
    wait: float | None,
    **more: Any,
) -> None:
    body = {"by": by or _user(), **({"why": why} if why else {}), **more}
    kept = client.post(f"{PREFIX}/workloads/{found['uid']}/{action}", body)
    named = f"{found['kind'].lower()}/{kept['workload']}"
    typer.echo(f"{named}: {_what(kept)} asked for")
    if wait is not None:
        _follow(client, kept, named, wait)


def _what(kept: Json) -> str:
    if kept["action"] == Action.MOVE:
        return f"move to {kept['queue']}"
    if kept["action"] != Action.PRIORITY:
        return str(kept["action"])
    if kept["priority"] is None:
        return "no own priority"
    return f"priority {kept['priority']}" + (f" until {kept['until']}" if kept["until"] else "")


def _follow(client: Client, kept: Json, named: str, patience: float) -> None:
    """Until the process that leads has answered it."""
    deadline = time.monotonic() + patience
    while kept["state"] == "Waiting":
        if time.monotonic() >= deadline:
            raise CommandFailed(f"{named}: command {kept['id']} is not carried out yet")
        time.sleep(POLL_SECONDS)
        kept = client.get(f"{PREFIX}/commands/{kept['id']}")
    if kept["state"] != "Done":
        raise CommandFailed(f"{named}: nothing was done: {kept['outcome']}", Exit.CONFLICT)
    typer.echo(f"{named}: done")


def _preview(client: Client, action: Action, found: Json) -> None:
    answer = client.post(f"{PREFIX}/workloads/{found['uid']}/{action}?dry_run=true", {})
    named = f"{found['kind'].lower()}/{answer['workload']}"
    if not answer["evicts"]:
        typer.echo(f"{named} does not run: {action} would evict nobody")
        return
    typer.echo(f"{named}: {action} would end {counted(answer['pods'], 'pod')}")
    if answer["gpus"] is None:
        typer.echo("  what that costs, this server cannot tell: it does not watch the cluster yet")
        return
    lost, notice = answer["lostGpuSeconds"], answer["noticeSeconds"]
    typer.echo(f"  frees   {counted(answer['gpus'], 'GPU')}")
    typer.echo(f"  loses   {lost} GPU-seconds of work ({lost / 3600:.1f} GPU-hours)")
    typer.echo(f"  notice  {f'{notice:.0f} s' if notice else 'none'}")
    typer.echo(f"  starts  {_starts(answer)}")


def _starts(answer: Json) -> str:
    if answer["starts"] is None:
        return "not known: planning took too long"
    names = [
        "itself again" if one["uid"] == answer["uid"] else str(one["workload"])
        for one in answer["starts"]
    ]
    return ", ".join(names) or "nobody"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "somebody at the command line"
