"""``queuectl plan``: the plan for the objects in files, with the reasons of pending gangs.

The planner is the same as in the controller. The command does not connect to a cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from queuectl.cli import terminal
from queuectl.cli.explain import unproved
from queuectl.cli.options import OUTPUT, files_option
from queuectl.cli.render import natural_width
from queuectl.cli.targets import declared_kinds, ignored_lines, read_bytes, read_objects
from queuectl.distribution import version
from queuectl.domain.diagnosis import Diagnosis, SuggestedFix
from queuectl.domain.errors import BadInput
from queuectl.domain.snapshot import MakeRoom
from queuectl.domain.words import LAST_TIME
from queuectl.objects.configuration.queue_config import is_single
from queuectl.objects.documents import Document
from queuectl.objects.files.plans import plan_document
from queuectl.objects.files.refused_plans import RefusedPlanFile, same_plan, unpack
from queuectl.objects.times import parse_time

if TYPE_CHECKING:
    from rich.console import Console

    from queuectl.control.checked_plan import CheckedPlan
    from queuectl.offline.inputs import SnapshotInput


# ---- Tables


def print_tables(document: dict[str, Any]) -> None:
    """Print what the plan decides, then the diagnoses, a summary and the warnings."""
    console = terminal.console(soft_wrap=True)
    tables = [table for table in _tables(document) if table.row_count]
    if not console.is_terminal:
        # A terminal folds the last column; a program reads one line for each row.
        console.width = max([console.width, *map(natural_width, tables)])
    for table in tables:
        console.print(table)
        console.print()
    if document.get("moves") == []:
        proved = document["proof"] == "optimal"
        text = "no migration of running gangs makes room" + ("" if proved else " (not proved)")
        console.print(text)
    if document.get("mig") == []:
        console.print("no reconfiguration of MIG lets a pending gang start")
    for gang in document["pending"]:
        _print_diagnosis(console, gang)
    console.print(_summary(document))
    for line in ignored_lines(document["ignored"]):
        console.print(line)
    for warning in document["warnings"]:
        console.print(f"warning: {warning}")


def _tables(document: dict[str, Any]) -> Iterator[Table]:
    starts = Table("WORKLOAD", "KIND", "PODSET", "PODS", title="Admitted", box=None)
    starts.add_column("NODES", overflow="fold", ratio=1)
    for gang in document["admitted"]:
        for podset in gang["podSets"]:
            starts.add_row(gang["workload"], gang["kind"], podset["name"], *_where(podset))
    yield starts
    yield from _tables_of_evictions(document)
    yield from _tables_of_mig(document)
    planned = Table("WORKLOAD", "START", title="Planned starts", box=None)
    planned.add_column("NODES", overflow="fold", ratio=1)
    for gang in document["pending"]:
        if start := gang.get("plannedStart"):
            planned.add_row(gang["workload"], start["at"], _nodes(start["podSets"]))
    yield planned
    yield _table_of_reservations(document)
    waits = Table("WORKLOAD", "REASON", title="Pending", box=None)
    waits.add_column("MESSAGE", overflow="fold", ratio=1)
    for gang in document["pending"]:
        reason = gang["reasons"][0]
        waits.add_row(gang["workload"], reason["code"], reason["message"])
    yield waits


def _table_of_reservations(document: dict[str, Any]) -> Table:
    """The nodes of each Reservation, or the reason why it does not have all."""
    kept = Table("RESERVATION", "FROM", "UNTIL", title="Reservations", box=None)
    kept.add_column("NODES", overflow="fold", ratio=1)
    for each in document.get("reservations", ()):
        nodes = _node_list(each.get("nodes", {}))
        reason = each.get("reason", "")
        if "earliest" in each:
            reason += f"; the earliest start with a placement is {each['earliest']}"
        kept.add_row(each["name"], each["from"], each["until"], reason or nodes)
    return kept


def _tables_of_evictions(document: dict[str, Any]) -> Iterator[Table]:
    victims = Table("WORKLOAD", "FOR", "REASON", "LOST GPU-S", title="Preempted", box=None)
    for victim in document["preempted"]:
        lost = str(victim["cost"]["lostWork"]) if victim["cost"] else "-"
        victims.add_row(victim["workload"], victim["for"] or "-", victim["reason"], lost)
    yield victims
    title = "Preempted without the dry run"
    spared = Table("WORKLOAD", "FOR", "LOST GPU-S", title=title, box=None)
    for victim in document["spared"]:
        spared.add_row(victim["workload"], victim["for"], str(victim["cost"]["lostWork"]))
    yield spared
    moves = Table("WORKLOAD", "FOR", "FROM", "TO", "LOST GPU-S", title="Migrated", box=None)
    for move in document.get("moves", ()):
        lost = str(move["cost"]["lostWork"])
        moves.add_row(move["workload"], move["for"], _nodes(move["from"]), _nodes(move["to"]), lost)
    yield moves


def _tables_of_mig(document: dict[str, Any]) -> Iterator[Table]:
    gangs = Table("WORKLOAD", "TO", "LOST GPU-S", title="Migrate first", box=None)
    nodes = Table("NODE", "FROM", "TO", "FOR", title="Reconfigure", box=None)
    for change in document.get("mig", ()):
        for gang in change["gangs"]:
            gangs.add_row(gang["workload"], ", ".join(gang["nodes"]), str(gang["lostGpuSeconds"]))
        for node in change["nodes"]:
            nodes.add_row(node["node"], node["from"] or "-", node["to"], change["for"])
    yield gangs
    yield nodes


def _nodes(podsets: list[dict[str, Any]]) -> str:
    return "; ".join(_where(podset)[1] for podset in podsets)


def _print_diagnosis(console: Console, gang: dict[str, Any]) -> None:
    """Blocking constraints and suggested fixes of one gang, if it was explained."""
    if not gang["conflict"]:
        return
    console.print(f"{gang['workload']}: blocking constraints{unproved(gang)}")
    for obstacle in gang["conflict"]:
        console.print(f"  - {obstacle['message']}")
    fixes = [fix["message"] for fix in gang["suggestedFixes"]]
    console.print("  suggested fixes, each enough by itself:" if fixes else "")
    for message in fixes:
        console.print(f"    - {message}")


def _where(podset: dict[str, Any]) -> tuple[str, str]:
    nodes = podset["nodes"]
    return str(sum(nodes.values())) if nodes else "-", _node_list(nodes) or "(quota only)"


def _node_list(pods: Mapping[str, int | None]) -> str:
    """Each node with its number of pods; None = the whole node."""
    return ", ".join(
        f"{node}x{count}" if count is not None and count > 1 else node
        for node, count in pods.items()
    )


def _summary(document: dict[str, Any]) -> str:
    words = {"admitted": "admitted", "preempted": "preempted", "moves": "migrated"}
    words |= {"pending": "pending", "ignored": "ignored"}
    counts = ", ".join(f"{len(document[k])} {word}" for k, word in words.items() if k in document)
    return f"{counts}; proof: {document['proof']}"


# ---- The command

EXPLAINED = 10  # pending gangs, so that a file with a thousand of them is planned fast
BAD_INPUT = 2
DEFECT = 1


class PlanFormat(StrEnum):
    JSON = "json"
    TABLE = "table"


def plan_command(
    file: Annotated[
        list[str] | None,
        files_option(", or a directory of them"),
    ] = None,
    output: Annotated[PlanFormat, OUTPUT] = PlanFormat.TABLE,
    now: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Current time: RFC 3339 or Unix seconds. Default: the newest time in the input.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Configuration of queuectl, or the configuration file of Kueue's manager.",
        ),
    ] = None,
    kinds: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="QUEUECTL_KINDS_FILE",
            help="Custom job kinds: a file with the key jobKinds, for example the values of the chart.",
        ),
    ] = None,
    defrag: Annotated[
        bool,
        typer.Option(
            "--defrag",
            help="Also show running gangs to migrate so that a pending gang fits, whatever the policies of their queues.",
        ),
    ] = False,
    mig: Annotated[
        bool,
        typer.Option(
            "--mig",
            help="Also show the nodes whose MIG configuration could change so that a pending gang starts.",
        ),
    ] = False,
    explain: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=0,
            help="Show blocking constraints and suggested fixes of the first COUNT pending gangs. "
            "Default: 10 with -o json, else 0.",
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Repeat a refused plan from its snapshot (GET /api/v1/refusedplans/ID), and compare the two plans.",
        ),
    ] = None,
    gang: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE/NAME",
            help="With --defrag: make room for this gang. Default: the first gang that a migration helps.",
        ),
    ] = None,
) -> None:
    """Plan the nodes, pods, queues and jobs of files, without a cluster.

    Shows placements, victims, and pending gangs with reasons.
    """
    refused = None
    try:
        if snapshot is not None:
            alone = not (
                file or now is not None or config is not None or defrag or gang is not None or mig
            )
            _require_alone(alone=alone)
            refused = unpack(read_bytes(str(snapshot)), str(snapshot))
            snapshot_input = _alone(refused)
        else:
            snapshot_input = _given(file or [], config, now, kinds)
        if defrag or gang is not None:
            snapshot_input = _asking_for_room(snapshot_input, defrag=defrag, gang=gang)
    except BadInput as error:
        _fail(BAD_INPUT, str(error))
    checked = _checked(snapshot_input) if refused is None else _planned_again(refused)
    if explain is None:
        explain = EXPLAINED if output is PlanFormat.JSON else 0
    diagnoses = _diagnoses(checked, explain)
    document = plan_document(
        checked.original,
        checked.plan,
        snapshot_input.account.ignored,
        snapshot_input.warnings,
        diagnoses,
        snapshot_input.evicted,
        _reconfigurations(checked) if mig else None,
        snapshot_input.account.counts,
    )
    if output is PlanFormat.JSON:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        print_tables(document)


def _fail(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def _asking_for_room(
    snapshot_input: SnapshotInput, *, defrag: bool, gang: str | None
) -> SnapshotInput:
    """The same snapshot, with a request to find gangs to migrate."""
    if not defrag:
        raise BadInput(f"{gang}: unexpected argument; a gang is an argument of --defrag")
    uid = None
    if gang is not None:
        named = gang if "/" in gang else f"default/{gang}"
        pending = [p.workload for p in snapshot_input.snapshot.pending if p.workload.ref == named]
        if not pending:
            raise BadInput(f"--defrag {gang}: no pending workload has this name")
        if len(pending) > 1:
            kinds = ", ".join(sorted(workload.kind for workload in pending))
            raise BadInput(f"--defrag {gang}: several pending workloads have this name ({kinds})")
        uid = pending[0].uid
    return replace(
        snapshot_input, snapshot=replace(snapshot_input.snapshot, make_room=MakeRoom(uid))
    )


def _require_alone(*, alone: bool) -> None:
    if not alone:
        raise BadInput("--snapshot: excludes all other options but -o and --explain")


def _given(
    file: list[str], config: Path | None, now: str | None, kinds: Path | None
) -> SnapshotInput:
    from queuectl.offline.inputs import read_snapshot

    if not file:
        raise BadInput("-f or --snapshot is required")
    documents = read_objects(file)
    return read_snapshot([*documents, *_settings(config)], _clock(now), declared_kinds(kinds))


def _alone(refused: RefusedPlanFile) -> SnapshotInput:
    from queuectl.offline.inputs import SnapshotInput

    return SnapshotInput(refused.snapshot)


def _planned_again(refused: RefusedPlanFile) -> CheckedPlan:
    """The plan for the snapshot of a refused plan; the comparison of the two is printed on stderr."""
    from queuectl.control.checked_plan import planned_again

    checked = planned_again(refused.snapshot)
    for broken in refused.broken:
        sys.stderr.write(
            f"refused: {broken.rule} {broken.subject} {broken.message}".rstrip() + "\n"
        )
    if same_plan(refused, checked.decided):
        sys.stderr.write("the plan is identical to the refused plan\n")
    else:
        versions = f"queuectl {refused.version} made that plan, {version()} this one"
        sys.stderr.write(f"the plan differs from the refused plan: {versions}\n")
    return checked


def _checked(snapshot_input: SnapshotInput) -> CheckedPlan:
    """The plan of the input."""
    from queuectl.control.checked_plan import checked_plan  # the solver is slow to import
    from queuectl.devices.gpu_sizes import with_sizes

    checked = checked_plan(with_sizes(snapshot_input.snapshot))
    if checked.decided.cut:
        _fail(DEFECT, "the planning time limit was reached; the plan is incomplete")
    if checked.violations:
        listed = "; ".join(str(violation) for violation in checked.violations)
        _fail(DEFECT, f"internal error: the plan failed its verification: {listed}")
    return checked


def _diagnoses(checked: CheckedPlan, most: int) -> list[Diagnosis]:
    """Diagnoses of the first pending gangs, without those that wait only for their victims."""
    pending = [refusal.uid for refusal in checked.decided.pending if refusal.lease is None][:most]
    if not pending:
        return []
    from queuectl.control.checked_plan import explained

    return list(explained(checked, frozenset(pending)))


def _reconfigurations(checked: CheckedPlan) -> list[tuple[str, SuggestedFix]]:
    """The nodes to reconfigure for the first pending gang that this helps."""
    from queuectl.mig.search import plan_mig

    found = plan_mig(checked.snapshot, checked.decided)
    return [found] if found is not None else []


def _settings(path: Path | None) -> list[Document]:
    """The Configuration in the file of --config."""
    documents = read_objects([str(path)] if path is not None else [])
    for document in documents:
        if not is_single(document):
            found = f"{document.api_version} {document.kind}"
            raise document.error("kind", f"{found} is not a Configuration")
    return documents


def _clock(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        at = float(text) if text.replace(".", "", 1).isdecimal() else parse_time(text)
    except ValueError as error:
        raise BadInput(f"--now: {error}") from None
    if at > LAST_TIME:
        raise BadInput(f"--now: {text[:40]}: the calendar ends with the year 9999")
    return at
