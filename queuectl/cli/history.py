"""``queuectl history``: the events of one workload, with the reason of each eviction."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Json, Namespace, Server, connect
from queuectl.cli.client import workload_path as path_of
from queuectl.cli.columns import HISTORY_COLUMNS
from queuectl.cli.explain import Kind, Workload
from queuectl.cli.listings import Form, NoHeaders, show
from queuectl.cli.render import ListFormat
from queuectl.client.requests import oldest_first
from queuectl.domain.words import counted, one_line

_ONLY: Final = "Evicting"


def history_command(
    workload: Workload,
    namespace: Namespace = None,
    kind: Kind = None,
    evictions: Annotated[
        bool, typer.Option("--evictions", help="Only evictions, with reasons.")
    ] = False,
    output: Form = ListFormat.TABLE,
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show the events of a workload, the oldest first: starts, evictions with reasons, holds, and the end."""
    with connect(server) as client:
        path = path_of(workload, namespace)
        body = client.get(path, kind=kind)
        items = list(client.objects(oldest_first(f"{path}/history", kind=body["kind"])))
    evicted = [item for item in items if item["toState"] == _ONLY and item["fromState"] != _ONLY]
    if evictions:
        items = evicted
    if output in (ListFormat.TABLE, ListFormat.WIDE) and not no_headers:
        typer.echo(_headline(body, evicted))
    answer = {"uid": body["uid"], "items": items, "nextAfter": None}
    show(
        answer,
        items,
        output,
        HISTORY_COLUMNS,
        lambda item: f"event/{item['id']}",
        headers=not no_headers,
    )


def _headline(body: Json, evicted: list[Json]) -> str:
    """One sentence: the state, and the last eviction with its reason."""
    name = f"{body['kind'].lower()}/{body['namespace']}/{body['name']}"
    head = f"{name} is {body['state']}; started {counted(body['attempt'], 'time')}"
    if not evicted:
        return f"{head}, never evicted"
    last = evicted[-1]
    why = one_line(last["reason"]["message"]) or last["reason"]["code"]
    return f"{head}, evicted {counted(len(evicted), 'time')}, last at {last['at'][:19]}Z: {why}"
