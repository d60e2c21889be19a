"""``queuectl get``: list or read configuration and workloads."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from queuectl.api.kinds import ConfigKind
from queuectl.cli.client import (
    DEFAULT_SERVER,
    Client,
    Namespace,
    Server,
    config_kind,
    config_path,
    connect,
    workload_path,
)
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.render import (
    WORKLOAD_COLUMNS,
    Column,
    Output,
    config_columns,
    emit_json,
    emit_table,
    emit_yaml,
)

Form = Annotated[Output, typer.Option("--output", "-o", help="Form of the answer.")]


def get_command(
    kind: Annotated[
        str, typer.Argument(help="workloads, clusterqueues, localqueues, cohorts, flavors, ...")
    ],
    name: Annotated[str | None, typer.Argument(help="One object; none = all.")] = None,
    namespace: Namespace = None,
    output: Form = Output.TABLE,
    queue: Annotated[str | None, typer.Option(help="Workloads of this LocalQueue.")] = None,
    cluster_queue: Annotated[
        str | None, typer.Option(help="Workloads of this ClusterQueue.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="Workloads in this state; may be given again.")
    ] = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List objects of a kind, or read one. Without --namespace a list is of all namespaces."""
    config = config_kind(kind)
    filters = {"queue": queue, "cluster_queue": cluster_queue, "state": state}
    if any(filters.values()) and (config is not None or name is not None):
        message = "--queue, --cluster-queue and --state choose among workloads, in a list"
        raise CommandFailed(message, Exit.BAD_INPUT)
    with connect(server) as client:
        if config is not None:
            _config(client, config, name, namespace, output)
        elif name is not None:
            body = client.get(workload_path(name, namespace))
            _show(body, [body], output, WORKLOAD_COLUMNS, _workload_name)
        else:
            items = list(client.workloads(namespace=namespace, **filters))
            page = {"items": items, "nextCursor": None}
            _show(page, items, output, WORKLOAD_COLUMNS, _workload_name)


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

    def named(item: dict[str, Any]) -> str:
        return f"{kind.singular}/{item['metadata']['name']}"

    _show(body, items, output, config_columns(kind), named)


def _workload_name(item: dict[str, Any]) -> str:
    return f"{item['kind'].lower()}/{item['namespace']}/{item['name']}"


def _show(
    body: dict[str, Any],
    items: list[dict[str, Any]],
    output: Output,
    columns: tuple[Column, ...],
    named: Any,
) -> None:
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
