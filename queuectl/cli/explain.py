"""``queuectl explain``: why a workload is where it is, in a plain sentence first."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_path
from queuectl.cli.render import age, emit_json, emit_yaml, used
from queuectl.domain.words import counted

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
            typer.echo("\n".join(explain_lines(body)))


def explain_lines(body: dict[str, Any]) -> list[str]:
    """The explanation as text: the sentence, the reason, what is in the way, what would help, the place."""
    lines = [body["sentence"], "", f"State:   {body['state']}", f"Reason:  {body['code']}"]
    more = body["details"].get("also") or []
    lines += [f"And:     {other['code']}: {other['message']}" for other in more]
    if body["position"] is not None:
        lines.append(f"In line: number {body['position']}")
    if body["conflict"]:
        only = len(body["conflict"]) == 1
        lines += ["", "What stands in its way:" if only else "What stands in its way, together:"]
        lines += [f"  - {obstacle['message']}" for obstacle in body["conflict"]]
    if body["ways"]:
        lines += ["", "Any one of these would let it start:"]
        lines += [f"  - {way['message']}" for way in body["ways"]]
    lines += placement_lines(body["placement"])
    lines += _use_lines(body["use"])
    if body["reservation"] is not None:
        leaving = ", ".join(body["reservation"]["victimNames"]) or "nobody"
        lines.append(f"Held for it until {body['reservation']['expiresAt']}; leaving: {leaving}")
    return lines


def _use_lines(use: dict[str, Any] | None) -> list[str]:
    """What it does with its GPUs; how old the look is, because an old one says little."""
    if use is None:
        return []
    seen = f"{use['covered']:.0%} of its GPUs seen, looked {age(use['lookedAt'])} ago"
    return [
        f"GPU use: {use['state']} for {age(use['since'])}: {use['message']}",
        f"  utilization {used(use)}; {seen}",
    ]


def placement_lines(placement: dict[str, Any] | None) -> list[str]:
    """Where each podset sits, or will."""
    if placement is None:
        return []
    lines = ["", "It will run on:" if placement["planned"] else "It runs on:"]
    for podset in placement["podSets"]:
        nodes = ", ".join(
            f"{node} ({pods})" if pods > 1 else node for node, pods in podset["nodes"].items()
        )
        flavors = ", ".join(sorted(set(podset["flavors"].values())))
        by = f" of flavor {flavors}" if flavors else ""
        lines.append(f"  {podset['name']}: {counted(podset['count'], 'pod')}{by} on {nodes}")
    return lines
