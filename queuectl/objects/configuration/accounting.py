"""Block ``queuectl.accounting`` of kind ``Configuration``: labels, prices and retention of the usage ledger."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from queuectl.domain.accounting import Accounting, Price
from queuectl.domain.gpus import GpuWeights, exact
from queuectl.objects.configuration import settings_wire as wire
from queuectl.objects.configuration.groups import once
from queuectl.objects.errors import RequestError
from queuectl.objects.names import is_label_key

_PATH: Final = "queuectl.accounting"
_MOST_GPUS: Final = 10**9
_MOST_LABELS: Final = 16  # each is stored with every workload


def read_accounting(asked: wire.AccountingSettings | None) -> Accounting:
    """Raises RequestError naming field and value."""
    if asked is None:
        return Accounting()
    labels = tuple(asked.labels or ())
    if len(labels) > _MOST_LABELS:
        raise RequestError(f"{_PATH}.labels: at most {_MOST_LABELS} are allowed")
    for field, key in (("userLabel", asked.user_label), *(("labels", key) for key in labels)):
        if key is not None and not is_label_key(key):
            raise RequestError(f"{_PATH}.{field}: {key!r} is not a label key")
    weights = asked.gpu_weights or {}
    for resource in weights:
        if not is_label_key(resource):
            raise RequestError(f"{_PATH}.gpuWeights: {resource!r} is not a resource name")
    given = {resource: _weight(resource, weight) for resource, weight in weights.items()}
    prices = asked.prices or []
    once((price.name for price in prices), f"{_PATH}.prices: name")
    return Accounting(
        user_label=asked.user_label,
        labels=labels,
        prices=tuple(_price(price, f"{_PATH}.prices[{i}]") for i, price in enumerate(prices)),
        currency=asked.currency or Accounting().currency,
        keep_days=asked.keep_days or Accounting().keep_days,
        gpus=GpuWeights(tuple(sorted(given.items()))),
    )


def _weight(resource: str, asked: float | str) -> Fraction:
    try:
        weight = exact(asked)
    except (ValueError, ZeroDivisionError):
        weight = Fraction(-1)
    if not 0 <= weight <= _MOST_GPUS:
        raise RequestError(
            f"{_PATH}.gpuWeights.{resource}: {asked!r} is not a number or fraction from 0 to {_MOST_GPUS:,}"
        )
    return weight


def _price(asked: wire.PriceSpec, path: str) -> Price:
    if not asked.name:
        raise RequestError(f"{path}.name: is empty")
    for key in asked.node_labels or {}:
        if not is_label_key(key):
            raise RequestError(f"{path}.nodeLabels: {key!r} is not a label key")
    return Price(
        asked.name, asked.gpu_hour, asked.flavor, tuple(sorted((asked.node_labels or {}).items()))
    )
