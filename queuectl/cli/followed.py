"""``queuectl config owner`` and ``queuectl config confirm``: configuration in objects of the cluster."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.words import counted
from queuectl.objects.configuration.config_kinds import PREFIX

PATH: Final = f"{PREFIX}/configurationowner"


def owner_command(server: Server = DEFAULT_SERVER) -> None:
    """Show the owner of the configuration, and objects without effect."""
    with connect(server) as client:
        report = client.get(PATH)
    for line in described(report):
        typer.echo(line)


def confirm_command(
    deletion: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Id of the deletion. Without it, show what it deletes."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show what would be deleted.")
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Confirm a deletion of more than a third of the queues or flavors.

    Their objects are deleted in the cluster. Until you confirm it, the last configuration stays in effect.
    """
    with connect(server) as client:
        if deletion is not None and not dry_run:
            answer = client.post(f"{PATH}/confirm", {"id": deletion})
            typer.echo(f"the deletion of {counted(answer['count'], 'object')} is confirmed")
            return
        waits = client.get(PATH)["deletion"]
    if waits is None or deletion not in (None, waits["id"]):
        raise CommandFailed("no deletion waits for a confirmation", Exit.NOT_FOUND)
    for line in _deletion(waits):
        typer.echo(line)


def described(report: Json) -> list[str]:
    """The report of the leader, in lines."""
    if report["owner"] == "database":
        return ["the database owns the configuration"]
    lines = [f"objects of the cluster own the configuration ({report['owner']})"]
    if report["at"] is None:
        lines.append("no leader has followed them yet")
    for one in report["sources"]:
        version = f" in {one['version']}" if one["version"] else ""
        unknown = f"; NOT KNOWN: {one['fault']}" if one["fault"] else ""
        lines.append(f"  {one['resource']}: {counted(one['objects'], 'object')}{version}{unknown}")
    for one in report["faulty"]:
        name = "/".join(filter(None, (one["namespace"], one["name"])))
        acts = "an earlier version is in effect" if one["acts"] else "it has no effect"
        lines.append(f"{one['kind']} {name}: {acts}: {one['error']}")
    if (more := report["faultyCount"] - len(report["faulty"])) > 0:
        lines.append(f"and {more} more with errors")
    lines += [f"{name}: its edit waits until no object is edited" for name in report["waiting"]]
    return lines + (_deletion(report["deletion"]) if report["deletion"] else [])


def _deletion(waits: Json) -> list[str]:
    more = waits["count"] - len(waits["objects"])
    return [
        f"{counted(waits['count'], 'object')} would be deleted:",
        *(f"  {name}" for name in waits["objects"]),
        *([f"  and {more} more"] if more > 0 else []),
        f"to delete: queuectl config confirm {waits['id']}",
    ]
