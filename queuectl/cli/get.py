"""``queuectl get``: list, read or watch workloads, configuration, nodes, domains, events, decisions, commands and more.

``--watch`` prints the list, then its changes, until the user interrupts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from queuectl.cli import events, program
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Json,
    Namespace,
    Server,
    config_kind,
    connect,
    workloads,
)
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.listings import LISTINGS, Form, ListingOptions, configuration
from queuectl.cli.render import Column, GrowingTable, ListFormat, emit_yaml
from queuectl.client.client import Client
from queuectl.client.errors import NotPermitted, ObjectNotFound
from queuectl.objects.configuration.config_kinds import PREFIX

# ---- The command

_PLURALS: Final = {
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
    "user": ("workloads",),
    "sort": ("workloads",),
    "by": ("commands",),
    "domain": ("nodes",),
    "free": ("nodes",),
    "search": ("nodes",),
    "watch": ("workloads", "events"),
}
"""Options that filter lists, and the lists that they filter."""
Everywhere = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="List all namespaces. This is the default, too.",
    ),
]


def get_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="workloads, nodes, domains, events, decisions, commands, pastuse, unmanaged, clusterqueues, localqueues, cohorts, ...",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One object; omit it for a list. For domains, the Topology. For commands, the workload or an ID.",
        ),
    ] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Form = ListFormat.TABLE,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only workloads of this LocalQueue.")
    ] = None,
    cluster_queue: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only workloads or events of this ClusterQueue."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only workloads or commands in this state. Can be repeated."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Only workloads of this user.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Sort workloads by name, state, clusterQueue, user, gpus, priority, queuedAt or since; "
            "-KEY reverses the order.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="USER", help="Only commands of this user.")
    ] = None,
    job_kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Only workloads of this kind of job, for example Job or PyTorchJob.",
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only nodes in this domain. Can be repeated; a node must be in all.",
        ),
    ] = None,
    free: Annotated[
        float | None,
        typer.Option(
            metavar="GPUS", min=0, help="Only open nodes with at least this many free GPUs."
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Only nodes with this in their name or in the name of a gang."
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Watch workloads or events: print changes as they happen."
        ),
    ] = False,
    last: Annotated[
        int,
        typer.Option(
            metavar="COUNT",
            min=1,
            max=10_000,
            help="Only from the newest COUNT events, decisions or commands.",
        ),
    ] = 100,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List the objects of a kind, read one of them, or watch them."""
    other = _PLURALS.get(kind.lower())
    config = None if other else config_kind(kind, dict.fromkeys(_PLURALS.values()))
    plural = other or (config.plural if config else "workloads")
    if everywhere and (namespace is not None or name is not None):
        raise CommandFailed("--all-namespaces excludes a name and --namespace", Exit.BAD_INPUT)
    filters = {
        "queue": queue,
        "cluster_queue": cluster_queue,
        "state": state,
        "user": user,
        "sort": sort,
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
            LISTINGS[plural](client, wanted)


def _check(plural: str, name: str | None, options: dict[str, Any]) -> None:
    """Refuse options without effect."""
    for option in options:
        lists = _LISTS.get(option)
        if lists is None:
            if plural != "workloads" and (plural, name is None) != ("commands", False):
                raise CommandFailed(
                    "--kind is for workloads, and for the commands of a workload", Exit.BAD_INPUT
                )
        elif plural not in lists or name is not None:
            typed = option.replace("_", "-")
            what = " and ".join(lists)
            raise CommandFailed(f"--{typed} is for lists of {what}", Exit.BAD_INPUT)
    if plural == "pastuse" and name is not None:
        raise CommandFailed("pastuse: lists all entries; omit the name", Exit.BAD_INPUT)
    if plural == "unmanaged" and name is not None:
        raise CommandFailed("unmanaged: lists all pods; omit the name", Exit.BAD_INPUT)
    if plural == "events" and name is not None:
        raise CommandFailed(
            f"events: use `{program.called()} history {name}` for the events of one workload",
            Exit.BAD_INPUT,
        )


# ---- Watches

_ONE_BY_ONE: Final = 25
"""If more workloads change at once, the client requests the whole list."""
Printer = Callable[[Iterable[Json]], None]


def printer(output: ListFormat, columns: Sequence[Column], named: Callable[[Json], str]) -> Printer:
    """A function that prints objects in this format: JSON as a line each, YAML as documents."""
    match output:
        case ListFormat.JSON:
            return lambda items: _write(json.dumps(i, ensure_ascii=False) + "\n" for i in items)
        case ListFormat.YAML:
            return _yaml
        case ListFormat.NAME:
            return lambda items: _write(named(item) + "\n" for item in items)
        case _:
            return GrowingTable(columns, wide=output is ListFormat.WIDE).add


def _write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(lines)
    sys.stdout.flush()


def _yaml(workloads: Iterable[Json]) -> None:
    for item in workloads:
        sys.stdout.write("---\n")
        emit_yaml(item)
    sys.stdout.flush()


def watch_events(client: Client, show: Printer, after: int, **filters: Any) -> None:
    """Print the events above an id, as they arrive."""
    for batch in events.gathered(client.watch(after, **filters)):
        show([block.data for block in batch if block.event == "step"])


def watch_workloads(
    client: Client,
    show: Printer,
    namespace: str | None = None,
    cluster_queue: str | None = None,
    **filters: Any,
) -> None:
    """Print the list, then each workload that changes. Several changes in one batch are printed once."""
    scope = {"namespace": namespace, "cluster_queue": cluster_queue}
    position = client.position()  # before the list, so that no change is lost in between
    show(workloads(client, **scope, **filters))
    for batch in events.gathered(client.watch(position, **scope)):
        uids = {block.data["uid"] for block in batch if block.event == "step"}
        reset = any(block.event == "reset" for block in batch)
        if reset or len(uids) > _ONE_BY_ONE:
            found = workloads(client, **scope, **filters)
            show(item for item in list(found) if reset or item["uid"] in uids)
        else:
            show(_still(client, uids, filters))


def _still(client: Client, uids: Iterable[str], filters: dict[str, Any]) -> list[Json]:
    """The workloads that still exist and match the filters."""
    matching = []
    for uid in uids:
        try:
            item = client.get(f"{PREFIX}/workloads/{uid}")
        except (ObjectNotFound, NotPermitted):
            continue
        states = filters.get("state")
        same = all(filters.get(name) in (None, item[name]) for name in ("queue", "kind", "user"))
        if same and (not states or item["state"] in states):
            matching.append(item)
    return matching
