"""``queuectl advise``: the changes of queues and policies that would have served the recorded jobs better.

The planner is the same as in the controller. Each change is simulated; nothing is changed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.client import DEFAULT_SERVER, Server
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.render import emit_json
from queuectl.cli.simulation_input import (
    DurationsOption,
    Events,
    Files,
    History,
    Jobs,
    KnownDurations,
    Live,
    Start,
    Trace,
    UtilizationFile,
    progress_bar,
    read_jobs,
    read_setting,
)
from queuectl.domain.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from queuectl.objects.documents import Document
    from queuectl.simulate.advice.advice import Advice, MakeSetting, Run
    from queuectl.simulate.advice.changes import Change
    from queuectl.simulate.outcomes import PolicyOutcome
    from queuectl.simulate.setting import Setting


class AdviceFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    HTML = "html"
    YAML = "yaml"


def advise_command(
    file: Files = None,
    live: Live = False,
    trace: Trace = None,
    history: History = None,
    start: Start = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=WEIGHT]",
            help="Figure that matters: mean-wait, p99-wait, multi-node-wait, allocation, fairness or lost-hours. "
            "Can be repeated. Default: mean-wait.",
        ),
    ] = None,
    durations: KnownDurations = DurationsOption.LEARNED,
    events: Events = None,
    utilization: UtilizationFile = None,
    output: Annotated[
        AdviceFormat,
        typer.Option(
            "-o", "--output", help="Format of the output. yaml: only the objects to apply."
        ),
    ] = AdviceFormat.TABLE,
    seed: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, help="Seed of the random numbers.")
    ] = 0,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Rank changes of quota, strategy, preemption, topology level and idle reclaim for the jobs of a trace.

    Simulates the jobs under each change, and under the best ones together. The same input gives the same output.
    """
    try:
        documents = read_setting(file or [], server, live=live)
        jobs = read_jobs(trace, history, server, events, utilization, seed, start, live=live)
        found = _advice(documents, jobs, objective or [], durations)
    except BadInput as error:
        raise CommandFailed(str(error), Exit.BAD_INPUT) from None
    _emit(output, found)


def _advice(
    documents: list[Document], jobs: Jobs, objectives: list[str], durations: DurationsOption
) -> Advice:
    from queuectl.simulate.advice.advice import Adviser
    from queuectl.simulate.advice.changes import candidates
    from queuectl.simulate.advice.objectives import read_objectives

    weights = read_objectives(objectives)
    adviser = Adviser(documents, _maker(jobs), _runner(durations), weights, jobs.seed)
    for warning in adviser.setting.warnings():
        sys.stderr.write(f"warning: {warning}\n")
    return adviser.advise(candidates(documents, adviser.setting))


def _maker(jobs: Jobs) -> MakeSetting:
    def make(documents: Sequence[Document], change: Change) -> Setting:
        changed = replace(jobs, jobs=change.jobs(jobs.jobs))
        return changed.setting(documents, warn=False)

    return make


def _runner(durations: DurationsOption) -> Run:
    from queuectl.simulate.report import simulate  # the solver is slow to import
    from queuectl.simulate.simulation import Durations, Policy

    policy = Policy(durations=Durations(durations))

    numbers = count(1)

    def run(setting: Setting, name: str) -> PolicyOutcome:
        with progress_bar(f"{next(numbers)}: {name}", len(setting.jobs)) as progress:
            return simulate(setting, policy, progress)

    return run


def _emit(output: AdviceFormat, advice: Advice) -> None:
    from queuectl.simulate.advice import texts

    best = advice.recommended
    match output:
        case AdviceFormat.JSON:
            emit_json(texts.document(advice))
        case AdviceFormat.HTML:
            sys.stdout.write(texts.html(advice))
        case AdviceFormat.YAML:
            sys.stdout.write(texts.instructions(best) if best is not None else "")
        case AdviceFormat.TABLE:
            from queuectl.cli.simulate import print_tables

            print_tables([texts.ranking(advice)])
            for line in texts.summary(advice):
                typer.echo(line)
            if best is not None:
                typer.echo(
                    f"Apply it: queuectl apply -f FILE, with this content:\n\n{texts.instructions(best)}",
                    nl=False,
                )
