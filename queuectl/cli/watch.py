"""``queuectl get --watch``: the list, then its changes, until the user interrupts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from queuectl.cli import events
from queuectl.cli.client import Json, RequestRefused, ServerClient
from queuectl.cli.errors import Exit
from queuectl.cli.render import Column, GrowingTable, ListFormat, emit_yaml
from queuectl.objects.configuration.config_kinds import PREFIX

ONE_BY_ONE: Final = 25
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


def watch_events(client: ServerClient, show: Printer, after: int, **filters: Any) -> None:
    """Print the events above an id, as they arrive."""
    for batch in events.gathered(events.follow(client, after, **filters)):
        show([block.data for block in batch if block.event == "step"])


def watch_workloads(
    client: ServerClient,
    show: Printer,
    namespace: str | None = None,
    cluster_queue: str | None = None,
    **filters: Any,
) -> None:
    """Print the list, then each workload that changes. Several changes in one batch are printed once."""
    scope = {"namespace": namespace, "cluster_queue": cluster_queue}
    position = events.newest(client)  # before the list, so that no change is lost in between
    show(client.workloads(**scope, **filters))
    for batch in events.gathered(events.follow(client, position, **scope)):
        uids = {block.data["uid"] for block in batch if block.event == "step"}
        reset = any(block.event == "reset" for block in batch)
        if reset or len(uids) > ONE_BY_ONE:
            found = client.workloads(**scope, **filters)
            show(item for item in list(found) if reset or item["uid"] in uids)
        else:
            show(_still(client, uids, filters))


def _still(client: ServerClient, uids: Iterable[str], filters: dict[str, Any]) -> list[Json]:
    """The workloads that still exist and match the filters."""
    matching = []
    for uid in uids:
        try:
            item = client.get(f"{PREFIX}/workloads/{uid}")
        except RequestRefused as refused:
            if refused.code in (Exit.NOT_FOUND, Exit.NOT_ALLOWED):
                continue
            raise
        states = filters.get("state")
        same = all(filters.get(name) in (None, item[name]) for name in ("queue", "kind", "user"))
        if same and (not states or item["state"] in states):
            matching.append(item)
    return matching
