"""The recorded results of traces, and the tables of the page that are made from them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.traces import tables
from tests.traces.tables import table

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = Path(__file__).parent / "results.csv"
PAGE: Final = ROOT / "docs/explanation/simulated-traces.md"
RULE: Final = "default"


@dataclass(frozen=True, slots=True)
class Record:
    """One simulation.

    Attributes:
        trace, strategy, placement, durations: what was simulated.
        rule: settings of Backfill that differ from the defaults, or ``RULE``.
        mean, several, p99: waits in seconds: of all jobs, of those with more than one pod, and the 99th percentile.
        reference: mean wait of an independent implementation; empty without one.
        allocation: 0 to 1.
        evictions: of gangs.
        cpu: seconds.
        date, commit: of the run.
    """

    trace: str
    strategy: str
    placement: str
    durations: str
    rule: str
    mean: float
    several: float
    p99: float
    reference: str
    allocation: float
    evictions: int
    cpu: float
    date: str
    commit: str

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the simulation."""
        return self.trace, self.strategy, self.placement, self.durations, self.rule


def read() -> dict[tuple[str, ...], Record]:
    """The recorded results, by what was simulated."""
    return tables.read(RESULTS, Record)


def write(found: Record) -> None:
    """Record a result, also in the tables of the page."""
    PAGE.write_text(with_tables(PAGE.read_text(), tables.write(RESULTS, found)))


def now() -> tuple[str, str]:
    """Date and commit of a run that begins now."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    return datetime.now(UTC).date().isoformat(), found.stdout.strip()


def with_tables(page: str, listed: Sequence[Record]) -> str:
    """The page with the tables of these results."""
    made = {
        "comparison": table(COMPARISON_HEAD, _comparison(listed)),
        "results": table(HEAD, map(row, (r for r in listed if r.rule == RULE))),
        "rules": table(RULES_HEAD, _rules(listed)),
    }
    return tables.with_tables(page, "make traces RECORD=1", made)


HEAD: Final = (
    "| trace | strategy | placement | run times | mean wait (s) | reference (s) | multi-node (s) | p99 (s) | allocation | evictions "
    "| CPU time (s) | run |\n"
    "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
)
COMPARISON_HEAD: Final = (
    "| trace | StrictFIFO | BestEffortFIFO | Backfill, declared | Backfill, learned |\n"
    "| --- | ---: | ---: | ---: | ---: |\n"
)
COMPARED: Final = (
    ("StrictFIFO", "best-fit", "-"),
    ("BestEffortFIFO", "best-fit", "-"),
    ("Backfill", "planner", "declared"),
    ("Backfill", "planner", "learned"),
)
RULES_HEAD: Final = (
    "| trace | rule | mean wait (s) | multi-node (s) | p99 (s) | run |\n"
    "| --- | --- | ---: | ---: | ---: | --- |\n"
)


def row(record: Record) -> str:
    """Its line of the table of results."""
    cells = [record.trace, record.strategy, record.placement, record.durations]
    cells += [_seconds(record.mean), record.reference or "-", _seconds(record.several)]
    cells += [_seconds(record.p99), f"{100 * record.allocation:.1f}%", f"{record.evictions:,}"]
    cells += [f"{record.cpu:,.0f}", f"{record.date}, {record.commit}"]
    return f"| {' | '.join(cells)} |"


def _comparison(records: Iterable[Record]) -> Iterator[str]:
    """Mean waits of all jobs / of those of several nodes, for each trace with a run of FIFO."""
    known = {each.key: each for each in records}
    for trace in dict.fromkeys(trace for trace, *_ in known):
        found = [known.get((trace, *each, RULE)) for each in COMPARED]
        if found[0] is not None:
            cells = (
                f"{_seconds(each.mean)} / {_seconds(each.several)}" if each else "-"
                for each in found
            )
            yield f"| {trace} | {' | '.join(cells)} |"


def _rules(records: Iterable[Record]) -> Iterator[str]:
    for each in records:
        if each.rule != RULE:
            cells = [each.trace, each.rule, _seconds(each.mean), _seconds(each.several)]
            cells += [_seconds(each.p99), f"{each.date}, {each.commit}"]
            yield f"| {' | '.join(cells)} |"


def _seconds(value: float) -> str:
    return f"{value:,.0f}"
