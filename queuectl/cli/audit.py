"""``queuectl audit``: requests that changed something, and refused requests."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Server, connect
from queuectl.cli.columns import AUDIT_COLUMNS
from queuectl.cli.listings import Form, NoHeaders, show
from queuectl.cli.render import ListFormat
from queuectl.cli.times import ago
from queuectl.client.requests import newest_first
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/audit"


def audit_command(
    caller: Annotated[
        str | None,
        typer.Option(
            metavar="USER", help="Only requests of this user, by the name in the cluster."
        ),
    ] = None,
    path: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Only paths with this prefix.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Only requests since then: a duration (7d, 24h, 90m) or an RFC 3339 time.",
        ),
    ] = None,
    last: Annotated[
        int, typer.Option(metavar="COUNT", min=1, max=100_000, help="Maximum number of requests.")
    ] = 100,
    output: Form = ListFormat.TABLE,
    no_headers: NoHeaders = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List requests that changed something or were refused, the newest first. You need the right to get audit."""
    start = ago(since, "--since") if since is not None else None
    with connect(server) as client:
        items = list(
            client.objects(newest_first(PATH, last, caller=caller, path=path, since=start))
        )
    body = {"items": items, "nextBefore": None}
    show(
        body,
        items,
        output,
        AUDIT_COLUMNS,
        lambda item: f"audit/{item['id']}",
        headers=not no_headers,
    )
