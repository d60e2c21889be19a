"""Run the traces: ``python -m tests.traces.compare FOLDER [--record] [--planner NAME] [--backfill NAME] [--rules NAME]``.

It ends with 1 if FIFO or SJF of the reference rule differ from the reference by more than 1%.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from queuectl.simulate.report import simulate
from queuectl.simulate.simulation import Durations, Order, PlacementRule, Policy
from tests.traces import records
from tests.traces.records import RULE, Record
from tests.traces.scenarios import Scenario, scenarios

TOLERANCE: Final = 0.01
EXACT: Final = (Order.STRICT_FIFO, Order.SJF)
REFERENCE: Final = (Order.STRICT_FIFO, Order.BEST_EFFORT_FIFO, Order.SJF)
LIMITS: Final = (Durations.DECLARED, Durations.LEARNED)
RULES: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {"plannedStarts": number, "backfillOrder": order, "plannedStartDelay": delay}
    for order in ("Queue", "Shortest")
    for number, delay in ((1, 0), (1, 0.1), (1, 0.3), (2, 0), (4, 0))
)


def runs(
    planner: str | None, backfill: str | None, rules: str | None, scenario: Scenario
) -> Iterator[tuple[Policy, Mapping[str, Any]]]:
    """The policies for a trace, and their settings. Each name is a part of the names of the traces; None = of none."""
    for order in () if scenario.shared else REFERENCE:
        yield Policy(PlacementRule.BEST_FIT, order), {}
        if planner is not None and planner in scenario.name:
            yield Policy(PlacementRule.PLANNER, order), {}
    if backfill is not None and backfill in scenario.name:
        for durations in LIMITS:
            yield Policy(PlacementRule.PLANNER, Order.BACKFILL, durations), {}
    if rules is not None and rules in scenario.name:
        for rule in RULES:
            yield Policy(PlacementRule.PLANNER, Order.BACKFILL), rule


def run(
    scenario: Scenario, folder: Path, policy: Policy, rule: Mapping[str, Any], made: tuple[str, str]
) -> Record:
    """Simulate a trace. ``rule``: ``spec.policy`` of the ClusterQueues; ``made``: date and commit."""
    setting = scenario.setting(folder, rule)
    began = time.process_time()
    total = simulate(setting, policy).total
    took = time.process_time() - began
    reference = scenario.reference.get(policy.order) if policy.order is not None else None
    return Record(
        trace=scenario.name,
        strategy=str(policy.order),
        placement=str(policy.placement),
        durations="-" if policy.order is not Order.BACKFILL else str(policy.durations),
        rule=", ".join(f"{name}: {value}" for name, value in rule.items()) or RULE,
        mean=round(total.waits.mean or 0.0, 1),
        several=round(total.several.mean or 0.0, 1),
        p99=round(total.waits.p99 or 0.0, 1),
        reference="" if reference is None else f"{reference:,}",
        allocation=round(total.allocation or 0.0, 4),
        evictions=total.evictions,
        cpu=round(took, 1),
        date=made[0],
        commit=made[1],
    )


def agrees(scenario: Scenario, policy: Policy, found: Record) -> bool:
    """Whether FIFO and SJF of the reference rule are as the reference has them, if it has them."""
    if policy.placement is PlacementRule.PLANNER or policy.order not in EXACT:
        return True
    expected = scenario.reference.get(policy.order)
    return expected is None or abs(found.mean - expected) <= TOLERANCE * expected


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true", help="write the results to the page")
    of_traces = "traces, as a part of their names"
    parser.add_argument("--planner", help=f"{of_traces}, for the planner with each strategy")
    parser.add_argument("--backfill", help=f"{of_traces}, for Backfill")
    parser.add_argument("--rules", help=f"{of_traces}, for the settings of Backfill")
    given = parser.parse_args()
    print(records.HEAD, end="", flush=True)
    made, wrong = records.now(), 0
    for scenario in scenarios(given.folder):
        for policy, rule in runs(given.planner, given.backfill, given.rules, scenario):
            found = run(scenario, given.folder, policy, rule, made)
            print(records.row(found), found.rule, flush=True)
            wrong += not agrees(scenario, policy, found)
            if given.record:
                records.write(found)
    if wrong:
        print(f"{wrong} results differ from the reference by more than 1%", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
