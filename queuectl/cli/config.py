"""``queuectl config``: all configuration as one stream of YAML, and what differs from files that should hold it."""

from __future__ import annotations

from typing import Annotated, Final

import typer
import yaml

from queuectl.api.kinds import CONFIG_KINDS, PREFIX
from queuectl.cli.client import DEFAULT_SERVER, Client, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.targets import ORDER, Target, addressed, check, read
from queuectl.objects.configuration.diff import Difference

_HEAD: Final = ("apiVersion", "kind", "metadata")  # the database keeps no order; files have one

app = typer.Typer(
    name="config", help="All configuration: keep it in files, and compare.", no_args_is_help=True
)


@app.command()
def export(server: Server = DEFAULT_SERVER) -> None:
    """Print every configuration object as YAML that `queuectl apply` reads. Versions are left out: files outlive them."""
    with connect(server) as client:
        documents = _stored(client)
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def diff(
    files: Annotated[
        list[str], typer.Option("--filename", "-f", help="YAML or JSON file; - is stdin.")
    ],
    server: Server = DEFAULT_SERVER,
) -> None:
    """Say what `apply` of these files would change, and what the server has beside them. Exit status 4 when they differ."""
    documents = [document for file in files for document in read(file)]
    check(documents)
    scope = default_namespace()
    with connect(server) as client:
        told = client.post(f"{PREFIX}/dryrun", {"items": [addressed(d, scope) for d in documents]})
        stored = {Target.of(body, "") for body in _stored(client)}
    targets = [Target.of(document.body, scope) for document in documents]
    differ = False
    for target, answer in zip(targets, told["objects"], strict=True):
        if answer["result"] == "unchanged":
            continue
        differ = True
        missing = answer["result"] == "created"
        typer.echo(f"{target} {'is not on the server' if missing else 'differs'}")
        for change in answer["changes"]:
            line = Difference(change["field"], change["before"], change["after"])
            typer.echo(f"    {line}")
    extra = stored - set(targets)
    for target in sorted(extra, key=lambda each: (each.kind.kind, each.namespace, each.name)):
        typer.echo(f"{target} is in none of the files")
    if differ or extra:
        raise CommandFailed("the server and the files differ", Exit.CONFLICT)


def _stored(client: Client) -> list[Json]:
    """All of the server's, in the order in which they can be applied."""
    kinds = sorted(CONFIG_KINDS, key=lambda kind: ORDER.index(kind.kind))
    return [_bare(item) for kind in kinds for item in client.get(kind.collection())["items"]]


def _bare(item: Json) -> Json:
    metadata = {
        k: v for k, v in item["metadata"].items() if k != "resourceVersion" and v is not None
    }
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": metadata,
        **_rest(item),
    }


def _rest(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in _HEAD}
