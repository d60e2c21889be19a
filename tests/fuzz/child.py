"""The stages of the fuzzer, in this process or in a child that an input can end."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import Final

import structlog

from tests.fuzz import clusters, documents, selectors, snapshots
from tests.fuzz.clusters import Clusters, Database
from tests.fuzz.documents import Documents
from tests.fuzz.figures import Result, Stage
from tests.fuzz.selectors import Selectors
from tests.fuzz.snapshots import Snapshots

STAGES: Final = {
    "clusters": clusters.FEATURES,
    "documents": documents.FEATURES,
    "selectors": selectors.FEATURES,
    "snapshots": snapshots.FEATURES,
}
INPUT_SECONDS: Final = 300.0
"""An input that takes longer is a defect. The machine can be busy."""
ENDING_SECONDS: Final = 5.0
_END: Final = -1


@contextmanager
def stages(*, rows: bool = True) -> Iterator[dict[str, Stage]]:
    """All stages. ``rows``: with a database."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with Database.running() if rows else nullcontext() as database:
        made: dict[str, Callable[[int], Result]] = {
            "clusters": Clusters(database),
            "documents": Documents(),
            "selectors": Selectors(),
            "snapshots": Snapshots(),
        }
        yield {name: Stage(name, run, STAGES[name]) for name, run in made.items()}


def handled(stage: Stage, seed: int) -> Result:
    """The result of one input. An error that it raises is a defect."""
    try:
        return stage.run(seed)
    except Exception:  # noqa: BLE001  # it is what the fuzzer looks for
        return Result(defects=[traceback.format_exc()])


def _child(connection: Connection, rows: bool) -> None:
    """Handle the inputs that are asked for, until the end."""
    with stages(rows=rows) as made:
        connection.send(None)
        while (asked := connection.recv()) != _END:
            name, seed = asked
            began = time.monotonic()
            result = handled(made[name], seed)
            connection.send((result, time.monotonic() - began))


class Child:
    """A process that handles inputs. It is started again after an input has ended it."""

    def __init__(self, *, rows: bool = True) -> None:
        """``rows``: with a database."""
        self._rows = rows
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._own, other = self._context.Pipe()
        self._process = self._context.Process(target=_child, args=(other, self._rows))
        self._process.start()
        other.close()
        self._own.recv()  # it is ready; an error here is one of the fuzzer

    def handle(self, name: str, seed: int) -> tuple[Result, float] | str:
        """The result and its time, or how the process ended."""
        self._own.send((name, seed))
        try:
            if self._own.poll(INPUT_SECONDS):
                answer: tuple[Result, float] = self._own.recv()
                return answer
            how = f"no answer in {INPUT_SECONDS:.0f} s"
        except (EOFError, OSError):
            how = "the process ended"
        self._process.join(ENDING_SECONDS)
        self._process.kill()
        self._process.join()
        how += f", exit code {self._process.exitcode}"
        self._start()
        return how

    def stop(self) -> None:
        """End it."""
        self._own.send(_END)
        self._process.join()
