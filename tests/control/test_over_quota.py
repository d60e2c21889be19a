"""The running gangs for which another configuration has no quota."""

from __future__ import annotations

from dataclasses import replace

from queuectl.control.questions.diagnosis import excesses
from queuectl.domain.fleet import Fleet, Node
from queuectl.domain.quantity import GPU, Resources
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    QueueConfig,
    ResourceFlavor,
    ResourceGroup,
)
from tests.api.support import running

QUOTA = FlavorQuotas("h100", {GPU: 64})
QUEUE = ClusterQueue("team-a", (ResourceGroup((GPU,), (QUOTA,)),))
CONFIG = QueueConfig(
    cluster_queues={"team-a": QUEUE},
    local_queues={("team-a", "default"): LocalQueue("team-a", "default", "team-a")},
    flavors={"h100": ResourceFlavor("h100", (("gpu", "h100"),))},
)


async def test_running_gangs_are_compared_with_the_quota_from_the_nodes() -> None:
    nodes = Fleet((Node("n", {"gpu": "h100"}, Resources({GPU: 40})),))
    snapshot = replace(running(("old", 1.0), ("new", 2.0)), fleet=nodes)
    assert await excesses(snapshot, CONFIG) == ()
    following = {"team-a": replace(QUEUE, headroom=0.0)}
    (excess,) = await excesses(snapshot, replace(CONFIG, cluster_queues=following))
    assert (excess.used, excess.allowed, excess.gangs) == (64, 40, ("team-a/new",))
