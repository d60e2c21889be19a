"""The command ``queuectl doctor``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.text import Text

from queuectl.cli import extras, terminal
from queuectl.cli.client import DEFAULT_SERVER, connect
from queuectl.cli.doctor import judge
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.cli.errors import Exit
from queuectl.cli.extras import Extra
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import emit_json
from queuectl.domain.words import counted
from queuectl.objects.kinds import KINDS

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
        str,
        typer.Option(
            metavar="NAME", envvar="QUEUECTL_NAMESPACE", help="Namespace of the controller."
        ),
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
    output: Annotated[DoctorFormat, OUTPUT] = DoctorFormat.TEXT,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            help=f"Address of the REST API. Default: in a pod of queuectl, this pod; else $QUEUECTL_SERVER, or {DEFAULT_SERVER}.",
        ),
    ] = None,
) -> None:
    """Check the server, the database, the cluster, rights, policies, nodes and other gang schedulers, and show fixes.

    In a pod of queuectl, the command needs no option: it checks this replica with the rights of its account.
    The command changes nothing. The exit code is 1 if there is a problem. Warnings and unknown results do not count as problems.
    """
    from queuectl.cli.doctor import pod

    if server is None and pod.inside() and not extras.missing(Extra.SERVER):
        findings = _inside(system_namespace, database_url, audit=audit)
    else:
        address = server or os.environ.get("QUEUECTL_SERVER") or DEFAULT_SERVER
        findings = _outside(address, system_namespace, database_url, audit=audit)
    if output is DoctorFormat.JSON:
        emit_json({"findings": [asdict(finding) for finding in findings]})
    else:
        show(findings)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(Exit.FAILURE)


def _inside(namespace: str, database_url: str | None, *, audit: bool) -> list[Finding]:
    """The findings in a pod of queuectl."""
    from queuectl.cli.doctor import cluster, pod, receivers
    from queuectl.cli.doctor import server as serving

    settings, findings = pod.own_settings()
    replica = cluster.OwnReplica(os.environ[pod.HOLDER], None, KINDS)
    if settings is not None:
        findings += pod.examine(settings)
        kinds, wrong_kinds = pod.own_kinds(settings)
        findings += wrong_kinds
        findings += receivers.examine(settings.notify_file)
        in_shadow = settings.shadow
        replica = cluster.OwnReplica(settings.holder, settings.kubeconfig, kinds, in_shadow)
    if database_url:
        findings += asyncio.run(serving.database(database_url))
    if settings is not None and settings.api_database_url:
        findings += asyncio.run(serving.database_of_api(settings.api_database_url))
    findings += asyncio.run(cluster.examine(namespace, cluster.ServerObjects(), replica))
    return findings + pod.left_out(audit=audit)


def _outside(
    server: str, namespace: str, database_url: str | None, *, audit: bool
) -> list[Finding]:
    """The findings of a client of the server."""
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
        return findings + [Finding(check, Level.UNKNOWN, message) for check in checks]
    from queuectl.cli.doctor import cluster

    if database_url:
        findings += asyncio.run(serving.database(database_url))
    in_shadow = any(finding.check == "shadow" for finding in findings)
    objects = cluster.ServerObjects(flavors, topologies, not_aligned, in_shadow)
    return findings + asyncio.run(cluster.examine(namespace, objects))


def show(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, with its fix below."""
    console = terminal.console(soft_wrap=True)
    for finding in findings:
        word, style = _SIGNS[finding.level]
        console.print(Text.assemble((f"{word:<9}", style), f"{finding.check:<12}{finding.message}"))
        if finding.fix:
            console.print(Text.assemble(f"{'':21}", ("fix: ", "dim"), finding.fix))
    levels = [finding.level for finding in findings]
    problems, warnings = levels.count(Level.PROBLEM), levels.count(Level.WARNING)
    console.print(f"\n{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
