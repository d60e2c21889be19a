"""Which namespaces have a LocalQueue ``default``, so that admission puts jobs without a queue into it.

The admission policy cannot ask queuectl; it sees only the namespace. So a label there says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queuectl.domain.queues import DEFAULT_NAME, QueueConfig
from queuectl.domain.records import NamespaceRecord
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL


def mislabelled(
    namespaces: Iterable[NamespaceRecord], config: QueueConfig
) -> Iterator[tuple[str, str | None]]:
    """Namespaces whose label is not as it should be, with what it should be; None = it should not be there."""
    for namespace in namespaces:
        has = dict(namespace.labels).get(DEFAULT_QUEUE_LABEL)
        wanted = "true" if (namespace.name, DEFAULT_NAME) in config.local_queues else None
        if has != wanted:
            yield namespace.name, wanted
