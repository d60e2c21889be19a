"""The trade-off of whole free nodes that are kept: ``python -m tests.traces.tradeoff [--run FACTOR...]``.

It simulates cluster 03 of ITP on 30 nodes with learned run times, records the waits, and draws docs/images/backfill-tradeoff.svg from all
recorded runs. The factor 0 keeps no node.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.planner.backfill import planned_starts
from queuectl.simulate.report import simulate
from queuectl.simulate.simulation import Durations, Order, PlacementRule, Policy
from tests.simulate.cases import SLICE, setting
from tests.traces import tables
from tests.traces.records import ROOT, now
from tests.traces.tradeoff_picture import picture

RUNS: Final = Path(__file__).parent / "tradeoff.csv"
PICTURE: Final = ROOT / "docs/images/backfill-tradeoff.svg"
NODES: Final = {"cluster03": 30}
FIFO: Final = "StrictFIFO"
FACTORS: Final = ("0", "0.1", "0.25", "0.5", "1", "2", "4", "8", "16")


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation.

    Attributes:
        factor: of the longest run of earlier gangs, or ``FIFO``.
        mean, several: waits in seconds: of all jobs, and of those with more than one pod.
        date, commit: of the run.
    """

    factor: str
    mean: float
    several: float
    date: str
    commit: str

    @property
    def key(self) -> tuple[str, ...]:
        """The factor."""
        return (self.factor,)


def read() -> dict[str, Run]:
    """The recorded runs by factor."""
    return {run.factor: run for run in tables.read(RUNS, Run).values()}


def simulated(factor: str) -> Run:
    """``factor``: a number, or ``FIFO``."""
    made = now()
    policy = Policy(PlacementRule.BEST_FIT, Order.STRICT_FIFO)
    if factor != FIFO:
        policy = Policy(PlacementRule.PLANNER, Order.BACKFILL, Durations.LEARNED)
        vars(planned_starts)["MARGIN"] = float(factor)
    total = simulate(setting(NODES, SLICE.read_bytes()), policy).total
    mean, several = total.waits.mean, total.several.mean
    return Run(factor, round(mean or 0.0, 1), round(several or 0.0, 1), *made)


def drawn(runs: dict[str, Run]) -> str:
    """The picture. Waits are in percent of those with FIFO."""
    fifo = runs[FIFO]
    points = [
        (name, 100 * runs[name].mean / fifo.mean, 100 * runs[name].several / fifo.several)
        for name in FACTORS
        if name in runs
    ]
    return picture(points)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", nargs="*", default=(), choices=[FIFO, *FACTORS])
    for factor in parser.parse_args().run:
        found = simulated(factor)
        print(found, flush=True)
        tables.write(RUNS, found)
    PICTURE.write_text(drawn(read()))


if __name__ == "__main__":
    main()
