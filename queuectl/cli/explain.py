"""``queuectl explain``: the state of a workload, its reasons, and suggested fixes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from textwrap import wrap
from typing import Annotated, Any, Final, TypeVar

import typer

from queuectl.cli import complete, program
from queuectl.cli.client import DEFAULT_SERVER, Namespace, Server, connect, workload_path
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import age, emit_json, emit_yaml, length, overdue, until, used
from queuectl.domain.words import counted, some

Answer = TypeVar("Answer")
_HEAD: Final = re.compile(r"[A-Z][A-Za-z ]{1,7}: +| +- | +")
_SHOWN: Final = 5  # nodes or gangs in one line
_PROVED: Final = "optimal"
_NEXT: Final = {
    ("Held", "Held"): "release {} queues it again",
    ("Deactivated", "Deactivated"): "activate {} queues it again",
    ("Backoff", "Backoff"): "requeue {} queues it at once",
}

Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="NAME or NAMESPACE/NAME of the job.",
        autocompletion=complete.workloads,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Kind of the job, if several jobs have this name, for example Job or PyTorchJob.",
    ),
]


class ExplanationFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def explain_command(
    workload: Workload,
    namespace: Namespace = None,
    kind: Kind = None,
    output: Annotated[ExplanationFormat, OUTPUT] = ExplanationFormat.TEXT,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Show why a workload is pending, with suggested fixes, or where it runs."""
    with connect(server) as client:
        body = client.get(f"{workload_path(workload, namespace)}/explain", kind=kind)
    emit_explanation(body, output, explain_lines)


def emit_explanation(
    body: Answer, output: ExplanationFormat, lines: Callable[[Answer], list[str]]
) -> None:
    """Print an answer about one workload. ``lines``: its text, which is wrapped to the terminal."""
    match output:
        case ExplanationFormat.JSON:
            emit_json(body)
        case ExplanationFormat.YAML:
            emit_yaml(body)
        case ExplanationFormat.TEXT:
            typer.echo("\n".join(folded(lines(body))))


def folded(lines: list[str]) -> list[str]:
    """Lines wrapped between words to the width of the terminal; unchanged for a pipe."""
    if not sys.stdout.isatty():
        return lines
    width = max(shutil.get_terminal_size().columns, 40)
    return [part for line in lines for part in _parts(line, width)]


def _parts(line: str, width: int) -> list[str]:
    """Wrapped lines are indented to the text of the first line."""
    head = _HEAD.match(line)
    indent = " " * len(head[0]) if head else ""
    folded = wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return folded or [""]


def explain_lines(body: dict[str, Any]) -> list[str]:
    """The explanation as text: a sentence, the reason, blocking constraints, suggested fixes, the placement."""
    lines = [body["sentence"], "", f"State:    {body['state']}", f"Reason:   {body['code']}"]
    more = body["details"].get("also") or []
    lines += [f"Also:     {other['code']}: {other['message']}" for other in more]
    if prices := body["details"].get("flavorPrices"):
        lines.append(
            f"Prices:   {', '.join(map(_price, prices))}; the cheapest flavor that fits is used"
        )
    if body["position"] is not None:
        lines.append(f"Position: {body['position']}")
        lines.append(f"Expected: {_start(body['expectedStart'])}")
        lines += _planned_lines(body["plannedStart"])
    lines += _run_time_lines(body["runTime"])
    if advice := _NEXT.get((body["state"], body["code"])):
        lines.append(f"Next:     {program.called()} {advice.format(body['workload'])}")
    lines += obstacle_lines(body)
    lines += placement_lines(body["placement"], leaving=body["state"] == "Evicting")
    lines += _use_lines(body["use"])
    if body["reservation"] is not None:
        lines.append(_reserved(body["reservation"], body["checks"]))
    return lines


def _reserved(reservation: dict[str, Any], checks: list[dict[str, Any]]) -> str:
    """Until when the nodes of a gang are reserved, and for what."""
    if reservation["expiresAt"] is None:
        awaited = ", ".join(check["name"] for check in checks if check["state"] != "Ready")
        return f"Reserved until its admission checks are ready: {awaited}"
    victims = ", ".join(reservation["victimNames"]) or "none"
    return f"Reserved until {reservation['expiresAt']}; victims: {victims}"


def _price(flavor: dict[str, Any]) -> str:
    """A flavor with the price of a GPU hour."""
    price = "no price" if flavor["gpuHour"] is None else f"{flavor['gpuHour']:g} for a GPU hour"
    return f"{flavor['flavor']} ({price})"


def obstacle_lines(body: dict[str, Any]) -> list[str]:
    """Blocking constraints and suggested fixes of a gang, where the server has computed them."""
    lines = []
    if under_way := body.get("underWay"):
        lines += ["", "Under way:", *(f"  - {sentence}" for sentence in under_way)]
    if body["conflict"]:
        several = len(body["conflict"]) > 1
        lines += ["", f"Blocking constraint{'s, together' if several else ''}{unproved(body)}:"]
        lines += [f"  - {obstacle['message']}" for obstacle in body["conflict"]]
    if body["suggestedFixes"]:
        several = len(body["suggestedFixes"]) > 1
        lines += ["", f"Suggested fix{'es, each enough by itself' if several else ''}:"]
        lines += [f"  - {fix['message']}" for fix in body["suggestedFixes"]]
    return lines


def unproved(gang: Mapping[str, Any]) -> str:
    """What to add to the title of its blocking constraints if the solver has not proved that each of them blocks it."""
    proved = gang.get("conflictProof", _PROVED) == _PROVED  # an older server does not state it
    return (
        ""
        if proved
        else " (the solver reached its limit, so the list can include constraints that do not block it)"
    )


def _start(start: dict[str, Any] | None) -> str:
    """An expected start, in words."""
    if start is None:
        return "start not known"
    if overdue(start):
        return "overdue"
    last = f"within {until(start['p90'])}" if start["p90"] is not None else "no known limit"
    return f"start in about {until(start['median'])} (median), {last} with a probability of 90%"


def _planned_lines(planned: dict[str, Any] | None) -> list[str]:
    """The planned start of a gang: the time, the nodes, and the gangs that end before."""
    if planned is None:
        return []
    nodes = {node for podset in planned["podSets"] for node in podset["nodes"]}
    lines = [f"Planned:  start in {until(planned['at'])} on {some(sorted(nodes), _SHOWN)}"]
    ends = [f"{each['workload']} (in {until(each['endsAt'])})" for each in planned["awaits"]]
    if ends:
        lines.append(f"          after the end of {some(ends, _SHOWN)}")
    return lines


def _run_time_lines(run_time: dict[str, Any] | None) -> list[str]:
    """The expected run time of a gang, its source, and how good it is."""
    if run_time is None:
        return []
    seconds = length(run_time["seconds"])
    if run_time["source"] == "Limit":
        line = f"Run time: at most {seconds}, its limit"
    elif run_time["source"] == "Stated":
        line = f"Run time: {seconds}, as the job states"
    else:
        line = f"Run time: at most {seconds} with a probability of {run_time['quantile']:.0%}"
    if (median := run_time["median"]) is not None:
        line += f"; median {length(median)}, learned from {counted(run_time['gangs'], 'gang')}"
    if (error := run_time["error"]) is not None:
        line += f"; median error {length(error)}"
    return [line]


def _use_lines(use: dict[str, Any] | None) -> list[str]:
    """GPU use of a gang, with the age of the evaluation."""
    if use is None:
        return []
    seen = f"{use['covered']:.0%} of its GPUs have metrics, evaluated {age(use['lookedAt'])} ago"
    return [
        f"GPU use: {use['state']} for {age(use['since'])}: {use['message']}",
        f"  utilization {used(use)}; {seen}",
    ]


def placement_lines(placement: dict[str, Any] | None, *, leaving: bool = False) -> list[str]:
    """The placement of each PodSet: planned, current, or until the pods are deleted."""
    if placement is None:
        return []
    lines = [
        "",
        "It will run on:"
        if placement["planned"]
        else "It still occupies:"
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
