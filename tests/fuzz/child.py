"""The stages of the fuzzer, in this process or in a child that an input can end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

import structlog

from tests.fuzz import answers, clusters, documents, manifests, selectors, snapshots
from tests.fuzz.answers import Answers
from tests.fuzz.clusters import Clusters, Database
from tests.fuzz.documents import Documents
from tests.fuzz.figures import Result, Stage
from tests.fuzz.manifests import Manifests
from tests.fuzz.process import Child, answer
from tests.fuzz.selectors import Selectors
from tests.fuzz.snapshots import Snapshots

STAGES: Final = {
    "clusters": clusters.FEATURES,
    "documents": documents.FEATURES,
    "selectors": selectors.FEATURES,
    "snapshots": snapshots.FEATURES,
    "answers": answers.FEATURES,
    "manifests": manifests.FEATURES,
}


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
            "answers": Answers(),
            "manifests": Manifests(),
        }
        yield {name: Stage(name, run, STAGES[name]) for name, run in made.items()}


def _run(rows: bool, connection: Connection) -> None:
    with stages(rows=rows) as made:
        answer(connection, made)


def child(*, rows: bool = True) -> Child:
    """A child with all stages. ``rows``: with a database."""
    return Child(partial(_run, rows))
