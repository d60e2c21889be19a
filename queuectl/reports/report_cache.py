"""The use of nodes and quota that reports show, from one report to the next."""

from __future__ import annotations

from queuectl.domain.snapshot import Snapshot
from queuectl.planner.cache import PlannerCache
from queuectl.planner.problem.fleet import index_of
from queuectl.planner.problem.usage import AdmittedUsage, usage_of


class ReportCache(PlannerCache):
    """A fork that reports share: each starts from the last report. Plans start from the last plan, and their nodes can have rows of limits."""


def use_for_report(snapshot: Snapshot, cache: PlannerCache) -> AdmittedUsage:
    """The use in a snapshot; ``cache``: of the process. The start of the next plan stays as it is."""
    index_of(snapshot.fleet, cache)
    own = cache.latest(ReportCache) or cache.keep_latest(ReportCache(cache))
    return usage_of(snapshot, own)
