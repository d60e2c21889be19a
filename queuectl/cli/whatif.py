"""``queuectl whatif``: what the controller would do after a change, compared with what it does without. Nothing is written.

It is asked of a running server, which knows the nodes and who runs where; ``queuectl plan`` answers from files alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from queuectl.api.kinds import PREFIX
from queuectl.cli.apply import excess_line
from queuectl.cli.client import DEFAULT_SERVER, Client, Json, Server, connect
from queuectl.cli.connection import default_namespace
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.explain import folded, obstacle_lines, placement_lines
from queuectl.cli.render import Column, emit_json, emit_table, emit_yaml
from queuectl.cli.targets import Target, addressed, is_configuration, placed, read, target_kind
from queuectl.domain.words import counted
from queuectl.objects.documents import Document

PATIENCE_SECONDS: Final = 300.0  # others' questions come first, and the server rests after each
_STARTS: Final = ("starts", "reserves")


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def whatif_command(
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            help="YAML or JSON of jobs to submit and of configuration to apply; - is stdin.",
        ),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE,...",
            help="Nodes that are cordoned and lose their pods; may be given again.",
        ),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIKE=COUNT",
            help="So many more nodes like this one, in its rack; may be given again.",
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND/[NAMESPACE/]NAME",
            help="Configuration to delete; may be given again.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of what names none; the kubeconfig's without it."),
    ] = None,
    output: Annotated[
        Form, typer.Option("--output", "-o", help="Form of the answer.")
    ] = Form.TABLE,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Try out, all together, on a copy of what there is: who would start, wait, or give way to whom.

    Exit status 4: something in the files would wait.
    """
    documents = [document for file in files or () for document in read(file)]
    scope = namespace or default_namespace()
    asked = {
        **_submitted(documents, scope),
        "drain": [name for given in drain or () for name in given.split(",") if name],
        "add": [_more(given) for given in add or ()],
        "delete": [_condemned(given, scope) for given in delete or ()],
    }
    if not any(asked.values()):
        message = "what would change? Give -f, --drain, --add or --delete"
        raise CommandFailed(message, Exit.BAD_INPUT)
    with connect(server) as client:
        body = tried(client, **asked)
    match output:
        case Form.JSON:
            emit_json(body)
        case Form.YAML:
            emit_yaml(body)
        case Form.TABLE:
            _tell(body)
    waits = [each for each in gangs(body) if each["submitted"] and each["fate"] not in _STARTS]
    raise typer.Exit(Exit.CONFLICT if waits else Exit.OK)


def tried(client: Client, **asked: Any) -> Json:
    """What the server answers to a question of ``POST plans``."""
    return client.post(f"{PREFIX}/plans", asked, PATIENCE_SECONDS)


def gangs(body: Json) -> list[Json]:
    """All that an answer lists."""
    return [*body["starts"], *body["waits"], *body["leaves"]]


# ---- what is asked


def _submitted(documents: Iterable[Document], namespace: str) -> Json:
    """Jobs, and configuration; both in this namespace if they name none."""
    told: Json = {"submit": [], "config": []}
    for document in documents:
        if is_configuration(document):
            told["config"].append(addressed(document, namespace))
        else:
            told["submit"].append(placed(document.body, namespace))
    return told


def _more(given: str) -> Json:
    like, _, count = given.rpartition("=")
    if not like or not count.isdecimal():
        message = f"--add {given}: write the name of a node and how many more, like n7=4"
        raise CommandFailed(message, Exit.BAD_INPUT)
    return {"like": like, "count": int(count)}


def _condemned(given: str, namespace: str) -> Json:
    word, _, rest = given.partition("/")
    where, _, name = rest.rpartition("/")
    kind = target_kind(word, "what its leaving brings is told by `queuectl preempt --dry-run`")
    if not name or (where and not kind.namespaced):
        form = f"{word}/NAMESPACE/NAME" if kind.namespaced else f"{word}/NAME"
        raise CommandFailed(f"--delete {given}: write {form}", Exit.BAD_INPUT)
    return Target(kind, name, (where or namespace) if kind.namespaced else "").key


# ---- what is told


def _tell(body: Json) -> None:
    for gang in gangs(body):
        if gang["submitted"]:
            typer.echo("\n".join([*folded(_sentence(gang)), ""]))
    tell_others(body)
    typer.echo("")
    rows = [{"when": "without it", **body["before"]}, {"when": "with it", **body["after"]}]
    emit_table(_COUNTS, rows, wide=False)


def tell_others(body: Json) -> None:
    """Gangs that were there before and of which something else becomes; quotas that are exceeded, and warnings."""
    others = [each for each in gangs(body) if not each["submitted"]]
    changed = [each for each in others if each["fate"] != each["before"]]
    if changed:
        emit_table(_OTHERS, changed, wide=False)
    else:
        typer.echo("no gang that is there starts, waits or leaves otherwise than without it")
    for excess in body["overQuota"]:
        typer.echo(excess_line(excess))
    for warning in body["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


def _sentence(gang: Json) -> list[str]:
    """What would become of a submitted gang, where, or why not."""
    who = f"{gang['workload']} ({counted(gang['gpus'], 'GPU')})"
    match gang["fate"]:
        case "starts":
            return [f"{who} would start at once.", *placement_lines(gang["placement"])]
        case "reserves":
            head = f"{who} would start as soon as others have left its place."
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
    """For whom, at what price, and where; or why."""
    cost, ahead = gang["cost"], gang["givesWayTo"]
    parts = [
        f"gives way to {ahead}" if ahead is not None else _reason(gang),
        f"loses {cost['lostGpuSeconds']} GPU-seconds of work" if cost is not None else "",
        _nodes(gang),
    ]
    return "; ".join(part for part in parts if part)


_OTHERS: Final = (
    Column("WORKLOAD", lambda o: o["workload"]),
    Column("GPUS", lambda o: o["gpus"]),
    Column("WITHOUT IT", lambda o: o["before"]),
    Column("WITH IT", lambda o: o["fate"]),
    Column("WHY AND WHERE", _what, long=True),
)
_COUNTS: Final = (
    Column("", lambda o: o["when"]),
    Column("START", lambda o: o["starts"]),
    Column("THEIR GPUS", lambda o: o["gpusStarted"]),
    Column("WAIT", lambda o: o["waits"]),
    Column("LEAVE", lambda o: o["leaves"]),
    Column("LOST GPU-SECONDS", lambda o: o["lostGpuSeconds"]),
)
