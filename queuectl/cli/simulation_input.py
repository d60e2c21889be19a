"""The input of simulations: nodes, configuration and jobs, from files, from a cluster, or from the history of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from queuectl.cli.input_files import read_bytes, read_objects
from queuectl.domain.errors import BadInput
from queuectl.objects.documents import Document
from queuectl.objects.files.snapshots import read_snapshot

if TYPE_CHECKING:
    from queuectl.simulate.setting import Setting
    from queuectl.simulate.simulation import World
    from queuectl.simulate.trace import NodeEvent, TraceJob, Utilization

Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        help="YAML or JSON file with Nodes and configuration; - reads stdin. Can be repeated.",
    ),
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


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a simulation, and what happens to them.

    Attributes:
        name: of the trace.
        seed: of the random numbers that choose from a distribution of utilization.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    events: tuple[NodeEvent, ...]
    utilization: Utilization | None
    seed: int

    def setting(self, documents: Sequence[Document], *, warn: bool = True) -> Setting:
        """These jobs on the nodes and queues of documents. Can raise BadInput."""
        from queuectl.simulate.setting import make_setting

        given = read_snapshot(documents)
        for warning in given.warnings if warn else ():
            sys.stderr.write(f"warning: {warning}\n")
        return make_setting(
            given.snapshot, self.name, self.jobs, self.events, self.utilization, self.seed
        )


def read_files(files: Sequence[str]) -> list[Document]:
    """The objects of all files. Can raise BadInput."""
    return [document for name in files for document in read_objects(name)]


def read_jobs(trace: str | None, events: str | None, utilization: str | None, seed: int) -> Jobs:
    """The jobs of a trace, and the files that belong to it. Can raise BadInput."""
    from queuectl.simulate.trace import read_events, read_trace, read_utilization

    if trace is None:
        raise BadInput("--trace is required")
    return Jobs(
        trace,
        read_trace(read_bytes(trace), trace),
        read_events(read_bytes(events), events) if events is not None else (),
        read_utilization(read_bytes(utilization), utilization) if utilization is not None else None,
        seed,
    )


@contextmanager
def progress_bar(name: str, jobs: int) -> Iterator[Callable[[World], None]]:
    """A bar of finished jobs on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, total=jobs)
        yield lambda world: bar.update(task, completed=world.finished)
