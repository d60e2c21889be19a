"""Budgets: granted, spent and committed GPU-hours of the current month, and when each will be spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.budgets import shown
from queuectl.domain.budgets import TopUp
from queuectl.domain.identity import Right
from queuectl.domain.spending import BudgetReport, Forecast, report
from queuectl.web.site import Site
from queuectl.web.words import seconds_of

PATH: Final = "/budgets"


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget with its bar. Amounts in units of the usage ledger."""

    forecast: Forecast

    @property
    def granted(self) -> int:
        """Of the month, with top-ups."""
        return self.forecast.balance.granted

    @property
    def spent(self) -> int:
        """Of the month until now."""
        return self.forecast.used

    @property
    def committed(self) -> int:
        """The use of running gangs until their ends."""
        return self.forecast.committed

    @property
    def left(self) -> int:
        """Negative if more is spent and committed than granted."""
        return self.forecast.left

    @property
    def over(self) -> int:
        """The part of spent and committed units that exceeds what is granted."""
        return max(0, -self.left)

    @property
    def scale(self) -> int:
        """The units of the whole bar: those that are granted, and those over them."""
        return max(1, self.granted + self.over)


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def budgets(request: Request) -> Response:
        access = await site.access(request)
        seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)
        if seen is not None and not seen:
            await site.guard.require(request, Right("get", "reports"))
        snapshot = await site.current_snapshot()
        known = report(snapshot) if snapshot is not None else BudgetReport(site.clock())
        rows = [BudgetRow(one) for one in known.forecasts if shown(one, seen)]
        return site.page(
            request,
            "budgets.html",
            access,
            known=snapshot is not None,
            budgets=rows,
            top_ups=list(_top_ups(known.top_ups, rows)),
            may_add=await site.guard.may(request, Right("update", "budgets")),
        )

    return [Route(PATH, budgets)]


def _top_ups(
    top_ups: Iterable[TopUp], rows: Iterable[BudgetRow]
) -> Iterator[tuple[TopUp, float | None]]:
    """The top-ups of these budgets in their current months, each with its time; None for one without a time."""
    current = {(row.forecast.balance.budget.name, row.forecast.balance.month.name) for row in rows}
    for top_up in top_ups:
        if (top_up.budget, top_up.month) in current:
            yield top_up, seconds_of(top_up.at)
