"""``queuectl plan``: the plan for the objects in files, with the reasons of pending gangs.

The planner is the same as in the controller. The command does not connect to a cluster.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from queuectl.cli.input_files import declared_kinds, read_bytes, read_objects
from queuectl.cli.plan_tables import print_tables
from queuectl.domain.diagnosis import Diagnosis, SuggestedFix
from queuectl.domain.errors import BadInput
from queuectl.domain.snapshot import MakeRoom
from queuectl.objects.configuration.queue_config import is_single
from queuectl.objects.documents import Document
from queuectl.objects.files.plans import plan_document
from queuectl.objects.files.refused_plans import Refused, same_plan, unpack
from queuectl.objects.times import parse_time

if TYPE_CHECKING:
    from queuectl.control.checked_plan import CheckedPlan
    from queuectl.offline.inputs import SnapshotInput

EXPLAINED = 10  # pending gangs, so that a file with a thousand of them is planned fast
BAD_INPUT = 2
DEFECT = 1


class Output(StrEnum):
    JSON = "json"
    TABLE = "table"


def plan_command(
    file: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="YAML or JSON file; - reads stdin. Can be repeated.",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Format of the output.")
    ] = Output.TABLE,
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
            help="Job kinds of your own: a file with the key jobKinds, for example the values of the chart.",
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
            given = _alone(refused)
        else:
            given = _given(file or [], config, now, kinds)
        if defrag or gang is not None:
            given = _asking_for_room(given, defrag=defrag, gang=gang)
    except BadInput as error:
        _fail(BAD_INPUT, str(error))
    checked = _checked(given) if refused is None else _planned_again(refused)
    if explain is None:
        explain = EXPLAINED if output is Output.JSON else 0
    diagnoses = _diagnoses(checked, explain)
    document = plan_document(
        checked.given,
        checked.plan,
        given.account.ignored,
        given.warnings,
        diagnoses,
        given.evicted,
        _reconfigurations(checked) if mig else None,
        given.account.counts,
    )
    if output is Output.JSON:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        print_tables(document)


def _fail(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def _asking_for_room(given: SnapshotInput, *, defrag: bool, gang: str | None) -> SnapshotInput:
    """The same snapshot, with a request to find gangs to migrate."""
    if not defrag:
        raise BadInput(f"{gang}: unexpected argument; a gang is an argument of --defrag")
    uid = None
    if gang is not None:
        named = gang if "/" in gang else f"default/{gang}"
        pending = [p.workload for p in given.snapshot.pending if p.workload.ref == named]
        if not pending:
            raise BadInput(f"--defrag {gang}: no pending workload has this name")
        if len(pending) > 1:
            kinds = ", ".join(sorted(workload.kind for workload in pending))
            raise BadInput(f"--defrag {gang}: several pending workloads have this name ({kinds})")
        uid = pending[0].uid
    return replace(given, snapshot=replace(given.snapshot, make_room=MakeRoom(uid)))


def _require_alone(*, alone: bool) -> None:
    if not alone:
        raise BadInput("--snapshot: excludes all other options but -o and --explain")


def _given(
    file: list[str], config: Path | None, now: str | None, kinds: Path | None
) -> SnapshotInput:
    from queuectl.offline.inputs import read_snapshot

    if not file:
        raise BadInput("-f or --snapshot is required")
    documents = [document for name in file for document in read_objects(name)]
    return read_snapshot([*documents, *_settings(config)], _clock(now), declared_kinds(kinds))


def _alone(refused: Refused) -> SnapshotInput:
    from queuectl.offline.inputs import SnapshotInput

    return SnapshotInput(refused.snapshot)


def _planned_again(refused: Refused) -> CheckedPlan:
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
        versions = f"queuectl {refused.version} made that plan, {version('queuectl')} this one"
        sys.stderr.write(f"the plan differs from the refused plan: {versions}\n")
    return checked


def _checked(given: SnapshotInput) -> CheckedPlan:
    """The plan of the input."""
    from queuectl.control.checked_plan import checked_plan  # the solver is slow to import
    from queuectl.devices.gpu_sizes import with_sizes

    checked = checked_plan(with_sizes(given.snapshot))
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
    from queuectl.control.explained import explained

    return list(explained(checked, frozenset(pending)))


def _reconfigurations(checked: CheckedPlan) -> list[tuple[str, SuggestedFix]]:
    """The nodes to reconfigure for the first pending gang that this helps."""
    from queuectl.planner.explain import plan_mig

    found = plan_mig(checked.snapshot, checked.decided)
    return [found] if found is not None else []


def _settings(path: Path | None) -> list[Document]:
    """The Configuration in the file of --config."""
    documents = read_objects(str(path)) if path is not None else []
    for document in documents:
        if not is_single(document):
            found = f"{document.api_version} {document.kind}"
            raise document.error("kind", f"{found} is not a Configuration")
    return documents


def _clock(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text) if text.replace(".", "", 1).isdecimal() else parse_time(text)
    except ValueError as error:
        raise BadInput(f"--now: {error}") from None
