"""``queuectl config``: all configuration as one stream of YAML, and what differs from files that should hold it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
import yaml

from queuectl.api.kinds import BY_KIND, CONFIG_KINDS, PREFIX
from queuectl.cli.apply import ORDER, check, read, shown
from queuectl.cli.client import DEFAULT_SERVER, Client, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.objects.config_diff import Difference
from queuectl.objects.documents import Document

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
        told = client.post(f"{PREFIX}/dryrun", {"items": [_placed(d, scope) for d in documents]})
        stored = {_key(document) for document in _stored(client)}
    differ = False
    for document, answer in zip(documents, told["objects"], strict=True):
        if answer["result"] == "unchanged":
            continue
        differ = True
        missing = answer["result"] == "created"
        typer.echo(f"{shown(document, scope)} {'is not on the server' if missing else 'differs'}")
        for change in answer["changes"]:
            line = Difference(change["field"], change["before"], change["after"])
            typer.echo(f"    {line}")
    extra = stored - {_key(_placed(document, scope)) for document in documents}
    for kind, namespace, name in sorted(extra):
        where = f" in {namespace}" if namespace else ""
        typer.echo(f"{kind.lower()}/{name}{where} is in none of the files")
    if differ or extra:
        raise CommandFailed("the server and the files differ", Exit.CONFLICT)


def _placed(document: Document, namespace: str) -> Json:
    """With the namespace and the name that `apply` would give it."""
    kind = BY_KIND[document.kind]
    metadata: dict[str, Any] = {**(document.body.get("metadata") or {})}
    if kind.namespaced:
        metadata.setdefault("namespace", namespace)
    return {**document.body, "metadata": metadata}


def _key(document: Json) -> tuple[str, str, str]:
    metadata = document.get("metadata") or {}
    single = BY_KIND[document["kind"]].single
    name = str(metadata.get("name") or ("default" if single else ""))
    return document["kind"], str(metadata.get("namespace") or ""), name


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
