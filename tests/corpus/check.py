"""Check the planner against the corpus: ``make corpus``, or ``python -m tests.corpus.check``.

Without an option each plan and each diagnosis must be byte-identical to the recorded one. With ``--score`` plans can
differ, and a plan that is worse than the recorded one fails; :mod:`tests.corpus.compare` defines worse. If the limit of the solver ends
most searches, nothing counts as worse.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from queuectl.planner import plan
from tests.corpus.answers import Defect, Planner, answer, verified
from tests.corpus.compare import (
    Difference,
    compare_diagnoses,
    compare_scores,
    differences,
)
from tests.corpus.features import SHORT_SEARCH
from tests.corpus.files import DATA, Entry, Recorded, read_entries, read_recorded

LINES: Final = 12  # printed of one snapshot
_STATS: Final = "stats"
Pair = tuple[Entry, Recorded]


@dataclass(frozen=True, slots=True)
class Checked:
    """One snapshot: how its plan and diagnoses differ, and how many gangs were diagnosed."""

    key: str
    source: str
    found: tuple[Difference, ...]
    diagnosed: int

    @property
    def worse(self) -> bool:
        return any(difference.worse for difference in self.found)

    @property
    def work_alone(self) -> bool:
        """Only the counts of the solver's work differ."""
        return all(d.where.startswith(_STATS) for d in self.found)


def check(pair: Pair, *, score: bool, planner: Planner = plan) -> Checked:
    """Plan one snapshot and compare."""
    return _compared(pair, answer(pair[0], planner=planner), score=score)


def check_verified(pair: Pair, *, score: bool) -> Checked:
    """The same; it is worse if the snapshot cannot be planned, or if the verifier refuses its plan."""
    entry, _ = pair
    try:
        now = answer(entry)
        verified(entry, now)
    except Defect as defect:
        found = Difference("plan", "made and verified", str(defect), worse=True)
        return Checked(entry.key, entry.source, (found,), 0)
    return _compared(pair, now, score=score)


def _compared(pair: Pair, now: Recorded, *, score: bool) -> Checked:
    entry, was = pair
    compare = _scores if score else _bytes
    return Checked(entry.key, entry.source, tuple(compare(was, now)), len(now.diagnoses))


def _bytes(was: Recorded, now: Recorded) -> Iterator[Difference]:
    if now.digest != was.digest:
        yield from differences(was.plan, now.plan)
    yield from differences(was.diagnoses, now.diagnoses, "diagnoses")


def _scores(was: Recorded, now: Recorded) -> Iterator[Difference]:
    found = [compare_scores(was.score, now.score)]
    found += [
        compare_diagnoses(uid, was.diagnoses[uid]["score"], now.diagnoses[uid]["score"])
        for uid in sorted(was.diagnoses.keys() & now.diagnoses.keys())
    ]
    may_worsen = SHORT_SEARCH in was.features
    for difference in chain.from_iterable(found):
        yield replace(difference, worse=difference.worse and not may_worsen)


def pairs(directory: Path = DATA, only: str = "") -> Iterator[Pair]:
    """Snapshots whose key contains ``only``, and what was recorded of each."""
    for entry, was in zip(read_entries(directory), read_recorded(directory), strict=True):
        assert entry.key == was.key, "the two files are not of one recording"
        if only in entry.key:
            yield entry, was


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if all is as it must be, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--score", action="store_true", help="plans can differ if they are not worse"
    )
    parser.add_argument("--only", default="", help="snapshots whose name contains this")
    parser.add_argument("--lines", type=int, default=LINES, help="printed of one snapshot")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a core")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of the two files")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    one = partial(check_verified, score=options.score)
    found = pairs(options.data, options.only)
    checked = (
        _in_processes(one, found, options.processes) if options.processes > 1 else map(one, found)
    )
    code = report(checked, score=options.score, lines=options.lines)
    print(f"{time.monotonic() - began:.0f} s")
    return code


def _in_processes(
    one: Callable[[Pair], Checked], found: Iterable[Pair], processes: int
) -> Iterator[Checked]:
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(one, found, chunksize=8)


def report(checked: Iterable[Checked], *, score: bool, lines: int = LINES) -> int:
    """Print what differs, then the sums; returns 1 if a plan differs, or with ``score`` if one is worse."""
    sums, sources = Counter[str](), Counter[str]()
    for one in checked:
        sources[one.source] += 1
        sums["diagnosed"] += one.diagnosed
        if not one.found:
            continue
        sums["differ"] += 1
        sums["worse"] += one.worse
        sums["work"] += one.work_alone
        _print(one, score=score, lines=lines)
    of_sources = ", ".join(f"{count} of {source}" for source, count in sources.items())
    print(f"{sources.total()} snapshots checked ({of_sources}), and {sums['diagnosed']} diagnoses")
    if score:
        print(f"{sums['worse']} are worse; {sums['differ'] - sums['worse']} others differ")
        return int(sums["worse"] > 0)
    print(f"{sums['differ']} differ, {sums['work']} of them in the work of the solver alone")
    return int(sums["differ"] > 0)


def _print(one: Checked, *, score: bool, lines: int) -> None:
    print(f"{'worse' if score and one.worse else 'differs'}: {one.key}")
    ordered = sorted(one.found, key=lambda difference: not difference.worse)
    for difference in ordered[:lines]:
        print(f"    {'worse: ' if difference.worse else ''}{difference}")
    if len(ordered) > lines:
        print(f"    and {len(ordered) - lines} more")


if __name__ == "__main__":
    sys.exit(main())
