"""The names that are allowed as label values: those of existing objects. Users can invent any other name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from queuectl.domain.ledger import Entry, EntryChange
from queuectl.domain.queues import QueueConfig

_Labels: TypeAlias = tuple[tuple[str, str], ...]


class KnownNames(Collector):
    """The names of the current configuration. Before the first configuration, all names are allowed."""

    def __init__(self, config: Callable[[], QueueConfig | None]) -> None:
        self._config = config
        self._shown = QueueConfig()
        self._metrics: list[MetricWrapperBase] = []
        self._removed: Callable[[], None] = lambda: None

    def watch(self, metrics: Iterable[Collector], removed: Callable[[], None]) -> None:
        """Remove the series of deleted objects from these metrics, and call ``removed`` after that."""
        self._metrics = [one for one in metrics if isinstance(one, MetricWrapperBase)]
        self._removed = removed

    def change(self, change: EntryChange) -> EntryChange:
        """The change without names of queues that do not exist."""
        self.forget()
        after = self._entry(change.after)
        before = self._entry(change.before) if change.before is not None else None
        if after is change.after and before is change.before:
            return change
        return replace(change, before=before, after=after)

    def cluster_queue(self, name: str) -> str:
        """The name of a ClusterQueue; empty if it does not exist."""
        config = self._config()
        return name if config is None or name in config.cluster_queues else ""

    def local_queue(self, namespace: str, name: str) -> tuple[str, str]:
        """Namespace and name of a LocalQueue; empty if it does not exist."""
        config = self._config()
        known = config is None or (namespace, name) in config.local_queues
        return (namespace, name) if known else ("", "")

    def forget(self) -> None:
        """Remove the series of deleted objects."""
        config, shown = self._config(), self._shown
        if config is None or config is shown:
            return
        self._shown = config
        gone = set(_labels(shown)) - set(_labels(config))
        if not gone:
            return
        self._removed()
        for metric in self._metrics:
            for labels in gone:
                if all(name in metric._labelnames for name, _ in labels):
                    metric.remove_by_labels(dict(labels))

    def describe(self) -> list[Metric]:
        """This collector has no metrics."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Remove series before the other collectors are scraped: this collector is registered first."""
        self.forget()
        return iter(())

    def _entry(self, entry: Entry) -> Entry:
        queue = self.cluster_queue(entry.cluster_queue)
        local = self.local_queue(entry.namespace, entry.queue)
        if (queue, *local) == (entry.cluster_queue, entry.namespace, entry.queue):
            return entry
        return replace(entry, cluster_queue=queue, namespace=local[0], queue=local[1])


def _labels(config: QueueConfig) -> Iterator[_Labels]:
    """The labels that identify the series of an object."""
    for name in config.cluster_queues:
        yield (("cluster_queue", name),)
    for namespace, name in config.local_queues:
        yield (("name", name), ("namespace", namespace))
    for name in config.priority_classes:
        yield (("priority_class", name),)
    for name in config.cohorts:
        yield (("cohort", name),)
