"""``queuectl get``: list, read or watch configuration, workloads, nodes, events and decisions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from queuectl.api.kinds import PREFIX, ConfigKind
from queuectl.cli import events
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Client,
    Json,
    Namespace,
    Server,
    config_kind,
    config_path,
    connect,
    workload_path,
)
from queuectl.cli.columns import (
    DECISION_COLUMNS,
    EVENT_COLUMNS,
    NODE_COLUMNS,
    WORKLOAD_COLUMNS,
    config_columns,
)
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.render import (
    Column,
    Output,
    emit_json,
    emit_table,
    emit_yaml,
)

Form = Annotated[Output, typer.Option("--output", "-o", help="Form of the answer.")]
Everywhere = Annotated[
    bool,
    typer.Option(
        "--all-namespaces",
        "-A",
        help="A list of all namespaces, as it is without --namespace, too.",
    ),
]

_OTHERS: Final = {
    name: plural
    for plural, names in {
        "nodes": ("nodes", "node", "no"),
        "events": ("events", "event", "ev"),
        "decisions": ("decisions", "decision"),
    }.items()
    for name in names
}


def get_command(
    kind: Annotated[
        str,
        typer.Argument(
            help="workloads, nodes, events, decisions, clusterqueues, localqueues, cohorts, flavors, ..."
        ),
    ],
    name: Annotated[str | None, typer.Argument(help="One object; none = all.")] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Form = Output.TABLE,
    queue: Annotated[str | None, typer.Option(help="Workloads of this LocalQueue.")] = None,
    cluster_queue: Annotated[
        str | None, typer.Option(help="Workloads, or events, of this ClusterQueue.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="Workloads in this state; may be given again.")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Workloads, or events: go on with what changes."),
    ] = False,
    last: Annotated[
        int,
        typer.Option(min=1, max=10_000, help="Events, decisions: among so many of the newest."),
    ] = 100,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List objects of a kind, read one, or watch them. Without --namespace a list is of all namespaces."""
    other = _OTHERS.get(kind.lower())
    config = None if other else config_kind(kind, dict.fromkeys(_OTHERS.values()))
    plural = other or (config.plural if config else "workloads")
    if everywhere and (namespace is not None or name is not None):
        raise CommandFailed(
            "--all-namespaces goes with neither a name nor --namespace", Exit.BAD_INPUT
        )
    filters = {"queue": queue, "cluster_queue": cluster_queue, "state": state}
    _check(plural, name, filters, watch=watch)
    with connect(server) as client:
        if config is not None:
            _config(client, config, name, namespace, output)
        elif plural == "nodes":
            _nodes(client, name, output)
        elif plural == "decisions":
            _decisions(client, name, last, output)
        elif plural == "events":
            scope = {"namespace": namespace, "cluster_queue": cluster_queue}
            _events(client, last, output, scope, watch=watch)
        elif name is not None:
            body = client.get(workload_path(name, namespace))
            show(body, [body], output, WORKLOAD_COLUMNS, _workload_name)
        else:
            _workloads(client, output, {"namespace": namespace, **filters}, watch=watch)


def _check(plural: str, name: str | None, filters: dict[str, Any], *, watch: bool) -> None:
    """Refuse options that would have no effect."""
    given = {option for option, value in filters.items() if value}
    of_queue = plural == "events" and given == {"cluster_queue"}
    if given and not of_queue and (plural != "workloads" or name is not None):
        message = "--queue, --cluster-queue and --state choose among workloads, in a list"
        raise CommandFailed(message, Exit.BAD_INPUT)
    if watch and (plural not in ("workloads", "events") or name is not None):
        raise CommandFailed("--watch is for lists of workloads and of events", Exit.BAD_INPUT)
    if plural == "events" and name is not None:
        raise CommandFailed(
            f"the events of one workload are told by `queuectl history {name}`", Exit.BAD_INPUT
        )


def _workloads(client: Client, output: Output, filters: dict[str, Any], *, watch: bool) -> None:
    if watch:
        from queuectl.cli.watch import printer, watch_workloads

        watch_workloads(client, printer(output, WORKLOAD_COLUMNS, _workload_name), **filters)
        return
    items = list(client.workloads(**filters))
    page = {"items": items, "nextCursor": None}
    show(page, items, output, WORKLOAD_COLUMNS, _workload_name)


def _events(
    client: Client, last: int, output: Output, scope: dict[str, Any], *, watch: bool
) -> None:
    after = max(events.newest(client) - last, 0)
    if watch:
        from queuectl.cli.watch import printer, watch_events

        watch_events(client, printer(output, EVENT_COLUMNS, _event_name), after, **scope)
        return
    items = events.so_far(client, after, **scope)
    show({"items": items}, items, output, EVENT_COLUMNS, _event_name)


def _event_name(item: Json) -> str:
    return f"event/{item['id']}"


def _nodes(client: Client, name: str | None, output: Output) -> None:
    def named(item: Json) -> str:
        return f"node/{item['name']}"

    path = f"{PREFIX}/nodes"
    if name is not None:
        body = client.get(f"{path}/{quote(name, safe='')}")
        show(body, [body], output, NODE_COLUMNS, named)
    else:
        items = list(client.pages(path))
        show({"items": items, "nextCursor": None}, items, output, NODE_COLUMNS, named)


def _decisions(client: Client, name: str | None, last: int, output: Output) -> None:
    def named(item: Json) -> str:
        return f"decision/{item['id']}"

    path = f"{PREFIX}/decisions"
    if name is not None:
        body = client.get(f"{path}/{quote(name, safe='')}")
        show(body, [body], output, DECISION_COLUMNS, named)
    else:
        items = list(client.newest_first(path, last))
        show({"items": items}, items, output, DECISION_COLUMNS, named)


def _config(
    client: Client, kind: ConfigKind, name: str | None, namespace: str | None, output: Output
) -> None:
    if name is not None:
        body = client.get(config_path(kind, name, namespace))
        items = [body]
    else:
        asked = namespace if kind.namespaced else None
        body = client.get(kind.collection(), namespace=asked)
        items = body["items"]

    def named(item: Json) -> str:
        return f"{kind.singular}/{item['metadata']['name']}"

    show(body, items, output, config_columns(kind), named)


def _workload_name(item: Json) -> str:
    return f"{item['kind'].lower()}/{item['namespace']}/{item['name']}"


def show(
    body: Json,
    items: list[Json],
    output: Output,
    columns: tuple[Column, ...],
    named: Callable[[Json], str],
) -> None:
    """Print an answer: ``body`` as it is for programs, its items for people."""
    match output:
        case Output.JSON:
            emit_json(body)
        case Output.YAML:
            emit_yaml(body)
        case Output.NAME:
            sys.stdout.writelines(named(item) + "\n" for item in items)
        case Output.TABLE | Output.WIDE if items:
            emit_table(columns, items, wide=output is Output.WIDE)
        case Output.TABLE | Output.WIDE:
            typer.echo("nothing found", err=True)
