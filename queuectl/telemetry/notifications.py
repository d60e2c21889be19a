"""Metrics of the delivery of events. The names of receivers, which an administrator sets, bound the number of series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

_COUNTERS: Final = {
    "delivered": "Events that a receiver took.",
    "failed": "Attempts to send a message that failed. They are repeated.",
    "refused": "Messages that a receiver, or the check of a message, refused for good.",
    "dropped": "Events beyond the bounds of a receiver, which it does not get.",
}


class NotificationMetrics:
    """Counts the deliveries of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(
                f"queuectl_notifications_{name}_total", text, ["receiver"], registry=registry
            )
            for name, text in _COUNTERS.items()
        }
        self._delay = Gauge(
            "queuectl_notification_delay_seconds",
            "Age of the oldest event that a receiver has not got; for a digest, beyond the time when it was due.",
            ["receiver"],
            registry=registry,
        )
        self._receivers: set[str] = set()

    def meet(self, receivers: Iterable[str]) -> None:
        """Create the series of these receivers with 0, and remove those of all others."""
        names = set(receivers)
        for name in names - self._receivers:
            for counter in self._counters.values():
                counter.labels(name)
            self._delay.labels(name)
        for name in self._receivers - names:
            for metric in (*self._counters.values(), self._delay):
                metric.remove(name)
        self._receivers = names

    def delivered(self, receiver: str, events: int) -> None:
        """Count delivered events."""
        self._count("delivered", receiver, events)

    def failed(self, receiver: str, attempts: int) -> None:
        """Count failed attempts."""
        self._count("failed", receiver, attempts)

    def refused(self, receiver: str, messages: int) -> None:
        """Count messages that are skipped."""
        self._count("refused", receiver, messages)

    def dropped(self, receiver: str, events: int) -> None:
        """Count events that are dropped."""
        self._count("dropped", receiver, events)

    def delayed(self, seconds: Mapping[str, float]) -> None:
        """Show the delay by receiver, in seconds; 0 for the others."""
        for name in self._receivers:
            self._delay.labels(name).set(seconds.get(name, 0.0))

    def _count(self, name: str, receiver: str, amount: int) -> None:
        if amount and receiver in self._receivers:
            self._counters[name].labels(receiver).inc(amount)
