"""Decisions: the planning cycles that started or evicted gangs, and the page of each with its gangs and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem, ProblemType
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import Right
from queuectl.domain.ledger import StoredDecision
from queuectl.web.site import PREFIX, Site, whole

PAGE: Final = 50
_EFFORT: Final = {
    "looked_at": "Pending gangs considered",
    "solves": "Solver runs",
    "solver_unknown": "Solver runs without a result",
    "solver_alarms": "Solver runs that took too long",
    "deterministic_time": "Solver work, in its own unit of time",
    "replaced": "Gangs that got another place in the plan",
    "rooms_sought": "Searches for room by migrations",
}
"""Counts of the planner in a cycle, in words. Other counts are not shown."""


def routes(site: Site) -> list[Route]:
    """Offer the pages."""

    async def listed(request: Request) -> Response:
        await site.guard.require(request, Right("list", "decisions"))
        before = whole(request, "before") or None
        decisions = await site.store.decisions(before, PAGE + 1)
        return site.page(
            request,
            "decisions.html",
            await site.access(request),
            decisions=decisions[:PAGE],
            reasons=by_number,
            next_before=decisions[PAGE - 1].id if len(decisions) > PAGE else None,
            first=before is None,
        )

    async def one(request: Request) -> Response:
        await site.guard.require(request, Right("get", "decisions"))
        decided = await _asked_for(site, request)
        after = whole(request, "after")
        steps, next_after = await site.presenter.decided(request, site.store, decided, after)
        return site.page(
            request,
            "decision.html",
            await site.access(request),
            number=decided.id,
            cycle=decided,
            decision=decided.decision,
            reasons=by_number(decided.decision.reasons),
            effort=[
                (words, decided.decision.stats[name])
                for name, words in _EFFORT.items()
                if name in decided.decision.stats
            ],
            steps=steps,
            next_after=next_after,
            first=not after,
        )

    async def of_step(request: Request) -> Response:
        """Redirects from a step of a workload's history to the cycle that decided it."""
        await site.guard.require(request, Right("get", "decisions"))
        line = whole(request, "line")
        decisions = await _deciding(site.store, line)
        if decisions is None:
            detail = f"no decision is stored for step {line}; decisions are stored for 7 days"
            raise ApiProblem(ProblemType.NOT_FOUND, detail)
        return RedirectResponse(f"{PREFIX}/decisions/{decisions.id}", 303)

    return [
        Route("/decisions", listed),
        Route("/decisions/of", of_step),
        Route("/decisions/{number}", one),
    ]


async def _deciding(store: ApiStore, line: int) -> StoredDecision | None:
    """The record that has this line of history, or None: a binary search, because ids of records and lines rise together."""
    newest = await store.decisions(limit=1)
    low, high = 0, newest[0].id + 1 if newest else 0  # its id is at least low and below high
    while low < high:
        middle = (low + high) // 2
        below = await store.decisions(before=middle + 1, limit=1)
        if not below or below[0].upto < line:
            low = middle + 1
        elif below[0].after < line:
            return below[0]
        else:
            high = below[0].id
    return None


async def _asked_for(site: Site, request: Request) -> StoredDecision:
    """The decision of the path. Raises ApiProblem when it does not exist."""
    text = request.path_params["number"]
    number = int(text) if text.isdecimal() and len(text) < 19 else 0
    decided = await site.store.get_decision(number)
    if decided is None:
        detail = f"decision {text} does not exist; decisions are kept for 7 days"
        raise ApiProblem(ProblemType.NOT_FOUND, detail)
    return decided


def by_number(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    """Pending reasons, the most frequent first."""
    return sorted(reasons.items(), key=lambda one: (-one[1], one[0]))
