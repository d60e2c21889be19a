"""The chart of the last 24 hours, of what the caller may see."""

from __future__ import annotations

from starlette.requests import Request

from queuectl.domain.usage_reports import QueueHour
from queuectl.web.access_scope import AccessScope
from queuectl.web.history_chart import HOURS, Chart, chart_of
from queuectl.web.site import Site


async def usage_chart(
    site: Site, request: Request, access: AccessScope, cluster_queue: str = "", queue: str = ""
) -> Chart | None:
    """The chart of all queues, of a ClusterQueue, or of a LocalQueue. May raise StoreUnavailable and ClusterUnavailable.

    Args:
        site: where the pages read.
        request: of the caller.
        access: of the caller.
        cluster_queue: its name; empty = all.
        queue: namespace and name of a LocalQueue, as ``namespace/name``; empty = all.

    Returns:
        None where the caller may not get reports, or no hour is accounted for.
    """
    if not access.usage:
        return None
    seen = await site.guard.visible(request, "get", "reports", site.store.namespaces)

    def wanted(row: QueueHour) -> bool:
        return (
            (seen is None or row.namespace in seen)
            and cluster_queue in ("", row.cluster_queue)
            and queue in ("", f"{row.namespace}/{row.queue}")
        )

    everything = seen is None and not cluster_queue and not queue and access.nodes
    return chart_of(await site.history.points(site.clock(), HOURS + 1, wanted, capacity=everything))
