"""The common parts of all pages: sources, rights of the caller, and rendering.

The rights are checked once per page, and the pages show nothing else. The sources include the snapshot with the quota use, which REST
does not show.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from queuectl.api.access import ANONYMOUS, Guard, caller_of
from queuectl.api.body import Bodies
from queuectl.api.database_check import DatabaseCheck
from queuectl.api.job_efficiency import JobEfficiencies
from queuectl.api.ports import Diagnoser
from queuectl.api.presenter import WorkloadPresenter
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.schemas import ReasonView
from queuectl.api.search import WorkloadSearch
from queuectl.api.subscriptions import Subscriptions
from queuectl.api.usage_history import UsageHistory
from queuectl.db.ports import ApiStore
from queuectl.distribution import version
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.errors import ClusterUnavailable, StoreUnavailable
from queuectl.domain.identity import LONGEST_NAME, Right
from queuectl.domain.jobs import PodRecord
from queuectl.domain.ledger import Entry
from queuectl.domain.links import LinkTemplate
from queuectl.domain.queries import QueueCounts
from queuectl.domain.queues import QueueConfig, in_force
from queuectl.domain.related_jobs import RelatedJobs
from queuectl.domain.search import LONGEST_SEARCH
from queuectl.domain.snapshot import Snapshot
from queuectl.domain.words import printable
from queuectl.objects.configuration.owners import Owner
from queuectl.planner.cache import PlannerCache
from queuectl.web import words
from queuectl.web.log_streams import PodLogs
from queuectl.web.navigation import Feature, menu_of
from queuectl.web.short_reasons import short_reason

# ---- Sources and rights


class DashboardClusterReader(Protocol):
    """The state of the cluster, in each process that watches it. Methods may raise StoreUnavailable."""

    async def cluster_map(self) -> ClusterMap | None:
        """The nodes with their gangs, about a second old at most; None while this process does not know yet."""

    async def pods(self, entry: Entry) -> tuple[PodRecord, ...] | None:
        """A workload's pods, of all its attempts, in no order; None while this process does not know yet."""

    async def checkpoint_at(self, entry: Entry) -> float | None:
        """The time of the last checkpoint that a workload declares (unix seconds); None without one."""

    async def related(self, entry: Entry) -> RelatedJobs | None:
        """The jobs on which a workload depends, and those that depend on it; None without any."""

    @property
    def cache(self) -> PlannerCache:
        """The cache of the planner in this process from call to call."""

    async def current_snapshot(self) -> Snapshot | None:
        """The snapshot that the planner would get, about a second old at most; None while this process does not know yet."""


@dataclass(frozen=True, slots=True)
class AccessScope:
    """The objects that the caller of one request may see.

    Attributes:
        who: user name of the caller.
        namespaces: namespaces whose workloads the caller may list; None = all.
        queues: the caller may list all ClusterQueues; otherwise only those of visible LocalQueues are shown.
        nodes: the caller may list nodes.
        plan: the caller may create plans.
        usage: the caller may get reports, of all namespaces or of a visible one.
        decisions: the caller may list decisions.
        audit: the caller may get the audit log.
        config: the caller may list ClusterQueues, or LocalQueues of a visible namespace.
    """

    who: str
    namespaces: frozenset[str] | None
    queues: bool
    nodes: bool
    plan: bool
    usage: bool
    decisions: bool
    audit: bool
    config: bool

    def sees(self, namespace: str) -> bool:
        """Whether the caller may list the workloads of a namespace."""
        return self.namespaces is None or namespace in self.namespaces

    def tallies(self, tallies: Iterable[QueueCounts]) -> tuple[QueueCounts, ...]:
        """Those of visible namespaces."""
        return tuple(tally for tally in tallies if self.sees(tally.namespace))


async def access_of(
    guard: Guard, request: Request, namespaces: Callable[[], Awaitable[Iterable[str]]]
) -> AccessScope:
    """The rights of the caller. ``namespaces`` is called only where the caller may not list all workloads.

    Raises:
        ClusterUnavailable: the API server cannot review access.
    """

    def may(verb: str, resource: str) -> Awaitable[bool]:
        return guard.may(request, Right(verb, resource))

    visible = await guard.visible(request, "list", "workloads", namespaces)

    async def of_those() -> Iterable[str]:
        return visible if visible is not None else await namespaces()

    async def somewhere(verb: str, resource: str) -> bool:
        return await guard.somewhere(request, verb, resource, of_those)

    queues, nodes, plan, decisions, audit, usage, local_queues = await asyncio.gather(
        may("list", "clusterqueues"),
        may("list", "nodes"),
        may("create", "plans"),
        may("list", "decisions"),
        may("get", "audit"),
        somewhere("get", "reports"),
        somewhere("list", "localqueues"),
    )
    return AccessScope(
        who=caller_of(request).name,
        namespaces=visible,
        queues=queues,
        nodes=nodes,
        plan=plan,
        usage=usage,
        decisions=decisions,
        audit=audit,
        config=queues or local_queues,
    )


# ---- Rendering

PREFIX: Final = "/ui"
ALIVE_SECONDS: Final = 2
"""Between two messages of the event stream of a page: a page shows within 5 seconds that it cannot be refreshed."""
_RIGHTS_SECONDS: Final = (
    2.0  # the page of a problem does not wait longer for the rights of the viewer
)
STATIC: Final = Path(__file__).with_name("static")
_HEADERS: Final = {
    "Cache-Control": "no-store",
    # With no-referrer a browser does not send the origin of a form, and the API refuses the form as foreign.
    "Referrer-Policy": "same-origin",
}
TEMPLATES: Final = Path(__file__).with_name("templates")


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """The address of a static file with its digest, so that browsers can cache the file indefinitely."""
    digest = hashlib.blake2b((STATIC / name).read_bytes(), digest_size=6).hexdigest()
    return f"{PREFIX}/static/{name}?v={digest}"


def _short_reason(reason: ReasonView) -> str:
    """A reason for a row of a list."""
    return short_reason(reason.code, reason.message, reason.details)


def _plain(shown: object) -> object:
    """A value of a template without characters that change the direction of the text around it. Only templates contain markup."""
    return printable(shown) if isinstance(shown, str) and not hasattr(shown, "__html__") else shown


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_plain,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "duration": words.duration,
        "moment": words.moment,
        "clock": words.clock,
        "calendar": words.calendar,
        "day": words.day,
        "relative": words.relative,
        "iso": words.iso,
        "number": words.number,
        "money": words.money,
        "gpu_hours": words.gpu_hours,
        "as_hours": words.as_hours,
        "quantity": words.quantity,
        "glyph": words.glyph,
        "spaced": words.spaced,
        "article": words.article,
        "short_reason": _short_reason,
        "counted": words.counted,
        "counted_gpus": words.counted_gpus,
        "gpu_count": words.gpus,
        "clipped": words.clipped,
        "hours": words.hours,
    }
    environment.globals |= {
        "asset": asset,
        "ui": PREFIX,
        "percent": words.percent,
        "ends": words.ENDS,
        "change": words.change,
        "proof_words": words.PROOF_WORDS,
        "use_words": words.USE_WORDS,
    }
    return environment


def whole(request: Request, name: str) -> int:
    """A whole number in the query of an address; 0 without one, or if it is too large for an id."""
    given = request.query_params.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 19 else 0


def text(request: Request, name: str) -> str:
    """A short text in the query of an address; empty without one."""
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
        search: WorkloadSearch,
        database: DatabaseCheck,
        efficiencies: JobEfficiencies,
        subscriptions: Subscriptions,
        cluster_reader: DashboardClusterReader | None = None,
        diagnoser: Diagnoser | None = None,
        *,
        signs_in: bool = False,
        in_shadow: bool = False,
        owner: Owner = Owner.DATABASE,
        documentation_url: str = "",
        links: Sequence[LinkTemplate] = (),
        pod_logs: PodLogs | None = None,
    ) -> None:
        """``cluster_reader``, ``diagnoser``: None where no controller runs. ``signs_in``: users authenticate.

        ``in_shadow``: this process runs in shadow mode. ``owner``: of the configuration. ``documentation_url``: empty = no link.
        ``links``: to other systems. ``pod_logs``: None = pages show no logs.
        """
        self.search = search
        self.database = database
        self.documentation_url = documentation_url
        self.version = version()
        self.links = links
        self.efficiencies = efficiencies
        self.pod_logs = pod_logs
        self.owner = owner
        self.store = store
        self.guard = guard
        self.clock = clock
        self.bodies = bodies
        self.history = history
        self.subscriptions = subscriptions
        self.presenter = WorkloadPresenter(guard, store, diagnoser)
        self.signs_in = signs_in
        self.in_shadow = in_shadow
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

    async def known_access(self, request: Request) -> AccessScope | None:
        """The rights of the caller for the page of a problem; without any right if they cannot be checked soon.

        None = the caller is not known: users sign in, and this one has not.
        """
        caller = caller_of(request)
        if self.signs_in and caller is ANONYMOUS:
            return None
        try:
            async with asyncio.timeout(_RIGHTS_SECONDS):
                return await self.access(request)
        except (StoreUnavailable, ClusterUnavailable, TimeoutError):
            return AccessScope(
                who=caller.name,
                namespaces=frozenset(),
                queues=False,
                nodes=False,
                plan=False,
                usage=False,
                decisions=False,
                audit=False,
                config=False,
            )

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

    async def checkpoint_at(self, entry: Entry) -> float | None:
        """The time of the last checkpoint that a workload declares (unix seconds); None without one."""
        reader = self._cluster_reader
        return await reader.checkpoint_at(entry) if reader is not None else None

    async def related(self, entry: Entry) -> RelatedJobs | None:
        """The jobs on which a workload depends, and those that depend on it; None without any."""
        reader = self._cluster_reader
        return await reader.related(entry) if reader is not None else None

    async def cluster_map(self) -> ClusterMap | None:
        """The nodes with their gangs; None while this process does not know the cluster."""
        return (
            await self._cluster_reader.cluster_map() if self._cluster_reader is not None else None
        )

    @property
    def _features(self) -> frozenset[Feature]:
        """Those of this process now: the file with the receivers can change."""
        shadow = {Feature.SHADOW} if self.in_shadow else set()
        return frozenset(
            shadow | ({Feature.NOTIFICATIONS} if self.subscriptions.configured else set())
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
        path = request.url.path
        menu = None
        if access is not None:
            below = path.removeprefix(PREFIX)
            menu = menu_of(access, below, signs_in=self.signs_in, features=self._features)
        variables: Mapping[str, Any] = {
            "path": path,
            "menu": menu,
            "searched": "",
            "longest_search": LONGEST_SEARCH,
            "alive_seconds": ALIVE_SECONDS,
            "version": self.version,
            "documentation_url": self.documentation_url,
            "query": request.url.query,
            "access": access,
            "still": still,
            "signs_in": self.signs_in,
            "pod_logs": self.pod_logs is not None,
            "now": self.clock(),
            **context,
        }
        made = self._environment.get_template(template).render(variables)
        return HTMLResponse(made, status, _HEADERS)
