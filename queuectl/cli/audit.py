"""``queuectl audit``: who changed what, and what was refused to whom."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queuectl.api.kinds import PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Server, connect
from queuectl.cli.columns import AUDIT_COLUMNS
from queuectl.cli.listings import Form, show
from queuectl.cli.render import Output
from queuectl.cli.times import ago

PATH: Final = f"{PREFIX}/audit"


def audit_command(
    caller: Annotated[
        str | None, typer.Option(help="Of this user, as the cluster names him.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="Of paths that begin so.")] = None,
    since: Annotated[
        str | None, typer.Option(help="How long ago at most (24h, 90m), or a time (RFC 3339).")
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
    output: Form = Output.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """List requests that changed something or were refused, the newest first. Needs the right to get audit."""
    start = ago(since, "--since") if since is not None else None
    with connect(server) as client:
        items = list(client.newest_first(PATH, last, caller=caller, path=path, since=start))
    body = {"items": items, "nextBefore": None}
    show(body, items, output, AUDIT_COLUMNS, lambda item: f"audit/{item['id']}")
