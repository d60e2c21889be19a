"""The command ``queuectl doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.text import Text

from queuectl.cli import extras, terminal
from queuectl.cli.client import DEFAULT_SERVER, Server, connect
from queuectl.cli.doctor import judge
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.errors import Exit
from queuectl.cli.extras import Extra
from queuectl.cli.render import emit_json
from queuectl.domain.words import counted

_SIGNS: Final = {
    Level.OK: ("ok", "green"),
    Level.WARNING: ("warning", "yellow"),
    Level.PROBLEM: ("PROBLEM", "bold red"),
    Level.UNKNOWN: ("unknown", "magenta"),
}


class DoctorFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def doctor_command(
    system_namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of the controller.")
    ] = "queuectl-system",
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="QUEUECTL_DATABASE_URL",
            help="Also check the schema of this database.",
        ),
    ] = None,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Also let the leader check all invariants of all workloads against the cluster and the database.",
        ),
    ] = False,
    output: Annotated[
        DoctorFormat, typer.Option("--output", "-o", help="Format of the output.")
    ] = DoctorFormat.TEXT,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Check the server, the database, the cluster, rights, policies, nodes and other gang schedulers, and show fixes.

    The command changes nothing. The exit code is 1 if there is a problem; a warning or an unknown is no problem.
    """
    from queuectl.cli.doctor import server as serving

    with connect(server) as client:
        findings, answers = serving.examine(client)
        flavors = serving.configured(client, "ResourceFlavor") if answers else None
        topologies = serving.configured(client, "Topology") if answers else None
        if answers:
            findings += judge.reservations(serving.configured(client, "Reservation") or ())
        not_aligned = serving.not_aligned(client) if answers else []
        if audit and answers:
            findings += serving.audited(client)
    if extras.missing(Extra.SERVER):
        message = f"not checked: this check {extras.install_hint(Extra.SERVER)}"
        checks = ["database", "cluster"] if database_url else ["cluster"]
        findings += [Finding(check, Level.UNKNOWN, message) for check in checks]
    else:
        from queuectl.cli.doctor import cluster

        if database_url:
            findings += asyncio.run(serving.database(database_url))
        known = cluster.ServerObjects(flavors, topologies, not_aligned)
        findings += asyncio.run(cluster.examine(system_namespace, known))
    if output is DoctorFormat.JSON:
        emit_json({"findings": [asdict(finding) for finding in findings]})
    else:
        show(findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(Exit.FAILURE)


def show(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, with its fix below."""
    console = terminal.console(soft_wrap=True)
    for finding in findings:
        word, style = _SIGNS[finding.level]
        console.print(Text.assemble((f"{word:<9}", style), f"{finding.check:<10}{finding.message}"))
        if finding.fix:
            console.print(Text.assemble(f"{'':19}", ("fix: ", "dim"), finding.fix))
    levels = [finding.level for finding in findings]
    problems, warnings = levels.count(Level.PROBLEM), levels.count(Level.WARNING)
    console.print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
