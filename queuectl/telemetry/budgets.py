"""Metrics of budgets in the present month."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from queuectl.domain.accounting import UNITS
from queuectl.domain.spending import BudgetReport

_HELP: Final = {
    "granted_gpu_seconds": "GPU-seconds of a Budget in the present month, with top-ups.",
    "spent_gpu_seconds": "GPU-seconds of a Budget that are used in the present month.",
    "committed_gpu_seconds": "GPU-seconds of a Budget that running gangs use until their ends.",
    "spent_timestamp_seconds": "Time at which running gangs will have spent a Budget; absent if not in the present month.",
}


class BudgetMetrics:
    """One series for each Budget. Only the leader shows them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(f"queuectl_budget_{name}", text, ["budget"], registry=registry)
            for name, text in _HELP.items()
        }

    def show(self, report: BudgetReport) -> None:
        """Replace all series by those of this report."""
        self.forget()
        for one in report.forecasts:
            name = one.balance.budget.name
            amounts = (one.balance.granted, one.used, one.committed)
            for gauge, amount in zip(self._gauges.values(), amounts, strict=False):
                gauge.labels(name).set(amount / UNITS)
            if one.spent_at is not None:
                self._gauges["spent_timestamp_seconds"].labels(name).set(one.spent_at)

    def forget(self) -> None:
        """Remove all series: another process leads."""
        for gauge in self._gauges.values():
            gauge.clear()
