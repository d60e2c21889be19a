"""The sources, the rights of the caller and the rendering that all pages share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from queuectl.api.access import Guard
from queuectl.api.body import Bodies
from queuectl.api.current_configuration import CurrentConfiguration
from queuectl.api.ports import Diagnoser
from queuectl.api.presenter import WorkloadPresenter
from queuectl.api.usage_history import UsageHistory
from queuectl.db.ports import ApiStore
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.identity import LONGEST_NAME
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.queues import QueueConfig, in_force
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import counted, counted_gpus
from queuectl.planner.cache import PlannerCache
from queuectl.web import words
from queuectl.web.access_scope import AccessScope, access_of
from queuectl.web.ports import ClusterReader

PREFIX: Final = "/ui"
STATIC: Final = Path(__file__).with_name("static")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # With no-referrer a browser does not send the origin of a form, and the API refuses the form as foreign.
    "Referrer-Policy": "same-origin",
}
TEMPLATES: Final = Path(__file__).with_name("templates")


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """The address of a static file with its digest, so that browsers can cache the file without limit."""
    digest = hashlib.blake2b((STATIC / name).read_bytes(), digest_size=6).hexdigest()
    return f"{PREFIX}/static/{name}?v={digest}"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "duration": words.duration,
        "moment": words.moment,
        "clock": words.clock,
        "decimals": words.decimals,
        "iso": words.iso,
        "number": words.number,
        "money": words.money,
        "gpu_hours": words.gpu_hours,
        "quantity": words.quantity,
        "glyph": words.glyph,
        "spaced": words.spaced,
        "article": words.article,
        "counted": counted,
        "counted_gpus": counted_gpus,
        "gpu_count": words.gpus,
    }
    environment.globals |= {
        "asset": asset,
        "ui": PREFIX,
        "percent": words.percent,
        "proof_words": words.PROOF_WORDS,
        "use_words": words.USE_WORDS,
    }
    return environment


def whole(request: Request, name: str) -> int:
    """A whole number in the query of an address; 0 where there is none, or it is too large for an id."""
    given = request.query_params.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 19 else 0


def text(request: Request, name: str) -> str:
    """A short text in the query of an address; empty where there is none."""
    return request.query_params.get(name, "").replace("\0", "").strip()[:LONGEST_NAME]


class Site:
    """The sources of the pages; each call may raise StoreUnavailable."""

    def __init__(
        self,
        store: ApiStore,
        guard: Guard,
        clock: Callable[[], float],
        bodies: Bodies,
        stated: CurrentConfiguration,
        history: UsageHistory,
        cluster_reader: ClusterReader | None = None,
        diagnoser: Diagnoser | None = None,
        *,
        signs_in: bool = False,
    ) -> None:
        """``cluster_reader``, ``diagnoser``: None where no controller runs. ``signs_in``: users authenticate."""
        self.store = store
        self.guard = guard
        self.clock = clock
        self.bodies = bodies
        self.history = history
        self.presenter = WorkloadPresenter(guard, store, diagnoser)
        self.signs_in = signs_in
        self.diagnoser = diagnoser
        self._cluster_reader = cluster_reader
        self.cache = cluster_reader.cache if cluster_reader is not None else PlannerCache()
        self._environment = _environment()
        self._stated = stated

    async def config(self) -> QueueConfig:
        """The configuration in force now, with the quota overrides of this time."""
        return in_force(await self._stated.config(), self.clock())

    async def access(self, request: Request) -> AccessScope:
        """The rights of the caller. May raise ClusterUnavailable."""
        return await access_of(self.guard, request, self.store.namespaces)

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot that the planner would get now; None while this process does not know the cluster."""
        return (
            await self._cluster_reader.current_snapshot()
            if self._cluster_reader is not None
            else None
        )

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """The pods of a workload; None while this process does not know the cluster."""
        return await self._cluster_reader.pods(entry) if self._cluster_reader is not None else None

    async def cluster_map(self) -> ClusterMap | None:
        """The nodes with their gangs; None while this process does not know the cluster."""
        return (
            await self._cluster_reader.cluster_map() if self._cluster_reader is not None else None
        )

    def page(
        self,
        request: Request,
        template: str,
        access: AccessScope | None = None,
        *,
        status: int = 200,
        still: bool = False,
        **context: Any,
    ) -> HTMLResponse:
        """A page.

        Args:
            request: of the caller.
            template: its name.
            access: None = a page that needs no right, without links to the other pages.
            status: of the answer.
            still: the page is not refreshed, because the user types in it.
            context: the values that the template shows.
        """
        given: Mapping[str, Any] = {
            "path": request.url.path,
            "query": request.url.query,
            "access": access,
            "still": still,
            "signs_in": self.signs_in,
            "now": self.clock(),
            **context,
        }
        made = self._environment.get_template(template).render(given)
        return HTMLResponse(made, status, _HEADERS)
