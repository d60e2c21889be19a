"""The input of simulations: nodes, configuration and jobs, from files, from a cluster, or from the history of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli import terminal
from queuectl.cli.client import connect
from queuectl.cli.options import files_option
from queuectl.cli.spent_budgets import ServerLedger
from queuectl.cli.targets import ignored_lines, read_bytes, read_objects
from queuectl.cli.times import ago
from queuectl.cli.trace import recorded_trace
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document

if TYPE_CHECKING:
    from queuectl.simulate.setting import Setting
    from queuectl.simulate.simulation import World
    from queuectl.simulate.trace import NodeEvent, TraceJob, Utilization


class DurationsOption(StrEnum):
    DECLARED = "declared"
    LEARNED = "learned"
    UNKNOWN = "unknown"


Files = Annotated[
    list[str] | None,
    files_option(" with Nodes and configuration"),
]
Trace = Annotated[str | None, typer.Option(metavar="FILE", help="Jobs as CSV, plain or gzipped.")]
Events = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Failures and recoveries of nodes as CSV: seconds, node, down or up.",
    ),
]
UtilizationFile = Annotated[
    str | None,
    typer.Option(
        "--utilization",
        metavar="FILE",
        help="GPU utilization in percent as CSV: by job_id, by job_id and time, or by percentile.",
    ),
]

KnownDurations = Annotated[
    DurationsOption,
    typer.Option(help="Run times of jobs that the scheduler knows when it decides."),
]


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a simulation, and what happens to them.

    Attributes:
        name: of the trace.
        seed: of the random numbers that choose from a distribution of utilization.
        begins: unix seconds of second 0; None = it is not known.
        ledger: knows what Budgets have spent before; None = they have spent nothing.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    events: tuple[NodeEvent, ...]
    utilization: Utilization | None
    seed: int
    begins: float | None
    ledger: ServerLedger | None = None

    def setting(self, documents: Sequence[Document], *, warn: bool = True) -> Setting:
        """These jobs on the nodes and queues of documents. Can raise BadInput."""
        from queuectl.offline.inputs import NO_USAGE_LEDGER, read_snapshot
        from queuectl.simulate.setting import make_setting

        given = read_snapshot(documents)
        for warning in given.warnings if warn else ():
            if warning != NO_USAGE_LEDGER:  # the simulation counts the use itself
                sys.stderr.write(f"warning: {warning}\n")
        for line in ignored_lines(map(asdict, given.account.ignored)) if warn else ():
            sys.stderr.write(f"{line}\n")
        jobs_setting = make_setting(
            given.snapshot,
            self.name,
            self.jobs,
            self.events,
            self.utilization,
            self.seed,
            self.begins,
        )
        if self.ledger is None:
            return jobs_setting
        return replace(
            jobs_setting,
            spent=self.ledger.spent(jobs_setting.config.budgets.values(), jobs_setting.begin),
        )


Start = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Time of second 0 of the trace, for Budgets and Reservations: an RFC 3339 time or a duration before now.",
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Nodes of the kubeconfig's cluster and configuration of the server. Objects of -f replace those of the same name.",
    ),
]
History = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="Jobs that the server recorded since then: a duration before now (30d, 24h) or an RFC 3339 time.",
    ),
]


def read_setting(files: Sequence[str], server: str, *, live: bool) -> list[Document]:
    """The objects of all files and, if ``live``, of the cluster. Can raise BadInput."""
    given = read_objects(files)
    if not live:
        if not files:
            raise BadInput("-f or --live is required")
        return given
    from queuectl.cli.live_setting import live_objects

    named = {(document.kind, document.name) for document in given}
    found = live_objects(server)
    return [one for one in found if (one.kind, one.name) not in named] + given


def read_jobs(
    trace: str | None,
    history: str | None,
    server: str,
    events: str | None,
    utilization: str | None,
    seed: int,
    start: str | None,
    *,
    live: bool,
) -> Jobs:
    """The jobs of a trace or of a server, and the files that belong to it. Can raise BadInput.

    Budgets have spent what the ledger of the server has, if jobs or configuration (``live``) come from the server.
    """
    from queuectl.simulate.trace import read_events, read_trace, read_utilization

    if (trace is None) is (history is None):
        raise BadInput("either --trace or --history is required")
    measured = read_bytes(utilization) if utilization is not None else None
    begins = ago(start, "--start") if start is not None else None
    if trace is not None:
        name, text = trace, read_bytes(trace)
    else:
        assert history is not None
        since = ago(history, "--history")
        with connect(server) as client:
            found = recorded_trace(client, since, None)
        name, text = f"history of {history}", found.jobs_csv().encode()
        begins = found.begins if begins is None else begins
        if measured is None and any(item["utilization"] for item in found.jobs):
            measured = found.utilization_csv().encode()
    return Jobs(
        name,
        read_trace(text, name),
        read_events(read_bytes(events), events) if events is not None else (),
        read_utilization(measured, utilization or name) if measured is not None else None,
        seed,
        begins,
        ServerLedger(server) if live or history is not None else None,
    )


@contextmanager
def progress_bar(name: str, jobs: int) -> Iterator[Callable[[World], None]]:
    """A bar of finished jobs on a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = terminal.console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, total=jobs)
        yield lambda world: bar.update(task, completed=world.finished)
