"""``queuectl config``: all configuration as YAML, and its differences from files."""

from __future__ import annotations

import typer
import yaml

from queuectl.api.kinds import CONFIG_KINDS, PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Client, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.targets import ORDER, Files, Target, addressed, check, read
from queuectl.objects.configuration.diff import Difference

app = typer.Typer(
    name="config", help="Export all configuration, or compare it with files.", no_args_is_help=True
)


@app.command()
def export(server: Server = DEFAULT_SERVER) -> None:
    """Print all configuration as YAML.

    `queuectl apply` accepts the output. It has no resource versions.
    """
    with connect(server) as client:
        documents = _stored(client)
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def diff(
    files: Files,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Compare the server with files.

    Shows the changes that `queuectl apply` would make, and the objects that no file has. The exit code is 4 if there is a
    difference.
    """
    documents = [document for file in files for document in read(file)]
    check(documents)
    scope = default_namespace()
    with connect(server) as client:
        answered = client.post(
            f"{PREFIX}/dryrun", {"items": [addressed(d, scope) for d in documents]}
        )
        stored = {Target.of(body, "") for body in _stored(client)}
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
    extra = stored - set(targets)
    for target in sorted(extra, key=lambda each: (each.kind.kind, each.namespace, each.name)):
        typer.echo(f"{target} is in no file")
    if differ or extra:
        raise CommandFailed("the server and the files differ", Exit.CONFLICT)


def _stored(client: Client) -> list[Json]:
    """All objects of the server, in an order for `apply`."""
    kinds = sorted(CONFIG_KINDS, key=lambda kind: ORDER.index(kind.kind))
    return [_bare(item) for kind in kinds for item in client.get(kind.collection())["items"]]


def _bare(item: Json) -> Json:
    metadata = {
        k: v for k, v in item["metadata"].items() if k != "resourceVersion" and v is not None
    }
    return {**item, "metadata": metadata}
