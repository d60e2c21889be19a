"""``queuectl plan``: what would start now, and why the rest would not, for objects in files.

The planner is the controller's own; nothing is read from or written to a cluster.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from queuectl.cli.render import natural_width
from queuectl.domain.errors import BadInput
from queuectl.domain.plan import Plan
from queuectl.objects.config import read_configuration
from queuectl.objects.documents import Document, read_documents
from queuectl.objects.plans import plan_document
from queuectl.objects.snapshots import Given, read_snapshot
from queuectl.objects.times import parse_time

BAD_INPUT = 2
DEFECT = 1


class Output(StrEnum):
    JSON = "json"
    TABLE = "table"


def plan_command(
    file: Annotated[
        list[str], typer.Option("-f", "--file", help="YAML or JSON of objects; - reads stdin.")
    ],
    output: Annotated[Output, typer.Option("-o", "--output", help="json or table")] = Output.TABLE,
    now: Annotated[
        str | None,
        typer.Option(help="RFC 3339 time or unix seconds; default: the newest time in the input"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Kueue Configuration file with the manager's settings")
    ] = None,
) -> None:
    """Plan offline: Nodes, Pods, queues, jobs and Workloads in; who starts where, who waits and why out."""
    try:
        settings = _settings(config)
        documents = [document for name in file for document in _read(name)]
        given = read_snapshot(documents, _clock(now))
    except BadInput as error:
        _fail(BAD_INPUT, str(error))
    plan = _checked_plan(given)
    document = plan_document(given.snapshot, plan, given.ignored, (*settings, *given.warnings))
    if output is Output.JSON:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        _print_tables(document)


def _fail(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def _checked_plan(given: Given) -> Plan:
    from queuectl.planner import plan  # the solver takes a moment to load
    from queuectl.planner.verify import verify

    decided = plan(given.snapshot)
    if decided.cut:
        _fail(DEFECT, "planning took too long and was cut short; nothing is known for sure")
    violations = verify(given.snapshot, decided)
    if violations:
        listed = "; ".join(str(violation) for violation in violations)
        _fail(DEFECT, f"internal error: the plan failed its verification: {listed}")
    return decided


def _read(name: str) -> list[Document]:
    if name == "-":
        return read_documents(sys.stdin.buffer.read(), "stdin")
    try:
        return read_documents(Path(name).read_bytes(), name)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}") from None


def _settings(path: Path | None) -> tuple[str, ...]:
    """Warnings of the settings file."""
    if path is None:
        return ()
    return tuple(w for document in _read(str(path)) for w in read_configuration(document))


def _clock(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else parse_time(text)
    except ValueError as error:
        raise BadInput(f"--now: {error}") from None


# ---- tables


def _print_tables(document: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    starts = Table("WORKLOAD", "KIND", "PODSET", "PODS", title="Start now", box=None)
    starts.add_column("NODES", overflow="fold", ratio=1)
    for gang in document["admitted"]:
        for podset in gang["podSets"]:
            starts.add_row(gang["workload"], gang["kind"], podset["name"], *_where(podset))
    victims = Table("WORKLOAD", "FOR", "REASON", "LOST GPU-S", title="Preempted", box=None)
    for victim in document["preempted"]:
        lost = str(victim["cost"]["lostWork"]) if victim["cost"] else "-"
        victims.add_row(victim["workload"], victim["for"] or "-", victim["reason"], lost)
    waits = Table("WORKLOAD", "REASON", title="Wait", box=None)
    waits.add_column("WHY", overflow="fold", ratio=1)
    for gang in document["pending"]:
        reason = gang["reasons"][0]
        waits.add_row(gang["workload"], reason["code"], reason["message"])
    tables = [table for table in (starts, victims, waits) if table.row_count]
    if (
        not console.is_terminal
    ):  # a terminal's last column is folded; a program wants one line a row
        console.width = max([console.width, *map(natural_width, tables)])
    for table in tables:
        console.print(table)
        console.print()
    console.print(_summary(document), markup=False)
    for warning in document["warnings"]:
        console.print(f"warning: {warning}", markup=False)


def _where(podset: dict[str, Any]) -> tuple[str, str]:
    nodes = podset["nodes"]
    listed = ", ".join(f"{node}x{count}" if count > 1 else node for node, count in nodes.items())
    return str(sum(nodes.values())) if nodes else "-", listed or "(quota only)"


def _summary(document: dict[str, Any]) -> str:
    counts = {key: len(document[key]) for key in ("admitted", "preempted", "pending", "ignored")}
    words = ", ".join(f"{count} {key}" for key, count in counts.items())
    return f"{words}; proof: {document['proof']}"
