"""``queuectl simulate``: a trace of jobs through the queues and nodes of files, under one or more strategies.

The planner is the same as in the controller. Nothing is changed. Only ``--live`` and ``--history`` connect to a cluster or a server.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from queuectl.cli import terminal
from queuectl.cli.client import DEFAULT_SERVER, Server
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.options import OUTPUT
from queuectl.cli.render import emit_json, natural_width
from queuectl.cli.simulation_input import (
    DurationsOption,
    Events,
    Files,
    History,
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
from queuectl.domain.words import one_line
from queuectl.simulate.report import over_time_table, tables

if TYPE_CHECKING:
    from queuectl.simulate.outcomes import PolicyOutcome
    from queuectl.simulate.report import Table as Titled
    from queuectl.simulate.setting import Setting
    from queuectl.simulate.simulation import Policy


# ---- The command


class SimulationFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    CSV_OVER_TIME = "csv-over-time"
    HTML = "html"


class Strategy(StrEnum):
    STRICT_FIFO = "StrictFIFO"
    BEST_EFFORT_FIFO = "BestEffortFIFO"
    BACKFILL = "Backfill"
    SJF = "SJF"


class PlacementOption(StrEnum):
    PLANNER = "planner"
    BEST_FIT = "best-fit"


def simulate_command(
    file: Files = None,
    live: Live = False,
    trace: Trace = None,
    history: History = None,
    start: Start = None,
    strategy: Annotated[
        list[Strategy] | None,
        typer.Option(
            metavar="<" + "|".join(Strategy) + ">",
            help="Strategy of all ClusterQueues. Can be repeated to compare strategies. Default: as configured.",
        ),
    ] = None,
    durations: KnownDurations = DurationsOption.DECLARED,
    placement: Annotated[
        PlacementOption,
        typer.Option(
            help="The planner of the controller, or the reference rule of published simulators."
        ),
    ] = PlacementOption.PLANNER,
    events: Events = None,
    utilization: UtilizationFile = None,
    output: Annotated[SimulationFormat, OUTPUT] = SimulationFormat.TABLE,
    seed: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="Seed of the random numbers that choose from the percentiles of --utilization.",
        ),
    ] = 0,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Simulate the waits of a trace of jobs, without a cluster.

    The same input gives the same output.
    """
    try:
        policies = _policies(strategy or [], durations, placement)
        jobs = read_jobs(trace, history, server, events, utilization, seed, start, live=live)
        setting = jobs.setting(read_setting(file or [], server, live=live))
        outcomes = [_simulated(setting, policy) for policy in policies]
    except BadInput as error:
        raise CommandFailed(str(error), Exit.BAD_INPUT) from None
    _warn(setting, outcomes, placement)
    _emit(output, outcomes)


def _policies(
    strategies: list[Strategy], durations: DurationsOption, placement: PlacementOption
) -> list[Policy]:
    from queuectl.simulate.simulation import Durations, Order, PlacementRule, Policy

    if Strategy.SJF in strategies and durations is not DurationsOption.DECLARED:
        raise BadInput("--strategy SJF: needs the run times of jobs; use --durations declared")
    orders = [Order(strategy) for strategy in dict.fromkeys(strategies)]
    listed: list[Order | None] = [*orders] or [None]
    return [Policy(PlacementRule(placement), order, Durations(durations)) for order in listed]


def _simulated(setting: Setting, policy: Policy) -> PolicyOutcome:
    from queuectl.simulate.report import simulate  # the solver is slow to import

    with progress_bar(policy.name, len(setting.jobs)) as progress:
        return simulate(setting, policy, progress)


def _warn(setting: Setting, outcomes: list[PolicyOutcome], placement: PlacementOption) -> None:
    from queuectl.simulate.outcomes import warnings

    found = [*setting.warnings(), *warnings(outcomes[0], setting.trace)]
    limited = setting.config.budgets or setting.config.reservations
    if placement is PlacementOption.BEST_FIT and limited:
        found.append("--placement best-fit does not apply Budgets and Reservations")
    for warning in found:
        sys.stderr.write(f"warning: {warning}\n")


def _emit(output: SimulationFormat, outcomes: list[PolicyOutcome]) -> None:
    match output:
        case SimulationFormat.JSON:
            from queuectl.simulate.report import document

            documents = {found.policy: document(found) for found in outcomes}
            emit_json(documents if len(outcomes) > 1 else documents[outcomes[0].policy])
        case SimulationFormat.CSV:
            from queuectl.simulate.report import figures_csv

            sys.stdout.write(figures_csv(outcomes))
        case SimulationFormat.CSV_OVER_TIME:
            from queuectl.simulate.report import over_time_csv

            sys.stdout.write(over_time_csv(outcomes))
        case SimulationFormat.HTML:
            from queuectl.simulate.report import report

            sys.stdout.write(report(outcomes))
        case SimulationFormat.TABLE:
            from queuectl.cli.simulate import print_outcomes

            print_outcomes(outcomes)


# ---- Tables


def print_outcomes(outcomes: list[PolicyOutcome]) -> None:
    """Print the policies, the queues and the sizes of jobs, and of one policy the state over time."""
    listed = tables(outcomes)
    if len(outcomes) == 1:
        listed.append(over_time_table(outcomes[0]))
    print_tables(listed)


def print_tables(listed: list[Titled]) -> None:
    """Print tables of texts, the first column at the left."""
    console = terminal.console(soft_wrap=True)
    made = []
    for title, columns, rows in listed:
        table = Table(title=title, box=None, title_justify="left")
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(one_line, row))
        made.append(table)
    if not console.is_terminal:
        console.width = max([console.width, *map(natural_width, made)])
    for table in made:
        console.print(table)
        console.print()
