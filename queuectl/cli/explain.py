"""``queuectl explain``: why a workload is where it is, in a plain sentence first."""

from __future__ import annotations

import re
import shutil
import sys
from enum import StrEnum
from textwrap import wrap
from typing import Annotated, Any, Final

import typer

from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_path
from queuectl.cli.render import age, emit_json, emit_yaml, until, used
from queuectl.domain.words import counted

_HEAD: Final = re.compile(r"[A-Z][A-Za-z ]{1,7}: +| +- | +")
_NEXT: Final = {
    ("Held", "Held"): "release {} lets it queue again",
    ("Deactivated", "Deactivated"): "activate {} lets it queue again",
    ("Backoff", "Backoff"): "requeue {} queues it at once",
}

Kind = Annotated[
    str | None, typer.Option(help="Kind of the job, when several have this name: Job, PyTorchJob.")
]


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def explain_command(
    workload: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of the job.")],
    namespace: Namespace = None,
    kind: Kind = None,
    output: Annotated[Form, typer.Option("--output", "-o")] = Form.TEXT,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Say why a workload waits or where it runs, and what would change that."""
    with connect(server) as client:
        body = client.get(f"{workload_path(workload, namespace)}/explain", kind=kind)
    match output:
        case Form.JSON:
            emit_json(body)
        case Form.YAML:
            emit_yaml(body)
        case Form.TEXT:
            typer.echo("\n".join(folded(explain_lines(body))))


def folded(lines: list[str]) -> list[str]:
    """Lines folded between words, where a terminal would fold them anywhere. Into a pipe they go as they are."""
    if not sys.stdout.isatty():
        return lines
    width = max(shutil.get_terminal_size().columns, 40)
    return [part for line in lines for part in _parts(line, width)]


def _parts(line: str, width: int) -> list[str]:
    """Lines after the first start below the text of the first."""
    head = _HEAD.match(line)
    indent = " " * len(head[0]) if head else ""
    folded = wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return folded or [""]


def explain_lines(body: dict[str, Any]) -> list[str]:
    """The explanation as text: the sentence, the reason, what is in the way, what would help, the place."""
    lines = [body["sentence"], "", f"State:   {body['state']}", f"Reason:  {body['code']}"]
    more = body["details"].get("also") or []
    lines += [f"And:     {other['code']}: {other['message']}" for other in more]
    if body["position"] is not None:
        lines.append(f"In line: number {body['position']}")
        lines.append(f"Starts:  {_start(body['estimatedStart'])}")
    if advice := _NEXT.get((body["state"], body["code"])):
        lines.append(f"Next:    queuectl {advice.format(body['workload'])}")
    lines += obstacle_lines(body)
    lines += placement_lines(body["placement"], leaving=body["state"] == "Evicting")
    lines += _use_lines(body["use"])
    if body["reservation"] is not None:
        leaving = ", ".join(body["reservation"]["victimNames"]) or "nobody"
        lines.append(f"Held for it until {body['reservation']['expiresAt']}; leaving: {leaving}")
    return lines


def obstacle_lines(body: dict[str, Any]) -> list[str]:
    """What keeps a gang from starting, and what would help, where that was looked into."""
    lines = []
    if body["conflict"]:
        only = len(body["conflict"]) == 1
        lines += ["", "What stands in its way:" if only else "What stands in its way, together:"]
        lines += [f"  - {obstacle['message']}" for obstacle in body["conflict"]]
    if body["ways"]:
        lines += ["", "Any one of these would let it start:"]
        lines += [f"  - {way['message']}" for way in body["ways"]]
    return lines


def _start(moment: str | None) -> str:
    """An estimate is not a promise."""
    return "nobody knows when" if moment is None else f"in about {until(moment)} ({moment})"


def _use_lines(use: dict[str, Any] | None) -> list[str]:
    """What it does with its GPUs; how old the look is, because an old one says little."""
    if use is None:
        return []
    seen = f"{use['covered']:.0%} of its GPUs seen, looked {age(use['lookedAt'])} ago"
    return [
        f"GPU use: {use['state']} for {age(use['since'])}: {use['message']}",
        f"  utilization {used(use)}; {seen}",
    ]


def placement_lines(placement: dict[str, Any] | None, *, leaving: bool = False) -> list[str]:
    """Where each podset sits, will, or does so until its pods are gone."""
    if placement is None:
        return []
    lines = [
        "",
        "It will run on:"
        if placement["planned"]
        else "It still holds:"
        if leaving
        else "It runs on:",
    ]
    for podset in placement["podSets"]:
        nodes = ", ".join(
            f"{node} ({pods})" if pods > 1 else node for node, pods in podset["nodes"].items()
        )
        flavors = ", ".join(sorted(set(podset["flavors"].values())))
        by = f" of flavor {flavors}" if flavors else ""
        lines.append(f"  {podset['name']}: {counted(podset['count'], 'pod')}{by} on {nodes}")
    return lines
