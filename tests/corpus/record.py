"""Record the corpus: ``python -m tests.corpus.record``.

Without an option it plans the snapshots that are kept again, and writes what the planner makes of them now. With
``--collect`` it first collects the snapshots again, from the tests, the documentation, the generators and the benchmarks. It prints
how many plans are other than those recorded before.

A snapshot that cannot be planned, or whose plan the verifier refuses, is a defect of the planner: the program names it and writes
nothing. A collected snapshot that takes too long is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec

from queuectl.domain.errors import BadInput
from queuectl.domain.snapshot import SolverLimits
from tests.corpus.answers import Cut, Defect, answer, verified, without_clock
from tests.corpus.collect import DIRECTORY
from tests.corpus.files import (
    DATA,
    PLANS,
    SNAPSHOTS,
    Entry,
    Recorded,
    entry_of,
    read_entries,
    read_recorded,
    write_entries,
    write_recorded,
)

SECONDS: Final = 20.0  # time limit of a snapshot of the corpus
_ROOT: Final = Path(__file__).parents[2]
_TESTS: Final = ("tests/planner", "tests/unit", "tests/control", "tests/api")
_TOO_LONG: Final = (
    "not die_at_any_step and not answer_to_anything and not controller_dies and not fuzz"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one snapshot: what is recorded, or why nothing is.

    Attributes:
        left_out: it takes too long.
        defect: it cannot be planned, or its plan is refused.
    """

    recorded: Recorded | None
    left_out: str = ""
    defect: str = ""
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collect", action="store_true", help="collect the snapshots as well")
    collect = parser.parse_args().collect
    entries = list(_collected() if collect else read_entries())
    before = {one.key: one.digest for one in read_recorded()} if (DATA / PLANS).exists() else {}
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        outcomes = list(pool.map(attempt, entries, chunksize=8))
    if code := report_failures(zip(entries, outcomes, strict=True), collect=collect):
        raise SystemExit(code)
    pairs = [(e, o) for e, o in zip(entries, outcomes, strict=True) if o.recorded is not None]
    write_entries(entry for entry, _ in pairs)
    write_recorded(outcome.recorded for _, outcome in pairs if outcome.recorded is not None)
    _report(entries, outcomes, before)


def attempt(entry: Entry) -> Outcome:
    """Plan one; in a process of the pool."""
    began = time.monotonic()
    try:
        recorded = answer(entry, seconds=SECONDS)
        verified(entry, recorded)
    except Cut:
        return Outcome(None, left_out=f"takes more than {SECONDS:.0f} s")
    except Defect as defect:
        return Outcome(None, defect=str(defect))
    return Outcome(recorded, seconds=time.monotonic() - began)


def report_failures(outcomes: Iterable[tuple[Entry, Outcome]], *, collect: bool) -> int:
    """Print the snapshots for which nothing can be recorded; returns 1 if there are any.

    Args:
        outcomes: of each snapshot.
        collect: the snapshots are new, so that one that takes too long can be left out.
    """
    failed = 0
    for entry, outcome in outcomes:
        why = outcome.defect or ("" if collect else outcome.left_out)
        if why:
            failed += 1
            print(f"cannot be recorded: {entry.key}: {why}")
    if failed:
        print(f"{failed} snapshots cannot be recorded; the files are as they were")
    return int(failed > 0)


def _collected() -> Iterator[Entry]:
    """Distinct snapshots of all sources in which a gang waits or runs, with limits that need no clock."""
    seen = set[bytes]()
    clocked = 0
    for entry in _sources():
        try:
            snapshot = entry.snapshot()
        except BadInput as error:  # no file has such values; a test made them
            print(f"left out: {error}")
            continue
        if not snapshot.pending and not snapshot.admitted:
            continue
        clocked += snapshot.limits.wall_seconds != SolverLimits().wall_seconds
        timeless = entry_of(entry.source, entry.name, without_clock(snapshot))
        if timeless.content not in seen:
            seen.add(timeless.content)
            yield timeless
    print(f"{clocked} snapshots had their own limits of wall time, and have none now")


def _sources() -> Iterator[Entry]:
    from tests.corpus.benchmarks import benchmarks
    from tests.corpus.documentation import documentation
    from tests.corpus.generated import generated

    yield from (entry_of("documentation", name, snapshot) for name, snapshot in documentation())
    yield from _of_tests()
    for source, named in (
        ("generated", generated()),
        ("benchmarks", benchmarks()),
    ):
        yield from (entry_of(source, name, snapshot) for name, snapshot in named)


def _of_tests() -> Iterator[Entry]:
    """Snapshots that the fast tests give to the planner; see :mod:`tests.corpus.collect`."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pytest", "-p", "tests.corpus.collect", *_TESTS]
        marks = ["-m", "not system and not bench and not browser", "-k", _TOO_LONG, "-q", "-n", "2"]
        environment = {**os.environ, DIRECTORY: directory, "PYTHONHASHSEED": "0"}
        code = subprocess.run(
            [*command, *marks], cwd=_ROOT, env=environment, check=False
        ).returncode
        if code not in (0, 1):  # 1: a test failed, for example on a busy machine
            raise SystemExit(f"the tests could not be run: exit code {code}")
        found = [one for path in Path(directory).glob("*.msgpack") for one in _kept(path)]
    yield from (Entry("tests", name, content) for name, content in sorted(found))


def _kept(path: Path) -> Iterator[tuple[str, bytes]]:
    unpacker = msgspec.msgpack.Decoder(tuple[str, bytes])
    content = path.read_bytes()
    while content:
        size = int.from_bytes(content[:4], "big")
        yield unpacker.decode(content[4 : 4 + size])
        content = content[4 + size :]


def _report(entries: list[Entry], outcomes: list[Outcome], before: dict[str, str]) -> None:
    left_out = Counter[str]()
    kept, features = Counter[str](), Counter[str]()
    now: dict[str, str] = {}
    diagnosed = gangs = 0
    for entry, outcome in zip(entries, outcomes, strict=True):
        if outcome.recorded is None:
            left_out[outcome.left_out] += 1
            print(f"left out: {entry.key}: {outcome.left_out}")
            continue
        kept[entry.source] += 1
        now[entry.key] = outcome.recorded.digest
        features.update(outcome.recorded.features)
        diagnosed += bool(outcome.recorded.diagnoses)
        gangs += len(outcome.recorded.diagnoses)
    for entry, outcome in sorted(zip(entries, outcomes, strict=True), key=lambda p: -p[1].seconds)[
        :5
    ]:
        print(f"slow: {outcome.seconds:.1f} s {entry.key}")
    print("features: " + ", ".join(f"{name} {count}" for name, count in sorted(features.items())))
    print(f"diagnosed: {gangs} gangs of {diagnosed} snapshots")
    for why, count in left_out.items():
        print(f"left out, {why}: {count}")
    print("kept: " + ", ".join(f"{source} {count}" for source, count in kept.items()))
    sizes = [(DATA / name).stat().st_size for name in (SNAPSHOTS, PLANS)]
    print(f"bytes: snapshots {sizes[0]}, plans {sizes[1]}")
    changed = sum(before[key] != digest for key, digest in now.items() if key in before)
    new, gone = len(now.keys() - before.keys()), len(before.keys() - now.keys())
    print(f"{len(now)} snapshots: {changed} plans changed, {new} snapshots new, {gone} gone")


if __name__ == "__main__":
    main()
