"""The use of Budgets before a time, by the usage ledger of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from queuectl.cli.client import connect
from queuectl.cli.errors import CommandFailed, Exit
from queuectl.domain.budgets import Budget, BudgetScope, Month, SpentUnits, units_of
from queuectl.domain.usage_reports import By
from queuectl.domain.words import format_time
from queuectl.objects.configuration.config_kinds import PREFIX

_BY: Final[Mapping[BudgetScope, By]] = {
    BudgetScope.CLUSTER_QUEUE: By.CLUSTER_QUEUE,
    BudgetScope.LOCAL_QUEUE: By.QUEUE,
    BudgetScope.NAMESPACE: By.NAMESPACE,
    BudgetScope.USER: By.USER,
}


class ServerLedger:
    """Each sum is asked for once."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._known: dict[tuple[BudgetScope, Month, float], dict[str, int]] = {}

    def spent(self, budgets: Iterable[Budget], at: float) -> SpentUnits:
        """The use of Budgets in the month of a time (unix seconds), to the end of the hour of that time.

        Raises:
            CommandFailed: the server does not answer, or the caller does not see all reports.
        """
        units: dict[tuple[str, int], int] = {}
        for budget in budgets:
            month = budget.month(at)
            key = (budget.scope, month, at)
            if key not in self._known:
                self._known[key] = self._sums(*key)
            units[budget.name, month.begins] = self._known[key].get(budget.holder, 0)
        return SpentUnits(at, units)

    def _sums(self, scope: BudgetScope, month: Month, at: float) -> dict[str, int]:
        """Units by spender."""
        if at <= month.begins:
            return {}
        with connect(self._server) as client:
            body = client.get(
                f"{PREFIX}/reports/waste",
                by=_BY[scope],
                since=format_time(month.begins),
                until=format_time(at),
            )
        if body["cluster"] is None:  # so that it is unknown whether the items are all
            rights = "the rights to get reports in all namespaces and to list nodes"
            raise CommandFailed(
                f"to know what Budgets have spent, you need {rights}", Exit.NOT_ALLOWED
            )
        return {
            _spender(item["group"], scope): units_of(Fraction(str(item["allocatedGpuHours"])))
            for item in body["items"]
        }


def _spender(group: Mapping[str, Any], scope: BudgetScope) -> str:
    match scope:
        case BudgetScope.CLUSTER_QUEUE:
            return str(group["clusterQueue"])
        case BudgetScope.LOCAL_QUEUE:
            return f"{group['namespace']}/{group['queue']}"
        case BudgetScope.NAMESPACE:
            return str(group["namespace"])
        case BudgetScope.USER:
            return str(group["user"])
