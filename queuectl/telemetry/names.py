"""Which names may be values of labels: those of objects that exist. Everything else is a text that any user can make up."""

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
    """The names of one configuration after the other; while none is known all names count."""

    def __init__(self, config: Callable[[], QueueConfig | None]) -> None:
        self._config = config
        self._shown = QueueConfig()
        self._metrics: list[MetricWrapperBase] = []
        self._removed: Callable[[], None] = lambda: None

    def watch(self, metrics: Iterable[Collector], removed: Callable[[], None]) -> None:
        """Series of these metrics are removed when the object that they name is gone; then ``removed`` is called."""
        self._metrics = [one for one in metrics if isinstance(one, MetricWrapperBase)]
        self._removed = removed

    def change(self, change: EntryChange) -> EntryChange:
        """The same, without names of queues that do not exist."""
        self.forget()
        after = self._entry(change.after)
        before = self._entry(change.before) if change.before is not None else None
        if after is change.after and before is change.before:
            return change
        return replace(change, before=before, after=after)

    def cluster_queue(self, name: str) -> str:
        """The name of a ClusterQueue; empty where there is none."""
        config = self._config()
        return name if config is None or name in config.cluster_queues else ""

    def local_queue(self, namespace: str, name: str) -> tuple[str, str]:
        """Namespace and name of a LocalQueue; empty where there is none."""
        config = self._config()
        known = config is None or (namespace, name) in config.local_queues
        return (namespace, name) if known else ("", "")

    def forget(self) -> None:
        """Remove the series of objects that are gone."""
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
        """It shows nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Nothing; what is gone is not scraped. This is why it is registered before the others."""
        self.forget()
        return iter(())

    def _entry(self, entry: Entry) -> Entry:
        queue = self.cluster_queue(entry.cluster_queue)
        local = self.local_queue(entry.namespace, entry.queue)
        if (queue, *local) == (entry.cluster_queue, entry.namespace, entry.queue):
            return entry
        return replace(entry, cluster_queue=queue, namespace=local[0], queue=local[1])


def _labels(config: QueueConfig) -> Iterator[_Labels]:
    """What says that a series is of an object."""
    for name in config.cluster_queues:
        yield (("cluster_queue", name),)
    for namespace, name in config.local_queues:
        yield (("name", name), ("namespace", namespace))
    for name in config.priority_classes:
        yield (("priority_class", name),)
    for name in config.cohorts:
        yield (("cohort", name),)
