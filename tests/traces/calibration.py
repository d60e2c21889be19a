"""Compare expected starts with the starts of simulated traces: ``python -m tests.traces.calibration FOLDER [--record] [--samples N]``.

A sample is a job at its submission, if it has to wait. Its estimate uses the state of the queues then, and the run times of the jobs that
had finished by then. Alongside it is the mean wait of the last 20 jobs of its ClusterQueue that had started.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Final

from queuectl.domain.estimates import ExpectedStart
from queuectl.durations.expectations import RunTimes, Stated, possible_runs
from queuectl.estimates.expected_starts import MOST_GANGS, expected_starts
from queuectl.estimates.scene import scene_of
from queuectl.planner.cache import PlannerCache
from queuectl.simulate.setting import Setting
from queuectl.simulate.simulation import Order
from tests.traces.calibration_records import Calibration, write
from tests.traces.records import now
from tests.traces.replay import BEGIN, Seen, simulated, states, work_of
from tests.traces.scenarios import scenarios

RECENT: Final = 20  # waits in the moving average
ORDERS: Final = (Order.STRICT_FIFO, Order.BEST_EFFORT_FIFO)
KINDS: Final = ("stated", "learned")


@dataclass
class Result:
    """The samples of one simulation.

    Attributes:
        errors: seconds between the median and the start, of samples with an estimate.
        others: the same of the moving average, of the same samples.
    """

    samples: int = 0
    by_median: int = 0
    by_p90: int = 0
    errors: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    took: float = 0.0

    def note(self, seen: Seen, start: ExpectedStart | None) -> None:
        """One more sample."""
        self.samples += 1
        if start is None:
            return
        at = BEGIN + seen.job.start
        self.by_median += at <= start.median
        self.by_p90 += start.p90 is None or at <= start.p90
        self.errors.append(abs(at - start.median))
        wait = seen.job.start - seen.job.job.submit
        self.others.append(abs(wait - mean(seen.past_waits[-RECENT:] or (0.0,))))

    def record(self, key: tuple[str, str, str], made: tuple[str, str]) -> Calibration:
        """``key``: what was simulated; ``made``: date and commit."""
        return Calibration(
            *key,
            samples=self.samples,
            known=len(self.errors),
            by_median=self.by_median,
            by_p90=self.by_p90,
            error=round(median(self.errors or [0.0]), 1),
            average=round(median(self.others or [0.0]), 1),
            cpu=round(self.took / max(1, self.samples), 3),
            date=made[0],
            commit=made[1],
        )


def estimated(setting: Setting, seen: Seen, kind: str, cache: PlannerCache) -> ExpectedStart | None:
    """The expected start of the job that was submitted."""
    now = seen.snapshot.now - BEGIN
    runs: dict[str, RunTimes | None] = {}
    for uid, one in seen.live.items():
        stated = Stated(expected=one.end - one.start) if kind == "stated" else Stated()
        elapsed = max(0.0, now - one.start)
        work, submitted = work_of(setting, one.job), one.job.submit
        runs[uid] = possible_runs(work, stated, elapsed, seen.estimator, submitted)
    scene = scene_of(seen.snapshot, cache, MOST_GANGS)
    return expected_starts(scene, runs).by_uid.get(seen.job.uid)


def result(setting: Setting, order: Order, kind: str, samples: int) -> Result:
    jobs = simulated(setting, order)
    waited = sum(one.start > one.job.submit for one in jobs)
    found, cache = Result(), PlannerCache()
    for seen in states(setting, order, jobs, max(1, waited // samples)):
        began = time.process_time()
        start = estimated(setting, seen, kind, cache)
        found.took += time.process_time() - began
        found.note(seen, start)
    return found


def results(folder: Path, samples: int, part: str) -> Iterator[Calibration]:
    for scenario in scenarios(folder):
        if scenario.shared or part not in scenario.name:  # the reference rule knows no cohorts
            continue
        setting = scenario.setting(folder)
        for order in ORDERS:
            for kind in KINDS:
                made = now()
                yield result(setting, order, kind, samples).record(
                    (scenario.name, str(order), kind), made
                )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="keep each result, also in the page")
    parser.add_argument("--samples", type=int, default=60, help="of each simulation, about")
    parser.add_argument("--trace", default="", help="a part of the names of traces")
    given = parser.parse_args()
    for found in results(given.folder, given.samples, given.trace):
        print(found.row(), flush=True)
        if given.record:
            write(found)


if __name__ == "__main__":
    main()
