"""``queuectl stop`` and ``queuectl resume``: stop the admission of a queue's gangs, and resume it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from queuectl.cli import complete
from queuectl.cli.client import DEFAULT_SERVER, Json, Namespace, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.render import cost_lines
from queuectl.cli.targets import Target, refused, target_kind
from queuectl.client.errors import RequestRefused
from queuectl.domain.words import counted

_WORKLOADS: Final = "use `queuectl hold` and `queuectl release`"
_STOPPABLE: Final = ("ClusterQueue", "LocalQueue")

Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND", help="clusterqueue or localqueue.", autocompletion=complete.queue_kinds
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME", help="Names of queues.", autocompletion=complete.names),
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Reason, for the audit log.")
]


def stop_command(
    kind: Kind,
    names: Names,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Evict running gangs. By default, they continue."),
    ] = False,
    reason: Reason = None,
    namespace: Namespace = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; show the gangs that would be evicted."),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Stop ClusterQueues or LocalQueues. None of their gangs starts until you resume them."""
    body = {"drain": drain, "reason": reason}
    shown = _previewed if dry_run else _stopped
    raise typer.Exit(_each(server, "stop", _targets(kind, names, namespace), body, dry_run, shown))


def resume_command(
    kind: Kind,
    names: Names,
    reason: Reason = None,
    namespace: Namespace = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show the queues that would change.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Resume stopped ClusterQueues or LocalQueues. Their gangs keep their queue order."""
    done = "would be resumed" if dry_run else "resumed"

    def shown(target: Target, answer: Json) -> list[str]:
        return [f"{target} {'is not stopped' if answer['result'] == 'unchanged' else done}"]

    targets = _targets(kind, names, namespace)
    raise typer.Exit(_each(server, "resume", targets, {"reason": reason}, dry_run, shown))


def _each(
    server: str,
    verb: str,
    targets: Sequence[Target],
    body: Json,
    dry_run: bool,
    shown: Callable[[Target, Json], Sequence[str]],
) -> Exit:
    """Change each queue, and print the lines of its answer. A refusal does not end the others. Returns the highest exit code."""
    code = Exit.OK
    query = "?dry_run=true" if dry_run else ""
    with connect(server) as client:
        for target in targets:
            try:
                answer = client.post(f"{target.path}/{verb}{query}", body)
            except RequestRefused as refusal:
                code = max(code, refused(target, refusal))
            else:
                for line in shown(target, answer):
                    typer.echo(line)
    return code


def _targets(kind: str, names: list[str], namespace: str | None) -> list[Target]:
    """The named queues. Raises CommandFailed for another kind."""
    found = target_kind(kind, _WORKLOADS)
    if found.kind not in _STOPPABLE:
        message = f"a {found.kind} cannot be stopped; a clusterqueue or a localqueue can"
        raise CommandFailed(message, Exit.BAD_INPUT)
    scope = (namespace or default_namespace()) if found.namespaced else ""
    return [Target(found, name, scope) for name in names]


def _stopped(target: Target, answer: Json) -> list[str]:
    already = "is already " if answer["result"] == "unchanged" else ""
    drains = answer["stopPolicy"] == "HoldAndDrain"
    runs = "gangs that run are evicted" if drains else "gangs that run continue"
    return [f"{target} {already}stopped; {runs}"]


def _previewed(target: Target, answer: Json) -> list[str]:
    if answer["result"] == "unchanged":
        return [f"{target} would not change: its stop policy is already {answer['stopPolicy']}"]
    head = f"{target} would be stopped"
    if answer["stopPolicy"] != "HoldAndDrain":
        return [f"{head}; gangs that run would continue"]
    drains = answer["drains"]
    if drains is None:
        return [
            f"{head}; evictions not known: this server does not watch the cluster yet; run the command again"
        ]
    return [
        head,
        f"  evicts  {counted(drains['gangs'], 'gang')} with {counted(drains['pods'], 'pod')}",
        *cost_lines(drains["gpus"], drains["lostGpuSeconds"]),
    ]
