"""Updates the label that marks namespaces with a LocalQueue ``default`` for admission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from queuectl.control.ports import Cluster
from queuectl.domain.errors import ClusterError, ObjectGone
from queuectl.domain.queues import QueueConfig
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL
from queuectl.state.defaults import mislabelled
from queuectl.state.mirror import Mirror

log = structlog.get_logger()

POLL_SECONDS = 1.0


async def keep_labels(cluster: Cluster, mirror: Mirror, config: Callable[[], QueueConfig]) -> None:
    """Check periodically until cancelled. A write that fails is repeated by the next check."""
    warned: set[str] = set()
    while True:
        for name, value in list(mislabelled(mirror.namespaces.values(), config())):
            try:
                patch = {"metadata": {"labels": {DEFAULT_QUEUE_LABEL: value}}}
                await cluster.patch_namespace(name, patch)
                warned.discard(name)
            except ObjectGone:
                continue
            except ClusterError as error:
                if name not in warned:
                    log.warning("namespace_not_labeled", namespace=name, error=str(error))
                warned.add(name)
        await asyncio.sleep(POLL_SECONDS)
