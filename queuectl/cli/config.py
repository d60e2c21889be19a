"""``queuectl config``: all configuration as YAML, its differences from files, and prices from a file of OpenCost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.followed import confirm_command, owner_command
from queuectl.cli.opencost import read_prices
from queuectl.cli.render import as_yaml
from queuectl.cli.targets import ORDER, Files, Target, addressed, check, read_objects
from queuectl.client.client import Client
from queuectl.objects.configuration.config_kinds import (
    BY_KIND,
    CONFIG_KINDS,
    CUSTOM_KINDS,
    ONLY_NAME,
    PREFIX,
)
from queuectl.objects.configuration.diff import Difference

app = typer.Typer(
    name="config",
    help="Export all configuration, compare it with files, or read the prices of OpenCost.",
    no_args_is_help=True,
)


app.command("owner")(owner_command)
app.command("confirm")(confirm_command)


@app.command()
def export(
    custom: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Print only the kinds that have a CRD, for `kubectl apply -f -`.",
        ),
    ] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print all configuration as YAML.

    `queuectl apply` accepts the output. It has no resource versions.
    """
    with connect(server) as client:
        documents = stored(client)
    if custom:
        documents = [body for body in documents if BY_KIND[body["kind"]] in CUSTOM_KINDS]
    typer.echo(as_yaml(*documents), nl=False)


@app.command()
def diff(
    files: Files,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Compare the server with files.

    Shows the changes that `queuectl apply` would make, and the objects that no file has. The exit code is 4 if they differ.
    """
    documents = read_objects(files)
    check(documents)
    scope = default_namespace()
    with connect(server) as client:
        answered = client.post(
            f"{PREFIX}/dryrun", {"items": [addressed(d, scope) for d in documents]}
        )
        on_server = {Target.of(body, "") for body in stored(client)}
    targets = [Target.of(document.body, scope) for document in documents]
    differ = False
    for target, answer in zip(targets, answered["objects"], strict=True):
        if answer["result"] == "unchanged":
            continue
        differ = True
        missing = answer["result"] == "created"
        typer.echo(f"{target} {'is missing on the server' if missing else 'differs'}")
        for change in answer["changes"]:
            line = Difference(change["field"], change["before"], change["after"])
            typer.echo(f"    {line}")
    extra = on_server - set(targets)
    for target in sorted(extra, key=lambda each: (each.kind.kind, each.namespace, each.name)):
        typer.echo(f"{target} is in no file")
    if differ or extra:
        raise typer.Exit(Exit.CONFLICT)


@app.command()
def prices(
    file: Annotated[
        Path,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="Custom pricing of OpenCost: its default.json, or the CSV of its CSV provider.",
        ),
    ],
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print the Configuration with the GPU prices of an OpenCost file.

    Nothing is stored: `queuectl apply -f -` stores the output.
    """
    try:
        found = read_prices(file.read_text(encoding="utf-8-sig"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file}: {error}", Exit.BAD_INPUT) from error
    for warning in found.warnings:
        typer.echo(f"warning: {warning}", err=True)
    with connect(server) as client:
        document = _configuration(client)
    settings = document.setdefault("queuectl", None) or {}
    accounting = {**(settings.get("accounting") or {}), "prices": list(found.prices)}
    document["queuectl"] = {**settings, "accounting": accounting}
    typer.echo(as_yaml(document), nl=False)


def _configuration(client: Client) -> Json:
    """The Configuration of the server, or an empty one."""
    kind = BY_KIND["Configuration"]
    for item in client.get(kind.collection())["items"]:
        return _bare(item)
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": kind.kind,
        "metadata": {"name": ONLY_NAME},
    }


def stored(client: Client) -> list[Json]:
    """All objects of the server, in an order for `apply`."""
    kinds = sorted(CONFIG_KINDS, key=lambda kind: ORDER.index(kind.kind))
    return [_bare(item) for kind in kinds for item in client.get(kind.collection())["items"]]


def _bare(document: Json) -> Json:
    """The object as it was applied, without what the server adds."""
    metadata = {
        k: v for k, v in document["metadata"].items() if k != "resourceVersion" and v is not None
    }
    applied = {name: field for name, field in document.items() if name != "status"}
    return {**applied, "metadata": metadata}
