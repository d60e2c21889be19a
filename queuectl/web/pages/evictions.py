"""The list of evictions: victim, preemptor, rule and lost work of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.domain.queries import HistoryLine
from queuectl.web.site import AccessScope, Site, whole

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class EvictionLine:
    """A line of the log.

    Attributes:
        price: lost work in GPU-seconds; None where it is not recorded.
        gpus: number of GPUs that it freed; None where it is not recorded.
        rule: rule of the preemption; empty where no other gang was the reason.
        favored: uid and name of the preemptor; None without one, or if the caller may not see it.
    """

    line: HistoryLine
    price: float | None
    gpus: float | None
    rule: str
    favored: tuple[str, str] | None

    @property
    def ref(self) -> str:
        return f"{self.line.namespace}/{self.line.name}"


async def eviction_rows(
    site: Site,
    request: Request,
    access: AccessScope,
    *,
    before: int | None = None,
    limit: int = PAGE,
) -> list[EvictionLine]:
    """The latest evictions of visible workloads, newest first."""
    lines = await site.store.evictions(access.namespaces, before=before, limit=limit)
    favored = {uid for line in lines if (uid := _favored(line)) is not None}
    names = await site.store.workload_names(favored) if favored else {}
    redacted_lines = await site.presenter.steps(request, lines)
    return [
        _eviction(redacted, uid, names.get(uid or ""), access)
        for redacted, uid in zip(redacted_lines, map(_favored, lines), strict=True)
    ]


def _favored(line: HistoryLine) -> str | None:
    details = line.reason.details
    found = details.get("preemptor") or details.get("beneficiary")
    return found if isinstance(found, str) else None


def _eviction(
    line: HistoryLine, uid: str | None, name: str | None, access: AccessScope
) -> EvictionLine:
    details = line.reason.details
    visible = name is not None and access.sees(name.partition("/")[0])
    price, gpus = details.get("lostGpuSeconds"), details.get("gpus")
    return EvictionLine(
        line,
        float(price) if isinstance(price, int | float) else None,
        gpus if isinstance(gpus, int | float) else None,
        str(details.get("why") or ""),
        (uid, name) if uid is not None and name is not None and visible else None,
    )


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def log(request: Request) -> Response:
        access = await site.access(request)
        before = whole(request, "before") or None
        found = await eviction_rows(site, request, access, before=before, limit=PAGE + 1)
        return site.page(
            request,
            "evictions.html",
            access,
            evictions=found[:PAGE],
            next_before=found[PAGE - 1].line.id if len(found) > PAGE else None,
            first=before is None,
        )

    return [Route("/evictions", log)]
