"""``queuectl drain``: wait until no gang holds cordoned nodes, or requeue the gangs so that they start on other nodes.

It uses the REST API alone. To cordon a node is the right of the user or the operator that maintains it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from queuectl.cli import complete
from queuectl.cli.ask import By, Why, ask
from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.errors import CommandFailed, Exit, exit_code
from queuectl.cli.times import span
from queuectl.cli.whatif import show_other_gangs, tried
from queuectl.client.client import Client
from queuectl.client.errors import ConflictingState, ObjectNotFound
from queuectl.client.requests import by_cursor, segment
from queuectl.domain.commands import Action
from queuectl.domain.errors import QueuectlError
from queuectl.domain.words import counted_gpus
from queuectl.objects.configuration.config_kinds import PREFIX

_HIDDEN: Final = (
    "gangs that you are not allowed to see hold the nodes: --move needs the right to list workloads"
)
POLL_SECONDS: Final = 1.0  # the answers of the server are at most as old
CORDON_SECONDS: Final = 5.0
"""Time for the controller to observe that a node is cordoned."""


@dataclass(frozen=True, slots=True)
class DrainedGang:
    """A gang on the nodes. ``uid`` is empty for all gangs that the user is not allowed to see, together."""

    uid: str
    workload: str
    kind: str
    gpus: float
    leaving: bool


def drain_command(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE...", help="Names of cordoned nodes.", autocompletion=complete.nodes
        ),
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(
            "--selector",
            "-l",
            metavar="LABEL=VALUE",
            help="Also the cordoned nodes with this label. Can be repeated: a node must have all labels.",
        ),
    ] = None,
    move: Annotated[
        bool,
        typer.Option("--move", help="Requeue the gangs, so that they start on other nodes."),
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --move: let the gangs run this long before they are requeued. Default: 0.",
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Fail if gangs still hold the nodes after this time. Default: no limit.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; show what becomes of the gangs."),
    ] = False,
    by: By = None,
    why: Why = None,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Wait until no gang holds the nodes. With --move, requeue the gangs.

    The nodes must be cordoned, so that no gang starts on them. Pods that belong to no gang stay: evict them with `kubectl drain`.
    """
    if not nodes and not selector:
        raise CommandFailed("no node given: name nodes, or use --selector", Exit.BAD_INPUT)
    if after is not None and not move:
        raise CommandFailed("--after needs --move", Exit.BAD_INPUT)
    now = time.monotonic()
    requeue_at = now + span(after or "0", "--after") if move else None
    give_up_at = now + span(wait, "--wait") if wait is not None else None
    with connect(server) as client:
        names = _nodes(client, nodes or (), selector or ())
        if not names:
            typer.echo("no cordoned node has these labels")
        elif dry_run:
            show_other_gangs(tried(client, drain=list(names)))
        else:
            _drain(client, names, requeue_at, give_up_at, by, why)


def _nodes(client: Client, names: Sequence[str], selector: Sequence[str]) -> tuple[str, ...]:
    """The names of the nodes, each once.

    Raises:
        CommandFailed: a node that is named is not cordoned, or does not exist.
    """
    give_up_at = time.monotonic() + CORDON_SECONDS
    while takes := _schedulable(client, names):
        if time.monotonic() >= give_up_at:
            message = f"not cordoned: {', '.join(takes)}; run kubectl cordon {' '.join(takes)}"
            raise CommandFailed(message, Exit.CONFLICT)
        time.sleep(POLL_SECONDS)
    selected = _cordoned(client, selector) if selector else {}
    return tuple(dict.fromkeys([*names, *selected]))


def _schedulable(client: Client, names: Sequence[str]) -> list[str]:
    """The nodes among these that are not cordoned."""
    cordoned = _cordoned(client) if names else {}
    return [name for name in names if name not in cordoned and _node(client, name)["schedulable"]]


def _cordoned(client: Client, selector: Sequence[str] = ()) -> dict[str, Json]:
    """The cordoned nodes with these labels, by name. One request lists up to 500, and there is at most one in POLL_SECONDS."""
    found: dict[str, Json] = {}
    for page in client.pages(
        by_cursor(f"{PREFIX}/nodes", schedulable=False, domain=list(selector))
    ):
        found |= {node["name"]: node for node in page["items"]}
        if page["nextCursor"] is not None:
            time.sleep(POLL_SECONDS)
    return found


def _node(client: Client, name: str) -> Json:
    return client.get(f"{PREFIX}/nodes/{segment(name)}")


def _drain(
    client: Client,
    names: Sequence[str],
    requeue_at: float | None,
    give_up_at: float | None,
    by: str | None,
    why: str | None,
) -> None:
    """Follow the nodes until no gang holds them. Times are read from the monotonic clock."""
    left, requeued = set(names), set[str]()
    shown: Mapping[str, DrainedGang] | None = None
    while (holders := _holders(client, left)) is None or holders:
        if holders and (shown is None or holders.keys() != shown.keys()):
            typer.echo(f"waits for {_list(holders)}")
            shown = holders
        if requeue_at is not None and time.monotonic() >= requeue_at:
            for holder in (holders or {}).values():
                if holder.uid not in requeued and _requeue(client, holder, by, why):
                    requeued.add(holder.uid)
        if give_up_at is not None and time.monotonic() >= give_up_at:
            if shown is None:
                raise CommandFailed("the server did not answer: it is unknown which gangs are left")
            raise CommandFailed(f"gangs are left: {_list(shown)}")
        time.sleep(POLL_SECONDS)
    typer.echo(f"no gang holds {', '.join(names)}")


def _holders(client: Client, names: set[str]) -> dict[str, DrainedGang] | None:
    """The gangs on the nodes, with their GPUs there, by uid; None if the server does not answer now.

    Nodes that were deleted are removed from ``names``.

    Raises:
        CommandFailed: a node takes pods again, or the server refuses the request.
    """
    gangs: dict[str, DrainedGang] = {}
    try:
        cordoned = _cordoned(client)
        for name in sorted(names - cordoned.keys()):
            _check_deleted(client, name)
            names.remove(name)
    except QueuectlError as error:
        _warn(error)
        return None
    for name in sorted(names):
        for tenant in cordoned[name]["tenants"]:
            _add(gangs, tenant)
    return gangs


def _warn(error: QueuectlError) -> None:
    """Continue if the server does not answer now. Raises its other errors."""
    if exit_code(error) is not Exit.FAILURE:
        raise error
    typer.echo(f"warning: {error}; the command continues", err=True)


def _check_deleted(client: Client, name: str) -> None:
    """Raise CommandFailed unless the node, which is not among the cordoned ones, was deleted."""
    try:
        _node(client, name)
    except ObjectNotFound:
        return
    raise CommandFailed(f"{name} was uncordoned", Exit.CONFLICT)


def _add(gangs: dict[str, DrainedGang], tenant: Json) -> None:
    uid, kind = tenant["uid"] or "", tenant["kind"] or ""
    gpus = tenant["gpus"] + (gangs[uid].gpus if uid in gangs else 0.0)
    gangs[uid] = DrainedGang(uid, tenant["workload"], kind, gpus, tenant["leaving"])


def _list(holders: Mapping[str, DrainedGang]) -> str:
    return ", ".join(f"{one.workload} ({counted_gpus(one.gpus)})" for one in holders.values())


def _requeue(client: Client, holder: DrainedGang, by: str | None, why: str | None) -> bool:
    """Ask for the eviction. A gang that leaves, or has ended in the meantime, needs none. False if the server does not answer now."""
    if not holder.uid:
        raise CommandFailed(_HIDDEN, Exit.NOT_ALLOWED)
    if holder.leaving:
        return True
    try:
        found = {"uid": holder.uid, "kind": holder.kind}
        ask(client, Action.REQUEUE, found, by, why or "drain of its node", None)
    except (ObjectNotFound, ConflictingState):
        return True
    except QueuectlError as error:
        _warn(error)
        return False
    return True
