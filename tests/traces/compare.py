"""Run all traces with both placements and all strategies: ``python -m tests.traces.compare FOLDER [--record] [--planner NAME]``.

It ends with 1 if FIFO or SJF of the reference rule differ from the reference by more than 1 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from queuectl.simulate.comparison import simulate
from queuectl.simulate.policy import Order, Placement, Policy
from queuectl.simulate.results import Figures
from tests.traces.scenarios import Scenario, scenarios

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/explanation/simulated-traces.md"
BEGIN: Final = "<!-- results: make traces RECORD=1 -->"
END: Final = "<!-- end of results -->"
TOLERANCE: Final = 0.01
EXACT: Final = (Order.STRICT_FIFO, Order.SJF)

HEAD: Final = (
    "| trace | strategy | placement | mean wait (s) | reference (s) | multi-node (s) | p99 (s) | allocation | CPU time (s) |\n"
    "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


def rows(folder: Path, planner: str) -> Iterator[tuple[str, bool]]:
    """A line of the table for each simulation, and whether it is as the reference.

    ``planner``: a part of the names of the traces to run with the planner, too.
    """
    for scenario in scenarios(folder):
        placements = [Placement.BEST_FIT]
        if planner in scenario.name:
            placements.append(Placement.PLANNER)
        setting = scenario.setting(folder)
        for order in Order:
            for placement in placements:
                began = time.process_time()
                total = simulate(setting, Policy(placement, order)).total
                took = time.process_time() - began
                yield (
                    _row(scenario, order, placement, total, took),
                    _agrees(scenario, order, placement, total),
                )


def _row(
    scenario: Scenario, order: Order, placement: Placement, total: Figures, took: float
) -> str:
    values = (total.waits.mean, scenario.reference[order], total.several.mean, total.waits.p99)
    cells = [scenario.name, order, placement, *(f"{value or 0:,.0f}" for value in values)]
    cells += [f"{100 * (total.allocation or 0):.1f} %", f"{took:,.0f}"]
    return f"| {' | '.join(cells)} |"


def _agrees(scenario: Scenario, order: Order, placement: Placement, total: Figures) -> bool:
    if placement is Placement.PLANNER or order not in EXACT:
        return True
    expected, found = scenario.reference[order], total.waits.mean
    return found is not None and abs(found - expected) <= TOLERANCE * expected


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="write the results to the page")
    parser.add_argument(
        "--planner", default="", help="traces for the planner: a part of their names"
    )
    given = parser.parse_args()
    print(HEAD, end="", flush=True)
    table, wrong = HEAD, 0
    for row, agrees in rows(given.folder, given.planner):
        print(row, flush=True)
        table += row + "\n"
        wrong += not agrees
    if given.record:
        _record(table)
    if wrong:
        print(f"{wrong} results differ from the reference by more than 1 %", file=sys.stderr)
    return 1 if wrong else 0


def _record(table: str) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(
        f"{before}{BEGIN}\n\nRun on {today} at commit {commit}.\n\n{table}\n{END}{after}"
    )


if __name__ == "__main__":
    sys.exit(main())
