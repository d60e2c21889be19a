"""Namespaces with a LocalQueue ``default``, into which the admission policy puts jobs without a queue.

The admission policy reads only the namespace, thus a label on the namespace marks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queuectl.domain.queues import DEFAULT_NAME, QueueConfig
from queuectl.domain.records import NamespaceRecord
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL


def mislabeled(
    namespaces: Iterable[NamespaceRecord], config: QueueConfig
) -> Iterator[tuple[str, str | None]]:
    """Namespaces with a wrong label, each with the right value; None = without the label."""
    for namespace in namespaces:
        has = dict(namespace.labels).get(DEFAULT_QUEUE_LABEL)
        wanted = "true" if (namespace.name, DEFAULT_NAME) in config.local_queues else None
        if has != wanted:
            yield namespace.name, wanted
