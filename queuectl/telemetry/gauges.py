"""Conversion of counts and amounts to gauges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from queuectl.domain.quantity import CPU

Series: TypeAlias = tuple[tuple[str, ...], float]
"""Label values and the number."""

_MILLI = 1000


def gauge(name: str, text: str, labels: tuple[str, ...], series: Iterable[Series]) -> Metric:
    """A gauge with the prefix ``queuectl_``, and its series in the order of their labels."""
    family = GaugeMetricFamily(f"queuectl_{name}", text, labels=labels)
    for values, number in sorted(series):
        family.add_metric(values, number)
    return family


def in_units(resource: str, amount: int) -> float:
    """An amount in Kubernetes' unit: cores, bytes or devices."""
    return amount / _MILLI if resource == CPU else float(amount)
