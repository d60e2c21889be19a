"""The audit log: all requests to change something, with caller and result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queuectl.api.problems import ApiProblem
from queuectl.api.routes.audit import workload_names
from queuectl.domain.audit import AuditFilter, AuditLine, AuditWords, result_of, words_of
from queuectl.domain.identity import Right
from queuectl.objects.configuration.config_kinds import PREFIX as API
from queuectl.web.configuration import HOME, address_of, key_of
from queuectl.web.site import PREFIX, Site, text, whole

PAGE: Final = 100
_WORKLOAD: Final = re.compile(rf"{API}/workloads/([^/]+)(?:/.*)?")
_NAMED: Final = re.compile(rf"{API}/namespaces/([^/]+)/workloads/([^/]+)(?:/.*)?")
_LOG: Final = re.compile(rf"{PREFIX}/workloads/([^/]+)/pods/[^/]+/logs")
_NOTIFICATIONS: Final = re.compile(rf"{API}/(receivers|subscriptions)/.+|{PREFIX}/notifications/.+")
_LOCAL: Final = re.compile(rf"{API}/namespaces/([^/]+)/([^/]+)/([^/]+)")

_STOP: Final = re.compile(r"/(stop|resume|topups)$")
_SIGNS: Final = {"done": "✓", "accepted": "✓", "refused": "×", "failed": "×"}


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A line in words.

    Attributes:
        address: of the page of the object; empty without one.
        sign, word: of the result. ``detail``: why it was refused, or what it changed.
    """

    line: AuditLine
    words: AuditWords
    address: str
    sign: str
    word: str
    detail: str

    @property
    def succeeded(self) -> bool:
        """Whether it took effect, or will."""
        return self.sign == "✓"


def _row(line: AuditLine, names: Mapping[str, str]) -> AuditRow:
    words = words_of(line.operation, line.method, line.path, names)
    word, _, detail = result_of(line.status, line.detail).partition(": ")
    address = page_of(line.path) if words.target else None
    sign = _SIGNS.get(word, "◔")
    return AuditRow(line, words, address or "", sign, word, detail)


def routes(site: Site) -> list[Route]:
    """Offer the page."""

    async def log(request: Request) -> Response:
        await site.guard.require(request, Right("get", "audit"))
        asked = {name: text(request, name) for name in ("caller", "path")}
        before = whole(request, "before") or None
        wanted = AuditFilter(asked["caller"] or None, asked["path"] or None, before=before)
        found = await site.store.audit.lines(wanted, PAGE + 1)
        names = await workload_names(site.store, found[:PAGE])
        return site.page(
            request,
            "audit.html",
            await site.access(request),
            asked=asked,
            rows=[_row(line, names) for line in found[:PAGE]],
            next_before=found[PAGE - 1].id if len(found) > PAGE else None,
            first=before is None,
        )

    return [Route("/audit", log)]


def page_of(path: str) -> str | None:
    """The page of the object of a request; None without one."""
    if found := _WORKLOAD.fullmatch(path) or _LOG.fullmatch(path):
        return f"{PREFIX}/workloads/{quote(found[1], safe='')}"
    if found := _NAMED.fullmatch(path):
        return f"{PREFIX}/workloads?q={quote(f'{found[1]}/{found[2]}')}"
    if _NOTIFICATIONS.fullmatch(path):
        return f"{PREFIX}/notifications"
    return _object_page(path.partition("?")[0])


def _object_page(path: str) -> str | None:
    """The page of a configuration object, for requests to the API and for forms of the page."""
    path = _STOP.sub("", path)
    local = _LOCAL.fullmatch(path)
    part = f"{local[2]}/{local[1]}/{local[3]}" if local else path.removeprefix(f"{API}/")
    try:
        return address_of(key_of(part.removeprefix(f"{HOME}/")))
    except ApiProblem:
        return None
