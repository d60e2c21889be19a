"""A plugin of pytest that keeps the snapshots given to the planner: ``pytest -p tests.corpus.collect``.

Each process writes a file of its own into the directory that ``CORPUS_DIRECTORY`` names: MessagePack
arrays of a name and a packed snapshot, each with its length before it. A name is the id of the test and a number.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import currently_in_test_context

import queuectl.planner.explain
import queuectl.planner.problem.problem
from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.objects.files.refused_plans import pack

MOST: Final = 40  # snapshots of one test function
MOST_RANDOM: Final = 12  # of one test function whose examples Hypothesis draws
DIRECTORY: Final = "CORPUS_DIRECTORY"


class Collector:
    """Distinct snapshots that tests gave to the planner, bounded by test function."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / f"{os.getpid()}.msgpack"
        self._seen: set[bytes] = set()
        self._counts: Counter[str] = Counter()

    def keep(self, snapshot: Snapshot) -> None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        function = test.partition("[")[0]
        most = MOST_RANDOM if currently_in_test_context() else MOST
        if not test or self._counts[function] >= most:
            return
        content = gzip.decompress(pack(snapshot, Plan(), ()))
        if content in self._seen:
            return
        self._seen.add(content)
        self._counts[function] += 1
        name = f"{test}#{self._counts[function]}"
        packed = msgspec.msgpack.encode((name, content))
        with self._file.open("ab") as file:
            file.write(len(packed).to_bytes(4, "big") + packed)


def pytest_configure() -> None:
    """Test modules and the controller import the planner after this."""
    collector = Collector(Path(os.environ[DIRECTORY]))
    planner: Any
    for planner, name in (
        (queuectl.planner, "plan"),
        (queuectl.planner.problem.problem, "survey"),
        (queuectl.planner.explain, "diagnose"),
        (queuectl.planner.explain, "diagnose_those"),
    ):
        setattr(planner, name, _keeping(getattr(planner, name), collector))


def _keeping(function: Any, collector: Collector) -> Any:
    @wraps(function)
    def kept(snapshot: Snapshot, *args: Any, **named: Any) -> Any:
        collector.keep(snapshot)
        return function(snapshot, *args, **named)

    return kept
