"""The requests of ``get`` for each kind, and the output of the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from queuectl.cli.client import Json, config_path, read_config, workload_path, workloads
from queuectl.cli.columns import (
    CLUSTER_QUEUE_COLUMNS,
    COMMAND_COLUMNS,
    DECISION_COLUMNS,
    DOMAIN_COLUMNS,
    EVENT_COLUMNS,
    NODE_COLUMNS,
    NODE_SUM_COLUMNS,
    PAST_USE_COLUMNS,
    RECEIVER_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    UNMANAGED_COLUMNS,
    UNMANAGED_SUM_COLUMNS,
    WORKLOAD_COLUMNS,
    config_columns,
)
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import Column, ListFormat, emit_json, emit_table, emit_yaml
from queuectl.client.client import Client
from queuectl.client.errors import NotPermitted, ObjectNotFound
from queuectl.client.requests import UNFINISHED, by_cursor, newest_first, oldest_first, segment
from queuectl.objects.configuration.config_kinds import PREFIX, ConfigKind

Form = Annotated[ListFormat, OUTPUT]
NoHeaders = Annotated[
    bool, typer.Option("--no-headers", help="Print a table without the titles of its columns.")
]
Name = Callable[[Json], str]


@dataclass(frozen=True, slots=True)
class ListingOptions:
    """The options of ``get``.

    Attributes:
        name: name of one object; None = all.
        namespace: None = all namespaces; for one object, the namespace of the kubeconfig.
        filters: filters of a list, by their names in the REST API.
        watch: continue with changes.
        last: number of the newest events, decisions or commands.
        headers: a table begins with the titles of its columns.
        every: with finished workloads.
        summary: a line for all nodes of a flavor and model.
    """

    name: str | None
    namespace: str | None
    output: ListFormat
    filters: Mapping[str, Any]
    watch: bool = False
    last: int = 100
    headers: bool = True
    every: bool = False
    summary: bool = False

    def show(self, body: Json, rows: list[Json], columns: tuple[Column, ...], named: Name) -> None:
        """Print an answer."""
        show(body, rows, self.output, columns, named, headers=self.headers)


def show(
    body: Json,
    rows: list[Json],
    output: ListFormat,
    columns: tuple[Column, ...],
    named: Name,
    *,
    headers: bool = True,
) -> None:
    """Print an answer: ``body`` unchanged for programs, its items as a table for people."""
    match output:
        case ListFormat.JSON:
            emit_json(body)
        case ListFormat.YAML:
            emit_yaml(body)
        case ListFormat.NAME:
            sys.stdout.writelines(named(item) + "\n" for item in rows)
        case ListFormat.TABLE | ListFormat.WIDE if rows:
            emit_table(columns, rows, wide=output is ListFormat.WIDE, headers=headers)
        case ListFormat.TABLE | ListFormat.WIDE:
            typer.echo("no objects found", err=True)


def configuration(client: Client, kind: ConfigKind, options: ListingOptions) -> None:
    """Objects of a configuration kind."""
    if kind.kind == "ClusterQueue" and options.output not in (ListFormat.JSON, ListFormat.YAML):
        _cluster_queues(client, kind, options)
        return
    if options.name is not None:
        body = read_config(client, kind, config_path(kind, options.name, options.namespace))
        items = [body]
    else:
        asked = options.namespace if kind.namespaced else None
        body = read_config(client, kind, kind.collection(), namespace=asked)
        items = body["items"]
    columns = config_columns(kind)
    options.show(body, items, columns, lambda o: f"{kind.singular}/{o['metadata']['name']}")


def _cluster_queues(client: Client, kind: ConfigKind, options: ListingOptions) -> None:
    """The use or the names of ClusterQueues, with one request; a wide table also needs their configuration."""
    body = client.get(f"{PREFIX}/queueuse", cluster_queue=options.name)
    rows = body["items"]
    if options.output is ListFormat.WIDE:
        one = options.name is not None
        path = config_path(kind, options.name or "", None) if one else kind.collection()
        answer = read_config(client, kind, path)
        documents = [answer] if one else answer["items"]
        by_name = {each["metadata"]["name"]: each for each in documents}
        rows = [{**row, "object": by_name[row["name"]]} for row in rows if row["name"] in by_name]
    options.show(body, rows, CLUSTER_QUEUE_COLUMNS, lambda o: f"{kind.singular}/{o['name']}")


def _workloads(client: Client, options: ListingOptions) -> None:
    def named(row: Json) -> str:
        return f"{row['kind'].lower()}/{row['namespace']}/{row['name']}"

    columns, filters = WORKLOAD_COLUMNS, {"namespace": options.namespace, **options.filters}
    if options.watch:
        from queuectl.cli.get import printer, watch_workloads

        watch_workloads(client, printer(options, columns, named), every=options.every, **filters)
    elif options.name is not None:
        path = workload_path(options.name, options.namespace)
        body = client.get(path, **options.filters)
        options.show(body, [body], columns, named)
    else:
        if not options.every:
            filters.setdefault("state", UNFINISHED)
        items = list(workloads(client, **filters))
        if "sort" not in filters:
            items = by_urgency(items)
        if not items:
            _check_names(client, filters)
        options.show({"items": items, "nextCursor": None}, items, columns, named)


def _check_names(client: Client, filters: Mapping[str, Any]) -> None:
    """Find out whether a list is empty because a name is wrong. A namespace is known by its LocalQueues, so it only gets a hint.

    Raises:
        CommandFailed: a queue does not exist, as far as the user may see it.
    """
    namespace, queue, cluster_queue = (
        filters.get(name) for name in ("namespace", "queue", "cluster_queue")
    )
    unseen = "does not exist, or you may not see it"
    if cluster_queue is not None:
        try:
            client.get(f"{PREFIX}/queueuse", cluster_queue=cluster_queue)
        except (ObjectNotFound, NotPermitted) as error:
            message = f"ClusterQueue {cluster_queue} {unseen}"
            raise CommandFailed(message, Exit.NOT_FOUND) from error
    if namespace is None and queue is None:
        return
    try:
        queues = client.get(f"{PREFIX}/localqueues", namespace=namespace)["items"]
    except NotPermitted:  # the right to list workloads is enough for the list itself
        return
    where = f" in namespace {namespace}" if namespace is not None else " in any namespace"
    if queue is not None and all(each["metadata"]["name"] != queue for each in queues):
        raise CommandFailed(f"LocalQueue {queue} {unseen}{where}", Exit.NOT_FOUND)
    if not queues:
        typer.echo(f"namespace {namespace} has no LocalQueue: is the name right?", err=True)


def by_urgency(workloads: Iterable[Json]) -> list[Json]:
    """In the order ``-urgency`` of the REST API. All pages are read by name, so that none is left out if it changes in between."""

    def urgency(workload: Json) -> tuple[int, str, str, str]:
        at = workload["finishedAt"] or workload["queuedAt"] or ""
        return URGENCY.get(workload["state"], 1), at, workload["namespace"], workload["name"]

    return sorted(workloads, key=urgency, reverse=True)


URGENCY: Final = {
    **dict.fromkeys(("Pending", "Reserved"), 3),
    **dict.fromkeys(("Starting", "Running", "Evicting"), 2),
    "Finished": 0,
}
"""As :data:`queuectl.domain.queries.URGENCY`, without the import of the ledger. Other states have 1."""


def _events(client: Client, options: ListingOptions) -> None:
    columns, named = EVENT_COLUMNS, _numbered("event")
    scope = {"namespace": options.namespace, **options.filters}
    after = max(client.position() - options.last, 0)
    if options.watch:
        from queuectl.cli.get import printer, watch_events

        watch_events(client, printer(options, columns, named), after, **scope)
    else:
        items = [dict(step) for step in client.events(after, **scope)]
        if not items:
            _check_names(client, scope)
        options.show({"items": items}, items, columns, named)


def _nodes(client: Client, options: ListingOptions) -> None:
    def named(row: Json) -> str:
        return f"node/{row['name']}"

    if options.summary:
        body = client.get(f"{PREFIX}/nodesummary")
        options.show(
            body, body["items"], NODE_SUM_COLUMNS, lambda o: f"flavor/{'+'.join(o['flavors'])}"
        )
        return
    path = f"{PREFIX}/nodes"
    if options.name is not None:
        body = client.get(f"{path}/{segment(options.name)}")
        options.show(body, [body], NODE_COLUMNS, named)
    else:
        items = list(client.objects(by_cursor(path, **options.filters)))
        options.show({"items": items, "nextCursor": None}, items, NODE_COLUMNS, named)


def _domains(client: Client, options: ListingOptions) -> None:
    """Domains of all Topologies, or of the Topology that is named: a domain has no unique name."""

    def named(row: Json) -> str:
        return "/".join(["domain", row["topology"], *row["path"]])

    body = client.get(f"{PREFIX}/domains", topology=options.name)
    rows = [
        {**domain, "topology": layout["topology"]}
        for layout in body["items"]
        for domain in layout["domains"]
    ]
    options.show(body, rows, DOMAIN_COLUMNS, named)


def _decisions(client: Client, options: ListingOptions) -> None:
    path, named = f"{PREFIX}/decisions", _numbered("decision")
    if options.name is not None:
        body = client.get(f"{path}/{segment(options.name)}")
        options.show(body, [body], DECISION_COLUMNS, named)
    else:
        items = list(client.objects(newest_first(path, options.last)))
        options.show({"items": items}, items, DECISION_COLUMNS, named)


def _commands(client: Client, options: ListingOptions) -> None:
    """One command by its ID, the commands of a workload, or the newest of all. A workload with digits only needs its namespace."""
    name, named, every = options.name, _numbered("command"), f"{PREFIX}/commands"
    if name is None:
        filters = {"namespace": options.namespace, **options.filters}
        commands = list(client.objects(newest_first(every, options.last, **filters)))
        options.show({"items": commands}, commands, COMMAND_COLUMNS, named)
        return
    if name.isdecimal():
        body = client.get(f"{every}/{name}")
        options.show(body, [body], COMMAND_COLUMNS, named)
        return
    path = workload_path(name, options.namespace)
    workload = client.get(path, **options.filters)
    commands = list(client.objects(oldest_first(f"{path}/commands", kind=workload["kind"])))
    body = {"uid": workload["uid"], "items": commands, "nextAfter": None}
    options.show(body, commands, COMMAND_COLUMNS, named)


def _past_use(client: Client, options: ListingOptions) -> None:
    def named(row: Json) -> str:
        return "/".join(filter(None, ("pastuse", row["scope"], row["namespace"], row["name"])))

    body = client.get(f"{PREFIX}/pastuse")
    options.show(body, body["items"], PAST_USE_COLUMNS, named)


def _unmanaged(client: Client, options: ListingOptions) -> None:
    """Unmanaged pods with GPUs; a table begins with the sums by namespace."""

    def named(row: Json) -> str:
        return f"pod/{row['namespace']}/{row['name']}"

    pages = list(
        client.pages(by_cursor(f"{PREFIX}/reports/unmanaged", namespace=options.namespace))
    )
    items = [item for page in pages for item in page["items"]]
    sums = {one["namespace"]: one for page in pages for one in page["namespaces"]}
    if sums and options.output in (ListFormat.TABLE, ListFormat.WIDE):
        emit_table(UNMANAGED_SUM_COLUMNS, sums.values(), wide=False, headers=options.headers)
        typer.echo("")
    body = {"items": items, "namespaces": list(sums.values()), "nextCursor": None}
    options.show(body, items, UNMANAGED_COLUMNS, named)


def _receivers(client: Client, options: ListingOptions) -> None:
    body: Json = {**client.receivers()}
    options.show(body, body["items"], RECEIVER_COLUMNS, lambda o: f"receiver/{o['name']}")
    if body["error"]:
        typer.echo(f"warning: {body['error']}", err=True)


def _subscriptions(client: Client, options: ListingOptions) -> None:
    """The caller's own, or those of all users."""
    items = [dict(each) for each in client.subscriptions(everyone=options.every)]
    body = {"items": items, "nextAfter": None}
    options.show(body, items, SUBSCRIPTION_COLUMNS, _numbered("subscription"))


def _numbered(singular: str) -> Name:
    return lambda item: f"{singular}/{item['id']}"


LISTINGS: Final[Mapping[str, Callable[[Client, ListingOptions], None]]] = {
    "workloads": _workloads,
    "nodes": _nodes,
    "domains": _domains,
    "events": _events,
    "decisions": _decisions,
    "commands": _commands,
    "pastuse": _past_use,
    "unmanaged": _unmanaged,
    "receivers": _receivers,
    "subscriptions": _subscriptions,
}
"""Kinds that are not configuration, by their plural."""
