"""Orders the flavors of a ClusterQueue with ``flavorOrder: Cheapest`` by the prices of the Configuration."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from queuectl.domain.queues import ClusterQueue, FlavorOrder, QueueConfig


def by_price(queue: ClusterQueue, config: QueueConfig) -> ClusterQueue:
    """The ClusterQueue with the cheapest flavor of each resource group first. The order of the list decides between equal prices.

    A flavor has the first price of the accounting that holds for its name, its node labels and those of its ``nodeTemplate``.
    """
    if queue.flavor_order is not FlavorOrder.CHEAPEST:
        return queue
    names = dict.fromkeys(quotas.flavor for group in queue.groups for quotas in group.flavors)
    prices = {name: _price(name, config) for name in names}

    def cost(name: str) -> float:
        price = prices[name]
        return inf if price is None else price

    groups = tuple(
        replace(group, flavors=tuple(sorted(group.flavors, key=lambda one: cost(one.flavor))))
        for group in queue.groups
    )
    shown = tuple((name, prices[name]) for name in sorted(names, key=cost))
    return replace(queue, groups=groups, flavor_prices=shown)


def _price(name: str, config: QueueConfig) -> float | None:
    """Of a GPU hour."""
    flavor = config.flavors.get(name)
    labels = dict(flavor.node_labels) if flavor is not None else {}
    if flavor is not None and flavor.node_template is not None:
        labels |= dict(flavor.node_template.labels)
    price = config.rules.accounting.price(name, labels)
    return price.gpu_hour if price is not None else None
