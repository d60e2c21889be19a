"""``queuectl whatif``: the plan after a change, compared with the plan without it. Nothing is changed.

The server computes both plans from the state of the cluster. ``queuectl plan`` computes a plan from files only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from queuectl.cli import complete
from queuectl.cli.apply import excess_line
from queuectl.cli.client import DEFAULT_SERVER, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import folded, obstacle_lines, placement_lines
from queuectl.cli.options import OUTPUT, files_option
from queuectl.cli.render import Column, emit_json, emit_table, emit_yaml
from queuectl.cli.targets import (
    ObjectNamespace,
    Target,
    addressed,
    ignored_lines,
    is_configuration,
    placed,
    read_objects,
    target_kind,
)
from queuectl.client.client import Client
from queuectl.client.requests import WHAT_IF_SECONDS
from queuectl.domain.words import counted_gpus, gpu_count
from queuectl.objects.configuration.config_kinds import PREFIX
from queuectl.objects.documents import Document

_STARTS: Final = ("starts", "reserves")


class WhatIfFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def whatif_command(
    files: Annotated[
        list[str] | None,
        files_option(" with jobs to submit or configuration to apply"),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE,...",
            help="Nodes to drain. Can be repeated.",
            autocompletion=complete.nodes,
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=COUNT",
            help="Add COUNT nodes like this one, in the same domain. Can be repeated.",
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND/[NAMESPACE/]NAME",
            help="Configuration to delete. Can be repeated.",
        ),
    ] = None,
    namespace: ObjectNamespace = None,
    output: Annotated[WhatIfFormat, OUTPUT] = WhatIfFormat.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show which gangs would start, wait or be evicted after all given changes together. Nothing is changed.

    You need the right to create plans in all namespaces.

    The exit code is 4 if a job of the files would wait.
    """
    documents = read_objects(files or ())
    scope = namespace or default_namespace()
    asked = {
        **_submitted(documents, scope),
        "drain": [name for given in drain or () for name in given.split(",") if name],
        "add": [_more(given) for given in add or ()],
        "delete": [_to_delete(given, scope) for given in delete or ()],
    }
    if not any(asked.values()):
        message = "no change given: use -f, --drain, --add or --delete"
        raise CommandFailed(message, Exit.BAD_INPUT)
    with connect(server) as client:
        body = tried(client, **asked)
    match output:
        case WhatIfFormat.JSON:
            emit_json(body)
        case WhatIfFormat.YAML:
            emit_yaml(body)
        case WhatIfFormat.TABLE:
            _show(body)
    waits = [each for each in gangs(body) if each["submitted"] and each["outcome"] not in _STARTS]
    raise typer.Exit(Exit.CONFLICT if waits else Exit.OK)


def tried(client: Client, **changes: Any) -> Json:
    """The answer of the server to ``POST plans``."""
    return client.post(f"{PREFIX}/plans", changes, WHAT_IF_SECONDS)


def gangs(body: Json) -> list[Json]:
    """All gangs of an answer."""
    return [*body["starts"], *body["waits"], *body["leaves"]]


# ---- the request


def _submitted(documents: Iterable[Document], namespace: str) -> Json:
    """The jobs and the configuration of documents. ``namespace``: the default."""
    sorted_out: Json = {"submit": [], "config": []}
    for document in documents:
        if is_configuration(document):
            sorted_out["config"].append(addressed(document, namespace))
        else:
            sorted_out["submit"].append(placed(document.body, namespace))
    return sorted_out


def _more(argument: str) -> Json:
    like, _, count = argument.rpartition("=")
    if not like or not count.isdecimal():
        message = f"--add {argument!r}: not of the form NODE=COUNT, for example n7=4"
        raise CommandFailed(message, Exit.BAD_INPUT)
    return {"like": like, "count": int(count)}


def _to_delete(argument: str, namespace: str) -> Json:
    word, _, rest = argument.partition("/")
    where, _, name = rest.rpartition("/")
    kind = target_kind(word, "use `queuectl preempt --dry-run`")
    if not name or (where and not kind.namespaced):
        form = f"{word}/NAMESPACE/NAME" if kind.namespaced else f"{word}/NAME"
        raise CommandFailed(f"--delete {argument!r}: not of the form {form}", Exit.BAD_INPUT)
    return Target(kind, name, (where or namespace) if kind.namespaced else "").key


# ---- the output


def _show(body: Json) -> None:
    for gang in gangs(body):
        if gang["submitted"]:
            typer.echo("\n".join([*folded(_sentence(gang)), ""]))
    show_other_gangs(body)
    typer.echo("")
    rows = [{"when": "before", **body["before"]}, {"when": "after", **body["after"]}]
    emit_table(_COUNTS, rows, wide=False)


def show_other_gangs(body: Json) -> None:
    """Print the gangs of the cluster whose outcome changes, exceeded quotas, and warnings."""
    others = [each for each in gangs(body) if not each["submitted"]]
    changed = [each for each in others if each["outcome"] != each["before"]]
    if changed:
        emit_table(_OTHERS, changed, wide=False)
    else:
        typer.echo("no change for other gangs")
    for excess in body["overQuota"]:
        typer.echo(excess_line(excess))
    for warning in body["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    for line in ignored_lines(body["ignored"]):
        typer.echo(line, err=True)


def _sentence(gang: Json) -> list[str]:
    """The outcome of a submitted gang, with its placement or its reason."""
    who = f"{gang['workload']} ({counted_gpus(gang['gpus'])})"
    match gang["outcome"]:
        case "starts":
            return [f"{who} would start at once.", *placement_lines(gang["placement"])]
        case "reserves":
            head = f"{who} would start after its victims are evicted."
            return [head, *placement_lines(gang["placement"])]
        case _:
            return [f"{who} would wait: {_reason(gang)}", *obstacle_lines(gang)]


def _reason(gang: Json) -> str:
    reason = gang["reason"]
    return str((reason["message"] or reason["code"]) if reason is not None else "")


def _nodes(gang: Json) -> str:
    placement = gang["placement"]
    if placement is None:
        return ""
    names = dict.fromkeys(node for podset in placement["podSets"] for node in podset["nodes"])
    return f"on {', '.join(names)}" if names else ""


def _what(gang: Json) -> str:
    """The preemptor, the cost and the placement, or the reason."""
    cost, preemptor = gang["cost"], gang["preemptor"]
    parts = [
        f"preempted by {preemptor}" if preemptor is not None else _reason(gang),
        f"loses {cost['lostGpuSeconds']} GPU-seconds of work" if cost is not None else "",
        _nodes(gang),
    ]
    return "; ".join(part for part in parts if part)


_OTHERS: Final = (
    Column("WORKLOAD", lambda o: o["workload"]),
    Column("GPUS", lambda o: gpu_count(o["gpus"])),
    Column("BEFORE", lambda o: o["before"]),
    Column("AFTER", lambda o: o["outcome"]),
    Column("REASON AND PLACEMENT", _what, long=True),
)
_COUNTS: Final = (
    Column("", lambda o: o["when"]),
    Column("STARTED", lambda o: o["starts"]),
    Column("GPUS STARTED", lambda o: gpu_count(o["gpusStarted"])),
    Column("PENDING", lambda o: o["waits"]),
    Column("EVICTED", lambda o: o["leaves"]),
    Column("LOST GPU-SECONDS", lambda o: o["lostGpuSeconds"]),
)
