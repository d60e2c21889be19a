"""Quota for a limited time: overrides of the nominal quota of a ClusterQueue.

Active overrides are applied when a configuration is loaded, and at the start and end of each override. Planning and all views of
quota use only the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.queues import ClusterQueue, FlavorQuotas, QueueConfig, QuotaOverride


def in_force(config: QueueConfig, now: float) -> QueueConfig:
    """The configuration with the active overrides applied to its quotas, and without ``overrides``. ``now``: unix seconds.

    Without overrides, ``config`` itself.
    """
    if not config.overrides:
        return config
    queues = dict(config.cluster_queues)
    for name in sorted({override.cluster_queue for override in config.overrides.values()}):
        acting = [o for o in config.overrides.values() if o.cluster_queue == name and o.acts(now)]
        if acting and name in queues:
            queues[name] = _overridden(queues[name], acting)
    return replace(config, cluster_queues=queues, overrides={})


def next_boundary(config: QueueConfig, now: float) -> float | None:
    """The next start or end of an override after ``now``; None if there is none."""
    moments = [m for o in config.overrides.values() for m in (o.begins, o.ends) if m > now]
    return min(moments, default=None)


def _overridden(queue: ClusterQueue, acting: Iterable[QuotaOverride]) -> ClusterQueue:
    by_row: dict[tuple[str, str], list[QuotaOverride]] = {}
    for override in acting:
        by_row.setdefault((override.flavor, override.resource), []).append(override)
    groups = tuple(
        replace(group, flavors=tuple(_flavor(quotas, by_row) for quotas in group.flavors))
        for group in queue.groups
    )
    return replace(queue, groups=groups)


def _flavor(
    quotas: FlavorQuotas, by_row: dict[tuple[str, str], list[QuotaOverride]]
) -> FlavorQuotas:
    nominal, lending = dict(quotas.nominal), dict(quotas.lending)
    for resource, stated in quotas.nominal.items():
        acting = by_row.get((quotas.flavor, resource))
        if not acting:
            continue
        nominal[resource] = _amount(stated, acting)
        if resource in lending:
            lending[resource] = min(lending[resource], nominal[resource])
    return replace(quotas, nominal=nominal, lending=lending)


def _amount(stated: int, acting: Iterable[QuotaOverride]) -> int:
    """The replacement that began last, else the nominal quota, plus the sum of all additions."""
    listed = list(acting)
    instead = [o for o in listed if o.nominal is not None]
    last = max(instead, key=lambda o: (o.begins, o.name), default=None)
    base = last.nominal if last is not None and last.nominal is not None else stated
    return max(0, base + sum(o.add for o in listed))
