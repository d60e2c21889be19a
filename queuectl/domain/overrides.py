"""Quota for a limited time: overrides of the nominal quota of a ClusterQueue.

Active overrides are applied when a configuration is loaded, and at the start and end of each override. Planning and all views of
quota use only the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    LaterQuota,
    QueueConfig,
    QuotaOverride,
)


def in_force(config: QueueConfig, now: float) -> QueueConfig:
    """The configuration with the active overrides applied to its quotas, and without ``overrides``. ``now``: unix seconds.

    The quota that the others give, or leave when they end, is in ``later``. Without overrides, ``config`` itself.
    """
    if not config.overrides:
        return config
    queues = {**config.cluster_queues, **_queues_at(config, now)}
    later = []
    for at in _boundaries(config, now):
        then = {**config.cluster_queues, **_queues_at(config, at)}
        changed = {name: queue for name, queue in then.items() if queue != queues[name]}
        later += [LaterQuota(at, changed)] if changed else []
    return replace(config, cluster_queues=queues, overrides={}, later=tuple(later))


def next_boundary(config: QueueConfig, now: float) -> float | None:
    """The next start or end of an override after ``now``; None if there is none."""
    return next(iter(_boundaries(config, now)), None)


def _boundaries(config: QueueConfig, now: float) -> list[float]:
    """The starts and ends of overrides after ``now``."""
    return sorted({m for o in config.overrides.values() for m in (o.begins, o.ends) if m > now})


def _queues_at(config: QueueConfig, now: float) -> dict[str, ClusterQueue]:
    """By name, the ClusterQueues with an override that is active at ``now``."""
    acting: dict[str, list[QuotaOverride]] = {}
    for override in config.overrides.values():
        if override.acts(now) and override.cluster_queue in config.cluster_queues:
            acting.setdefault(override.cluster_queue, []).append(override)
    return {name: _overridden(config.cluster_queues[name], acting[name]) for name in sorted(acting)}


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
