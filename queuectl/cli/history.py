"""``queuectl history``: what happened to one workload, and above all who took its place from it, and why."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Json, Namespace, Server, connect
from queuectl.cli.client import workload_path as path_of
from queuectl.cli.columns import HISTORY_COLUMNS
from queuectl.cli.explain import Kind
from queuectl.cli.listings import Form, show
from queuectl.cli.render import Output
from queuectl.domain.words import counted

_ONLY: Final = "Evicting"


def history_command(
    workload: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the job.")],
    namespace: Namespace = None,
    kind: Kind = None,
    evictions: Annotated[
        bool, typer.Option("--evictions", help="Only when it was taken down, and why.")
    ] = False,
    output: Form = Output.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Tell what happened to a workload, oldest first: starts, evictions and who made them, holds, its end."""
    with connect(server) as client:
        path = path_of(workload, namespace)
        body = client.get(path, kind=kind)
        items = list(client.following(f"{path}/history", kind=body["kind"]))
    downs = [item for item in items if item["toState"] == _ONLY and item["fromState"] != _ONLY]
    if evictions:
        items = downs
    if output in (Output.TABLE, Output.WIDE):
        typer.echo(_headline(body, downs))
    answer = {"uid": body["uid"], "items": items, "nextAfter": None}
    show(answer, items, output, HISTORY_COLUMNS, lambda item: f"event/{item['id']}")


def _headline(body: Json, downs: list[Json]) -> str:
    """The sentence that most people came for."""
    name = f"{body['kind'].lower()}/{body['namespace']}/{body['name']}"
    head = f"{name} is {body['state']}; started {counted(body['attempt'], 'time')}"
    if not downs:
        return f"{head}, never taken down"
    last = downs[-1]
    why = last["reason"]["message"] or last["reason"]["code"]
    return f"{head}, taken down {counted(len(downs), 'time')}, last at {last['at'][:19]}Z: {why}"
