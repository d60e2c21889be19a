"""``queuectl get --watch``: the list, then what becomes of it, until somebody ends it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from queuectl.api.kinds import PREFIX
from queuectl.cli import events
from queuectl.cli.client import Client, Json, Refused
from queuectl.cli.errors import Exit
from queuectl.cli.render import Column, GrowingTable, Output, emit_yaml

ONE_BY_ONE: Final = 25
"""Of more workloads that changed at once the whole list is asked for, not each of them."""

Printer = Callable[[Iterable[Json]], None]


def printer(output: Output, columns: Sequence[Column], named: Callable[[Json], str]) -> Printer:
    """Prints objects one after the other in this form: JSON as one line each, YAML as documents."""
    match output:
        case Output.JSON:
            return lambda items: _write(json.dumps(i, ensure_ascii=False) + "\n" for i in items)
        case Output.YAML:
            return _yaml
        case Output.NAME:
            return lambda items: _write(named(item) + "\n" for item in items)
        case _:
            return GrowingTable(columns, wide=output is Output.WIDE).add


def _write(lines: Iterable[str]) -> None:
    sys.stdout.writelines(lines)
    sys.stdout.flush()


def _yaml(items: Iterable[Json]) -> None:
    for item in items:
        sys.stdout.write("---\n")
        emit_yaml(item)
    sys.stdout.flush()


def watch_events(client: Client, show: Printer, after: int, **filters: Any) -> None:
    """Steps above an id, as they come."""
    for handful in events.gathered(events.follow(client, after, **filters)):
        show([block.data for block in handful if block.event == "step"])


def watch_workloads(
    client: Client,
    show: Printer,
    namespace: str | None = None,
    cluster_queue: str | None = None,
    **filters: Any,
) -> None:
    """The list, then each workload of it that changes, as it is then. What changes meanwhile is shown once."""
    scope = {"namespace": namespace, "cluster_queue": cluster_queue}
    position = events.newest(client)  # before the list, so that nothing falls between the two
    show(client.workloads(**scope, **filters))
    for handful in events.gathered(events.follow(client, position, **scope)):
        uids = {block.data["uid"] for block in handful if block.event == "step"}
        anew = any(block.event == "reset" for block in handful)
        if anew or len(uids) > ONE_BY_ONE:
            found = client.workloads(**scope, **filters)
            show(item for item in list(found) if anew or item["uid"] in uids)
        else:
            show(_still(client, uids, filters))


def _still(client: Client, uids: Iterable[str], filters: dict[str, Any]) -> list[Json]:
    """Those of them that are there and match."""
    found = []
    for uid in uids:
        try:
            item = client.get(f"{PREFIX}/workloads/{uid}")
        except Refused as refused:
            if refused.code in (Exit.NOT_FOUND, Exit.NOT_ALLOWED):
                continue
            raise
        states = filters.get("state")
        same = all(filters.get(name) in (None, item[name]) for name in ("queue", "kind"))
        if same and (not states or item["state"] in states):
            found.append(item)
    return found
