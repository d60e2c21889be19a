"""The recorded results of calibrations, and the table of the page that is made from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.traces import tables
from tests.traces.records import ROOT

RESULTS: Final = Path(__file__).parent / "calibration.csv"
PAGE: Final = ROOT / "docs/explanation/expected-starts.md"
_NAMES: Final = ("trace", "strategy", "run times")
_FIGURES: Final = (
    "samples",
    "with an estimate",
    "by the median",
    "by the 90th percentile",
    "median error (s)",
    "median error of the moving average (s)",
    "CPU time for each (s)",
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The samples of one simulation.

    Attributes:
        trace, strategy, runs: the simulation, and the source of the run times.
        samples: number of them.
        known: samples with an estimate. All shares and errors are of these.
        by_median, by_p90: starts no later than these quantiles.
        error: median of the time between the median and the start, in seconds.
        average: the same of the moving average.
        cpu: seconds for each estimate.
        date, commit: of the run.
    """

    trace: str
    strategy: str
    runs: str
    samples: int
    known: int
    by_median: int
    by_p90: int
    error: float
    average: float
    cpu: float
    date: str
    commit: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The simulation, and the source of the run times."""
        return self.trace, self.strategy, self.runs

    def row(self) -> str:
        """Its line of the table."""
        parts = (
            (self.known, self.samples),
            (self.by_median, self.known),
            (self.by_p90, self.known),
        )
        cells = [*self.key, f"{self.samples:,}"]
        cells += [f"{100 * part / max(1, whole):.0f}%" for part, whole in parts]
        cells += [f"{self.error:,.0f}", f"{self.average:,.0f}", f"{self.cpu:.2f}"]
        return f"| {' | '.join(cells)} | {self.date}, {self.commit} |"


def read() -> dict[tuple[str, ...], Calibration]:
    """The recorded results, by what was simulated."""
    return tables.read(RESULTS, Calibration)


def write(found: Calibration) -> None:
    """Record a result, also in the table of the page."""
    listed = tables.write(RESULTS, found)
    PAGE.write_text(with_table(PAGE.read_text(), listed))


def with_table(page: str, listed: Iterable[Calibration]) -> str:
    """The page with the table of these results."""
    titles, lines = (*_NAMES, *_FIGURES, "run"), ["---"] * len(_NAMES) + ["---:"] * len(_FIGURES)
    head = f"| {' | '.join(titles)} |\n| {' | '.join([*lines, '---'])} |\n"
    results = tables.table(head, (record.row() for record in listed))
    return tables.with_tables(page, "make calibration RECORD=1", {"results": results})
