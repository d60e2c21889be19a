"""``queuectl get``: list, read or watch configuration, workloads, nodes, domains, events, decisions, commands and unmanaged pods."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, config_kind, connect
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.listings import OTHERS, Form, ListingOptions, configuration
from queuectl.cli.render import Output

_CALLED: Final = {
    name: plural
    for plural, names in {
        "nodes": ("nodes", "node", "no"),
        "domains": ("domains", "domain"),
        "events": ("events", "event", "ev"),
        "decisions": ("decisions", "decision"),
        "commands": ("commands", "command"),
        "pastuse": ("pastuse",),
        "unmanaged": ("unmanaged",),
    }.items()
    for name in names
}
_LISTS: Final = {
    "queue": ("workloads",),
    "cluster_queue": ("workloads", "events"),
    "state": ("workloads", "commands"),
    "by": ("commands",),
    "domain": ("nodes",),
    "free": ("nodes",),
    "search": ("nodes",),
    "watch": ("workloads", "events"),
}
"""Options that choose from lists, and of what."""

Everywhere = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="A list of all namespaces, as it is without --namespace, too.",
    ),
]


def get_command(
    kind: Annotated[
        str,
        typer.Argument(
            help="workloads, nodes, domains, events, decisions, commands, pastuse, unmanaged, clusterqueues, localqueues, cohorts, ..."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="One object; none = all. Of domains: their Topology. Of commands: their workload, or the number of one."
        ),
    ] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Form = Output.TABLE,
    queue: Annotated[str | None, typer.Option(help="Workloads of this LocalQueue.")] = None,
    cluster_queue: Annotated[
        str | None, typer.Option(help="Workloads, or events, of this ClusterQueue.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Workloads, or commands, in this state; may be given again."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Commands of who asked.")] = None,
    job_kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Workloads, or commands of the workload, of this kind of job: Job, PyTorchJob.",
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE", help="Nodes in this domain; may be given again: all must hold."
        ),
    ] = None,
    free: Annotated[
        float | None, typer.Option(min=0, help="Open nodes with at least so many free GPUs.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Nodes with this in their name, or in that of a workload.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Workloads, or events: go on with what changes."),
    ] = False,
    last: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Events, decisions, commands: among so many of the newest."
        ),
    ] = 100,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List objects of a kind, read one, or watch them. Without --namespace a list is of all namespaces."""
    other = _CALLED.get(kind.lower())
    config = None if other else config_kind(kind, dict.fromkeys(_CALLED.values()))
    plural = other or (config.plural if config else "workloads")
    if everywhere and (namespace is not None or name is not None):
        raise CommandFailed(
            "--all-namespaces goes with neither a name nor --namespace", Exit.BAD_INPUT
        )
    filters = {
        "queue": queue,
        "cluster_queue": cluster_queue,
        "state": state,
        "by": by,
        "kind": job_kind,
        "domain": domain,
        "free": free,
        "search": search,
    }
    given = {option: value for option, value in filters.items() if value not in (None, [])}
    _check(plural, name, {**given, "watch": True} if watch else given)
    wanted = ListingOptions(name, namespace, output, given, watch, last)
    with connect(server) as client:
        if config is not None:
            configuration(client, config, wanted)
        else:
            OTHERS[plural](client, wanted)


def _check(plural: str, name: str | None, given: dict[str, Any]) -> None:
    """Refuse options that would have no effect."""
    for option in given:
        lists = _LISTS.get(option)
        if lists is None:
            if plural != "workloads" and (plural, name is None) != ("commands", False):
                raise CommandFailed("--kind is for workloads, and commands of one", Exit.BAD_INPUT)
        elif plural not in lists or name is not None:
            typed = option.replace("_", "-")
            what = " and of ".join(lists)
            raise CommandFailed(f"--{typed} is for lists of {what}", Exit.BAD_INPUT)
    if plural == "pastuse" and name is not None:
        raise CommandFailed("past use is told of all at once, without a name", Exit.BAD_INPUT)
    if plural == "unmanaged" and name is not None:
        raise CommandFailed("unmanaged pods are listed all at once, without a name", Exit.BAD_INPUT)
    if plural == "events" and name is not None:
        raise CommandFailed(
            f"the events of one workload are told by `queuectl history {name}`", Exit.BAD_INPUT
        )
