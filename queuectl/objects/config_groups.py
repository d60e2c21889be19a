"""Resource groups as they are written: quotas and limits per flavor and resource."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from queuectl.domain.queues import FlavorQuotas, ResourceGroup
from queuectl.objects import config_wire as wire
from queuectl.objects.errors import RequestError
from queuectl.objects.requests import read_amount


def read_groups(
    groups: list[wire.ResourceGroupSpec], *, in_cohort: bool
) -> tuple[ResourceGroup, ...]:
    """The resource groups of a ClusterQueue or a Cohort.

    Args:
        groups: as written.
        in_cohort: whether there is somebody to borrow from and to lend to; limits mean nothing otherwise.

    Raises:
        RequestError: naming field and value.
    """
    read = []
    for i, group in enumerate(groups):
        path = f"spec.resourceGroups[{i}]"
        if not group.covered_resources:
            raise RequestError(f"{path}.coveredResources: is empty")
        if not group.flavors:
            raise RequestError(f"{path}.flavors: is empty")
        flavors = tuple(
            _read_quotas(quotas, group.covered_resources, f"{path}.flavors[{k}]", in_cohort)
            for k, quotas in enumerate(group.flavors)
        )
        read.append(ResourceGroup(tuple(group.covered_resources), flavors))
    path = "spec.resourceGroups"
    once((name for group in read for name in group.covered), f"{path}: resource")
    once((quotas.flavor for group in read for quotas in group.flavors), f"{path}: flavor")
    return tuple(read)


def once(names: Iterable[str], what: str) -> None:
    """Raises RequestError for a name that stands there more often."""
    for name, times in Counter(names).items():
        if times > 1:
            raise RequestError(f"{what} {str(name)!r} stands there {times} times")


def _read_quotas(
    quotas: wire.FlavorQuotasSpec, covered: list[str], path: str, in_cohort: bool
) -> FlavorQuotas:
    nominal: dict[str, int] = {}
    limits: dict[str, dict[str, int]] = {"borrowingLimit": {}, "lendingLimit": {}}
    for k, quota in enumerate(quotas.resources):
        place = f"{path}.resources[{k}]"
        if quota.name in nominal or quota.name not in covered:
            wrong = "stands there twice" if quota.name in nominal else "is not in coveredResources"
            raise RequestError(f"{place}.name: {quota.name!r} {wrong}")
        nominal[quota.name] = _amount(quota.name, quota.nominal_quota, f"{place}.nominalQuota")
        given = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
        for field, limit in given.items():
            if limit is None:
                continue
            amount = _amount(quota.name, limit, f"{place}.{field}")
            if in_cohort:
                limits[field][quota.name] = amount
    missing = [name for name in covered if name not in nominal]
    if missing:
        raise RequestError(f"{path}.resources: {missing[0]!r} of coveredResources is missing")
    return FlavorQuotas(quotas.name, nominal, limits["borrowingLimit"], limits["lendingLimit"])


def _amount(resource: str, text: Any, path: str) -> int:
    try:
        return read_amount(resource, text, round_up=False)
    except RequestError as error:
        raise error.under(path) from None
