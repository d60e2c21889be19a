"""Plan generated snapshots and verify the plans; print each violation with its seed, and how often features occurred.

python -m tests.planner.fuzz_plans --first 0 --last 1000
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import some
from queuectl.planner import plan
from queuectl.planner.verify import verify
from tests.planner.feature_counts import FEATURES, OUTCOMES, FeatureCounts, features_of, outcomes_of
from tests.planner.generate_cycles import following
from tests.planner.generate_features import fragmented, snapshot_of

_SHOWN: Final = 20  # features and pairs that never occurred


def cycles_of(seed: int, most: int = 4) -> Iterator[tuple[Snapshot, Plan]]:
    """The cycles of a seed with their plans."""
    rng = random.Random(f"cycles {seed}")
    snapshot = fragmented(seed, snapshot_of(seed))
    for _ in range(most):
        made = plan(snapshot)
        yield snapshot, made
        snapshot = following(snapshot, made, rng)


def complaints(seed: int, counts: FeatureCounts, most: int = 4) -> Iterator[str]:
    """The defects of the plans of a seed: violations, alarms, and an exception. The features go to ``counts``."""
    number = 0
    try:
        for number, (snapshot, made) in enumerate(cycles_of(seed, most)):
            counts.note(features_of(snapshot) | outcomes_of(snapshot, made))
            violations = verify(snapshot, made)
            found = (*map(str, violations), *(f"alarm {alarm}" for alarm in made.alarms))
            yield from (f"seed {seed} cycle {number}: {text}" for text in found)
            if violations:
                return
    except Exception as error:  # noqa: BLE001  # it is what the test looks for
        cause = error.__cause__ or error
        last = traceback.extract_tb(cause.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        yield f"seed {seed} after cycle {number}: {type(cause).__name__}: {cause} at {where}"


def main() -> None:
    """Plan the seeds; the exit code is 1 if a plan is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=100, help="the seed after the last one")
    parser.add_argument("--cycles", type=int, default=4, help="of each seed")
    options = parser.parse_args()
    counts, wrong = FeatureCounts(), 0
    for seed in range(options.first, options.last):
        for text in complaints(seed, counts, options.cycles):
            wrong += 1
            print(text, flush=True)
    print(counts.table())
    never = counts.missing(FEATURES | OUTCOMES)
    print(f"{counts.cycles} cycles; never: {some(never, _SHOWN) or 'none'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
