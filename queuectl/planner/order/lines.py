"""Lines of gangs with planned starts: a ClusterQueue with the strategy Backfill, or all ClusterQueues below a Cohort with it."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.domain.queues import Backfill, QueueConfig, QueueingStrategy
from queuectl.planner.cache import PlannerCache


@dataclass(frozen=True, slots=True)
class PlannedStartQueue:
    """Gangs of which the first that wait have planned starts.

    Attributes:
        name: of the Cohort (``cohort``) or of the ClusterQueue.
        rule: how many planned starts it has, and the order behind them.
    """

    name: str
    cohort: bool
    rule: Backfill


class Lines(dict[str, PlannedStartQueue]):
    """ClusterQueue to its line; ClusterQueues without planned starts are absent."""

    def of(self, queue: str | None) -> PlannedStartQueue | None:
        """The line of a ClusterQueue."""
        return self.get(queue or "")


def lines_of(config: QueueConfig, cache: PlannerCache) -> Lines:
    """The lines of a configuration, found at first use."""
    known = cache.get(config, Lines)
    return known if known is not None else cache.keep(config, find_lines(config))


def find_lines(config: QueueConfig) -> Lines:
    """The lines of a configuration. The highest Cohort that sets a line counts."""
    lines = Lines()
    for name, queue in config.cluster_queues.items():
        cohort = config.backfill_cohort(queue)
        if cohort is not None and cohort.backfill is not None:
            lines[name] = PlannedStartQueue(cohort.name, cohort=True, rule=cohort.backfill)
        elif queue.strategy is QueueingStrategy.BACKFILL:
            lines[name] = PlannedStartQueue(name, cohort=False, rule=queue.backfill)
    return lines
