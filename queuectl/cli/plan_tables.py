"""The output of ``queuectl plan`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from queuectl.cli import terminal
from queuectl.cli.ignored import ignored_lines
from queuectl.cli.render import natural_width

if TYPE_CHECKING:
    from rich.console import Console


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
    """The nodes of each Reservation, or the reason why it has none."""
    kept = Table("RESERVATION", "FROM", "UNTIL", title="Reservations", box=None)
    kept.add_column("NODES", overflow="fold", ratio=1)
    for each in document.get("reservations", ()):
        nodes = _node_list(each.get("nodes", {}))
        reason = each.get("reason", "")
        if "earliest" in each:
            reason += f"; the earliest start with a placement is {each['earliest']}"
        kept.add_row(each["name"], each["from"], each["until"], nodes or reason)
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
    console.print(f"{gang['workload']}: blocking constraints")
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
