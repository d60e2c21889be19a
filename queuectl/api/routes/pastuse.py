"""Past use, where fairness by usage is configured: what decides between gangs that are otherwise equal."""

# No postponed annotations here: see routes/config.py.

from collections.abc import Iterable
from math import isfinite

from fastapi import APIRouter, Request

from queuectl.api.access import Guard
from queuectl.api.kinds import PREFIX
from queuectl.api.openapi import responses
from queuectl.api.ports import ApiStore
from queuectl.api.schemas import PastUseItem, PastUseView, maybe
from queuectl.domain.pastuse import Scope, Used, past_use
from queuectl.domain.quantity import CPU
from queuectl.domain.queues import QueueConfig
from queuectl.domain.snapshot import PastUse
from queuectl.objects.config import build

PATH = f"{PREFIX}/pastuse"


def add_routes(routes: APIRouter, guard: Guard, store: ApiStore) -> None:
    """Offer the path."""

    @routes.get(
        PATH,
        tags=["Past use"],
        operation_id="listPastUse",
        summary="What LocalQueues, ClusterQueues and users used lately, as last sampled",
        description="Whoever may not get reports in all namespaces sees the LocalQueues of his own.",
        responses=responses(),
    )
    async def list_past_use(request: Request) -> PastUseView:
        seen = await guard.visible(request, "get", "reports", store.namespaces)
        revision, documents = await store.configuration()
        view = _view(await store.past_use(), build(documents, revision))
        if seen is None:
            return view
        return PastUseView(
            as_of=view.as_of, items=[item for item in view.items if item.namespace in seen]
        )


def _view(stored: Iterable[Used], config: QueueConfig) -> PastUseView:
    """All as of the last sample; whoever held anything then was brought up to date by it."""
    rule = config.rules.usage_fairness
    known = tuple(stored) if rule is not None else ()
    at = max((used.at for used in known), default=None)
    used = [one.later(at, {}, rule) for one in known] if at is not None and rule else []
    weighed = past_use(used, config)
    return PastUseView(as_of=maybe(at), items=[_item(one, weighed, config) for one in used])


def _item(used: Used, weighed: PastUse, config: QueueConfig) -> PastUseItem:
    scope, name, namespace, queue = used.account.scope, used.account.name, None, None
    if scope is Scope.LOCAL_QUEUE:
        namespace, _, name = name.partition("/")
        found = config.local_queues.get((namespace, name))
        queue = found.cluster_queue if found is not None else None
        usage = weighed.local_queues.get((namespace, name))
        all_queues = config.local_queues
        peers = [v for k, v in weighed.local_queues.items() if all_queues[k].cluster_queue == queue]
    else:
        uses = weighed.cluster_queues if scope is Scope.CLUSTER_QUEUE else weighed.users
        usage, peers = uses[name], list(uses.values())
    total = sum(filter(isfinite, peers))
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
