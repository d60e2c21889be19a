"""Past use, if fair sharing by past use is configured. It decides between gangs that are otherwise equal."""

# No postponed annotations here: see routes/config.py.

from collections import defaultdict
from collections.abc import Collection, Iterable
from math import isfinite

from fastapi import APIRouter, Request

from queuectl.api.access import Guard
from queuectl.api.openapi import responses
from queuectl.api.problems import ProblemType
from queuectl.api.reading import CurrentConfiguration
from queuectl.api.schemas import PastUseItem, PastUseView, maybe
from queuectl.db.ports import ApiStore
from queuectl.domain.pastuse import AccountScope, Used, past_use
from queuectl.domain.quantity import CPU
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import PastUse
from queuectl.objects.configuration.config_kinds import PREFIX

PATH = f"{PREFIX}/pastuse"


def add_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, stated: CurrentConfiguration
) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        tags=["Past use"],
        operation_id="listPastUse",
        summary="The past use of LocalQueues, ClusterQueues and users, as last sampled",
        description="A caller that can get reports in some namespaces only sees the LocalQueues of these namespaces.",
        responses=responses(ProblemType.NOT_KNOWN_YET),
    )
    async def list_past_use(request: Request) -> PastUseView:
        seen = await guard.visible(request, "get", "reports", store.namespaces)
        if seen is not None and not seen:
            return PastUseView(as_of=None, items=[])
        return _view(await store.past_use(), await stated.config(), seen)


def _view(
    stored: Iterable[Used], config: QueueConfig, visible: Collection[str] | None
) -> PastUseView:
    """The past use at the last sample, which updates each account with current use."""
    rule = config.rules.usage_fairness
    known = tuple(stored) if rule is not None else ()
    at = max((used.at for used in known), default=None)
    used = [one.later(at, {}, rule) for one in known] if at is not None and rule else []
    weighed = _Weighed(past_use(used, config), config)
    items = [_item(one, weighed, config) for one in used]
    shown = items if visible is None else [item for item in items if item.namespace in visible]
    return PastUseView(as_of=maybe(at), items=shown)


class _Weighed:
    """The past use of each account, with the total of the accounts with which it is compared."""

    def __init__(self, use: PastUse, config: QueueConfig) -> None:
        self.use = use
        self.clusterwide = _sum(use.cluster_queues.values())
        self.users = _sum(use.users.values())
        self.within: defaultdict[str, float] = defaultdict(
            float
        )  # by ClusterQueue, of its LocalQueues
        for place, usage in use.local_queues.items():
            self.within[config.local_queues[place].cluster_queue] += _sum([usage])


def _sum(uses: Iterable[float]) -> float:
    return sum(filter(isfinite, uses))


def _item(used: Used, weighed: _Weighed, config: QueueConfig) -> PastUseItem:
    scope, name, namespace, queue = used.account.scope, used.account.name, None, None
    if scope is AccountScope.LOCAL_QUEUE:
        namespace, _, name = name.partition("/")
        found = config.local_queues.get((namespace, name))
        queue = found.cluster_queue if found is not None else None
        usage = weighed.use.local_queues.get((namespace, name))
        total = weighed.within.get(queue, 0.0) if queue is not None else 0.0
    elif scope is AccountScope.CLUSTER_QUEUE:
        usage, total = weighed.use.cluster_queues[name], weighed.clusterwide
    else:
        usage, total = weighed.use.users[name], weighed.users
    counts = usage is not None and isfinite(usage)
    return PastUseItem(
        scope=scope,
        namespace=namespace,
        name=name,
        cluster_queue=queue,
        resources={r: a / 1000 if r == CPU else a for r, a in sorted(used.amounts.items())},
        usage=usage if counts else None,
        share=usage / total if usage is not None and counts and total else None,
    )
